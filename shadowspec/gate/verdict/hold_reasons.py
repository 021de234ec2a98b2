"""Texts of reasons: why there is no verdict yet, how much more evidence it needs, and which traffic it covers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from shadowspec.gate.evidence.guardrails import DOCUMENT
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.windows import TIMED_UNITS
from shadowspec.gate.policy import DAY_S, GatePolicy
from shadowspec.gate.verdict.current_decision import is_stale
from shadowspec.gate.verdict.required_tests import RESTART_AUTOCORRELATION, max_autocorrelation, more_units
from shadowspec.metrics import cached_shares, ratio
from shadowspec.text import percent, plural, span_text
from shadowspec.types import (
    PREFIX_CACHE,
    CachedPrompts,
    Decision,
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
    age = (
        f"more than {limit_s:.0f} s ago: measure newer traffic"
        if newest <= now
        else "which is still to come: check the mirror's clocks"
    )
    return f"the newest evidence is of {newest:%Y-%m-%d %H:%M} UTC, {age}"


def cache_gap(cached: CachedPrompts, policy: GatePolicy, config: FingerprintedConfig) -> str | None:
    """Why prompts were not found in caches as production finds them; None where they were, or too few say so."""
    production, baseline, _ = cached_shares(cached)
    if cached.num_requests < MIN_CACHED_REQUESTS or production is None or baseline is None:
        return None
    if abs(production - baseline) <= policy.max_cache_gap:
        return None
    mode = config.details.get(PREFIX_CACHE)
    if production < baseline:
        remedy = 'measure with prefix_cache = "evicted" or "on"'
    else:
        remedy = "raise sample_rate" if mode == "as_served" else 'measure with prefix_cache = "as_served"'
    return (
        f"production's cache held {percent(production)} of the prompt tokens of "
        f"{plural(cached.num_requests, 'request')}, the baseline's {percent(baseline)} "
        f"(limit {policy.max_cache_gap:.0%} apart): {remedy}"
    )


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
    wanted = math.ceil(policy.min_span_s / DAY_S)
    if evidence.num_days < wanted:
        return f"evidence from {plural(evidence.num_days, 'day')}, {wanted} needed"
    if evidence.span_s < policy.min_span_s:
        return f"{span_text(evidence.span_s)} of traffic seen, {span_text(policy.min_span_s)} needed"
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
    if result.unit == DOCUMENT and result.num_units == 0:
        return f"{result.name}: no task set was evaluated with this config; run `shadowspec evaluate`"
    if result.num_units == 0:
        least = plural(result.min_units, result.unit)
        return f"{result.name}: nothing counts yet, and it needs at least {least}: send traffic"
    limit = number(result.threshold)
    if result.units_needed is None:
        return f"{figures(result)}: not proven against {limit}, and not trending towards it: try another candidate"
    if result.unit == DOCUMENT:
        needed = f"evaluate about {plural(result.units_needed, 'more document')}"
    elif num_clusters is None:
        needed = f"send about {plural(result.units_needed, f'more {result.unit}')}"
    else:
        needed = f"send about {plural(num_clusters, 'more session')}"
    return f"{figures(result)}: not yet proven against {limit}: {needed}"


UNDECIDED_REMEDY: Final = "try another candidate, or change the limit"
SPREAD: Final = "send traffic that is spread over more time"
_FAILED_REMEDY: Final[Mapping[str, str]] = {
    ReasonCode.LOW_ACCEPTANCE: "try another draft or fewer speculative tokens",
    ReasonCode.COSTLIER: "try another draft or fewer speculative tokens",
    ReasonCode.NEAR_TIES: "use the same kernels in both arms, or review that limit",
    ReasonCode.GUARDRAIL: "change the candidate, or review that limit",
}


def futile(result: TestResult, certainty: float) -> str:
    """A test that will not reach its limit, shown with this certainty at every look."""
    return (
        f"{figures(result)} does not reach the limit {number(result.threshold)} ({certainty:.0%} sure at every "
        "look), so that few blocks are measured now: try another candidate"
    )


def failed_limit(result: TestResult, code: ReasonCode) -> str:
    """A required test that failed, of a HOLD with this code."""
    return f"{figures(result)} misses the limit {number(result.threshold)}: {_FAILED_REMEDY[code]}"


def unmeasured_parity(share: float | None, policy: GatePolicy) -> str:
    """Requests of which nothing is known about parity; `share` is None where no request is."""
    of = "any request" if share is None else f"{share:.1%} of the requests"
    return (
        f"parity was not measured for {of} (limit {policy.max_missing:.1%}): let the baseline's server return "
        "`score_logprobs`"
    )


def unproven_independence(result: TestResult) -> str:
    """A test that crosses, and of whose units there are too few to judge whether they are independent."""
    needed = more_units(result)
    more = SPREAD if needed is None else f"send about {needed:,} more"
    agreement = None if result.dependence is None else result.dependence.batch_agreement
    shown = "" if agreement is None or agreement >= 1.0 else f", batches {max(agreement, 0.0):.2f} of 1"
    return (
        f"{result.name} crosses its limit, but {_units(result)} are too few to judge whether they are independent "
        f"(r1 {_r1(result)}{shown}): {more}"
    )


def dependent(result: TestResult) -> str:
    """A test that crosses, and of whose units those that follow each other resemble each other."""
    needed, num_units = more_units(result), result.num_units
    allowed = max_autocorrelation(num_units)
    r1 = 0.0 if result.dependence is None else result.dependence.r1 or 0.0
    if r1 < allowed:  # batches show what neighbours do not
        agreement = 0.0 if result.dependence is None else result.dependence.batch_agreement or 0.0
        more = SPREAD if needed is None else f"send about {needed:,} more"
        return (
            f"{result.name}: {_units(result)} drift together over time (batches {max(agreement, 0.0):.2f} of the "
            f"required 1): {more}"
        )
    remedy = SPREAD if needed is None else f"send {needed:,} more, which then count in fours"
    if needed is not None and result.state is not None and result.state.merged_units > 1:
        remedy = f"send {needed:,} more, which then count in larger groups"
    return (
        f"{result.name}: neighbours among {_units(result)} resemble each other (r1 {_r1(result)}, limit "
        f"{allowed:.2f}): {remedy}"
    )


def merged(result: TestResult, state: TestState) -> str:
    """A test that crosses, and of which units are merged and counted again because they resemble each other."""
    return (
        f"{result.name}: neighbours among {_units(result)} resemble each other (r1 {_r1(result)}, limit "
        f"{RESTART_AUTOCORRELATION:.2f}): send at least {result.min_units * state.merged_units:,} more, "
        f"counted in groups of {state.merged_units}"
    )


def _units(result: TestResult) -> str:
    group = (result.state or TestState()).merged_units
    return plural(result.num_units, f"{result.unit}{'' if group == 1 else ' group'}")


def _r1(result: TestResult) -> str:
    return number(None if result.dependence is None else result.dependence.r1, 2)


def not_trending(decision: Decision) -> list[str]:
    """The required open tests that more of the same traffic is not expected to decide."""
    return [
        result.name
        for result in decision.tests
        if result.is_required and result.outcome == "open" and is_not_trending(result)
    ]


def is_not_trending(result: TestResult) -> bool:
    """Whether an open test has units, and none of them moves it towards its threshold."""
    return result.unit != DOCUMENT and result.num_units > 0 and result.units_needed is None


def figures(result: TestResult) -> str:
    """A test's estimate with its bounds."""
    bounds = f" [{number(result.lower)}, {number(result.upper)}]" if result.lower != result.upper else ""
    name = result.figures.get("judged", result.name)
    return f"{name} {number(result.estimate)}{bounds}"


