"""The result of each required test at one look: outcome, estimate, bounds, smallest possible n, units needed.

A test passes when its nulls fall at the hypothesis's level, from current capitals; it fails when the opposite
bound crosses at that level divided by the number of bounds that can disable (speedup, tail, both of z).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shadowspec.gate.evidence.betting_tests import applies, defined_tests
from shadowspec.gate.evidence.guardrails import DOCUMENT
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, TestEvidence
from shadowspec.gate.evidence.series import BettingTest
from shadowspec.gate.evidence.totals import RunTotals
from shadowspec.gate.evidence.windows import TIMED_UNITS, WINDOW
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats import betting
from shadowspec.gate.stats.betting import Floats, Side
from shadowspec.gate.stats.capital import CapitalTable
from shadowspec.gate.verdict import reasons
from shadowspec.gate.verdict.current_verdict import DISABLE_CODES
from shadowspec.metrics import ratio
from shadowspec.types import (
    BettingFigures,
    Decision,
    Dependence,
    Figure,
    ProvenBounds,
    ReasonCode,
    TestResult,
    TestState,
    Verdict,
)

RESTART_AUTOCORRELATION = 0.2  # above it, once r1 is well known, the units are too small to be independent
RESTART_UNITS = 100
Z_95 = 1.645  # one-sided
# Upper 95% limit of r1 below which units pass as independent.  With batches beside it .45 lets no more AR(1) units
# pass than .35 did without them, and independent units wait less (docs/research/simulation.md).
WAIT_AUTOCORRELATION = 0.45
FUTILE_LEVEL = 0.05  # of the opposite bound by which a test is not expected to reach its limit
_ROUNDING = 1e-9  # limits and bounds are exponentiated for people
MERGES = {1: 4, 4: 8}  # units merged into one at the first and at the second restart

Bools = NDArray[np.bool_]


def betting_results(evidence: HypothesisEvidence, policy: GatePolicy, level: float) -> list[TestResult]:
    """The betting tests of a hypothesis at one look, parity for the sampling regimes that its requests have."""
    runs, results = evidence.runs, []
    for test in defined_tests(policy):
        if test.name == "parity_near_ties" and runs.max_turns > 1 and test.unit != WINDOW:
            test = replace(test, unit="block")
        if applies(test, runs.regimes):
            folded = evidence.tests.get(test.name) or TestEvidence.empty(test)
            lost = evidence.lost_units(test.unit)
            results.append(betting_result(test, folded, policy, level, num_lost=lost))
    quantiles = evidence.judged_latencies().figures(policy.alpha)  # shown beside the tail
    return [
        replace(result, figures={**result.figures, **quantiles}) if result.name == "tail" else result
        for result in results
    ]


def betting_result(
    test: BettingTest, evidence: TestEvidence, policy: GatePolicy, level: float, *, num_lost: float = 0.0
) -> TestResult:
    """A betting test at one look; `test` is its definition under the current policy, without units.

    `num_lost` are the lost requests in units of the test: each table has them at the worst of its side.
    """
    fail_level = test.fail_level(level)
    evidence = evidence.with_lost(num_lost)
    tables = {"lower": evidence.lower, "upper": evidence.upper}
    pass_logs = [tables[side].log_capital(theta) for side, theta in test.sides]
    fail_logs = [tables[betting.opposite(side)].log_capital(theta) for side, theta in test.sides]
    is_passed, is_failed = crossings(np.array(pass_logs), np.array(fail_logs), level, fail_level)
    needed = [tables[side].units_needed(theta, evidence.num_units, level) for side, theta in test.sides]
    lower, upper = bounds(test, evidence.lower, evidence.upper, level)
    figures = {**test.figures, **test.describe(dict.fromkeys(test.totals, 0) | dict(evidence.totals))}
    mean = evidence.mean
    shown = test.shown(mean, lower, upper)
    threshold = test.above if test.above is not None and test.below is None else test.below
    unprovable = policy.unprovable(test.name)
    barred = unprovable is not None or (is_passed and test.is_contradicted(figures))
    outcome = "open" if barred else "pass" if is_passed else "fail" if is_failed else "open"
    return TestResult(
        name=test.name,
        outcome=outcome,
        estimate=shown[0],
        lower=shown[1],
        upper=shown[2],
        threshold=None if threshold is None else test.to_readable(threshold),
        alpha=level,
        unit=test.unit,
        num_units=evidence.num_units,
        min_units=min_units(test, policy, level),
        units_needed=None if barred or outcome != "open" or None in needed else max(n for n in needed if n is not None),
        is_required=test.is_required,
        dependence=Dependence(
            evidence.moments.autocorrelation,
            evidence.state,
            _batch_agreement(test, evidence, outcome, fail_level),
        ),
        betting=BettingFigures(
            mean=mean,
            observed_weight=evidence.observed_weight,
            log10_capital_pass=min(pass_logs) / math.log(10.0),
            log10_capital_fail=max(fail_logs) / math.log(10.0),
            fail_alpha=fail_level,
            num_missing=evidence.num_missing,
            is_undecidable=outcome == "open"
            and not barred
            and _is_within(test, lower, upper, policy.indifference)  # spares most looks the wider bounds
            and _is_within(test, *_judged_bounds(test, evidence.lower, evidence.upper, level), policy.indifference),
            unprovable=None if unprovable is None else reasons.unprovable(unprovable),
        ),
        figures=figures,
    )


def crossings(pass_logs: Floats, fail_logs: Floats, level: float, fail_level: float) -> tuple[Bools, Bools]:
    """Whether all nulls of a test fall, and whether an opposite one does, of log-capitals [nulls, ...]."""
    passes = np.logical_and.reduce(betting.is_rejected(pass_logs, level), axis=0)
    return passes, np.logical_or.reduce(betting.is_rejected(fail_logs, fail_level), axis=0)


def _batch_agreement(test: BettingTest, evidence: TestEvidence, outcome: str, fail_level: float) -> float | None:
    """By how many standard errors beyond the required number batches show the outcome; None of an open one."""
    if outcome == "open":
        return None
    if outcome == "pass":
        return min(evidence.batches[side].errors(side, theta) for side, theta in test.sides) / test.batch_errors
    opposites = [(betting.opposite(side), theta) for side, theta in test.sides]
    tables: dict[Side, CapitalTable] = {"lower": evidence.lower, "upper": evidence.upper}
    crossed = [
        (side, theta) for side, theta in opposites if betting.is_rejected(tables[side].log_capital(theta), fail_level)
    ]
    return max(evidence.batches[side].errors(side, theta) for side, theta in crossed) / test.batch_errors


def min_units(test: BettingTest, policy: GatePolicy, level: float) -> int:
    """Units below which a test cannot pass; where nothing can prove it, the units at which it is given up."""
    if policy.unprovable(test.name) is not None:
        return policy.max_clusters
    return max(betting.min_units(_best_ratio(test, side, theta), level) for side, theta in test.sides)


def bounds(test: BettingTest, lower: CapitalTable, upper: CapitalTable, level: float) -> tuple[float, float]:
    """Both bounds of a test's mean, from its two tables; the end of its range where no null falls."""
    return _bounds_at(test, lower, upper, level, level)


