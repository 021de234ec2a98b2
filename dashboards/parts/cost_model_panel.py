"""What the cost model predicts: beside every measured cell, and the best way of drafting at each load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import streamlit as st

from shadowspec.frontier import Gain
from shadowspec.reports.predicted_words import frontier_lines, prediction_summary
from shadowspec.reports.predictions import (
    Prediction,
    SliceFrontier,
    cells_of_groups,
    frontiers,
    predictions,
)
from shadowspec.words import number, percent, plain_text, slice_title, times

from . import charts, queries, states, words


def draw(endpoint: str, slice_key: str) -> None:
    """One slice's predictions and frontier, or those of all slices where the whole endpoint is shown."""
    st.markdown("#### Predicted by the cost model", help=words.definition("predicted"))
    costs = queries.costs()
    if not costs:
        states.empty(
            "No step costs on record",
            "What a step costs on the device that measures was never profiled, so that nothing can be predicted.",
            commands=("shadowspec profile-device",),
        )
        return
    cells = [own for own in cells_of_groups(queries.group_sums(endpoint)) if slice_key in ("", own.slice_key)]
    found = predictions(cells, queries.configs(), costs)
    st.info(
        "**No verdict rests on this.** Predictions from measured step costs, of the engine that measured; they tell "
        "which load and which K are worth measuring.",
        icon=":material/query_stats:",
    )
    st.caption(prediction_summary(found))
    if found:
        _table(found)
    for own in frontiers(cells, queries.configs(), costs, queries.replayed_ways(endpoint)):
        _frontier(endpoint, own)


def _table(found: Sequence[Prediction]) -> None:
    st.dataframe(
        charts.frame(
            [
                {
                    "Slice": plain_text(slice_title(own.cell.slice_key)),
                    "Config": plain_text(own.config.name),
                    "Load": own.cell.concurrency,
                    "K": own.config.num_speculative_tokens,
                    "Tokens per step": number(own.cell.mean_acceptance_length),
                    "Pays from": number(own.break_even_length),
                    "Predicted": times(own.speedup),
                    "Measured": times(own.cell.ratio_of_total_times),
                    "Off by": percent(own.error),
                    "Note": own.reason or "",
                }
                for own in found
            ]
        ),
        hide_index=True,
        column_config={
            "Tokens per step": st.column_config.TextColumn(help=words.definition("mean-length")),
            "Pays from": st.column_config.TextColumn(help=words.definition("pays-from")),
            "Predicted": st.column_config.TextColumn(help=words.definition("predicted")),
            "Measured": st.column_config.TextColumn(help=words.definition("total-times")),
        },
    )


def _frontier(endpoint: str, own: SliceFrontier) -> None:
    title = plain_text(slice_title(own.slice_key))
    rows = [_row(each, is_best=each is choice.best) for choice in own.choices for each in choice.gains]
    charts.show(
        _chart(rows),
        f"Predicted speedup by load (\u00d7), {title}",
        key=f"frontier-{own.slice_key}",
        alt_text=f"Predicted speedup at each profiled load of {endpoint}, {title}, for every number of tokens drafted",
        help_text=words.definition("frontier"),
        height=300,
    )
    st.markdown("\n".join(f"- {plain_text(line)}" for line in frontier_lines(own)))


def _row(each: Gain, *, is_best: bool) -> dict[str, Any]:
    drafting = each.drafting
    return {
        "load": each.concurrency,
        "way": f"K {drafting.num_speculative_tokens} \u00b7 {plain_text(drafting.name)}",
        "speedup": each.speedup,
        "lower": each.least,
        "upper": each.most,
        "best": is_best,
        "pays from": each.break_even_length,
        "length": drafting.length.estimate,
    }


def _chart(rows: charts.Rows) -> charts.Layers:
    base = alt.Chart(charts.frame(rows)).encode(
        x=alt.X(
            "load:Q",
            title="load (requests at once)",
            scale=alt.Scale(type="log", base=2, nice=False),
            axis=alt.Axis(values=sorted({row["load"] for row in rows}), grid=False),
        ),
        color=alt.Color("way:N", title="config", legend=charts.BELOW, scale=alt.Scale(range=list(charts.SERIES))),
        tooltip=[
            alt.Tooltip("way:N", title="config"),
            alt.Tooltip("load:Q", title="load"),
            alt.Tooltip("speedup:Q", title="predicted speedup", format=".2f"),
            alt.Tooltip("length:Q", title="tokens per step", format=".2f"),
            alt.Tooltip("pays from:Q", title="pays from", format=".2f"),
        ],
    )
    y = alt.Y("speedup:Q", title="predicted speedup (\u00d7)", scale=alt.Scale(zero=False))
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("lower:Q"), y2=alt.Y2("upper:Q"))
    lines = base.mark_line(strokeWidth=2).encode(y=y)
    best = base.mark_point(filled=True, size=110, opacity=1, shape="diamond").encode(y=y).transform_filter("datum.best")
    return charts.layered(band, lines, best, *charts.threshold(1.0, "as fast as without", is_below=True))
