"""The verdict on one hypothesis at one look: ENABLE, DISABLE, or HOLD with its reason.

ENABLE needs every required test to pass at this look, from current capitals; DISABLE needs one opposite bound
to cross, a fault of parity or of a stream, or memory over budget.  Empty data never passes.  ENABLE and DISABLE stay:
later looks show new figures and do not undo them.  A fault or memory over budget still revokes ENABLE.

Levels guard ENABLE.  A hypothesis without one is never enabled, and may still be disabled: by bounds at the level at
which its tests are shown, while they cross.  A bound that disables has a quarter of a level (`fail_level`), and there
are four of them, so that a false DISABLE of a hypothesis has at most its level as its probability.

ENABLE follows the policy in force.  Where a limit has moved beyond a test's bounds, those at ENABLE and those of this
look, it is HOLD (`policy_changed`) until they meet the policy again.  That costs no level: bounds hold for all limits
at once.  A capital that has fallen since ENABLE changes nothing: decay is the detectors' question.

Where the opposite bound of a test that may disable crosses at 5%, HOLD is `futile`: no verdict, but reason enough to
measure its slice at the smallest rate.  That only stops early, on what is known: the bounds hold for all looks.

On a second deployment (`GatePolicy.is_upgrade`) the same tests decide, and the verdict is HOLD: `may_replace` in place
of ENABLE, `must_not_replace` in place of DISABLE.  No look inherits it, and nothing that acts on ENABLE reads it.

Where the serving engine is not the one that measured, no test of latency decides, and no verdict from latency is
current: HOLD (`GatePolicy.other_engine`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from shadowspec.gate.evidence.carry_over import CarryOver, explains
from shadowspec.gate.evidence.guardrails import quantile_results
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict import reasons
from shadowspec.gate.verdict.current_verdict import AT_ONCE_CODES, DISABLE_CODES, is_valid_for_engine
from shadowspec.gate.verdict.hold_reasons import (
    assumption_note,
    cache_gap,
    clusters_needed,
    dependent,
    merged,
    outlook,
    period,
    short_span,
    slowest_of,
    staleness,
    unproven_independence,
)
from shadowspec.gate.verdict.required_tests import (
    FUTILE_LEVEL,
    after_dependence,
    betting_results,
    fault_result,
    is_futile,
    is_shown_dependent,
    meets_limits,
    memory_result,
    more_units,
    stream_result,
)
from shadowspec.gate.verdict.trial_levels import shown_level
from shadowspec.metrics import ratio
from shadowspec.types import (
    ACCEPTANCE_KEPT,
    Decision,
    EvidenceSummary,
    FingerprintedConfig,
    ProvenBounds,
    ReasonCode,
    TestResult,
    TestState,
    Trial,
    Verdict,
)

MIX_BOUND = "mix_bound"  # in what an ENABLE has proven: the bound of its slices, where the policy requires it

HOLD_CODES = {
    "acceptance": ReasonCode.LOW_ACCEPTANCE,
    "parity_near_ties": ReasonCode.NEAR_TIES,
    "total_time": ReasonCode.COSTLIER,
}


_NOTHING = ProvenBounds(None, None)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Endpoint x slice ("" for the whole endpoint) x load x speculation config."""

    endpoint: str
    slice_key: str
    concurrency: int
    config: FingerprintedConfig


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A verdict with its reason, and the tests that it restarts."""

    verdict: Verdict
    code: str
    reason: str
    restarts: Mapping[str, TestState] = field(default_factory=dict)
    waits: frozenset[str] = frozenset()  # tests that cross, of units that are too few to show their independence


def decide(
    hypothesis: Hypothesis,
    evidence: HypothesisEvidence,
    policy: GatePolicy,
    *,
    trial: Trial | None,
    has_entered: bool,
    previous: Decision | None,
    now: datetime,
) -> Decision:
    """The decision on one hypothesis.

    `trial` is its run (None: not entered, or no level is left for it); `previous` the latest decision in that run,
    whose ENABLE (but for `_at_once` and `_enabled_before`) or DISABLE stays, unless one of both policies is a trial
    policy.  Without a level the tests are shown at the level that they would have.  Tests that the decision restarts
    say so in its results (`restarted_states`): the evidence must then restart with them.
    """
    level = None if trial is None else trial.level
    results = test_results(hypothesis, evidence, policy, shown_level(level, policy))

    other_engine = policy.other_engine(hypothesis.config.engine)
    if previous is not None and previous.recording_only != policy.recording_only:
        previous = None  # a trial and production do not inherit each other's verdicts
    if previous is not None and rests_on_enable(previous) and other_engine is None:
        revoked = _at_once(hypothesis, results, evidence, policy)
        if revoked is not None:
            remedy = reasons.with_remedy(revoked.reason, revoked.code)
            outcome = _named(replace(revoked, reason=reasons.revoked(remedy)), hypothesis)
        else:
            outcome = _enabled_before(previous, results, evidence, policy)
    elif previous is not None and is_valid_for_engine(previous.verdict, previous.reason_code, other_engine):
        outcome = _Outcome(previous.verdict, previous.reason_code, previous.reason)
        if previous.reason_code not in AT_ONCE_CODES:  # a DISABLE that may reopen, and does not where harm is certain
            certain = _at_once(hypothesis, results, evidence, policy)
            outcome = outcome if certain is None else _named(_with_remedy(certain), hypothesis)
    elif other_engine is not None and not has_entered:
        outcome = _other_engine(hypothesis, other_engine)
    elif not has_entered:
        outcome = _waits_for_entry(evidence, policy)
    else:
        outcome = _judge(hypothesis, results, evidence, policy, now, other_engine)
        if level is None and outcome.verdict is not Verdict.DISABLE and other_engine is None:
            held = reasons.no_level_left(hypothesis.slice_key, policy.max_hypotheses)
            outcome = _Outcome(Verdict.HOLD, ReasonCode.NO_LEVEL_LEFT, held, restarts=outcome.restarts)
        if policy.is_upgrade:
            outcome = _of_upgrade(outcome, evidence, policy, hypothesis)
        else:
            outcome = _with_scope(_with_remedy(outcome), evidence, policy)
        outcome = _named(outcome, hypothesis)

    if outcome.restarts:
        results = test_results(hypothesis, evidence.restart(outcome.restarts), policy, shown_level(level, policy))
    return Decision(
        endpoint=hypothesis.endpoint,
        slice_key=hypothesis.slice_key,
        concurrency=hypothesis.concurrency,
        config=hypothesis.config.config,
        fingerprint=hypothesis.config.fingerprint,
        verdict=outcome.verdict,
        reason_code=outcome.code,
        reason=outcome.reason,
        tests=tuple(results),
        num_clusters=evidence.num_clusters,
        num_blocks=evidence.runs.num_blocks,
        clusters_needed=clusters_needed(outcome.code, results, evidence, policy, outcome.waits),
        decided_at=now,
        engine=hypothesis.config.engine,
        serving_engine=policy.serving_engine,
        run=trial,
        frozen_parameters=policy.frozen_parameters() if level is not None else None,
        evidence=EvidenceSummary(
            num_requests=evidence.runs.num_requests,
            num_failed=evidence.runs.num_failed,
            counts=evidence.counts,
            num_capped_clusters=evidence.num_capped_clusters,
            num_late_blocks=evidence.windows.num_late_blocks,
            num_days=evidence.num_days,
            missing_share=evidence.missing_share,
            late_share=evidence.late_share,
            span_s=evidence.span_s,
            newest_evidence=evidence.last_event,
            newest_record=evidence.newest_event,
        ),
        verdict_since=verdict_start(outcome.verdict, previous, now),
        recording_only=policy.recording_only,
    )


def _with_remedy(outcome: _Outcome) -> _Outcome:
    """The outcome; a DISABLE says what to do."""
    return replace(outcome, reason=reasons.with_remedy(outcome.reason, outcome.code))


def _with_scope(outcome: _Outcome, evidence: HypothesisEvidence, policy: GatePolicy) -> _Outcome:
    """The outcome; an ENABLE or DISABLE says of which traffic it speaks."""
    if outcome.verdict is Verdict.HOLD:
        return outcome
    parts = [outcome.reason, *period(evidence)]
    if outcome.verdict is Verdict.ENABLE:
        parts += assumption_note(policy)
    if policy.recording_only:
        parts.append(reasons.only_this_recording(short_span(evidence, policy)))
    return replace(outcome, reason=" ".join(parts))


def _of_upgrade(
    outcome: _Outcome, evidence: HypothesisEvidence, policy: GatePolicy, hypothesis: Hypothesis
) -> _Outcome:
    """A verdict on a second deployment says nothing of speculation: it is HOLD, and its code says what was decided.

    So does one on a load at which a server's schedule drafts nothing.
    """
    if outcome.verdict is Verdict.HOLD:
        return outcome
    is_passed = outcome.verdict is Verdict.ENABLE
    code = ReasonCode.MAY_REPLACE if is_passed else ReasonCode.MUST_NOT_REPLACE
    step = reasons.of_upgrade if hypothesis.config.config.is_deployment else reasons.of_no_drafts
    reason = f"{_with_scope(outcome, evidence, policy).reason} {step(is_passed=is_passed)}"
    return replace(outcome, verdict=Verdict.HOLD, code=code, reason=reason)


def _waits_for_entry(evidence: HypothesisEvidence, policy: GatePolicy) -> _Outcome:
    num_closed = evidence.counts.num_closed_clusters
    if num_closed < policy.entry_clusters:
        return _hold(ReasonCode.TOO_FEW_CLUSTERS, reasons.before_testing(num_closed, policy.entry_clusters))
    share = evidence.counts.recent_share or 0.0
    return _hold(ReasonCode.SMALL_SLICE, reasons.small_slice(share, policy.entry_share))


def rests_on_enable(decision: Decision) -> bool:
    """Whether its run has reached ENABLE: in force, or held because the policy has changed."""
    return decision.verdict is Verdict.ENABLE or decision.reason_code == ReasonCode.POLICY_CHANGED


def proven_bounds(decision: Decision, mix_lower: float | None) -> dict[str, ProvenBounds]:
    """The bounds on which an ENABLE rests, by required test; `mix_lower` is that of its slices (None: not required)."""
    proven = {test.name: ProvenBounds(test.lower, test.upper) for test in decision.tests if test.is_required}
    is_own = mix_lower is None or math.isinf(mix_lower)  # of one slice, the speedup test proves it
    return proven if is_own else {**proven, MIX_BOUND: ProvenBounds(mix_lower, None)}


def test_results(
    hypothesis: Hypothesis, evidence: HypothesisEvidence, policy: GatePolicy, level: float
) -> list[TestResult]:
    """Every required test and the figures shown beside them, at one look."""
    results = betting_results(evidence, policy, level)
    if evidence.runs.num_greedy:
        results.append(fault_result(evidence.runs, hypothesis.config.dtype, policy, level))
    if evidence.runs.num_streams:
        results.append(stream_result(evidence.runs, policy, level))
    results.append(memory_result(evidence.runs, policy, level))
    results += quantile_results(evidence.judged_latencies(), policy, level)
    return results


def verdict_start(verdict: Verdict, previous: Decision | None, now: datetime) -> datetime:
    """Since when a verdict is in force that is given after `previous`."""
    return now if previous is None or previous.verdict is not verdict else previous.since


def _judge(
    hypothesis: Hypothesis,
    results: Sequence[TestResult],
    evidence: HypothesisEvidence,
    policy: GatePolicy,
    now: datetime,
    other_engine: str | None,
) -> _Outcome:
    by_name = {result.name: result for result in results}
    required = [result for result in results if result.is_required]

    # 1. Tests that need no sequence.
    outcome = _at_once(hypothesis, results, evidence, policy)
    if outcome is not None:
        return outcome

    # 2. Data that cannot be judged.
    if (share := evidence.missing_share or 0.0) > policy.max_missing:
        return _hold(ReasonCode.MISSING_DATA, reasons.failed_requests(share, policy.max_missing))

    if (share := evidence.late_share or 0.0) > policy.max_missing:
        late = reasons.late_blocks if share == evidence.late_block_share else reasons.late_requests
        return _hold(ReasonCode.LATE_DATA, late(share, policy.max_missing))

    num_compared = evidence.counts.num_compared_prompts
    mismatch = ratio(evidence.counts.num_other_prompts, num_compared) or 0.0
    if mismatch > policy.max_prompt_mismatch:
        other = reasons.other_prompts(mismatch, num_compared, policy.max_prompt_mismatch)
        return _hold(ReasonCode.PROMPT_MISMATCH, other)

    if (gap := cache_gap(evidence.counts.cached, policy, hypothesis.config)) is not None:
        return _hold(ReasonCode.CACHE_MISMATCH, gap)

    rates = None if policy.unit_window is not None else evidence.runs.operator_rates(policy.min_rate)
    if rates is not None:  # windows weigh each request by its rate
        return _hold(ReasonCode.CHANGED_RATE, reasons.rates_changed(*rates))

    stale = staleness(evidence, policy, now)
    if stale is not None:
        return _hold(ReasonCode.STALE_DATA, stale)

    # 3. DISABLE: an opposite bound crosses.
    deciding = [
        name for name, code in DISABLE_CODES.items() if is_valid_for_engine(Verdict.DISABLE, code, other_engine)
    ]
    deciding += [ACCEPTANCE_KEPT] if policy.is_upgrade else []
    crossing = [
        result
        for result in results
        if result.outcome == "fail"
        and result.name in deciding
        and (result.is_required or result.name == ACCEPTANCE_KEPT)
    ]
    waiting, restarts = _dependence(crossing)
    for result in crossing:
        if result.name not in waiting and result.name not in restarts:
            acceptance = by_name["acceptance"]
            is_low = acceptance.outcome == "fail" and acceptance.is_required and result.name == "speedup"
            reason = reasons.harmful(result, acceptance if is_low else None)
            return _Outcome(Verdict.DISABLE, DISABLE_CODES.get(result.name, ReasonCode.LOW_ACCEPTANCE), reason)
    if crossing:
        return _dependent(crossing, waiting, restarts)

    if other_engine is not None:
        return _other_engine(hypothesis, other_engine)

    # 4. ENABLE: every required test passes at this look, and speaks of most of the traffic.
    untimed = ratio(evidence.counts.num_beyond, evidence.counts.num_arrived) or 0.0
    if untimed > policy.max_untimed_share:
        num_arrived, positions = evidence.counts.num_arrived, policy.timed_positions
        return _hold(ReasonCode.UNTIMED, reasons.never_timed(untimed, num_arrived, positions, policy.max_untimed_share))
    for result in required:
        if result.betting is not None and result.betting.unprovable is not None:
            return _hold(ReasonCode.UNPROVABLE, result.betting.unprovable)
    unknown = _unknown_parity(evidence)
    if policy.judges_parity and (unknown is None or unknown > policy.max_missing):
        return _hold(ReasonCode.UNKNOWN_PARITY, reasons.parity_unknown(unknown, policy.max_missing))
    if by_name["memory"].is_required and evidence.runs.num_blocks and not evidence.runs.num_memory_blocks:
        return _hold(ReasonCode.UNKNOWN_MEMORY, reasons.memory_unknown(evidence.runs.num_blocks))
    if all(result.outcome == "pass" for result in required):
        waiting, restarts = _dependence(required)
        if waiting or restarts:
            return _dependent(required, waiting, restarts)
        if by_name["total_time"].outcome == "fail":
            return _hold(ReasonCode.COSTLIER, reasons.costlier(by_name["total_time"], is_upgrade=policy.is_upgrade))
        if (carried := _carry_over(by_name["speedup"], policy)) is not None:
            return _hold(ReasonCode.CARRY_OVER, carried)
        if (missing := short_span(evidence, policy)) is not None and not policy.recording_only:
            return _hold(ReasonCode.MIN_SPAN, reasons.too_short(missing))
        lower, limit = evidence.mix_lower, policy.min_speedup
        if policy.require_mix_bound and not hypothesis.slice_key and (lower is None or lower <= limit):
            return _hold(ReasonCode.MIX_BOUND, reasons.wide_slices(lower, limit))
        return _Outcome(Verdict.ENABLE, ReasonCode.ALL_TESTS_PASS, reasons.every_test_passes(by_name["speedup"]))

    # 5. HOLD, with the reason that says most.
    failed = [result for result in required if result.outcome == "fail"]
    if failed:
        code = HOLD_CODES.get(failed[0].name, ReasonCode.GUARDRAIL)
        return _hold(code, reasons.failed_limit(failed[0], code))
    undecided = [result for result in required if result.outcome == "open"]
    if evidence.num_clusters >= policy.max_clusters:
        return _hold(ReasonCode.UNDECIDABLE, reasons.not_decided_by(policy.max_clusters, undecided[0]))
    for result in undecided:
        if result.betting is not None and result.betting.is_undecidable:
            return _hold(ReasonCode.UNDECIDABLE, reasons.too_near(result))
    if hopeless := [result for result in undecided if is_futile(result)]:
        return _hold(ReasonCode.FUTILE, reasons.hopeless(hopeless[0], 1.0 - FUTILE_LEVEL))
    needed = clusters_needed(ReasonCode.TOO_FEW_UNITS, results, evidence, policy)
    return _hold(ReasonCode.TOO_FEW_UNITS, outlook(slowest_of(undecided), needed))


def _enabled_before(
    previous: Decision, results: Sequence[TestResult], evidence: HypothesisEvidence, policy: GatePolicy
) -> _Outcome:
    """ENABLE as it was given, or HOLD where the policy in force asks for more than the bounds prove."""
    watch = previous.watch
    if watch is None or not watch.proven:  # nothing to compare with
        return _Outcome(previous.verdict, previous.reason_code, previous.reason)
    beyond = [
        result
        for result in results
        if result.is_required
        and result.name != "memory"  # judged at once
        and not meets_limits(result, watch.proven.get(result.name, _NOTHING), policy)
    ]
    met = [result for result in beyond if result.outcome == "pass"]
    waiting, restarts = _dependence(met)
    unmet = [result for result in beyond if result not in met or result.name in waiting or result.name in restarts]
    parts = [reasons.limit_moved(result, watch.proven.get(result.name)) for result in unmet]
    if (missing := short_span(evidence, policy)) is not None and not policy.recording_only:
        parts.append(reasons.there_is(missing))
    lower, limit = _best(evidence.mix_lower, watch.proven.get(MIX_BOUND, _NOTHING).lower), policy.min_speedup
    if policy.require_mix_bound and not previous.slice_key and (lower is None or lower <= limit):
        parts.append(reasons.slices_prove(lower, limit))
    if parts:
        return _Outcome(Verdict.HOLD, ReasonCode.POLICY_CHANGED, reasons.policy_asks_more(parts), restarts)
    return _Outcome(Verdict.ENABLE, ReasonCode.ALL_TESTS_PASS, watch.reason)


def _best(*bounds: float | None) -> float | None:
    return max((bound for bound in bounds if bound is not None), default=None)


def _carry_over(speedup: TestResult, policy: GatePolicy) -> str | None:
    """Why the measured speedup may not be speculation's own; None where the order of the arms does not explain it."""
    found = CarryOver.read(speedup.figures)
    if found is None or not explains(found, policy):
        return None
    added, without = math.expm1(found.added), math.exp(found.without)
    return reasons.order_adds(added, found.error, policy.max_carry_over, without)