def _judged_bounds(test: BettingTest, lower: CapitalTable, upper: CapitalTable, level: float) -> tuple[float, float]:
    """The bounds by which a test passes or fails: a side that can only fail it is judged at the level of failing."""
    fail_level = test.fail_level(level)
    levels = fail_level if test.above is None else level, fail_level if test.below is None else level
    return _bounds_at(test, lower, upper, *levels)


def _bounds_at(
    test: BettingTest, lower: CapitalTable, upper: CapitalTable, lower_level: float, upper_level: float
) -> tuple[float, float]:
    lowest, highest = lower.find_bound(lower_level), upper.find_bound(upper_level)
    return (test.series.lowest if lowest is None else lowest, test.series.highest if highest is None else highest)


def meets_limits(result: TestResult, bounds: ProvenBounds, policy: GatePolicy) -> bool:
    """Whether bounds of a required test, of this or an earlier look, prove its limits under the policy."""
    test = next((test for test in defined_tests(policy) if test.name == result.name), None)
    if test is None:  # faults and quantiles are at most their threshold
        return _is_at_most(bounds.upper, result.threshold)
    above, below = (None if limit is None else test.to_readable(limit) for limit in (test.above, test.below))
    is_above = above is None or (bounds.lower is not None and bounds.lower >= above - _ROUNDING)
    return is_above and (below is None or _is_at_most(bounds.upper, below))


def _is_at_most(upper: float | None, limit: float | None) -> bool:
    return upper is not None and limit is not None and upper <= limit + _ROUNDING


def min_fault_requests(policy: GatePolicy, level: float) -> int:
    """Greedy requests without a fault that prove their share to be below `max_fault_share`."""
    return math.ceil(math.log(level) / math.log1p(-policy.max_fault_share) - 1e-9)


def min_clusters(
    policy: GatePolicy, level: float, per_block: int, regimes: Collection[str] = ("greedy", "sampled")
) -> int:
    """Clusters below which not all required tests can pass, where a full block has `per_block` of them."""
    units = {
        test.name: min_units(test, policy, level) * (per_block if test.unit in TIMED_UNITS else 1)
        for test in defined_tests(policy)
        if test.is_required and test.unit != DOCUMENT and applies(test, regimes)
    }
    faults = min_fault_requests(policy, level) if "greedy" in regimes else 0
    return max(policy.entry_clusters, faults, *units.values())


