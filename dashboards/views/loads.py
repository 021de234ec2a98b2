"""Load and what-if: how verdict and speedup depend on load, and what stored evidence says under other thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import streamlit as st

from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.content.definitions import acceptance_title, bounds_text, shown_as, total_time_text
from shadowspec.reports.pages.load_cells import break_evens, estimate, load_cells
from shadowspec.text import DASH, plain_text, slice_title, times
from shadowspec.types import Decision, Verdict

from ..parts import charts, derived_panels, formats, links, queries, source, states, what_if_panel
from ..parts.what_if_panel import config_title


def page() -> None:
    """One slice (or the whole endpoint) by load, then the what-if."""
    st.markdown("# Load and what-if")
    known = queries.endpoints()
    if not known:
        states.empty(
            "No endpoint yet",
            "No endpoint is configured or measured. Write a configuration first.",
            commands=("shadowspec init --target DIR --traffic FILE",),
        )
        return
    first, second = st.columns(2)
    endpoint = first.selectbox("Endpoint", known, key="endpoint", bind="query-params")
    decisions = queries.decisions(endpoint)
    if not decisions:
        states.empty(
            "No decision yet",
            f"The gate has not decided on `{endpoint}`. Measure its traffic, then run the gate.",
            commands=("shadowspec run FILE   # or: shadowspec worker", "shadowspec gate"),
        )
        return
    titles = {plain_text(slice_title(key)): key for key in sorted({decision.slice_key for decision in decisions})}
    title = second.selectbox("Slice", list(titles), key="slice", bind="query-params")
    slice_key = titles[title]
    policy = _policy(endpoint)
    cells = load_cells(decisions, slice_key)
    _by_load(endpoint, slice_key, cells, policy)
    derived_panels.draw_predictions(endpoint, slice_key)
    st.divider()
    what_if_panel.draw(endpoint, slice_key, cells, policy)


def _policy(endpoint: str) -> GatePolicy:
    config = source.config()
    return config.endpoints[endpoint].policy if endpoint in config.endpoints else config.policy


def _by_load(endpoint: str, slice_key: str, cells: Sequence[Decision], policy: GatePolicy) -> None:
    rows = [
        {
            "load": cell.concurrency,
            "config": config_title(cell),
            "estimate": test.estimate,
            "lower": test.lower,
            "upper": test.upper,
            "verdict": formats.verdict_text(cell.verdict),
            "bounds": bounds_text(test),
            "blocks": test.num_units,
        }
        for cell in cells
        if (test := cell.find_test("speedup")) is not None and test.estimate is not None
    ]
    if rows:
        tooltip = [
            alt.Tooltip("load:O", title="load"),
            alt.Tooltip("config:N", title="config"),
            alt.Tooltip("estimate:Q", title="speedup", format=".2f"),
            alt.Tooltip("bounds:N", title="bounds"),
            alt.Tooltip("verdict:N", title="verdict"),
            alt.Tooltip("blocks:Q", title="blocks", format=","),
        ]
        verdicts = [formats.verdict_text(verdict) for verdict in Verdict]
        base = alt.Chart(charts.frame(rows)).encode(
            x=alt.X("load:O", title="load (concurrent requests)", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("config:N"),
            tooltip=tooltip,
        )
        speedup = alt.Y("estimate:Q", title="speedup (\u00d7)", scale=alt.Scale(zero=False))
        bars = base.mark_rule(strokeWidth=3, opacity=0.55).encode(
            y=alt.Y("lower:Q", title="speedup (\u00d7)", scale=alt.Scale(zero=False)),
            y2=alt.Y2("upper:Q"),
            color=alt.Color(
                "config:N", title="config", legend=charts.BELOW, scale=alt.Scale(range=list(charts.SERIES))
            ),
        )
        points = base.mark_point(filled=True, size=130, opacity=1).encode(
            y=speedup,
            color=alt.Color(
                "config:N", title="config", legend=charts.BELOW, scale=alt.Scale(range=list(charts.SERIES))
            ),
            shape=alt.Shape(
                "verdict:N",
                title="verdict",
                legend=alt.Legend(orient="bottom", symbolFillColor=charts.GREY, symbolStrokeColor=charts.GREY),
                scale=alt.Scale(domain=verdicts, range=[_MARKS[verdict] for verdict in Verdict]),
            ),
        )
        proven = charts.threshold(1.0 + policy.margin, f"must be above {times(1.0 + policy.margin)}")
        charts.show(
            charts.layer(bars, points, *proven, *charts.threshold(1.0, "as fast as the baseline", is_below=True)),
            "Speedup by load (\u00d7), with the gate's bounds",
            key="by-load",
            alt_text=f"Speedup and its bounds at each measured load of {endpoint}",
            help_text=f"{formats.definition('speedup')} {formats.definition('bounds')}",
            height=360,
        )
    else:
        states.empty("No speedup yet", "The gate has decided, but no block was timed. Send more traffic.")
    _table(endpoint, slice_key, cells)
    for break_even in break_evens(cells):
        st.markdown(f"**Break-even, {plain_text(break_even.config_name)} (K {break_even.depth}):** {break_even.words}.")
    st.caption(
        "Only measured loads have figures. Between two of them, break-even is interpolated linearly on logarithmic "
        "axes. Beyond the outermost loads the page gives no break-even."
    )


_MARKS: Mapping[Verdict, str] = {Verdict.ENABLE: "circle", Verdict.DISABLE: "square", Verdict.HOLD: "diamond"}


def _table(endpoint: str, slice_key: str, cells: Sequence[Decision]) -> None:
    accepted = acceptance_title(cell.find_test("acceptance") for cell in cells)
    st.dataframe(
        charts.frame(
            [
                {
                    "Load": cell.concurrency,
                    "K": cell.config.num_speculative_tokens,
                    "Config": plain_text(cell.config.name),
                    "Verdict": formats.mark_verdict(cell.verdict),
                    "Speedup": times(estimate(cell)),
                    "Bounds": DASH if (speedup := cell.find_test("speedup")) is None else bounds_text(speedup),
                    "Total times": total_time_text(cell.find_test("total_time")),
                    accepted: DASH
                    if (acceptance := cell.find_test("acceptance")) is None
                    else f"{shown_as('acceptance')(acceptance.estimate)} {bounds_text(acceptance)}",
                    "Why": plain_text(cell.reason),
                    "Evidence": links.address(
                        "evidence", endpoint=endpoint, slice=slice_key, load=cell.concurrency, config=cell.fingerprint
                    ),
                }
                for cell in cells
            ]
        ),
        hide_index=True,
        column_config={
            "Load": st.column_config.NumberColumn(help="Concurrent requests in the shadow."),
            "K": st.column_config.NumberColumn(help="Tokens drafted per step (num_speculative_tokens)."),
            "Bounds": st.column_config.TextColumn(help=formats.definition("bounds")),
            accepted: st.column_config.TextColumn(help=formats.definition("acceptance")),
            "Evidence": st.column_config.LinkColumn(display_text="open"),
        },
    )
