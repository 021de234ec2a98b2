"""The result of each required test at one look: outcome, estimate, bounds, smallest possible n, units needed.

A test passes when its nulls fall at the hypothesis's level, from current capitals; it fails when the opposite
bound crosses at that level divided by the number of tests that can disable (speedup, tail, z).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from shadowspec.gate import betting
from shadowspec.gate.agreement import acceptance_test, near_tie_test, z_test
from shadowspec.gate.betting import Side, UnitSeries
from shadowspec.gate.latency import speedup_test, tail_test, total_time_test
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.series import BettingTest, Detail, is_missing
from shadowspec.gate.units import BlockUnit, ClusterUnit
from shadowspec.metrics import ratio
from shadowspec.types import TestResult

NUM_DISABLING_TESTS = 3  # speedup, tail, z

RESTART_AUTOCORRELATION = 0.2  # above it, once r1 is well known, the units are too small to be independent
RESTART_UNITS = 100
WAIT_AUTOCORRELATION = 0.3  # r1's upper 95% limit below which the units pass as independent
MERGES = {1: 4, 4: 8}  # units merged into one at the first and at the second restart


@dataclass(frozen=True, slots=True)
class TestState:
    """From which unit on a test counts, and how many consecutive units it merges into one."""

    __test__ = False

    start_unit: int = 0
    merged_units: int = 1

    @staticmethod
    def of(result: TestResult | None) -> TestState:
        """The state that an earlier look left behind."""
        if result is None:
            return TestState()
        details = result.details
        return TestState(int(details.get("start_unit") or 0), int(details.get("merged_units") or 1))


def betting_tests(
    clusters: Sequence[ClusterUnit], blocks: Sequence[BlockUnit], policy: GatePolicy
) -> list[BettingTest]:
    """The betting tests of a hypothesis, parity for the sampling regimes that its runs have."""
    tests = [
        speedup_test(blocks, policy),
        total_time_test(blocks, policy),
        acceptance_test(clusters, policy),
        tail_test(blocks, policy),
    ]
    if any(measured.is_greedy for unit in blocks for measured in unit.runs):
        tests.append(near_tie_test(blocks, policy))
    if any(not measured.is_greedy for unit in blocks for measured in unit.runs):
        tests.append(z_test(clusters, policy))
    return tests


def betting_result(test: BettingTest, state: TestState, policy: GatePolicy, level: float) -> TestResult:
    """A betting test at one look, its series taken from `state` on."""
    series = test.series.merged(state.start_unit, state.merged_units)
    fail_level = level / NUM_DISABLING_TESTS
    nulls: list[tuple[Side, float]] = [("lower", test.above)] if test.above is not None else []
    nulls += [("upper", test.below)] if test.below is not None else []
    pass_logs = [betting.log_capital(series.ratios(side, theta)) for side, theta in nulls]
    fail_logs = [betting.log_capital(series.ratios(_opposite(side), theta)) for side, theta in nulls]
    is_passed = all(betting.is_rejected(log, level) for log in pass_logs)
    is_failed = any(betting.is_rejected(log, fail_level) for log in fail_logs)
    needed = [betting.units_needed(series.ratios(side, theta), level) for side, theta in nulls]
    lower = betting.bound(series, "lower", fail_level if test.above is None else level)
    upper = betting.bound(series, "upper", fail_level if test.below is None else level)
    weight = float(series.observed.weights.sum())
    mean = ratio(float(series.observed.values.sum()), weight)
    threshold = test.above if test.above is not None and test.below is None else test.below
    outcome = "pass" if is_passed else "fail" if is_failed else "open"
    details: dict[str, Detail] = {
        "mean": mean,
        "r1": autocorrelation(test, series),
        "log10_capital_pass": min(pass_logs) / math.log(10.0),
        "log10_capital_fail": max(fail_logs) / math.log(10.0),
        "fail_alpha": fail_level,
        "is_required": int(test.is_required),
        "is_undecidable": int(outcome == "open" and _is_within(test, lower, upper, policy.indifference)),
        "num_missing": test.num_missing,
        "start_unit": state.start_unit,
        "merged_units": state.merged_units,
        **test.details,
    }
    return TestResult(
        name=test.name,
        outcome=outcome,
        estimate=None if mean is None else (math.exp(mean) if test.is_log else mean),
        lower=test.shown(lower),
        upper=test.shown(upper),
        threshold=None if threshold is None else test.shown(threshold),
        alpha=level,
        unit=test.unit,
        num_units=series.num_units,
        min_units=max(betting.min_units(_best_ratio(test, side, theta), level) for side, theta in nulls),
        units_needed=None if outcome != "open" or None in needed else max(n for n in needed if n is not None),
        details=details,
    )


def fault_result(blocks: Sequence[BlockUnit], dtype: str, policy: GatePolicy, level: float) -> TestResult:
    """Greedy faults: a first divergence where the target's top-2 gap is above a near-tie's.  One is enough.

    Requests that failed or whose parity is unknown do not count here; the near-tie test counts each of them as
    differing, and so bounds their share.
    """
    limit = policy.near_tie_logit_of(dtype)
    greedy = [m.run for unit in blocks for m in unit.runs if m.is_greedy]
    parities = [run.parity for run in greedy if not is_missing(run) and run.parity is not None]
    known = [p for p in parities if p.first_divergence is None or p.divergence_gap is not None]
    num_faults = sum(p.divergence_gap is not None and p.divergence_gap > limit for p in known)
    num_near_ties = sum(p.first_divergence is not None for p in known) - num_faults
    min_units = math.ceil(math.log(level) / math.log1p(-policy.max_fault_share) - 1e-9)
    outcome = "fail" if num_faults else "pass" if len(known) >= min_units else "open"
    return TestResult(
        name="parity_faults",
        outcome=outcome,
        estimate=ratio(num_faults, len(known)),
        lower=None,
        upper=1.0 - level ** (1.0 / len(known)) if known and not num_faults else None,
        threshold=policy.max_fault_share,
        alpha=level,
        unit="request",
        num_units=len(known),
        min_units=min_units,
        units_needed=min_units - len(known) if outcome == "open" else None,
        details={
            "num_faults": num_faults,
            "num_near_ties": num_near_ties,
            "num_unknown": len(greedy) - len(known),
            "near_tie_logit": limit,
            "is_required": 1,
        },
    )


def memory_result(blocks: Sequence[BlockUnit], fingerprint: str, policy: GatePolicy, level: float) -> TestResult:
    """Measured, no test: the largest extra peak memory of any block against the budget."""
    seen = [unit.block.memory[fingerprint] for unit in blocks if fingerprint in unit.block.memory]
    shares = [ratio(m.speculative_peak_bytes - m.baseline_peak_bytes, m.baseline_peak_bytes) for m in seen]
    share = max((value for value in shares if value is not None), default=None)
    tokens = max((m.displaced_kv_tokens for m in seen), default=None)
    budgets: list[tuple[float | None, float | None]] = [
        (share, policy.memory_budget_share),
        (tokens, policy.memory_budget_tokens),
    ]
    set_ = [(measured, budget) for measured, budget in budgets if budget is not None]
    is_over = any(measured is not None and measured > budget for measured, budget in set_)
    is_known = all(measured is not None for measured, _ in set_)
    measured, budget = set_[0]
    return TestResult(
        name="memory",
        outcome="fail" if is_over else "pass" if is_known else "open",
        estimate=measured,
        lower=measured,
        upper=measured,
        threshold=budget,
        alpha=level,
        unit="block",
        num_units=len(seen),
        min_units=1,
        units_needed=None if is_over or is_known else 1,
        details={
            "extra_peak_share": share,
            "budget_share": policy.memory_budget_share,
            "displaced_kv_tokens": tokens,
            "budget_tokens": policy.memory_budget_tokens,
            "mean_displaced_kv_tokens": fmean(m.displaced_kv_tokens for m in seen) if seen else None,
            "is_required": 1,
        },
    )


def autocorrelation(test: BettingTest, series: UnitSeries) -> float:
    """r1 of a test's unit values, on which its independence is judged."""
    side: Side = "upper" if test.above is None else "lower"
    theta = test.below if test.above is None else test.above
    return betting.lag_one_autocorrelation(series.dependence_values(side, theta or 0.0))


