"""The lower sections of the evidence page: what was measured in the window, and every test."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from shadowspec.reports.definitions import AUDIT_NOTE, REPLAY_NOTE
from shadowspec.reports.failure_rows import Failures
from shadowspec.reports.pages.board import PARITY_TESTS, BoardRow
from shadowspec.reports.pages.evidence_page import DRAWN, RollupFigures
from shadowspec.store.histograms import MAX_RELATIVE_ERROR
from shadowspec.text import moment, percent, plural, times
from shadowspec.types import TestResult

from . import charts, evidence_charts, formats, queries, states
from .evidence_tables import audits_table, failures_table, latency_table, replays_table, tests_table


def acceptance(found: RollupFigures) -> None:
    """Acceptance by position, and how many tokens a step accepted."""
    if found.counts is None or not found.counts.num_drafts:
        states.empty("No requests in this window", "Choose a longer window above to see acceptance and latency.")
        return
    st.markdown("## Acceptance", help=formats.definition("pooled"))
    left, right = st.columns(2)
    steps = plural(found.counts.num_drafts, "step")
    with left:
        charts.show(
            evidence_charts.positions(found.counts),
            "Acceptance by position (share of steps)",
            key="positions",
            alt_text="Marginal and conditional acceptance rate at each drafted position, pooled",
            help_text=f"{formats.definition('marginal')} {formats.definition('conditional')} Pooled over {steps}.",
        )
    with right:
        charts.show(
            evidence_charts.steps(found.counts),
            "Accepted tokens per step (share of steps)",
            key="steps",
            alt_text="Histogram of accepted tokens per propose-and-verify step, pooled",
            help_text=f"{formats.definition('histogram')} Pooled over {steps}.",
        )


def latency(found: RollupFigures, row: BoardRow) -> None:
    """Both arms over the same requests: distributions, quantiles, where the time goes, and paired differences."""
    if not found.distributions:
        return
    st.markdown(
        "## Latency of both arms",
        help=f"The same requests in both arms. Rollups: figures to within \u00b1{percent(MAX_RELATIVE_ERROR)}.",
    )
    for column, measure in zip(st.columns(len(DRAWN)), DRAWN, strict=True):
        binned = tuple(each for each in found.distributions if each.measure == measure)
        if binned:
            with column:
                name = {"end_to_end_ms": "end-to-end", "prefill_ms": "ttft", "time_per_output_token_ms": "tpot"}[
                    measure
                ]
                charts.show(
                    evidence_charts.latency(binned),
                    f"{DRAWN[measure]} (ms)",
                    key=f"latency-{measure}",
                    alt_text=f"Cumulative distribution of {DRAWN[measure]} in both arms; quantiles are in the table",
                    help_text=f"{formats.definition(name)} Dots: p50, p95, p99.",
                )
    st.html(latency_table(found.distributions, found.parts))
    left, right = st.columns(2)
    with left:
        charts.show(
            evidence_charts.parts(found.parts),
            "Where a request's time goes (mean ms)",
            key="parts",
            alt_text="Mean compute time of a request by part, for both arms",
            help_text="The queue is a part of the prefill; the table above shows it separately.",
        )
    with right:
        test = next((each for each in _tests_of(row) if each.name == "speedup"), None)
        median = dict(found.speedup_quantiles).get(0.5)
        charts.show(
            evidence_charts.differences(found.speedups, None if test is None else test.threshold),
            "Paired differences: speedup of each request (\u00d7)",
            key="differences",
            alt_text=f"Histogram of the speedup of each request; median {times(median.estimate if median else None)}",
            help_text=formats.definition("request-speedup"),
        )


def failures(found: Failures) -> None:
    """What went wrong with single requests, and which kind of failure that looks like."""
    st.markdown("## Failures", help=formats.definition("failures"))
    for each in found.suspicions:
        st.warning(
            f"Suspected: **{each.kind}**. {formats.markdown('; '.join(each.figures))}.", icon=":material/troubleshoot:"
        )
    for note in found.notes:
        st.caption(note)
    st.html(failures_table(found.rows))
    intervention = found.intervened
    if intervention.num_intervened:
        st.caption(
            f"First-position acceptance, pooled: {percent(intervention.with_them)} with the "
            f"{plural(intervention.num_intervened, 'request')} whose production output a filter or rewrite changed, "
            f"{percent(intervention.without_them)} without."
        )


def _tests_of(row: BoardRow) -> Sequence[TestResult]:
    return () if row.standing.measured is None else row.standing.measured.tests


def tests(row: BoardRow) -> None:
    """Every test as the gate left it, parity first, and the decision that they belong to."""
    every = _tests_of(row)
    if not every:
        return
    parity = [test for test in every if test.name in PARITY_TESTS]
    st.markdown("## Parity", help=f"{formats.definition('divergence')} {formats.definition('z')}")
    if parity:
        st.html(tests_table(parity))
    else:
        st.caption("No outputs were compared yet: parity tests need requests that ran in both arms.")
    st.markdown("## All other tests", help=formats.definition("units"))
    st.html(tests_table([test for test in every if test.name not in PARITY_TESTS]))
    decision = row.standing.measured
    if decision is not None:
        decided = decision.decided_at
        number = "" if decision.decision_id is None else f" {decision.decision_id}"
        st.caption(
            f"Decision{number} of {formats.local(decided)} ({moment(decided)}); latency measured on {_engine(row)}; "
            f"the verdict is for {formats.markdown(decision.verdict_engine_text)}."
        )


def _engine(row: BoardRow) -> str:
    decision = row.standing.measured
    return formats.markdown(decision.engine) if decision is not None else "unknown"


def replays(row: BoardRow) -> None:
    """Replay of logged responses at every K, and the audit of the engine's outputs."""
    name = None if row.config is None else row.config.name
    rows = [
        each
        for each in queries.replay_rows((row.endpoint,))[row.endpoint]
        if (each.slice_key, each.config_name) == (row.slice_key, name)
    ]
    if rows:
        st.markdown("## Replay beside the engine", help=REPLAY_NOTE)
        st.html(replays_table(rows))
        st.caption("Expected counts, computed from logged responses by `shadowspec replay`. No test uses them.")
    audits = [
        (row.endpoint, each)
        for each in queries.audit_rows((row.endpoint,))[row.endpoint]
        if (each.slice_key, each.fingerprint) == (row.slice_key, row.fingerprint)
    ]
    if audits:
        st.markdown("## Audit of the engine", help=AUDIT_NOTE)
        st.html(audits_table(audits))
