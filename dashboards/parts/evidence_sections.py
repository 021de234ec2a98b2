"""The lower sections of the evidence page: what was measured in the window, and every test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import streamlit as st

from shadowspec import metrics
from shadowspec.reports.content import charts as content
from shadowspec.reports.content import tables
from shadowspec.reports.content.content_blocks import Cell
from shadowspec.reports.content.definitions import AUDIT_NOTE, REPLAY_NOTE, find_test
from shadowspec.reports.figures.failure_rows import Failures
from shadowspec.reports.pages.board import PARITY_TESTS, BoardRow
from shadowspec.reports.pages.evidence_page import DRAWN, MEASURES, BinnedDistribution, RollupFigures, TimeParts
from shadowspec.store.histograms import MAX_RELATIVE_ERROR
from shadowspec.text import DASH, milliseconds, moment, number, percent, plural, times
from shadowspec.types import Arm, TestResult

from . import charts, formats, queries, source, states
from .tables import show_grid, table_html

TERMS = {"end_to_end_ms": "end-to-end", "prefill_ms": "ttft", "time_per_output_token_ms": "tpot"}


def acceptance(figures: RollupFigures) -> None:
    """Acceptance by position, and how many tokens a step accepted."""
    if figures.counts is None or not figures.counts.num_drafts:
        states.empty("No requests in this window", "Choose a longer window above to see acceptance and latency.")
        return
    st.markdown("## Acceptance", help=formats.definition("pooled"))
    left, right = st.columns(2)
    counts = figures.counts
    steps = plural(counts.num_drafts, "step")
    positions = content.positions(
        metrics.marginal_acceptance_rates(counts), metrics.conditional_acceptance_rates(counts)
    )
    accepted = content.steps([metrics.ratio(number, counts.num_drafts) for number in counts.acceptance_histogram])
    with left:
        charts.show(
            positions,
            "Acceptance by position (share of steps)",
            key="positions",
            help_text=f"{formats.definition('marginal')} {formats.definition('conditional')} Pooled over {steps}.",
        )
    with right:
        charts.show(
            accepted,
            "Accepted tokens per step (share of steps)",
            key="steps",
            help_text=f"{formats.definition('histogram')} Pooled over {steps}.",
        )


def latency(figures: RollupFigures, row: BoardRow) -> None:
    """Both arms over the same requests: distributions, quantiles, where the time goes, and paired differences."""
    if not figures.distributions:
        return
    st.markdown(
        "## Latency of both arms",
        help=f"The same requests in both arms. Rollups: figures to within \u00b1{percent(MAX_RELATIVE_ERROR)}.",
    )
    for column, measure in zip(st.columns(len(DRAWN)), DRAWN, strict=True):
        chart = content.latency(DRAWN[measure], [_curve(of) for of in figures.distributions if of.measure == measure])
        if chart is not None:
            with column:
                charts.show(
                    chart,
                    f"{DRAWN[measure]} (ms)",
                    key=f"latency-{measure}",
                    help_text=f"{formats.definition(TERMS[measure])} Dots: p50, p95, p99.",
                )
    resolution = f" Known to within a bin: \u00b1{percent(MAX_RELATIVE_ERROR)}."
    st.html(table_html(tables.latency_table(map(_latency_row, figures.distributions), resolution)))
    st.html(table_html(tables.arm_means_table(_means(figures))))
    left, right = st.columns(2)
    with left:
        parts = content.time_parts([(of.arm.value, _parts(of)) for of in figures.parts])
        charts.show(
            parts,
            "Where a request's time goes (mean ms)",
            key="parts",
            help_text="The queue is a part of the prefill; the table above shows it separately.",
        )
    with right:
        test = find_test(row.current.measured, "speedup")
        histogram = content.speedups(figures.speedups, None if test is None else test.threshold)
        median = dict(figures.speedup_quantiles).get(0.5)
        if histogram is not None:
            charts.show(
                histogram,
                f"Speedup of each request (\u00d7), median {times(median.estimate if median else None)}",
                key="differences",
                help_text=formats.definition("request-speedup"),
            )


def _curve(binned: BinnedDistribution) -> content.LatencyCurve:
    quantiles = tuple((share, quantile.estimate) for share, quantile in binned.quantiles)
    return content.LatencyCurve(binned.arm, binned.cumulative, quantiles, binned.num_runs)


def _latency_row(binned: BinnedDistribution) -> tables.LatencyRow:
    known = dict(binned.quantiles)
    quantiles = tuple(
        Cell(milliseconds(known[share].estimate) if share in known else DASH) for share in tables.LATENCY_SHARES
    )
    return tables.LatencyRow(Cell(MEASURES[binned.measure]), binned.arm, quantiles, binned.num_runs)


def _means(figures: RollupFigures) -> Iterator[tuple[Cell, Arm, str]]:
    queue = Cell("Queue, mean", ("a part of TTFT: in a server, and failed attempts",))
    progress = Cell("Requests in progress, mean", hover=formats.definition("realised-concurrency"))
    cached = Cell("Prompt tokens cached", hover=formats.definition("prefix-cache"))
    for of in figures.parts:
        yield queue, of.arm, milliseconds(of.queue_ms)
    for of in figures.parts:
        if of.concurrency is not None:
            yield progress, of.arm, number(of.concurrency)
    for of in figures.parts:
        if of.cached_share is not None:
            yield cached, of.arm, percent(of.cached_share)


def _parts(of: TimeParts) -> list[tuple[str, float]]:
    """What an arm's time goes to, in the order in which it happens."""
    names = ("prefill", "decode") if of.arm is Arm.BASELINE else ("prefill", "draft", "verify", "other")
    return [(name, getattr(of, f"{name}_ms")) for name in names]


