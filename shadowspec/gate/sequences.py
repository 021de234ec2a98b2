"""A test's estimate and bounds after each unit, as they would have been read at that moment: for drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowspec.gate import betting
from shadowspec.gate.betting import Floats, Side, UnitSeries
from shadowspec.gate.evidence import TestState
from shadowspec.gate.results import NUM_DISABLING_TESTS
from shadowspec.gate.series import BettingTest
from shadowspec.metrics import ratio

MAX_POINTS = 200  # more cannot be told apart in a drawing


@dataclass(frozen=True, slots=True)
class SequencePoint:
    """Estimate and bounds after `num_units` units, on the scale that people read; None where undefined."""

    num_units: int
    estimate: float | None
    lower: float | None
    upper: float | None


def sequence_points(
    test: BettingTest, state: TestState, level: float, max_points: int = MAX_POINTS
) -> list[SequencePoint]:
    """The points of one test from `state` on, at the levels at which its result states them.

    At most `max_points` of them, evenly spread, the last unit included.
    """
    series = test.series.merged(state.start_unit, state.merged_units)
    if not series.num_units:
        return []
    fail_level = level / NUM_DISABLING_TESTS
    spread = np.linspace(1, series.num_units, min(max_points, series.num_units))
    moments = np.unique(np.round(spread).astype(np.int64))
    lowers = _bounds(series, test.thetas, "lower", fail_level if test.above is None else level, moments)
    uppers = _bounds(series, test.thetas, "upper", fail_level if test.below is None else level, moments)
    values, weights = series.observed.values.cumsum(), series.observed.weights.cumsum()
    points = []
    for num_units, lower, upper in zip(moments.tolist(), lowers, uppers, strict=True):
        mean = ratio(float(values[num_units - 1]), float(weights[num_units - 1]))
        estimate = None if mean is None else math.exp(mean) if test.is_log else mean
        points.append(SequencePoint(num_units, estimate, test.shown(lower), test.shown(upper)))
    return points


def _bounds(
    series: UnitSeries, rising: Floats, side: Side, level: float, moments: NDArray[np.int64]
) -> Sequence[float]:
    """The bound of one side after each of `moments` units: the outermost null that still stands, rounded outward."""
    thetas = rising if side == "lower" else rising[::-1]
    num_rejected = np.zeros(len(moments), dtype=np.int64)
    for theta in thetas:
        path = betting.log_capital_path(series.ratios(side, float(theta)))
        num_rejected += path[moments - 1] >= -math.log(level)
    ends = np.concatenate([[series.lowest if side == "lower" else series.highest], thetas])
    bounds: list[float] = ends[num_rejected].tolist()  # the capital is monotone in theta: the rejected come first
    return bounds
