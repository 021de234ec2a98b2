"""The evidence page's section on prompt lengths."""

from __future__ import annotations

from datetime import timedelta

import streamlit as st

from shadowspec.reports.content.tables import contexts_table
from shadowspec.reports.pages.board import BoardRow
from shadowspec.text import plural

from . import formats, queries, source
from .tables import show_grid


def draw(row: BoardRow, window: timedelta | None) -> None:
    """Acceptance, speedup and cache by the length of the prompt; read when it is asked for."""
    st.markdown("## By length of the prompt", help=formats.definition("by-context"))
    if not st.toggle(
        "Show", key="by_context", bind="query-params", help="Reads single requests of the window, newest first."
    ):
        return
    since = source.window_start(queries.hours(row.endpoint), window)
    contexts, num_runs = queries.context_rows(
        row.endpoint, row.slice_key or None, row.fingerprint, row.concurrency, since
    )
    if not contexts:
        st.caption("No single request of this window is stored. Choose a longer window, or measure more traffic.")
        return
    show_grid(contexts_table(contexts))
    st.caption(f"The newest {plural(num_runs, 'run')} of the window. Cache: the KV cache of one request at its end.")
