"""The evidence page's section on prompt lengths."""

from __future__ import annotations

from datetime import timedelta

import streamlit as st

from shadowspec.reports.pages.board import BoardRow
from shadowspec.text import DASH, byte_size, number, percent, plural, times

from . import charts, formats, queries, source


def draw(row: BoardRow, window: timedelta | None) -> None:
    """Acceptance, speedup and cache by the length of the prompt; read when it is asked for."""
    st.markdown("## By length of the prompt", help=formats.definition("by-context"))
    if not st.toggle(
        "Show", key="by_context", bind="query-params", help="Reads single requests of the window, newest first."
    ):
        return
    since = source.window_start(queries.hours(row.endpoint), window)
    found, num_runs = queries.context_rows(row.endpoint, row.slice_key or None, row.fingerprint, row.concurrency, since)
    if not found:
        st.caption("No single request of this window is stored. Choose a longer window, or measure more traffic.")
        return
    st.dataframe(
        charts.frame(
            [
                {
                    "Prompt tokens": each.name,
                    "Requests": each.num_requests,
                    "Tokens per step": number(each.mean_acceptance_length),
                    "1st position": percent(each.first_position_acceptance_rate),
                    "Ratio of total times": times(each.ratio_of_total_times),
                    "Cache, baseline": _bytes(each.baseline_cache_bytes),
                    "Cache, speculative": _bytes(each.speculative_cache_bytes),
                }
                for each in found
            ]
        ),
        hide_index=True,
        column_config={
            "Tokens per step": st.column_config.TextColumn(help=formats.definition("mean-length")),
            "1st position": st.column_config.TextColumn(help=formats.definition("first-position")),
            "Ratio of total times": st.column_config.TextColumn(help=formats.definition("total-times")),
        },
    )
    st.caption(f"The newest {plural(num_runs, 'run')} of the window. Cache: the KV cache of one request at its end.")


def _bytes(value: float | None) -> str:
    return DASH if value is None else byte_size(int(value))
