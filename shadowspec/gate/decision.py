"""The verdict on one hypothesis at one look: ENABLE, DISABLE, or HOLD with its reason.

ENABLE needs every required test to pass at this look, from current capitals; DISABLE needs one opposite bound
to cross, a parity fault, or memory over budget.  Empty data never passes.  ENABLE and DISABLE stand: later
looks show fresh figures under them and do not undo them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from shadowspec.gate.levels import FIRST_RUN_SHARE
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.results import (
    TestState,
    after_dependence,
    betting_result,
    betting_tests,
    fault_result,
    memory_result,
)
from shadowspec.gate.series import is_missing
from shadowspec.gate.units import BlockUnit, ClusterUnit
from shadowspec.metrics import ratio
from shadowspec.types import Decision, FingerprintedConfig, TestResult, Verdict

DISABLE_CODES = {"speedup": "slowdown", "tail": "tail_slowed", "parity_sampled": "parity_biased"}
HOLD_CODES = {"acceptance": "low_acceptance", "parity_near_ties": "near_ties", "total_time": "costlier"}


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Endpoint x slice ("" for the whole endpoint) x load x speculation config."""

    endpoint: str
    slice_key: str
    concurrency: int
    config: FingerprintedConfig


@dataclass(frozen=True, slots=True)
class HypothesisEvidence:
    """What a hypothesis rests on at one look.

    `num_closed_clusters` counts all its slice's clusters in evidence, measured or not; `num_lost` its records
    that failed or were shed without leaving a run.
    """

    clusters: tuple[ClusterUnit, ...]
    blocks: tuple[BlockUnit, ...]
    num_closed_clusters: int
    num_lost: int
    num_late: int
    num_dominant_keys: int

    @property
    def num_requests(self) -> int:
        """Timed requests of folded blocks."""
        return sum(len(unit.runs) for unit in self.blocks)

    @property
    def missing_share(self) -> float | None:
        """Failed and shed requests over all that should have been measured."""
        failed = sum(is_missing(measured.run) for unit in self.blocks for measured in unit.runs)
        return ratio(failed + self.num_lost, self.num_requests + self.num_lost)

    @property
    def span_s(self) -> float:
        """Event time between the first and the last measured cluster, seconds."""
        if not self.clusters:
            return 0.0
        first = min(unit.cluster.first_event for unit in self.clusters)
        return (max(unit.cluster.last_event for unit in self.clusters) - first).total_seconds()


@dataclass(frozen=True, slots=True)
class _Word:
    """A verdict with its reason, and the tests that it restarts."""

    verdict: Verdict
    code: str
    reason: str
    restarts: Mapping[str, TestState] = field(default_factory=dict)


