"""Where a look of the gate may bring a verdict, by the gate's own functions over paths of all units.

It only selects looks, with slack: the gate run there gives the verdicts and the sizes of single tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shadowspec.gate.evidence.hypothesis import TestEvidence, count_units
from shadowspec.gate.evidence.series import BettingTest
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats import betting
from shadowspec.gate.stats.autocorrelation import autocorrelation_path, errors_path
from shadowspec.gate.stats.betting import Floats, Side, UnitSeries
from shadowspec.gate.verdict.current_verdict import DISABLE_CODES
from shadowspec.gate.verdict.required_tests import MERGES, betting_result, crossings, dependence, min_units
from shadowspec.simulate.traffic import Bools, Ints
from shadowspec.types import TestState

SLACK = 1e-6  # a look is asked rather than skipped where rounding could decide


@dataclass(frozen=True, slots=True, eq=False)
class LookPath:
    """One test from its state on, read at each look: whether it passes, fails, may restart, and whether it waits for
    sure where it passes and where it fails, [looks].

    `passed_units` and `failed_units` are the numbers of its units after which it may pass, and fail, with nothing lost.
    """

    passes: Bools
    fails: Bools
    waits_to_pass: Bools
    waits_to_fail: Bools
    restarts: Bools
    passed_units: Ints
    failed_units: Ints


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """One betting test, independent of the other tests.

    `passed` and `failed` are the first unit after which its null (its opposite null) fell; `mean` and `sd` are those
    of all its unit values against its threshold.
    """

    __test__ = False

    unit: str
    passed: int | None
    failed: int | None
    min_units: int
    mean: float
    sd: float


def possible_looks(
    tests: Sequence[BettingTest], paths: Mapping[str, LookPath], faults: tuple[Bools, Bools], is_long: Bools
) -> tuple[Bools, Bools]:
    """Looks at which a verdict or a restart is possible, and those at which only dependence prevents it.

    `is_long`: whether the event time seen suffices for ENABLE, at each look.
    """
    enough, faulty = faults
    required = [paths[test.name] for test in tests if test.is_required]
    disabling = [paths[test.name] for test in tests if test.name in DISABLE_CODES]
    passes = enough & np.logical_and.reduce([path.passes for path in required])
    waits = np.logical_or.reduce([path.waits_to_pass for path in required])
    restarts = np.logical_or.reduce([path.restarts for path in required])
    crosses = np.logical_or.reduce([path.fails for path in disabling])
    free = np.logical_or.reduce([path.fails & ~path.waits_to_fail for path in disabling])
    possible = faulty | free | (passes & (restarts | (is_long & ~waits)))
    return possible, (crosses | (passes & waits)) & ~possible


def path_of(
    test: BettingTest, state: TestState, policy: GatePolicy, level: float, units: Ints, lost: Floats
) -> LookPath:
    """The path of a test that counts from `state` on; `units` were seen by each look, and `lost` ones lost, [looks]."""
    series = test.series.merge(state.start_unit, state.merged_units)
    num_units = np.maximum(units - state.start_unit, 0) // state.merged_units
    read = np.maximum(num_units - 1, 0)
    has_units = num_units > 0
    if not series.num_units:
        nothing = np.zeros(len(units), bool)
        return LookPath(nothing, nothing, nothing, nothing, nothing, units[:0], units[:0])
    sides, opposites = test.sides, [(betting.opposite(side), theta) for side, theta in test.sides]
    ratios = [[series.ratios(side, theta) for side, theta in bounds] for bounds in (sides, opposites)]
    # At several looks a test may have the same units: of the losses by then the fewest count.
    looks = np.searchsorted(num_units, np.arange(1, series.num_units + 1)).clip(max=len(units) - 1)
    num_lost = lost[looks] / state.merged_units

    def cross(num_lost: Floats | None) -> tuple[Bools, Bools]:
        for_it, against_it = (
            np.array([betting.log_capital_path(ratio, num_lost=num_lost) for ratio in one]) + SLACK for one in ratios
        )
        return crossings(for_it, against_it, level, test.fail_level(level))

    alone = cross(None)
    passes, fails = cross(num_lost) if num_lost.any() else alone
    r1 = autocorrelation_path(series.dependence_values(test.nulls[0]))[read]
    waits, restarts = dependence(r1, num_units, can_merge=state.merged_units in MERGES, slack=SLACK)
    # Where two bounds may fail the test, one whose batches agree is enough.
    to_pass, to_fail = (
        least < 1.0 - SLACK
        for least in (
            np.min([_agreement(series, test, *bound) for bound in sides], axis=0)[read],
            np.max([_agreement(series, test, *bound) for bound in opposites], axis=0)[read],
        )
    )
    passed_units, failed_units = (np.flatnonzero(crosses) + 1 for crosses in alone)
    return LookPath(
        passes=passes[read] & has_units,
        fails=fails[read] & has_units,
        waits_to_pass=(waits | (to_pass & ~restarts)) & has_units,
        waits_to_fail=(waits | (to_fail & ~restarts)) & has_units,
        restarts=restarts,
        passed_units=passed_units,
        failed_units=failed_units,
    )


def _agreement(series: UnitSeries, test: BettingTest, side: Side, theta: float) -> Floats:
    """`BatchSums.errors` of one side after each unit, divided by the required number, [n]."""
    return errors_path(series.lower if side == "lower" else series.upper, side, theta) / test.batch_errors


def outcome_of(test: BettingTest, path: LookPath, policy: GatePolicy, level: float) -> TestOutcome:
    """When the test crossed, over all of its units and from the first of them on; `path` is from there."""
    side, theta = test.sides[0]
    values = test.series.lower.values - theta * test.series.lower.weights
    if side == "upper":
        values = theta * test.series.upper.weights - test.series.upper.values
    return TestOutcome(
        unit=test.unit,
        passed=_first_unit(test, policy, level, path.passed_units, "pass"),
        failed=_first_unit(test, policy, level, path.failed_units, "fail"),
        min_units=min_units(test, policy, level),
        mean=float(values.mean()),
        sd=float(values.std()),
    )


def _first_unit(test: BettingTest, policy: GatePolicy, level: float, candidates: Ints, outcome: str) -> int | None:
    """The smallest of these numbers of units after which the gate's result of only this test has this outcome."""
    nulls = np.array(sorted(test.nulls))
    for num_units in map(int, candidates):
        evidence = count_units(TestEvidence.empty(test, thetas=nulls), test.series.part(0, num_units))
        if betting_result(test, evidence, policy, level).outcome == outcome:
            return num_units
    return None
