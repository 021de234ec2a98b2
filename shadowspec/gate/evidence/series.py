"""The unit values of a betting test, from a hypothesis's clusters and blocks.

A request of which an arm failed is folded at the value that is worst for the bound in question: for the lower
bound of speedup at minus the clip, for the upper bound at plus the clip, and so on.  Both bounds then hold whatever
the missing value would have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shadowspec.gate.evidence.units import BlockUnit, MeasuredRun
from shadowspec.gate.stats.betting import Floats, Side, Sums, UnitSeries
from shadowspec.gate.stats.capital import geometric_grid, grid
from shadowspec.types import ArmOrder, Figure, Run

Places = NDArray[np.intp]

NUM_DISABLING = 4  # bounds that may disable a hypothesis: each has 1 / 4 of the level


@dataclass(frozen=True, slots=True)
class BettingTest:
    """One test: its unit values, and the limits of its mean: at least `above`, at most `below`, or both.

    Without units it is the test's definition under a policy; `TestEvidence` holds the sums over many of them.
    """

    name: str
    series: UnitSeries
    unit: str
    best: float  # the mean at which the test passes soonest
    above: float | None = None
    below: float | None = None
    is_log: bool = False  # estimate, bounds and threshold are shown exponentiated
    is_required: bool = True
    disables: bool = False
    growth: float | None = None  # the nulls of its capital tables lie on powers of this instead of GRID_STEP
    # By how many standard errors its mean must lie beyond a limit before a verdict, as means of batches vary.  The bets
    # on speedup need enough evidence to afford a stricter number.
    batch_errors: float = 2.5
    regime: str | None = None  # "greedy", "sampled" or "chat": only for hypotheses with such requests
    num_missing: int = 0
    totals: Mapping[str, float] = field(default_factory=dict)  # sums of these units for further figures
    figures: Mapping[str, Figure] = field(default_factory=dict)  # only shown, and independent of the units
    describe: Callable[[Mapping[str, float]], Mapping[str, Figure]] = lambda _: {}  # further figures, of the totals
    shown_from: float | None = None  # estimate and bounds below it are shown as this: the mean of noise may exceed
    unclipped: str | None = None  # the figure that must lie on the passing side too: the mean that was not clipped
    rows: Places | None = None  # of which of the given blocks or groups each unit is; None: each of them is one

    @property
    def sides(self) -> tuple[tuple[Side, float], ...]:
        """The means that it is judged against, each with the side that must rule it out."""
        lower: tuple[tuple[Side, float], ...] = () if self.above is None else (("lower", self.above),)
        return lower if self.below is None else (*lower, ("upper", self.below))

    @property
    def nulls(self) -> tuple[float, ...]:
        """The means that it is judged against."""
        return tuple(theta for _, theta in self.sides)

    @property
    def thetas(self) -> Floats:
        """The nulls of its capital tables, rising."""
        lowest = self.series.lowest if self.shown_from is None else self.shown_from
        highest = self.series.highest
        if self.growth is not None:
            return geometric_grid(1.0 / highest, highest, self.growth, self.nulls)
        return grid(lowest, highest, self.nulls)

    def fail_level(self, level: float) -> float:
        """The level at which an opposite bound crosses, of a test that passes at `level`."""
        return level / NUM_DISABLING

    def is_contradicted(self, figures: Mapping[str, Figure]) -> bool:
        """Whether the unclipped mean lies where the test would not pass, so that clipping would decide the verdict."""
        mean = figures.get(self.unclipped) if self.unclipped is not None else None
        if not isinstance(mean, float):
            return False
        return any(mean < theta if side == "lower" else mean > theta for side, theta in self.sides)

    def to_readable(self, value: float) -> float | None:
        """A value on the scale that people read; None where the bound was not found within its range."""
        if self.series.upper_worst is not None and value >= self.series.highest:
            return None
        return self.shown_mean(value)

    def shown(self, mean: float | None, lower: float, upper: float) -> tuple[float | None, float | None, float | None]:
        """Estimate and bounds on that scale.

        Where the upper side subtracts what the lower side proves (`shown_from`), the mean is at least the lower bound,
        and nothing bounds it from above.
        """
        if self.shown_from is not None and mean is not None and mean < lower:
            return self.shown_mean(lower), self.shown_mean(lower), None
        return None if mean is None else self.shown_mean(mean), self.to_readable(lower), self.to_readable(upper)

    def shown_mean(self, value: float) -> float:
        """A mean on the scale that people read."""
        if self.shown_from is not None:
            value = max(value, self.shown_from)
        return math.exp(value) if self.is_log else value


@dataclass(frozen=True, slots=True)
class UnitValues:
    """(sum, weight) of a unit for the lower bound, for the upper bound, and as observed."""

    lower: tuple[float, float]
    upper: tuple[float, float]
    observed: tuple[float, float]


def is_missing(run: Run) -> bool:
    """Whether an arm of the run gave nothing to judge."""
    if run.failure is not None or run.counts is None or run.baseline is None or run.speculative is None:
        return True
    return not (run.baseline.end_to_end_ms and run.speculative.end_to_end_ms)


@dataclass(frozen=True, slots=True)
class TimedBlocks:
    """Blocks with the end-to-end times of their runs as columns, in their order: read once, and scored by many tests.

    Times are NaN where an arm failed or took none.
    """

    units: Sequence[BlockUnit]
    runs: Sequence[MeasuredRun]
    places: Places  # [n]: of each run's block
    n_max: Floats  # [blocks]
    baseline_ms: Floats  # [n]
    speculative_ms: Floats  # [n]
    is_missing: NDArray[np.bool_]  # [n]
    repeat_ms: Floats  # [n]: of the baseline's second run; NaN where there is none
    orders: Sequence[ArmOrder | None]  # [blocks]

    @property
    def repeat_logs(self) -> Floats:
        """log(first / second end-to-end time) of each run's baseline, [n]; NaN where it ran once or is missing."""
        return np.log(self.baseline_ms) - np.log(self.repeat_ms)

    @property
    def log_speedups(self) -> Floats:
        """log(baseline / speculative end-to-end time) of each run, [n]; NaN where it is missing."""
        return np.log(self.baseline_ms) - np.log(self.speculative_ms)

    def sum_by_block(self, values: Floats | NDArray[np.bool_]) -> Floats:
        """Sums by block of a value of each run, [n] to [blocks]."""
        return np.bincount(self.places, values, minlength=len(self.units)).astype(np.float64)


