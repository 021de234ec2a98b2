"""The frame of every page: title, navigation, the parts that are always visible, and the page of a failure."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st

from .parts import access, charts, links, source, states
from .parts.header import header
from .views import audit, before_after, board, changes, evidence, explorer, loads

ICON = Path(__file__).parent / "parts" / "icon.svg"  # an icon by name would be fetched from the network


def draw() -> None:
    """One run of the script: the page that the address names."""
    with states.show_errors():
        settings = source.config().dashboard
        st.set_page_config(page_title=settings.title, page_icon=str(ICON), layout="wide")
        st.html(f"<style>{_style_sheet()}</style>")
        who = access.admit()
        if who is None:
            return
        chosen = st.navigation(_pages(), position="top")
        source.store()
        access.banner(who, settings.access)
        header(settings)
        with states.show_errors():
            page = chosen.url_path or "board"  # the root is the board
            links.resume(page)
            chosen.run()
            links.keep_address(page)
            charts.offer_files()


def _pages() -> list[st.Page]:
    """Every page, in the order of the navigation.  The first is the root, and found by its name as well."""
    root = st.Page(board.page, title="Board", icon=":material/dashboard:", default=True)

    def by_name() -> None:
        st.switch_page(root, query_params=st.query_params.to_dict())

    return [
        root,
        st.Page(evidence.page, title="Evidence", url_path="evidence", icon=":material/query_stats:"),
        st.Page(explorer.page, title="Explorer", url_path="explorer", icon=":material/grid_on:"),
        st.Page(loads.page, title="Load and what-if", url_path="loads", icon=":material/speed:"),
        st.Page(changes.page, title="Changes", url_path="changes", icon=":material/history:"),
        st.Page(before_after.page, title="Before and after", url_path="before-after", icon=":material/compare_arrows:"),
        st.Page(audit.page, title="Audit", url_path="audit", icon=":material/gavel:"),
        st.Page(by_name, title="Board", url_path="board", visibility="hidden"),
    ]


@cache
def _style_sheet() -> str:
    """The dashboard's style sheet, beside the theme in `.streamlit/config.toml`."""
    return (Path(__file__).parent / "parts" / "style.css").read_text(encoding="utf-8")