def decide(
    hypothesis: Hypothesis,
    evidence: HypothesisEvidence,
    policy: GatePolicy,
    *,
    level: float | None,
    has_entered: bool,
    previous: Decision | None,
    now: datetime,
) -> Decision:
    """The decision on one hypothesis.

    `level` is that of its first run (None: not entered, or none left); `previous` its latest decision, from
    which standing verdicts and restarted tests are taken.  Without a level the tests are shown at the level
    that they would have.
    """
    shown_level = level or policy.alpha / policy.max_hypotheses * FIRST_RUN_SHARE
    tests = {test.name: test for test in betting_tests(evidence.clusters, evidence.blocks, policy)}
    states = {result.name: TestState.of(result) for result in previous.tests} if previous else {}
    results = [betting_result(test, states.get(name, TestState()), policy, shown_level) for name, test in tests.items()]
    if "parity_near_ties" in tests:
        results.append(fault_result(evidence.blocks, hypothesis.config.dtype, policy, shown_level))
    results.append(memory_result(evidence.blocks, hypothesis.config.fingerprint, policy, shown_level))

    if previous is not None and previous.verdict is not Verdict.HOLD:
        word = _Word(previous.verdict, previous.reason_code, previous.reason)
    elif not has_entered:
        missing = policy.entry_clusters - evidence.num_closed_clusters
        word = _hold("too_few_clusters", f"its tests are read from {missing} more closed clusters on")
    elif level is None:
        word = _hold("no_level_left", f"no level left: {policy.max_hypotheses} hypotheses have entered before it")
    else:
        word = _judge(results, evidence, policy)

    for index, result in enumerate(results):
        if result.name in word.restarts:
            results[index] = betting_result(tests[result.name], word.restarts[result.name], policy, shown_level)
    return Decision(
        endpoint=hypothesis.endpoint,
        slice_key=hypothesis.slice_key,
        concurrency=hypothesis.concurrency,
        config=hypothesis.config.config,
        fingerprint=hypothesis.config.fingerprint,
        verdict=word.verdict,
        reason_code=word.code,
        reason=word.reason,
        tests=tuple(results),
        num_clusters=len(evidence.clusters),
        num_blocks=len(evidence.blocks),
        clusters_needed=_clusters_needed(word, results, evidence, policy),
        decided_at=now,
        details={
            "level": level,
            "missing_share": evidence.missing_share,
            "num_requests": evidence.num_requests,
            "num_closed_clusters": evidence.num_closed_clusters,
            "num_late": evidence.num_late,
            "num_dominant_keys": evidence.num_dominant_keys,
            "span_s": evidence.span_s,
            "engine": hypothesis.config.engine,
            "verdict_since": _since(word.verdict, previous, now),
            "frozen_parameters": policy.frozen_parameters() if level is not None else None,
        },
    )


def _judge(results: Sequence[TestResult], evidence: HypothesisEvidence, policy: GatePolicy) -> _Word:
    by_name = {result.name: result for result in results}
    required = [result for result in results if result.details["is_required"]]

    # 1. What needs no sequence: a fault, memory over budget.
    if "parity_faults" in by_name and by_name["parity_faults"].outcome == "fail":
        count = by_name["parity_faults"].details["num_faults"]
        return _Word(Verdict.DISABLE, "parity_fault", f"{count} greedy outputs differ from the target's own")
    if by_name["memory"].outcome == "fail":
        return _Word(Verdict.DISABLE, "memory_over_budget", _figures(by_name["memory"]) + ": over budget")

    # 2. Data that cannot be judged.
    if (evidence.missing_share or 0.0) > policy.max_missing:
        share = evidence.missing_share or 0.0
        return _hold(
            "missing_data", f"{share:.1%} of the requests failed or were shed (limit {policy.max_missing:.1%})"
        )

    # 3. DISABLE: an opposite bound crosses.
    crossing = [result for result in results if result.outcome == "fail" and result.name in DISABLE_CODES]
    waiting, restarts = _dependence(crossing)
    for result in crossing:
        if result.name not in waiting and result.name not in restarts:
            low = by_name["acceptance"].outcome == "fail"
            reason = f"{_figures(result)}: the limit is {_number(result.threshold)}" + (
                f"; {_figures(by_name['acceptance'])} below the floor" if low and result.name == "speedup" else ""
            )
            return _Word(Verdict.DISABLE, DISABLE_CODES[result.name], reason)
    if crossing:
        return _dependent(waiting, restarts)

    # 4. ENABLE: every required test passes at this look.
    unknown = _unknown_parity(evidence)
    if unknown is None or unknown > policy.max_missing:
        return _hold("unknown_parity", "parity was not measured for all requests")
    if all(result.outcome == "pass" for result in required):
        waiting, restarts = _dependence(required)
        if waiting or restarts:
            return _dependent(waiting, restarts)
        if by_name["total_time"].outcome == "fail":
            return _hold("costlier", f"{_figures(by_name['total_time'])}: proven costlier in total time")
        if evidence.span_s < policy.min_span_s:
            return _hold("min_span", f"{evidence.span_s:.0f} s of traffic seen, {policy.min_span_s:.0f} s wanted")
        return _Word(Verdict.ENABLE, "all_tests_pass", f"{_figures(by_name['speedup'])}: every required test passes")

    # 5. HOLD, with the reason that says most.
    failed = [result for result in required if result.outcome == "fail"]
    if failed:
        return _hold(HOLD_CODES[failed[0].name], f"{_figures(failed[0])}: limit {_number(failed[0].threshold)}")
    undecided = [result for result in required if result.outcome == "open"]
    if len(evidence.clusters) >= policy.max_clusters:
        return _hold("undecidable", f"{policy.max_clusters} clusters did not decide {undecided[0].name}")
    for result in undecided:
        if result.details.get("is_undecidable"):
            return _hold("undecidable", f"{_figures(result)}: too near the limit {_number(result.threshold)} to tell")
    slowest = max(undecided, key=lambda result: math.inf if result.units_needed is None else result.units_needed)
    return _hold("too_few_units", _outlook(slowest))