def after_dependence(result: TestResult) -> tuple[str, TestState]:
    """What a look at which a test crosses may do with it: "count", "wait" or "restart", and the state to keep.

    Faults and memory are no series and count at once.
    """
    details: Mapping[str, Detail] = result.details
    r1, state = details.get("r1"), TestState.of(result)
    if not isinstance(r1, float):
        return "count", state
    if r1 > RESTART_AUTOCORRELATION and result.num_units >= RESTART_UNITS and state.merged_units in MERGES:
        end = state.start_unit + result.num_units * state.merged_units
        return "restart", TestState(end, MERGES[state.merged_units])
    if not result.num_units or r1 + 1.645 / math.sqrt(result.num_units) >= WAIT_AUTOCORRELATION:
        return "wait", state
    return "count", state


def _opposite(side: Side) -> Side:
    return "upper" if side == "lower" else "lower"


def _best_ratio(test: BettingTest, side: Side, theta: float) -> float:
    series = test.series
    if side == "lower":
        return (test.best - theta) / (theta - series.lowest)
    return (theta - test.best) / (series.highest - theta)


def _is_within(test: BettingTest, lower: float, upper: float, indifference: float) -> bool:
    thresholds = [theta for theta in (test.above, test.below) if theta is not None]
    return any(theta - indifference <= lower and upper <= theta + indifference for theta in thresholds)
