"""Which reason holds a verdict up, and how much more evidence it needs; `reasons` writes the sentences.

In: evidence, results of tests, the policy.
Out: reasons, and the evidence that is still needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from shadowspec.gate.evidence.guardrails import DOCUMENT
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.windows import TIMED_UNITS
from shadowspec.gate.policy import DAY_S, GatePolicy
from shadowspec.gate.verdict import reasons
from shadowspec.gate.verdict.current_decision import is_stale
from shadowspec.gate.verdict.figure_texts import figures_text, threshold_text, title_of
from shadowspec.gate.verdict.required_tests import RESTART_AUTOCORRELATION, max_autocorrelation, more_units
from shadowspec.metrics import cached_shares, ratio
from shadowspec.text import plural, span_text
from shadowspec.types import (
    PREFIX_CACHE,
    CachedPrompts,
    Decision,
    Dependence,
    FingerprintedConfig,
    ReasonCode,
    TestResult,
    TestState,
)

MIN_CACHED_REQUESTS: Final = 100  # of which production and both arms say how much was cached, to compare them


def staleness(evidence: HypothesisEvidence, policy: GatePolicy, now: datetime) -> str | None:
    """Why the evidence is too old for a new verdict; None if it is not, or if there is no evidence."""
    limit_s, newest = policy.max_evidence_age_s, evidence.last_event
    if limit_s is None or newest is None or not is_stale(newest, timedelta(seconds=limit_s), now):
        return None
    return reasons.too_old(newest, limit_s) if newest <= now else reasons.of_the_future(newest)


def cache_gap(cached: CachedPrompts, policy: GatePolicy, config: FingerprintedConfig) -> str | None:
    """Why prompts were not found in caches as production finds them; None where they were, or too few say so."""
    production, baseline, _ = cached_shares(cached)
    if cached.num_requests < MIN_CACHED_REQUESTS or production is None or baseline is None:
        return None
    if abs(production - baseline) <= policy.max_cache_gap:
        return None
    mode = config.details.get(PREFIX_CACHE)
    if production < baseline:
        remedy = 'Measure with `prefix_cache = "evicted"` or `"on"`'
    else:
        remedy = "Raise `sample_rate`" if mode == "as_served" else 'Measure with `prefix_cache = "as_served"`'
    return reasons.caches_differ(production, baseline, cached, policy.max_cache_gap, remedy)


class EvidenceSpan(Protocol):
    """The length of evidence: its span and its days."""

    @property
    def num_days(self) -> int: ...
    @property
    def span_s(self) -> float: ...


def short_span(evidence: EvidenceSpan, policy: GatePolicy) -> str | None:
    """Why the traffic seen is too short for ENABLE that may be promoted; None if it is not.

    `min_span_s` is event time from the first to the last measured cluster.  As many days, partial days included, must
    have evidence: two bursts a week apart show two days.
    """
    return _span_text(evidence, policy, reasons.days_missing, reasons.time_missing)


def span_needed(evidence: EvidenceSpan, policy: GatePolicy) -> str | None:
    """The same as something that is needed."""
    return _span_text(evidence, policy, reasons.days_needed, reasons.time_needed)


def _span_text(
    evidence: EvidenceSpan,
    policy: GatePolicy,
    of_days: Callable[[int, int], str],
    of_time: Callable[[float, float], str],
) -> str | None:
    wanted = math.ceil(policy.min_span_s / DAY_S)
    if evidence.num_days < wanted:
        return of_days(evidence.num_days, wanted)
    if evidence.span_s < policy.min_span_s:
        return of_time(evidence.span_s, policy.min_span_s)
    return None


def clusters_needed(
    reason_code: str,
    results: Sequence[TestResult],
    evidence: HypothesisEvidence,
    policy: GatePolicy,
    waits: Collection[str] = (),
) -> int | None:
    """Clusters until the slowest open test may pass; None where that is unknown or another reason holds.

    Tests of which names are in `waits` cross already, and wait for units that show their independence.
    """
    if reason_code == ReasonCode.TOO_FEW_CLUSTERS:
        return policy.entry_clusters - evidence.counts.num_closed_clusters
    if reason_code != ReasonCode.TOO_FEW_UNITS:
        return None
    # A block's conversations are of different sessions, so a block of N conversations counts as N clusters.
    per_block = max(evidence.runs.max_block_requests // evidence.runs.max_turns, 1)
    needed = []
    for result in results:
        is_open = result.outcome == "open" and result.is_required and result.unit != DOCUMENT
        if result.name in waits or (is_open and not waits):
            num_units = more_units(result) if waits else result.units_needed
            if num_units is None:
                return None
            group = (result.state or TestState()).merged_units
            needed.append(num_units * group * (per_block if result.unit in TIMED_UNITS else 1))
    return max(needed, default=None)


def outlook(result: TestResult, num_clusters: int | None = None) -> str:
    """An open test's figures so far, and the evidence that it still needs."""
    if result.num_units == 0:
        return reasons.no_evaluation(result) if result.unit == DOCUMENT else reasons.nothing_counts(result)
    if result.units_needed is None:
        return reasons.not_trending(result)
    if result.unit == DOCUMENT:
        more = reasons.evaluate_documents(result.units_needed)
    elif num_clusters is None:
        more = reasons.send_units(result, result.units_needed)
    else:
        more = reasons.send_sessions(num_clusters)
    return reasons.not_proven_yet(result, more)