def _at_once(
    hypothesis: Hypothesis, results: Sequence[TestResult], evidence: HypothesisEvidence, policy: GatePolicy
) -> _Outcome | None:
    """DISABLE for a reason that one observation proves: a greedy fault, or memory over budget."""
    by_name = {result.name: result for result in results}
    faults = by_name.get("parity_faults")
    if faults is not None and faults.is_required and faults.outcome == "fail":
        count = evidence.runs.num_faults(policy.near_tie_logit_of(hypothesis.config.dtype))
        return _Outcome(Verdict.DISABLE, ReasonCode.PARITY_FAULT, reasons.greedy_faults(count))
    if "stream_faults" in by_name and by_name["stream_faults"].outcome == "fail":
        broken = reasons.broken_streams(evidence.runs.num_stream_faults)
        return _Outcome(Verdict.DISABLE, ReasonCode.STREAM_FAULT, broken)
    if by_name["memory"].outcome == "fail":
        return _Outcome(Verdict.DISABLE, ReasonCode.MEMORY_OVER_BUDGET, reasons.over_budget(by_name["memory"]))
    return None


def _dependence(crossing: Sequence[TestResult]) -> tuple[list[str], dict[str, TestState]]:
    """Names of the crossing tests that wait for their independence to show, and states of those that restart."""
    actions = {result.name: after_dependence(result) for result in crossing}
    waiting = [name for name, (action, _) in actions.items() if action == "wait"]
    return waiting, {name: state for name, (action, state) in actions.items() if action == "restart"}