def period(evidence: HypothesisEvidence) -> str:
    """The end of a verdict's reason: the traffic that it covers."""
    if evidence.first_event is None or evidence.last_event is None:
        return ""
    return f"; traffic of {evidence.first_event:%Y-%m-%d %H:%M} to {evidence.last_event:%Y-%m-%d %H:%M} UTC"


def assumption_note(policy: GatePolicy) -> str:
    """The end of the reason of an ENABLE whose units are windows: what is assumed beyond them."""
    if policy.unit_window is None:
        return ""
    return f"; assumes that incidents of over {span_text(policy.window_s)} are as frequent as in this traffic"


def recording_note(evidence: EvidenceSpan, policy: GatePolicy) -> str:
    """The end of the reason of a trial policy's verdict: its scope, and the span that production would require."""
    too_short = short_span(evidence, policy)
    return f"; trial: of this recording only{'' if too_short is None else f' ({too_short})'}"


def slowest_of(undecided: Sequence[TestResult]) -> TestResult:
    """The open test that needs most units; one of which that is unknown goes before all."""
    return max(undecided, key=lambda result: math.inf if result.units_needed is None else result.units_needed)


def number(value: float | None, digits: int = 3) -> str:
    """A figure as reasons show it."""
    return "unknown" if value is None else f"{value:.{digits}g}"


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
    wanted = [] if (too_short := short_span(decision.evidence, policy)) is None else [too_short]
    if undecided:
        needed = still_needed(decision)
        names = ", ".join(result.name for result in undecided)
        how = outlook(slowest_of(undecided)) if needed is None else needed.text
        wanted.append(f"{plural(len(undecided), 'open test')} ({names}): {how}")
    failed = [result for result in required if result.outcome == "fail"]
    if failed:
        shortfalls = ", ".join(f"{figures(result)}, limit {number(result.threshold)}" for result in failed)
        wanted.append(f"{plural(len(failed), 'failed test')} ({shortfalls})")
    return wanted
