"""The unit values of each betting test, from a hypothesis's clusters and blocks.

A request of which an arm failed is folded at the value that is worst for the bound in question: for the lower
bound of speedup at minus the clip, for the upper bound at plus the clip, and so on, so that both bounds hold
whatever the missing value would have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shadowspec.gate.betting import Floats, Sums, UnitSeries
from shadowspec.gate.units import BlockUnit
from shadowspec.metrics import speedup
from shadowspec.types import Run

Detail = float | int | str | None


@dataclass(frozen=True, slots=True)
class BettingTest:
    """One test: its unit values and what its mean must exceed (`above`), stay under (`below`), or both."""

    name: str
    series: UnitSeries
    unit: str
    best: float  # the mean at which the test passes soonest
    above: float | None = None
    below: float | None = None
    is_log: bool = False  # estimate, bounds and threshold are shown exponentiated
    is_required: bool = True
    disables: bool = False
    num_missing: int = 0
    details: Mapping[str, Detail] = field(default_factory=dict)

    def shown(self, value: float) -> float | None:
        """A value on the scale that people read; None where the bound was not found within its range."""
        if self.series.upper_worst is not None and value >= self.series.highest:
            return None
        return math.exp(value) if self.is_log else value


@dataclass(frozen=True, slots=True)
class Unit:
    """(sum, weight) of a unit for the lower bound, for the upper bound, and of what was observed."""

    lower: tuple[float, float]
    upper: tuple[float, float]
    observed: tuple[float, float]


def is_missing(run: Run) -> bool:
    """Whether an arm of the run gave nothing to judge."""
    return log_speedup(run) is None or run.counts is None


def log_speedup(run: Run) -> float | None:
    """log(baseline / speculative end-to-end time); None where an arm failed or took no time."""
    if run.failure is not None or run.baseline is None or run.speculative is None:
        return None
    value = speedup(run.baseline, run.speculative)
    return math.log(value) if value else None


def num_missing_runs(blocks: Sequence[BlockUnit]) -> int:
    """Runs of the blocks of which an arm gave nothing to judge."""
    return sum(is_missing(measured.run) for unit in blocks for measured in unit.runs)


def block_series(
    blocks: Sequence[BlockUnit],
    score: Callable[[Run], float | None],
    lowest: float,
    highest: float,
    dependence: Floats | None = None,
) -> UnitSeries:
    """Sums of the own requests' scores over n_max: a short block weighs what its own requests weigh."""
    units = []
    for unit in blocks:
        scores = [score(measured.run) for measured in unit.runs]
        known = [value for value in scores if value is not None]
        total, missing, n_max = sum(known), len(scores) - len(known), unit.block.n_max
        units.append(
            Unit(
                lower=((total + missing * lowest) / n_max, len(scores) / n_max),
                upper=((total + missing * highest) / n_max, len(scores) / n_max),
                observed=(total / n_max, len(known) / n_max),
            )
        )
    return unit_series(units, lowest, highest, dependence=dependence)


def unit_series(
    units: Sequence[Unit],
    lowest: float,
    highest: float,
    *,
    upper_worst: float | None = None,
    dependence: Floats | None = None,
) -> UnitSeries:
    """The series of `units`, whose mean lies from `lowest` to `highest`."""
    return UnitSeries(
        lower=sums_of([unit.lower for unit in units]),
        upper=sums_of([unit.upper for unit in units]),
        observed=sums_of([unit.observed for unit in units]),
        lowest=lowest,
        highest=highest,
        upper_worst=upper_worst,
        dependence=dependence,
    )


def sums_of(pairs: Sequence[tuple[float, float]]) -> Sums:
    """Pairs of (sum, weight) as arrays."""
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return Sums(table[:, 0], table[:, 1])
