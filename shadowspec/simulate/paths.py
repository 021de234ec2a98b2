"""Each test's capitals at every look, by the gate's own formulas: where it passes, fails, or surely waits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shadowspec.gate.evidence.series import BettingTest
from shadowspec.gate.stats import betting
from shadowspec.gate.stats.betting import Side
from shadowspec.gate.verdict.decision import DISABLE_CODES
from shadowspec.gate.verdict.required_tests import (
    MERGES,
    NUM_DISABLING_TESTS,
    RESTART_AUTOCORRELATION,
    RESTART_UNITS,
    WAIT_AUTOCORRELATION,
)
from shadowspec.simulate.traffic import Bools, Floats, Ints
from shadowspec.types import TestState

SLACK = 1e-6  # a look is asked rather than skipped where rounding could decide


@dataclass(frozen=True, slots=True, eq=False)
class TestPath:
    """One test from its state on, read at each look: whether it passes, fails, waits for sure, may restart, [looks]."""

    passes: Bools
    fails: Bools
    waits: Bools
    restarts: Bools


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """One betting test, whatever the others said.

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
    tests: Sequence[BettingTest], paths: Mapping[str, TestPath], faults: tuple[Bools, Bools], is_long: Bools
) -> tuple[Bools, Bools]:
    """Looks at which a verdict or a restart is possible, and those at which only dependence stands in its way.

    `is_long`: whether the event time seen suffices for ENABLE, at each look.
    """
    enough, faulty = faults
    required = [paths[test.name] for test in tests if test.is_required]
    disabling = [paths[test.name] for test in tests if test.name in DISABLE_CODES]
    passes = enough & np.logical_and.reduce([path.passes for path in required])
    waits = np.logical_or.reduce([path.waits for path in required])
    restarts = np.logical_or.reduce([path.restarts for path in required])
    crosses = np.logical_or.reduce([path.fails for path in disabling])
    free = np.logical_or.reduce([path.fails & ~path.waits for path in disabling])
    possible = faulty | free | (passes & (restarts | (is_long & ~waits)))
    return possible, (crosses | (passes & waits)) & ~possible


def path_of(test: BettingTest, state: TestState, level: float, units: Ints) -> TestPath:
    """The path of a test that counts from `state` on; `units` are the units seen at each look."""
    series = test.series.merge(state.start_unit, state.merged_units)
    num_units = np.maximum(units - state.start_unit, 0) // state.merged_units
    read = np.maximum(num_units - 1, 0)
    has_units = num_units > 0
    if not series.num_units:
        nothing = np.zeros(len(units), bool)
        return TestPath(nothing, nothing, nothing, nothing)
    passes, fails = _crossings(test, series, level)
    side: Side = "upper" if test.above is None else "lower"
    theta = test.below if test.above is None else test.above
    r1 = _autocorrelations(series.dependence_values(side, theta or 0.0))[read]
    waits = r1 + 1.645 / np.sqrt(np.maximum(num_units, 1)) >= WAIT_AUTOCORRELATION + SLACK
    can_merge = has_units if state.merged_units in MERGES else np.zeros(len(units), bool)
    restarts = (r1 > RESTART_AUTOCORRELATION - SLACK) & (num_units >= RESTART_UNITS) & can_merge
    return TestPath(passes[read] & has_units, fails[read] & has_units, waits & ~restarts & has_units, restarts)


def _crossings(test: BettingTest, series: betting.UnitSeries, level: float) -> tuple[Bools, Bools]:
    """After each unit, whether all nulls of the test have fallen, and whether an opposite one has."""
    nulls: list[tuple[Side, Side, float]] = []
    if test.above is not None:
        nulls.append(("lower", "upper", test.above))
    if test.below is not None:
        nulls.append(("upper", "lower", test.below))
    passes = np.logical_and.reduce(
        [_capital(series, side, theta) >= -math.log(level) - SLACK for side, _, theta in nulls]
    )
    fail_level = level / NUM_DISABLING_TESTS
    fails = np.logical_or.reduce(
        [_capital(series, opposite, theta) >= -math.log(fail_level) - SLACK for _, opposite, theta in nulls]
    )
    return passes, fails


def _capital(series: betting.UnitSeries, side: Side, theta: float) -> Floats:
    return betting.log_capital_path(series.ratios(side, theta))


def outcome_of(test: BettingTest, level: float) -> TestOutcome:
    """When the test crossed, over all of its units and from the first of them on."""
    passes, fails = _crossings(test, test.series, level)
    sides: list[tuple[Side, float]] = [("lower", test.above)] if test.above is not None else []
    sides += [("upper", test.below)] if test.below is not None else []
    best = [_best_ratio(test, side, theta) for side, theta in sides]
    side, theta = sides[0]
    values = test.series.lower.values - theta * test.series.lower.weights
    if side == "upper":
        values = theta * test.series.upper.weights - test.series.upper.values
    return TestOutcome(
        unit=test.unit,
        passed=_first(passes),
        failed=_first(fails),
        min_units=max(betting.min_units(ratio, level) for ratio in best),
        mean=float(values.mean()),
        sd=float(values.std()),
    )


def _best_ratio(test: BettingTest, side: Side, theta: float) -> float:
    """y / b of a unit at the test's best."""
    series = test.series
    if side == "lower":
        return (test.best - theta) / (theta - series.lowest)
    return (theta - test.best) / (series.highest - theta)


def _first(crossed: Bools) -> int | None:
    found = np.flatnonzero(crossed)
    return int(found[0]) + 1 if len(found) else None


def _autocorrelations(values: Floats) -> Floats:
    """r1 of the first n values, for every n, [n]."""
    centred = values - values.mean()
    n = np.arange(1, len(values) + 1)
    total, squares = centred.cumsum(), (centred**2).cumsum()
    products = np.concatenate([[0.0], (centred[:-1] * centred[1:]).cumsum()])
    mean = total / n
    lagged = products - mean * (2.0 * total - centred[0] - centred) + (n - 1) * mean**2
    variance = squares - n * mean**2
    spread = np.maximum.accumulate(values) - np.minimum.accumulate(values)
    r1: Floats = np.divide(lagged, variance, out=np.zeros(len(values)), where=(spread >= 1e-12) & (variance > 0.0))
    return r1