def _dependence(crossing: Sequence[TestResult]) -> tuple[list[str], dict[str, TestState]]:
    """Names of the crossing tests that wait for their independence to show, and states of those that restart."""
    actions = {result.name: after_dependence(result) for result in crossing}
    waiting = [name for name, (action, _) in actions.items() if action == "wait"]
    return waiting, {name: state for name, (action, state) in actions.items() if action == "restart"}


def _dependent(waiting: Sequence[str], restarts: Mapping[str, TestState]) -> _Word:
    parts = [f"{name} restarts with {state.merged_units} units merged" for name, state in restarts.items()]
    parts += [f"{name} waits until its units show to be independent" for name in waiting]
    return _Word(Verdict.HOLD, "dependent", "; ".join(parts), restarts)


def _unknown_parity(evidence: HypothesisEvidence) -> float | None:
    """Share of measured requests of which nothing is known about parity; None of none."""
    runs = [m for unit in evidence.blocks for m in unit.runs if not is_missing(m.run)]
    unknown = sum(m.run.parity is None or (not m.is_greedy and m.run.parity.z_sum is None) for m in runs)
    return ratio(unknown, len(runs))


def _clusters_needed(
    word: _Word, results: Sequence[TestResult], evidence: HypothesisEvidence, policy: GatePolicy
) -> int | None:
    if word.code == "too_few_clusters":
        return policy.entry_clusters - evidence.num_closed_clusters
    if word.code != "too_few_units":
        return None
    # A block's requests are sessions of their own, so that a block counts as so many clusters.
    per_block = max((unit.block.n_max for unit in evidence.blocks), default=1)
    needed = []
    for result in results:
        if result.outcome == "open" and result.details["is_required"]:
            if result.units_needed is None:
                return None
            merged = TestState.of(result).merged_units
            needed.append(result.units_needed * merged * (per_block if result.unit == "block" else 1))
    return max(needed)


def _outlook(result: TestResult) -> str:
    if result.num_units == 0 or result.units_needed is None:
        return f"{_figures(result)}: not proven against {_number(result.threshold)}, and not on the way to it"
    return (
        f"{_figures(result)}: not yet proven against {_number(result.threshold)}, "
        f"about {result.units_needed} more {result.unit}s"
    )


def _figures(result: TestResult) -> str:
    bounds = f" [{_number(result.lower)}, {_number(result.upper)}]" if result.lower != result.upper else ""
    return f"{result.name} {_number(result.estimate)}{bounds}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _hold(code: str, reason: str) -> _Word:
    return _Word(Verdict.HOLD, code, reason)


def _since(verdict: Verdict, previous: Decision | None, now: datetime) -> str:
    if previous is None or previous.verdict is not verdict:
        return now.isoformat()
    return str(previous.details.get("verdict_since") or previous.decided_at.isoformat())
