"""Load and what-if: how verdict and speedup depend on load, and what stored evidence says under other thresholds."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.figure_texts import acceptance_title, bounds_text, shown_as
from shadowspec.reports.content.definitions import total_time_text
from shadowspec.reports.pages import page_charts
from shadowspec.reports.pages.load_cells import break_evens, estimate, load_cells
from shadowspec.text import DASH, plain_text, slice_title, times
from shadowspec.types import Decision, Verdict

from ..parts import charts, derived_panels, formats, links, queries, source, states, what_if_panel


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
    chart = page_charts.speedup_by_load(endpoint, cells, policy.margin)
    if chart is not None:
        symbols = ", ".join(map(formats.mark_verdict, Verdict))
        charts.show(
            chart,
            f"Speedup by load (\u00d7), with the gate's bounds; {symbols}",
            key="by-load",
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