def fault_units(runs: RunTotals, num_known: int) -> tuple[str, int]:
    """The units that a test of faults counts, and how many of them are known.

    Turns of one session depend on each other: requests of conversations count as whole conversations (clusters).
    """
    return "request" if runs.max_turns == 1 else "cluster", num_known // runs.max_turns


def fault_result(runs: RunTotals, dtype: str, policy: GatePolicy, level: float) -> TestResult:
    """Greedy faults: a first divergence where the target's top-2 gap is above a near-tie's.  One is enough.

    Requests that failed or whose parity is unknown do not count here; the near-tie test counts each of them as
    differing, and so bounds their share.
    """
    limit = policy.near_tie_logit_of(dtype)
    num_faults = runs.num_faults(limit)
    figures = {
        "num_faults": num_faults,
        "num_near_ties": runs.num_diverging - num_faults,
        "num_unknown": runs.num_greedy - runs.num_known_greedy,
        "near_tie_logit": limit,
    }
    faults = _faults("parity_faults", runs, num_faults, runs.num_known_greedy, policy, level, figures)
    return replace(faults, is_required=policy.judges_parity)


def stream_result(runs: RunTotals, policy: GatePolicy, level: float) -> TestResult:
    """Chats whose speculative stream has a fault that no output of the model explains.  One is enough."""
    figures = {"num_faults": runs.num_stream_faults}
    return _faults("stream_faults", runs, runs.num_stream_faults, runs.num_streams, policy, level, figures)


def _faults(
    name: str,
    runs: RunTotals,
    num_faults: int,
    num_requests: int,
    policy: GatePolicy,
    level: float,
    figures: Mapping[str, Figure],
) -> TestResult:
    unit, num_known = fault_units(runs, num_requests)
    min_units = min_fault_requests(policy, level)
    outcome = "fail" if num_faults else "pass" if num_known >= min_units else "open"
    return TestResult(
        name=name,
        outcome=outcome,
        estimate=ratio(num_faults, num_requests),
        lower=None,
        upper=1.0 - level ** (1.0 / num_known) if num_known and not num_faults else None,
        threshold=policy.max_fault_share,
        alpha=level,
        unit=unit,
        num_units=num_known,
        min_units=min_units,
        units_needed=min_units - num_known if outcome == "open" else None,
        figures=figures,
    )


def memory_result(runs: RunTotals, policy: GatePolicy, level: float) -> TestResult:
    """A measurement, no test: the largest extra memory of any block against the budget; shown also without a budget.

    Through servers it is the share of the baseline's KV cache that the speculative server's lacks.
    """
    share, tokens = runs.max_extra_peak_share, runs.max_displaced_kv_tokens
    budgets: list[tuple[float | None, float | None]] = [
        (share, policy.memory_budget_share),
        (tokens, policy.memory_budget_tokens),
    ]
    set_ = [(measured, budget) for measured, budget in budgets if budget is not None]
    is_over = any(measured is not None and measured > budget for measured, budget in set_)
    is_known = all(measured is not None for measured, _ in set_)
    measured, budget = set_[0] if set_ else (share, None)
    displaced, held = runs.max_displaced_requests, runs.baseline_requests
    requests = {} if displaced is None else {"displaced_requests": displaced}
    requests |= {} if displaced is None or held is None else {"baseline_requests": held}
    return TestResult(
        name="memory",
        outcome="fail" if is_over else "pass" if is_known and set_ else "open",
        estimate=measured,
        lower=measured,
        upper=measured,
        threshold=budget,
        alpha=level,
        unit="block",
        num_units=runs.num_memory_blocks,
        min_units=1,
        units_needed=None if is_over or is_known else 1,
        is_required=bool(set_),
        figures={
            "extra_peak_share": share,
            "budget_share": policy.memory_budget_share,
            "displaced_kv_tokens": tokens,
            "budget_tokens": policy.memory_budget_tokens,
            "mean_displaced_kv_tokens": ratio(runs.displaced_kv_tokens_total, runs.num_memory_blocks),
            **requests,  # absent where they are not known, as in decisions from before they were counted
        },
    )


def after_dependence(result: TestResult) -> tuple[str, TestState]:
    """The effect of dependence on a look at which a test crosses: "count", "wait" or "restart", and the new state.

    Faults and memory are no series and count at once.  Quantiles have no units to merge, so they only wait.
    """
    state = result.state or TestState()
    if result.dependence is None or (r1 := result.dependence.r1) is None:
        return "count", state
    can_merge = result.state is not None and state.merged_units in MERGES
    waits, restarts = dependence(r1, result.num_units, can_merge=can_merge)
    agreement = result.dependence.batch_agreement
    if restarts:
        end = state.start_unit + result.num_units * state.merged_units
        return "restart", TestState(end, MERGES[state.merged_units])
    return "wait" if waits or (agreement is not None and agreement < 1.0) else "count", state


