"""The predictions of the cost model, derived from measured step costs and acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from shadowspec.reports.content.charts import gains
from shadowspec.reports.content.tables import predictions_table
from shadowspec.reports.figures.cells import MeasuredCell, cells_of_groups
from shadowspec.reports.figures.frontiers import SliceFrontier, frontier_lines, frontiers
from shadowspec.reports.figures.predictions import cost_note, prediction_summary, predictions
from shadowspec.reports.pages.pool_what_if import POOL_HEAD, pool_what_if
from shadowspec.text import plain_text, slice_title

from . import charts, formats, queries, source, states
from .tables import show_grid


def draw_predictions(endpoint: str, slice_key: str) -> None:
    """One slice's predictions and frontier, or those of all slices where the whole endpoint is shown."""
    st.markdown("## Predicted by the cost model", help=formats.definition("predicted"))
    costs = queries.costs()
    if not costs:
        states.empty(
            "No step costs yet",
            "Predictions need the cost of a step. Profile the device that measures, or the servers of the endpoint.",
            commands=("shadowspec profile-device", "shadowspec profile-server   # for an endpoint with servers"),
        )
        return
    cells = [group for group in cells_of_groups(queries.group_sums(endpoint)) if slice_key in ("", group.slice_key)]
    predicted = predictions(cells, queries.configs(), costs)
    st.info(
        "**Predictions, not evidence.** They combine measured step costs with measured acceptance, and show which load "
        "and K to measure next. No verdict uses them.",
        icon=":material/query_stats:",
    )
    st.caption(prediction_summary(predicted))
    if predicted:
        price = _price(endpoint)
        show_grid(predictions_table(predicted, price))
        st.caption(cost_note(price))
        _pools(cells)
    drawn = frontiers(cells, queries.configs(), costs, queries.list_replayed_lengths(endpoint))
    for first in range(0, len(drawn), 2):
        for column, frontier in zip(st.columns(2), drawn[first : first + 2], strict=False):
            with column:
                _frontier(endpoint, frontier)


def _pools(cells: Sequence[MeasuredCell]) -> None:
    """What another acceptance would make of all slices together."""
    tried = st.slider(
        "What if: accepted tokens per step, % of the measured number",
        0,
        300,
        100,
        step=5,
        key="acceptance",
        bind="query-params",
        help="For another draft or K, or for traffic that is harder to draft. At most every drafted token is accepted.",
    )
    rows = [row.texts for row in pool_what_if(cells, queries.configs(), queries.costs(), tried / 100)]
    st.dataframe(
        charts.frame([dict(zip(POOL_HEAD, map(plain_text, row), strict=True)) for row in rows]), hide_index=True
    )
    st.caption(
        "Predicted ratio of total times of all slices shown, weighted by their traffic. *All accepted* is the limit: "
        "prefill and drafting take their time with any draft."
    )


def _price(endpoint: str) -> float | None:
    """Of an hour of the device."""
    config = source.config()
    policy = config.endpoints[endpoint].policy if endpoint in config.endpoints else config.policy
    return config.dashboard.price_per_gpu_hour or policy.device_price_per_hour


def _frontier(endpoint: str, frontier: SliceFrontier) -> None:
    title = plain_text(slice_title(frontier.slice_key))
    chart = gains(frontier)
    charts.show(
        chart,
        f"Predicted speedup by load (\u00d7), {title}, on {plain_text(frontier.engine)}",
        key=f"frontier-{frontier.slice_key}",
        help_text=formats.definition("frontier"),
        height=300,
    )
    lines = "".join(f"<li>{formats.text(line)}</li>" for line in frontier_lines(frontier))
    st.html(f'<ul class="ss-notes">{lines}</ul>')