Blocks = Sequence[BlockUnit] | TimedBlocks


def add_times(blocks: Blocks) -> TimedBlocks:
    """The blocks with their times, unless they have them already."""
    if isinstance(blocks, TimedBlocks):
        return blocks
    runs = [measured for unit in blocks for measured in unit.runs]
    repeats = [None if m.run.order is None else m.run.order.baseline_repeat_ms for m in runs]
    times = np.array([_end_to_end_ms(measured.run) for measured in runs], dtype=np.float64).reshape(-1, 2)
    has_counts = np.fromiter((measured.run.counts is not None for measured in runs), dtype=np.bool_, count=len(runs))
    return TimedBlocks(
        units=blocks,
        runs=runs,
        places=np.repeat(np.arange(len(blocks)), np.array([len(unit.runs) for unit in blocks], dtype=np.intp)),
        n_max=np.array([unit.block.n_max for unit in blocks], dtype=np.float64),
        baseline_ms=times[:, 0],
        speculative_ms=times[:, 1],
        is_missing=np.isnan(times[:, 0]) | ~has_counts,
        repeat_ms=np.array([time or math.nan for time in repeats], dtype=np.float64),
        orders=[next((m.run.order for m in unit.runs if m.run.order is not None), None) for unit in blocks],
    )


def block_series(
    blocks: TimedBlocks, scores: Floats, lowest: float, highest: float, dependence: Floats | None = None
) -> UnitSeries:
    """Sums of the measured requests' `scores` [n] over n_max: a short block weighs less than a full one.

    A score is NaN where it is missing.
    """
    is_known = ~np.isnan(scores)
    total, num_known = blocks.sum_by_block(np.where(is_known, scores, 0.0)), blocks.sum_by_block(is_known)
    num_runs, n_max = blocks.sum_by_block(np.ones_like(scores)), blocks.n_max
    missing = num_runs - num_known
    return UnitSeries(
        lower=Sums((total + missing * lowest) / n_max, num_runs / n_max),
        upper=Sums((total + missing * highest) / n_max, num_runs / n_max),
        observed=Sums(total / n_max, num_known / n_max),
        lowest=lowest,
        highest=highest,
        dependence=dependence,
    )


def unit_series(
    units: Sequence[UnitValues], lowest: float, highest: float, *, has_light_extremes: bool = False
) -> UnitSeries:
    """The series of `units`, whose mean lies from `lowest` to `highest`."""
    return UnitSeries(
        lower=sums_of([unit.lower for unit in units]),
        upper=sums_of([unit.upper for unit in units]),
        observed=sums_of([unit.observed for unit in units]),
        lowest=lowest,
        highest=highest,
        has_light_extremes=has_light_extremes,
    )


def sums_of(pairs: Sequence[tuple[float, float]]) -> Sums:
    """Pairs of (sum, weight) as arrays."""
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return Sums(table[:, 0], table[:, 1])


def _end_to_end_ms(run: Run) -> tuple[float, float]:
    """Of both arms; NaN where one failed or took no time."""
    if run.failure is not None or run.baseline is None or run.speculative is None:
        return math.nan, math.nan
    baseline_ms, speculative_ms = run.baseline.end_to_end_ms, run.speculative.end_to_end_ms
    return (baseline_ms, speculative_ms) if baseline_ms and speculative_ms else (math.nan, math.nan)
