"""Addresses of views: every selection stands in the query, so that a link shows what its sender saw."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

import streamlit as st

_PAGES = "pages_by_address"  # in the session


def asked(name: str) -> str | None:
    """What the address says of a parameter; None where it says nothing."""
    return st.query_params.get(name) or None


def address(page: str, **parameters: object) -> str:
    """The address of a page with these parameters; what is None or empty is left out."""
    given: Mapping[str, str] = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
    return page + (f"?{urlencode(given)}" if given else "")


def know(pages: Mapping[str, st.Page]) -> None:
    """Keep the pages of this run, by their address."""
    st.session_state[_PAGES] = pages


def go(page: str, **parameters: object) -> None:
    """Leave for another page, without loading anything anew; what is None or empty is left out."""
    given = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
    st.switch_page(st.session_state[_PAGES][page], query_params=given)
