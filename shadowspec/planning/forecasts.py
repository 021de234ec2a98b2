"""The plan of one hypothesis: how many more measured sessions its tests need together, and how it may end.

All tests of a hypothesis are continued on one clock, measured sessions ("clusters"): a block counts as many as it
holds. ENABLE comes when the last required test passes, DISABLE when the first opposite bound crosses.  The tests'
simulated outcomes are drawn independently of each other, which makes the last of several a little late.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shadowspec.gate.evidence.betting_tests import applies, defined_tests
from shadowspec.gate.evidence.guardrails import DOCUMENT
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.windows import TIMED_UNITS
from shadowspec.gate.run.endpoint_look import Look
from shadowspec.gate.stats.betting import Floats
from shadowspec.gate.verdict.decision import HOLD_CODES, Hypothesis
from shadowspec.gate.verdict.hold_reasons import StillNeeded, still_needed
from shadowspec.gate.verdict.lifecycle import WAITING_CODES, is_open
from shadowspec.gate.verdict.required_tests import fault_units, min_fault_requests, waits_for_independence
from shadowspec.gate.verdict.trial_levels import shown_level
from shadowspec.planning.first_passage import NUM_PATHS, first_passage_times, outlook
from shadowspec.text import plural
from shadowspec.types import Decision, ReasonCode, Verdict

REQUESTS_PER_LOAD = 4  # requests in a full block's queue per request in flight
# HOLD with a foreseeable end: evidence is missing, or a test has failed so far.
FORESEEN_CODES = WAITING_CODES | {
    ReasonCode.CHANGED_FINGERPRINT,
    ReasonCode.DRIFT,
    ReasonCode.REOPENED,
    ReasonCode.GUARDRAIL,
    *HOLD_CODES.values(),
}
LATE = 0.9  # the quantile that is shown beside the median


@dataclass(frozen=True, slots=True)
class TestForecast:
    """Units that one test still needs until it passes; None: more than `max_clusters` leaves."""

    __test__ = False

    name: str
    unit: str
    num_units: int
    median: float | None
    late: float | None  # 90%
    passes_share: float  # of the futures in which it passes within the horizon
    is_required: bool
    is_assumed: bool  # no units yet: planned with typical ones


@dataclass(frozen=True, slots=True)
class HypothesisPlan:
    """How one hypothesis may end.  Clusters are measured sessions; times are seconds at the rate so far.

    `decision` is the current one.  `enable_share`, `disable_share` and the rest (undecided at `max_clusters`) are
    shares of the simulated outcomes; `median` and `late` (90%) are over all of them, None where that is beyond the
    horizon or unknown.
    """

    hypothesis: Hypothesis
    verdict: Verdict
    is_open: bool
    num_clusters: int  # in evidence
    tests: tuple[TestForecast, ...]
    clusters_median: float | None
    clusters_late: float | None
    enable_share: float
    disable_share: float
    clusters_per_s: float | None
    seconds_median: float | None
    seconds_late: float | None
    needed: StillNeeded | None  # the gate's estimate, which every output shows
    decision: Decision
    span_missing_s: float = 0.0  # event time that ENABLE must still see
    note: str = ""


def plan_hypothesis(look: Look, decision: Decision, num_paths: int = NUM_PATHS) -> HypothesisPlan:
    """The plan of a hypothesis, `decision` being its current one; decided ones need nothing more."""
    hypothesis, evidence, policy, verdict = look.hypothesis, look.evidence, look.policy, decision.verdict
    rate = evidence.num_clusters / evidence.span_s if evidence.span_s > 0.0 else None
    if verdict is not Verdict.HOLD and not is_open(verdict, decision.reason_code):
        return _close(decision, hypothesis, rate, "decided", 0.0)
    unprovable = [test.betting.unprovable for test in decision.tests if test.is_required and test.betting is not None]
    is_foreseen = decision.reason_code in FORESEEN_CODES and not waits_for_independence(decision)
    held = next(filter(None, unprovable), None if is_foreseen else decision.reason)
    if held is not None:
        return _close(decision, hypothesis, rate, f"held: {held}", math.inf)

    # 1. Each test separately, in units and on the common clock.
    seed = zlib.crc32(repr((hypothesis.endpoint, hypothesis.slice_key, hypothesis.config.fingerprint)).encode())
    rng = np.random.default_rng([seed, hypothesis.concurrency])
    level = shown_level(look.level, policy)
    horizon = policy.max_clusters - evidence.num_clusters
    entry = 0 if look.has_entered else decision.clusters_needed or 0
    enabled, disabled = np.full(num_paths, float(entry)), np.full(num_paths, np.inf)
    forecasts = []
    runs = evidence.runs
    for test in defined_tests(policy):
        if not applies(test, runs.regimes):
            continue
        if test.unit == DOCUMENT:  # no traffic brings them
            continue
        tested = evidence.tests.get(test.name)
        ahead = outlook(test, tested, level)
        per_unit = _clusters_per_unit(hypothesis, evidence, test.name, test.unit)
        passages = first_passage_times(ahead, max(math.ceil(horizon / per_unit), 1), rng, num_paths)
        if test.is_required:
            enabled = np.maximum(enabled, passages.passes * per_unit)
        if test.disables:
            disabled = np.minimum(disabled, np.maximum(passages.fails * per_unit, entry))
        units = passages.passes * ahead.merged_units
        num_units = 0 if tested is None else tested.num_units
        forecasts.append(_forecast(test.name, test.unit, num_units, units, test.is_required, ahead.is_assumed))
    faults = {"parity_faults": (runs.num_greedy, runs.num_known_greedy), "stream_faults": (runs.num_streams,) * 2}
    for name, (num_requests, num_judged) in faults.items():
        if not num_requests:
            continue
        unit, num_known = fault_units(runs, num_judged)
        units = np.full(num_paths, float(max(min_fault_requests(policy, level) - num_known, 0)))
        enabled = np.maximum(enabled, units * runs.max_turns * evidence.num_clusters / num_requests)
        forecasts.append(_forecast(name, unit, num_known, units, True, False))

    # 2. Which comes first; a time beyond the horizon is never.
    enabled[enabled > horizon] = np.inf
    disabled[disabled > horizon] = np.inf
    ends = np.minimum(enabled, disabled)
    missing_s = 0.0 if policy.recording_only else max(policy.min_span_s - evidence.span_s, 0.0)
    seconds = None if rate is None else np.minimum(np.maximum(enabled / rate, missing_s), disabled / rate)
    return HypothesisPlan(
        hypothesis=hypothesis,
        verdict=verdict,
        is_open=True,
        num_clusters=evidence.num_clusters,
        tests=tuple(forecasts),
        clusters_median=_quantile(ends, 0.5),
        clusters_late=_quantile(ends, LATE),
        enable_share=float(np.mean(np.isfinite(enabled) & (enabled < disabled))),
        disable_share=float(np.mean(np.isfinite(disabled) & (disabled <= enabled))),
        clusters_per_s=rate,
        seconds_median=None if seconds is None else _quantile(seconds, 0.5),
        seconds_late=None if seconds is None else _quantile(seconds, LATE),
        needed=still_needed(decision),
        decision=decision,
        span_missing_s=missing_s,
        note="" if look.has_entered else f"testing starts after {plural(entry, 'more session')}",
    )


def wanted_clusters(plans: Sequence[HypothesisPlan], *, is_late: bool) -> Mapping[tuple[str, int], float]:
    """Clusters needed by slice and load: those of its slowest open config, since all run on the same requests."""
    wanted: dict[tuple[str, int], float] = {}
    for plan in plans:
        key = (plan.hypothesis.slice_key, plan.hypothesis.concurrency)
        clusters_late = plan.clusters_late if is_late else plan.clusters_median
        wanted[key] = max(wanted.get(key, 0.0), math.inf if clusters_late is None else clusters_late)
    return wanted


def _clusters_per_unit(hypothesis: Hypothesis, evidence: HypothesisEvidence, name: str, unit: str) -> float:
    tested = evidence.tests.get(name)
    if tested is not None and tested.num_seen and evidence.num_clusters:
        return evidence.num_clusters / tested.num_seen * tested.state.merged_units
    sessions = evidence.runs.max_block_requests // evidence.runs.max_turns
    requests = sessions or REQUESTS_PER_LOAD * hypothesis.concurrency
    return float(requests) if unit in TIMED_UNITS else 1.0


def _forecast(name: str, unit: str, num_units: int, units: Floats, is_required: bool, is_assumed: bool) -> TestForecast:
    return TestForecast(
        name=name,
        unit=unit,
        num_units=num_units,
        median=_quantile(units, 0.5),
        late=_quantile(units, LATE),
        passes_share=float(np.isfinite(units).mean()),
        is_required=is_required,
        is_assumed=is_assumed,
    )


def _quantile(values: Floats, share: float) -> float | None:
    """The smallest value that this share of `values` does not exceed; None for infinity."""
    value = float(np.quantile(values, share, method="inverted_cdf"))
    return value if math.isfinite(value) else None


def _close(decision: Decision, hypothesis: Hypothesis, rate: float | None, note: str, wanted: float) -> HypothesisPlan:
    """The plan of a hypothesis that is decided (no need), or that no evidence will decide (infinity)."""
    clusters = wanted if math.isfinite(wanted) else None
    return HypothesisPlan(
        hypothesis=hypothesis,
        verdict=decision.verdict,
        is_open=False,
        num_clusters=decision.num_clusters,
        tests=(),
        clusters_median=clusters,
        clusters_late=clusters,
        enable_share=float(decision.verdict is Verdict.ENABLE),
        disable_share=float(decision.verdict is Verdict.DISABLE),
        clusters_per_s=rate,
        seconds_median=clusters,
        seconds_late=clusters,
        needed=None,
        decision=decision,
        note=note,
    )