def dependence(
    r1: float | Floats, num_units: int | NDArray[np.int64], *, can_merge: bool, slack: float = 0.0
) -> tuple[Bools, Bools]:
    """Whether units of this r1 wait, and whether they restart merged, elementwise; with `slack` fewer wait.

    A restart drops all capital, so that r1 must exceed its threshold by more than its standard error; until then the
    units wait.
    """
    error = 1.0 / np.sqrt(np.maximum(num_units, 1))
    limit, surely = r1 + Z_95 * error, r1 - error
    restarts = np.asarray(surely > RESTART_AUTOCORRELATION - slack) & (num_units >= RESTART_UNITS) & can_merge
    return ~restarts & ((limit >= WAIT_AUTOCORRELATION + slack) | np.equal(num_units, 0)), restarts


def max_autocorrelation(num_units: int) -> float:
    """The r1 below which so many units pass as independent; below 0 where they are too few to show it."""
    return WAIT_AUTOCORRELATION - Z_95 / math.sqrt(max(num_units, 1))


def is_futile(result: TestResult) -> bool:
    """Whether an undecided test that may disable is shown, at FUTILE_LEVEL over all looks, to lie beyond its limit.

    Its limit is then proven with a chance of no more than the test's level; and where the limit holds, this is said
    with a chance of at most FUTILE_LEVEL.
    """
    if result.outcome != "open" or not result.is_required or result.name not in DISABLE_CODES:
        return False
    if result.betting is None or after_dependence(result)[0] != "count":
        return False
    return bool(betting.is_rejected(result.betting.log10_capital_fail * math.log(10.0), FUTILE_LEVEL))


def is_shown_dependent(result: TestResult) -> bool:
    """Whether what keeps a waiting test is the estimate of its dependence, and not the error of that estimate."""
    if result.dependence is None or (r1 := result.dependence.r1) is None:
        return False
    if r1 >= max_autocorrelation(result.num_units):
        return r1 >= WAIT_AUTOCORRELATION and max_autocorrelation(result.num_units) > 0.0
    return result.num_units >= RESTART_UNITS  # batches; of few units there are too few batches


def more_units(result: TestResult) -> int | None:
    """More units after which a waiting test counts, if r1 and means stay as they are; None: no number of them does.

    Where units of that r1 merge and start again before, it is the number up to there.
    """
    if result.dependence is None or (r1 := result.dependence.r1) is None:
        return 0
    num_units, agreement = max(result.num_units, 1), result.dependence.batch_agreement
    if max_autocorrelation(num_units) <= 0.0:
        r1 = min(r1, 0.0)  # nothing is known of it
    counts_at, merges_at = math.inf, math.inf
    if r1 < WAIT_AUTOCORRELATION:
        counts_at = math.floor((Z_95 / (WAIT_AUTOCORRELATION - r1)) ** 2) + 1
    if agreement is not None and agreement < 1.0:
        counts_at = max(counts_at, math.ceil(num_units / agreement**2)) if agreement > 0.0 else math.inf
    if r1 > RESTART_AUTOCORRELATION and result.state is not None and result.state.merged_units in MERGES:
        merges_at = max(RESTART_UNITS, math.floor((r1 - RESTART_AUTOCORRELATION) ** -2) + 1)
    ends_at = min(counts_at, merges_at)
    return None if math.isinf(ends_at) else max(int(ends_at) - num_units, 1)


def waits_for_independence(decision: Decision) -> bool:
    """Whether a decision would be a verdict if the units of a test that crosses were shown to be independent."""
    is_undecided = decision.verdict is Verdict.HOLD or decision.reason_code in (ReasonCode.DRIFT, ReasonCode.REOPENED)
    required = [test for test in decision.tests if test.is_required]
    crossing = [test for test in decision.tests if test.outcome == "fail" and test.name in DISABLE_CODES]
    if required and all(test.outcome == "pass" for test in required):
        crossing += required
    is_waiting = any(after_dependence(test)[0] != "count" for test in crossing)
    return decision.reason_code == ReasonCode.DEPENDENT or (is_undecided and is_waiting)


def _best_ratio(test: BettingTest, side: Side, theta: float) -> float:
    gain = test.best - theta if side == "lower" else theta - test.best
    return gain / test.series.worst(side, theta)


def _is_within(test: BettingTest, lower: float, upper: float, indifference: float) -> bool:
    thresholds = [theta for theta in (test.above, test.below) if theta is not None]
    return any(theta - indifference <= lower and upper <= theta + indifference for theta in thresholds)