def unproven_independence(result: TestResult) -> str:
    """A test that crosses, and of whose units there are too few to judge whether they are independent."""
    return reasons.independence_unknown(result, _units(result), more_units(result))


def dependent(result: TestResult) -> str:
    """A test that crosses, and of whose units those that follow each other resemble each other."""
    needed, allowed = more_units(result), max_autocorrelation(result.num_units)
    found = result.dependence or Dependence()
    if (found.r1 or 0.0) < allowed:  # batches show what neighbours do not
        return reasons.drifting_together(result, _units(result), max(found.batch_agreement or 0.0, 0.0), needed)
    group = "larger groups" if result.state is not None and result.state.merged_units > 1 else "fours"
    remedy = None if needed is None else reasons.send_merged(result, needed, group)
    return reasons.resembling(result, _units(result), found.r1 or 0.0, allowed, remedy)


def merged(result: TestResult, state: TestState) -> str:
    """A test that crosses, and of which units are merged and counted again because they resemble each other."""
    r1 = 0.0 if result.dependence is None else result.dependence.r1 or 0.0
    remedy = reasons.send_merged(result, result.min_units * state.merged_units, f"groups of {state.merged_units}")
    return reasons.resembling(result, _units(result), r1, RESTART_AUTOCORRELATION, remedy)


def _units(result: TestResult) -> str:
    group = (result.state or TestState()).merged_units
    return plural(result.num_units, f"{reasons.unit_of(result)}{'' if group == 1 else ' group'}")


def not_trending(decision: Decision) -> list[TestResult]:
    """The required open tests that more of the same traffic is not expected to decide."""
    return [
        result
        for result in decision.tests
        if result.is_required and result.outcome == "open" and is_not_trending(result)
    ]


def is_not_trending(result: TestResult) -> bool:
    """Whether an open test has units, and none of them moves it towards its threshold."""
    return result.unit != DOCUMENT and result.num_units > 0 and result.units_needed is None


def period(evidence: HypothesisEvidence) -> list[str]:
    """The traffic that a verdict covers."""
    if evidence.first_event is None or evidence.last_event is None:
        return []
    return [reasons.covered_traffic(evidence.first_event, evidence.last_event)]


def assumption_note(policy: GatePolicy) -> list[str]:
    """What an ENABLE whose units are windows assumes beyond them."""
    return [] if policy.unit_window is None else [reasons.assumed_beyond(policy.window_s)]


def slowest_of(undecided: Sequence[TestResult]) -> TestResult:
    """The open test that needs most units; one of which that is unknown goes before all."""
    return max(undecided, key=lambda result: math.inf if result.units_needed is None else result.units_needed)


@dataclass(frozen=True, slots=True)
class StillNeeded:
    """`sessions` more measured sessions, and the `seconds` in which they come at the pace so far (None: unknown).

    `is_least`: testing only begins after them.
    """

    sessions: int
    seconds: float | None
    is_least: bool

    @property
    def text(self) -> str:
        """Such as `about 40 more sessions (5 minutes of this traffic)`."""
        time = "" if self.seconds is None else f" ({span_text(self.seconds)} of this traffic)"
        return f"{'at least' if self.is_least else 'about'} {plural(self.sessions, 'more session')}{time}"


def still_needed(decision: Decision) -> StillNeeded | None:
    """The estimate of a decision; None where it is decided, or where no number of sessions can be estimated."""
    if not decision.clusters_needed:
        return None
    seconds = ratio(decision.clusters_needed * decision.evidence.span_s, decision.num_clusters)
    return StillNeeded(decision.clusters_needed, seconds or None, decision.reason_code == "too_few_clusters")


def needed_for_promotion(decision: Decision, policy: GatePolicy) -> list[str]:
    """The evidence that a decision still needs for an ENABLE that may be promoted: span, open tests, failed tests."""
    required = [result for result in decision.tests if result.is_required]
    undecided = [result for result in required if result.outcome == "open"]
    wanted = [] if (longer := span_needed(decision.evidence, policy)) is None else [longer]
    if undecided:
        needed = still_needed(decision)
        names = ", ".join(title_of(result) for result in undecided)
        how = outlook(slowest_of(undecided)).rstrip(".") if needed is None else needed.text
        wanted.append(f"{plural(len(undecided), 'open test')} ({names}): {how}")
    failed = [result for result in required if result.outcome == "fail"]
    if failed:
        shortfalls = ", ".join(
            f"{title_of(result)} {figures_text(result)}, limit {threshold_text(result)}" for result in failed
        )
        wanted.append(f"{plural(len(failed), 'failed test')} ({shortfalls})")
    return wanted