def failures(shown: Failures) -> None:
    """What went wrong with single requests, and which kind of failure that looks like."""
    st.markdown("## Failures", help=formats.definition("failures"))
    for suspicion in shown.suspicions:
        st.warning(
            f"Suspected: **{suspicion.kind}**. {formats.markdown('; '.join(suspicion.figures))}.",
            icon=":material/troubleshoot:",
        )
    for note in shown.notes:
        st.caption(note)
    st.html(table_html(tables.failures_table(shown.rows)))
    intervention = shown.intervened
    if intervention.num_intervened:
        st.caption(
            f"First-position acceptance, pooled: {percent(intervention.with_them)} with the "
            f"{plural(intervention.num_intervened, 'request')} whose production output a filter or rewrite changed, "
            f"{percent(intervention.without_them)} without."
        )


def _tests_of(row: BoardRow) -> Sequence[TestResult]:
    return () if row.current.measured is None else row.current.measured.tests


def tests(row: BoardRow) -> None:
    """Every test as the gate left it, parity first, and the decision that they belong to."""
    every = _tests_of(row)
    if not every:
        return
    parity = [test for test in every if test.name in PARITY_TESTS]
    st.markdown("## Parity", help=f"{formats.definition('divergence')} {formats.definition('z')}")
    if parity:
        st.html(table_html(tables.tests_table(parity)))
    else:
        st.caption("No outputs were compared yet: parity tests need requests that ran in both arms.")
    st.markdown("## All other tests", help=formats.definition("units"))
    st.html(table_html(tables.tests_table(test for test in every if test.name not in PARITY_TESTS)))
    decision = row.current.measured
    if decision is not None:
        decided = decision.decided_at
        number = "" if decision.decision_id is None else f" {decision.decision_id}"
        st.caption(
            f"Decision{number} of {formats.local(decided)} ({moment(decided)}); latency measured on {_engine(row)}; "
            f"the verdict is for {formats.markdown(decision.verdict_engine_text)}."
        )


def _engine(row: BoardRow) -> str:
    decision = row.current.measured
    return formats.markdown(decision.engine) if decision is not None else "unknown"


def replays(row: BoardRow) -> None:
    """Replay of logged responses at every K, and the audit of the engine's outputs."""
    name = None if row.config is None else row.config.name
    rows = [
        replayed
        for replayed in queries.replay_rows((row.endpoint,))[row.endpoint]
        if (replayed.slice_key, replayed.config_name) == (row.slice_key, name)
    ]
    if rows:
        st.markdown("## Replay beside the engine", help=REPLAY_NOTE)
        st.html(table_html(tables.replays_table(rows)))
        st.caption("Expected counts, computed from logged responses by `shadowspec replay`. No test uses them.")
    audits = [
        (row.endpoint, audit)
        for audit in queries.audit_rows((row.endpoint,))[row.endpoint]
        if (audit.slice_key, audit.fingerprint) == (row.slice_key, row.fingerprint)
    ]
    if audits:
        st.markdown("## Audit of the engine", help=AUDIT_NOTE)
        st.html(table_html(tables.audits_table(audits)))


def contexts(row: BoardRow, window: timedelta | None) -> None:
    """Acceptance, speedup and cache by the length of the prompt; read when it is asked for."""
    st.markdown("## By length of the prompt", help=formats.definition("by-context"))
    if not st.toggle(
        "Show", key="by_context", bind="query-params", help="Reads single requests of the window, newest first."
    ):
        return
    since = source.window_start(queries.hours(row.endpoint), window)
    rows, num_runs = queries.context_rows(row.endpoint, row.slice_key or None, row.fingerprint, row.concurrency, since)
    if not rows:
        st.caption("No single request of this window is stored. Choose a longer window, or measure more traffic.")
        return
    show_grid(tables.contexts_table(rows))
    st.caption(f"The newest {plural(num_runs, 'run')} of the window. Cache: the KV cache of one request at its end.")
