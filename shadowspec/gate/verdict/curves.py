"""A test's estimate and bounds after each unit, as a look at that moment would have read them: for drawing.

The units are recorded while evidence is folded (`UnitRecorder`), and then added to the evidence's tables again in small
groups, so that the last point equals the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

import numpy as np

from shadowspec.gate.evidence.hypothesis import TestEvidence
from shadowspec.gate.evidence.series import BettingTest
from shadowspec.gate.stats.betting import UnitSeries, log_capital_path, opposite
from shadowspec.gate.stats.drift import Detector
from shadowspec.gate.verdict.required_tests import bounds, crossings
from shadowspec.metrics import ratio

MAX_POINTS = 200  # more cannot be distinguished in a drawing


@dataclass(frozen=True, slots=True)
class SequencePoint:
    """Estimate and bounds after `num_units` units, on the scale that people read; None where undefined."""

    num_units: int
    estimate: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class UnitRecorder:
    """A watcher that keeps every unit value of one test, in folding order, and has no detector in the evidence."""

    test_name: str
    parts: list[UnitSeries] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The key under which a detector would be stored."""
        return f"recorded_{self.test_name}"

    def fold(self, detector: Detector | None, units: UnitSeries) -> None:
        """Keep the units."""
        self.parts.append(units)

    @property
    def series(self) -> UnitSeries | None:
        """All units; None if there are none."""
        return reduce(UnitSeries.concat, self.parts) if self.parts else None


def sequence_points(
    test: BettingTest,
    evidence: TestEvidence,
    series: UnitSeries,
    level: float,
    *,
    num_lost: float = 0.0,
    max_points: int = MAX_POINTS,
) -> list[SequencePoint]:
    """The points of one test at the levels at which its result states its bounds.

    `series` are all units that `evidence` has seen; those that count are drawn.  At most `max_points` points, evenly
    spread, the last unit included.  Nobody knows when the `num_lost` units were lost, so each point has its part.
    """
    counted = series.merge(evidence.state.start_unit, evidence.state.merged_units)
    if not counted.num_units:
        return []
    spread = np.linspace(1, counted.num_units, min(max_points, counted.num_units))
    moments: list[int] = np.unique(np.round(spread).astype(np.int64)).tolist()
    values, weights = counted.observed.values.cumsum(), counted.observed.weights.cumsum()
    lower_table, upper_table = evidence.lower.without_units(), evidence.upper.without_units()
    points = []
    for start, num_units in pairwise([0, *moments]):
        added = counted.part(start, num_units)
        lower_table = lower_table.fold(added.lower.values, added.lower.weights)
        upper_table = upper_table.fold(added.upper.values, added.upper.weights)
        lost = num_lost / evidence.state.merged_units * num_units / counted.num_units
        lower, upper = bounds(test, lower_table.with_worst(lost), upper_table.with_worst(lost), level)
        mean = ratio(float(values[num_units - 1]), float(weights[num_units - 1]))
        points.append(SequencePoint(num_units, *test.shown(mean, lower, upper)))
    return points


def crossed_since(
    test: BettingTest, evidence: TestEvidence, series: UnitSeries, level: float, *, num_lost: float = 0.0
) -> int | None:
    """The counted unit (the first is 1) from which on the test passes, or fails, at every unit up to the last one.

    None where it does neither at the last one.  The arguments are those of `sequence_points`.
    """
    counted = series.merge(evidence.state.start_unit, evidence.state.merged_units)
    if not counted.num_units:
        return None
    lost = np.linspace(0.0, num_lost / evidence.state.merged_units, counted.num_units + 1, dtype=np.float64)[1:]
    passes = [log_capital_path(counted.ratios(side, theta), num_lost=lost) for side, theta in test.sides]
    fails = [log_capital_path(counted.ratios(opposite(side), theta), num_lost=lost) for side, theta in test.sides]
    has_passed, has_failed = crossings(np.array(passes), np.array(fails), level, test.fail_level(level))
    crossed = has_passed if has_passed[-1] else has_failed
    if not crossed[-1]:
        return None
    breaks = np.flatnonzero(~crossed)
    return int(breaks[-1]) + 2 if len(breaks) else 1
