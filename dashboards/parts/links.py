"""Addresses of views: every selection is in the query, so that a link shows what its sender saw."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

import streamlit as st

# What a page writes into its address itself, rather than through a widget that is bound to it.
OWN_NAMES: Mapping[str, tuple[str, ...]] = {
    "board": ("open",),
    "evidence": ("endpoint", "slice", "load", "config"),
    "before-after": ("decision",),
}
_LAST, _LEFT = "page_drawn", "addresses_left"  # in the session: the page on the screen, and what each said at last


def query_value(name: str) -> str | None:
    """What the address says of a parameter; None where it says nothing."""
    return st.query_params.get(name) or None


def address(page: str, **parameters: object) -> str:
    """The address of a page with these parameters; what is None or empty is left out."""
    given: Mapping[str, str] = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
    return page + (f"?{urlencode(given)}" if given else "")


def resume(page: str) -> None:
    """Give the address of a page that is come to again what it said when it was left; once at the top of a run.

    Streamlit does so for what widgets write into it.  An address that says something itself is left as it is.
    """
    last, st.session_state[_LAST] = st.session_state.get(_LAST), page
    names = OWN_NAMES.get(page, ())
    if last == page or any(name in st.query_params for name in names):
        return
    if said := st.session_state.get(_LEFT, {}).get(page):
        st.query_params.update(said)  # at once: each change of the address is a step of the browser's history


def keep_address(page: str) -> None:
    """Keep what the address of a page says; once at the end of a run."""
    names = OWN_NAMES.get(page, ())
    said = {name: st.query_params[name] for name in names if name in st.query_params}
    st.session_state[_LEFT] = {**st.session_state.get(_LEFT, {}), page: said}