def _dependent(crossing: Sequence[TestResult], waiting: Sequence[str], restarts: Mapping[str, TestState]) -> _Outcome:
    """HOLD of tests that cross, while the units of some are not shown to be independent: the reason is of one test."""
    waits = [result for result in crossing if result.name in waiting]
    shown = [result for result in waits if is_shown_dependent(result)]
    merging = [result for result in crossing if result.name in restarts]
    if merging:
        reason = merged(merging[0], restarts[merging[0].name])
    else:
        slowest = max(shown or waits, key=_waits_for)
        reason = dependent(slowest) if shown else unproven_independence(slowest)
    if num_others := len(merging) + len(waits) - 1:
        reason += f" {reasons.alike(num_others)}"
    is_dependent = bool(shown or merging)
    code = ReasonCode.DEPENDENT if is_dependent else ReasonCode.TOO_FEW_UNITS
    return _Outcome(Verdict.HOLD, code, reason, restarts, frozenset() if is_dependent else frozenset(waiting))


def _waits_for(result: TestResult) -> float:
    needed = more_units(result)
    return math.inf if needed is None else needed


def _other_engine(hypothesis: Hypothesis, serving: str) -> _Outcome:
    return _hold(ReasonCode.OTHER_ENGINE, reasons.other_engine(hypothesis.config.engine, serving))


def _unknown_parity(evidence: HypothesisEvidence) -> float | None:
    """Share of measured requests of which nothing is known about parity; None of none."""
    runs = evidence.runs
    return ratio(runs.num_unknown_parity, runs.num_requests - runs.num_failed)


def _named(outcome: _Outcome, hypothesis: Hypothesis) -> _Outcome:
    """The outcome with the mode of measuring in its reason, where that is not the usual one."""
    mode = hypothesis.config.mode
    return outcome if mode is None else replace(outcome, reason=f"{outcome.reason} {reasons.measured_as(mode)}")


def _hold(code: ReasonCode, reason: str) -> _Outcome:
    return _Outcome(Verdict.HOLD, code, reason)
