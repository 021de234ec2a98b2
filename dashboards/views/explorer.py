"""The explorer: any two dimensions of what was measured, down to single requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import altair as alt
import streamlit as st

from shadowspec.reports.pages import explorer
from shadowspec.reports.pages.explorer import FEW_RUNS, FIGURES, MAX_LABELLED, ExplorerGrid, GridCell, LabelledTally
from shadowspec.text import figure as plain_figure
from shadowspec.text import number, percent, plain_text, plural, times

from ..parts import charts, formats, queries, run_table, states

WINDOWS: Mapping[str, int | None] = {"7 days": 7, "30 days": 30, "90 days": 90, "all": None}
VIEWS = ("heat map", "curves")
SEQUENTIAL: Literal["viridis"] = "viridis"  # even in lightness: read by the colour-blind and in grey
LABEL_CHARACTER_PX = 7  # of an axis, about
MAX_SLANTED = 16  # labels that find room beside each other on a phone
DIVERGING = ("#D55E00", "#F7F7F7", "#0072B2")  # about 1: slower and faster than the baseline


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
        return f"{_title(name)} (newest runs)" if name in labels else _title(name)

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
                _title(name),
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
    title = f"{figure.title} by {_title(grid.x)} and {_title(grid.y)}"
    drawn = charts.frame([_row(grid, cell, figure.kind) for cell in grid.cells])
    tooltip = [
        alt.Tooltip("x:N", title=_title(grid.x)),
        alt.Tooltip("y:N", title=_title(grid.y)),
        alt.Tooltip("text:N", title=figure.title),
        alt.Tooltip("num_runs:Q", title="requests (n)", format=","),
    ]
    across = alt.X("x:N", sort=list(grid.x_values), title=_title(grid.x), axis=_level_or_slanted(grid.x_values))
    if view == VIEWS[0]:
        height = max(56 * len(grid.y_values) + 110, 220)  # beside one row the title of the axis would be cut
        down = alt.Y("y:N", sort=list(grid.y_values), title=_title(grid.y), axis=alt.Axis(labelLimit=120))
        base = alt.Chart(drawn).encode(x=across, y=down, tooltip=tooltip)
        cells = base.mark_rect(cornerRadius=3).encode(
            color=alt.Color("figure:Q", scale=_scale(grid, figure.kind), title=None, legend=None),
            opacity=alt.condition(alt.datum.is_few, alt.value(0.7), alt.value(1.0)),
        )
        words = base.mark_text(fontSize=14, fontWeight=600, dy=-6).encode(
            text=alt.Text("text:N"), color=alt.Color("ink:N", scale=None, legend=None)
        )
        numbers = base.mark_text(fontSize=10.5, dy=11).encode(
            text=alt.Text("n:N"), color=alt.Color("ink:N", scale=None, legend=None)
        )
        charts.show(
            charts.layer(cells, words, numbers, independent=("color",)),
            title,
            key="grid",
            alt_text=f"Heat map: {title}",
            help_text=figure.definition,
            height=height,
        )
    else:
        colour = alt.Color(
            "y:N",
            sort=list(grid.y_values),
            title=_title(grid.y),
            legend=charts.BELOW,
            scale=alt.Scale(range=list(charts.SERIES)),
        )
        lines = (
            alt.Chart(drawn)
            .mark_line(point=alt.OverlayMarkDef(filled=True, size=60), strokeWidth=2)
            .encode(
                x=across,
                y=alt.Y("figure:Q", title=figure.title, scale=alt.Scale(zero=figure.kind == "count")),
                color=colour,
                shape=alt.Shape("y:N", sort=list(grid.y_values), title=_title(grid.y), legend=charts.BELOW),
                tooltip=tooltip,
            )
        )
        chart: Any = lines
        if figure.kind == "times":
            chart = charts.layer(lines, *charts.threshold(1.0, "1\u00d7: as fast as the baseline"))
        charts.show(chart, title, key="grid", alt_text=f"Curves: {title}", help_text=figure.definition, height=340)
    with st.expander("As a table", icon=":material/table_rows:"):
        st.dataframe(
            drawn[["x", "y", "text", "num_runs"]],
            hide_index=True,
            column_config={"x": _title(grid.x), "y": _title(grid.y), "text": figure.title, "num_runs": "requests (n)"},
        )


def _level_or_slanted(values: Sequence[str]) -> alt.Axis:
    """Labels slant where the drawing is too narrow for them side by side: a phone would leave every other one out."""
    needed = LABEL_CHARACTER_PX * len(values) * (max(map(len, values)) + 1)
    is_narrow = f"width < {needed}"
    return alt.Axis(
        labelAngle=alt.ExprRef(f"{is_narrow} ? -40 : 0"),
        labelAlign=alt.ExprRef(f"{is_narrow} ? 'right' : 'center'"),
        labelBaseline=alt.ExprRef(f"{is_narrow} ? 'middle' : 'top'"),
        labelLimit=110,
        labelOverlap=len(values) > MAX_SLANTED,
    )


def _row(grid: ExplorerGrid, cell: GridCell, kind: str) -> dict[str, Any]:
    return {
        "x": plain_text(cell.x),
        "y": plain_text(cell.y),
        "figure": cell.figure,
        "text": _written(cell.figure, kind),
        "n": f"n {cell.num_runs:,}",
        "num_runs": cell.num_runs,
        "is_few": cell.is_few,
        "ink": _ink(grid, cell.figure, kind),
    }


def _values(grid: ExplorerGrid) -> list[float]:
    return [cell.figure for cell in grid.cells if cell.figure is not None]


def _scale(grid: ExplorerGrid, kind: str) -> alt.Scale:
    values = _values(grid) or [0.0]
    if kind == "times":
        reach = max(*(abs(value - 1.0) for value in values), 0.05)
        return alt.Scale(domain=[1.0 - reach, 1.0, 1.0 + reach], range=list(DIVERGING))
    return alt.Scale(
        domain=[min(values), max(values)] if min(values) < max(values) else [0, max(values)], scheme=SEQUENTIAL
    )


def _ink(grid: ExplorerGrid, value: float | None, kind: str) -> str:
    """Black on light cells, white on dark ones: whichever of the two has more contrast with the cell's colour."""
    values = _values(grid)
    if value is None or not values:
        return "#808080"
    if kind == "times":
        reach = max(*(abs(value - 1.0) for value in values), 0.05)
        return "#FFFFFF" if (value - 1.0) / reach > 0.85 else "#17202A"  # the slowest is not dark either
    low, high = min(values), max(values)
    place = (value - low) / (high - low) if high > low else 1.0
    return "#17202A" if place > 0.48 else "#FFFFFF"


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


def _title(dimension: str) -> str:
    return plain_text(dimension.replace("_", " "))


def _written(value: float | None, kind: str) -> str:
    if kind == "times":
        return times(value)
    if kind == "percent":
        return percent(value)
    return plain_figure(value) if kind == "count" else number(value)
