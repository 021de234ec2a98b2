"""The queue that each arm would have under the recorded arrivals: derived, beside what was measured and predicted."""

from __future__ import annotations

import streamlit as st

from shadowspec.reports.queue_words import DERIVED, HEAD, QUEUE_NOTE, queue_basis, queue_cells_text
from shadowspec.reports.queues import BUSY
from shadowspec.words import plain_text

from . import charts, queries, words


def draw(endpoint: str) -> None:
    """The whole endpoint's queues: its slices wait in one line."""
    st.markdown("#### Derived queue times", help=words.definition("derived-queue"))
    tried = st.slider(
        "Traffic: share of the time that the baseline is busy, %",
        5,
        99,
        80,
        key="busy",
        bind="query-params",
        help="The recorded arrivals, as much faster or slower as that takes.",
    )
    cells = queries.queue_cells(endpoint, tuple(sorted({*BUSY, tried / 100})))
    if not cells:
        st.caption("Nothing was timed here, so that no queue can be derived.")
        return
    st.info(f"**{DERIVED}** {QUEUE_NOTE}", icon=":material/hourglass_top:")
    rows = [queue_cells_text(cell, row) for cell in cells for row in cell.rows]
    if rows:
        st.dataframe(
            charts.frame([dict(zip(HEAD, map(plain_text, row), strict=True)) for row in rows]), hide_index=True
        )
    st.caption("The whole endpoint, whichever slice is chosen: its slices wait in one line.")
    st.markdown("\n".join(f"- {plain_text(queue_basis(cell))}" for cell in cells))
