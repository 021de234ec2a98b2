"""The explorer: any two dimensions of what was measured, down to single requests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import streamlit as st

from shadowspec.reports.pages import explorer, page_charts
from shadowspec.reports.pages.explorer import (
    FEW_RUNS,
    FIGURES,
    MAX_LABELLED,
    ExplorerGrid,
    LabelledTally,
    dimension_title,
)
from shadowspec.text import plain_text, plural

from ..parts import charts, formats, queries, run_table, states

WINDOWS: Mapping[str, int | None] = {"7 days": 7, "30 days": 30, "90 days": 90, "all": None}
VIEWS = ("heat map", "curves")


def page() -> None:
    """Heat map or curves of a figure by two dimensions, then the requests behind them."""
    st.markdown("# Explorer")
    known = queries.endpoints()
    if not known:
        states.empty(
            "No requests yet",
            "No endpoint is configured or measured. Write a configuration, then measure a file of mirrored traffic.",
            commands=("shadowspec init --target DIR --traffic FILE", "shadowspec run FILE"),
        )
        return
    first, second = st.columns([3, 2], vertical_alignment="bottom")
    endpoint = first.selectbox("Endpoint", known, key="endpoint", bind="query-params")
    window = second.segmented_control(
        "Time, back from the newest hour",
        list(WINDOWS),
        default="30 days",
        key="window",
        bind="query-params",
        required=True,
        help="Event time: the hour of the request, not of its measurement.",
    )
    hours = queries.hours(endpoint)
    if hours is None:
        states.empty(
            "No requests yet",
            f"No request of `{endpoint}` was measured yet. Measure a file of its traffic, or start the worker.",
            commands=("shadowspec run traffic.jsonl", "shadowspec worker"),
        )
        return
    since = _since(hours[1], WINDOWS[window or "30 days"])
    points = _rollup_points(endpoint, since)
    labels = _label_dimensions(endpoint, since, points)
    chosen = _controls(explorer.dimensions(points), labels)
    if chosen is None:
        return
    figure, x, y, view = chosen
    newest = None
    if {x, y} & set(labels):
        rows = queries.labelled_runs(endpoint, since, MAX_LABELLED)
        points, newest = explorer.run_points(rows, queries.configs()), len(rows)
    elif explorer.DAY in (x, y):
        points = _rollup_points(endpoint, since, with_days=True)
    points = _filter_points(points)
    grid = explorer.grid(points, figure, x, y, newest_runs=newest)
    _draw(grid, view)
    _say_what_it_is(grid, since, hours[1])
    st.divider()
    run_table.draw(endpoint, since)


def _since(newest: datetime, days: int | None) -> datetime | None:
    return None if days is None else newest + timedelta(hours=1) - timedelta(days=days)


def _rollup_points(endpoint: str, since: datetime | None, *, with_days: bool = False) -> list[LabelledTally]:
    groups = queries.group_sums(endpoint, since, step="day" if with_days else None)
    return explorer.rollup_points(groups, queries.configs())


def _label_dimensions(endpoint: str, since: datetime | None, points: list[LabelledTally]) -> list[str]:
    """Labels of the records that no slice is named by, of a few of the newest runs."""
    rows = queries.labelled_runs(endpoint, since, 200)
    known = set(explorer.dimensions(points))
    names = {name for _, labels in rows for name in labels} | ({explorer.PROMPT_TOKENS} if rows else set())
    return sorted(names - known)


def _controls(known: list[str], labels: list[str]) -> tuple[str, str, str, str] | None:
    every = [*known, explorer.DAY, *labels]
    if not known:
        states.empty("No requests in this time", "Choose a longer time.")
        return None
    columns = st.columns([3, 2, 2, 2], vertical_alignment="bottom")
    figure = columns[0].selectbox("Figure", list(FIGURES), key="figure", bind="query-params")
    has_slices = [name for name in known if name not in explorer.OWN_DIMENSIONS]
    x_default = has_slices[0] if has_slices else explorer.LOAD
    y_default = has_slices[1] if len(has_slices) > 1 else explorer.DEPTH

    def named(name: str) -> str:
        return f"{dimension_title(name)} (newest runs)" if name in labels else dimension_title(name)

    x = columns[1].selectbox("Across", every, every.index(x_default), format_func=named, key="x", bind="query-params")
    y = columns[2].selectbox("Down", every, every.index(y_default), format_func=named, key="y", bind="query-params")
    view = columns[3].segmented_control("As", VIEWS, default=VIEWS[0], key="view", bind="query-params", required=True)
    return figure, x, y, view or VIEWS[0]


def _filter_points(points: list[LabelledTally]) -> list[LabelledTally]:
    """The points that pass the filters, which are in the address too."""
    names = [name for name in explorer.dimensions(points) if name != explorer.DAY]
    with st.expander("Filter", icon=":material/filter_alt:"):
        columns = st.columns(min(len(names), 4) or 1)
        wanted = {
            name: columns[place % len(columns)].multiselect(
                dimension_title(name),
                explorer.values_of(points, name),
                key=f"only_{name}",
                bind="query-params",
                format_func=plain_text,
            )
            for place, name in enumerate(names)
        }
    return explorer.select_points(points, wanted)


def _draw(grid: ExplorerGrid, view: str) -> None:
    figure = FIGURES[grid.figure]
    if not grid.cells:
        states.empty("No request matches", "Clear a filter above.")
        return
    if view == VIEWS[0]:  # beside one row the title of the axis would be cut
        chart, height = page_charts.heat_map(grid), max(56 * len(grid.y_values) + 110, 220)
    else:
        chart, height = page_charts.curves(grid), 340
    charts.show(chart, grid.title, key="grid", help_text=figure.definition, height=height)
    with st.expander("As a table", icon=":material/table_rows:"):
        rows = [
            {"x": plain_text(of.x), "y": plain_text(of.y), "text": figure.text(of.figure), "num_runs": of.num_runs}
            for of in grid.cells
        ]
        titles = {"x": dimension_title(grid.x), "y": dimension_title(grid.y), "text": figure.title}
        st.dataframe(charts.frame(rows), hide_index=True, column_config={**titles, "num_runs": "requests (n)"})


def _say_what_it_is(grid: ExplorerGrid, since: datetime | None, newest: datetime) -> None:
    span = f"to {formats.local(newest + timedelta(hours=1))}" + (
        "" if since is None else f", from {formats.local(since)}"
    )
    what = f"{plural(grid.num_runs, 'request')} measured, {span}."
    if grid.newest_runs is not None:
        what += (
            f" **Only the newest {grid.newest_runs:,} runs** (at most {MAX_LABELLED:,}): rollups do not have this "
            f"label, "
            "so that the page reads single runs."
        )
    st.caption(
        f"{what} Pooled over requests, weighted by the inverse of their sampling rate. Cells with fewer than "
        f"{FEW_RUNS} requests are pale. These figures have no bounds and decide nothing; the evidence page has bounds."
    )
