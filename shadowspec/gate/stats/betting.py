"""Betting on bounded unit values: the one sequential test behind four of the gate's five required tests.

A unit carries a sum u and a weight g in [0, 1]; for a null mean theta its value is y = u - theta*g (for the
opposite null -y), never below -b, b the size of its worst value.  Against E[y | past] <= 0 the capital
sum_j w_j prod_i (1 + f_j * y_i / b) is a nonnegative supermartingale that starts at 1, so that it exceeds
1/level with probability at most level, whenever the gate looks (Ville).  After Waudby-Smith and Ramdas,
arXiv 2010.09686.  The capital falls as theta moves towards the data, hence the nulls rejected are an
interval, and inverting the test over a grid of theta gives bounds that hold at all looks at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FRACTIONS = np.array([0.1, 0.3, 0.6, 0.95])  # bets as fractions of the largest that cannot go bankrupt
# Initial capital on each fraction, chosen by simulation for the sizes at which verdicts fall
# (docs/research/simulation.md).
WEIGHTS = (0.05, 0.1, 0.15, 0.7)
GRID_STEP = 0.005  # bounds are grid points, rounded outward

Side = Literal["lower", "upper"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sums:
    """Per unit, in folding order: `values` u and `weights` g, both [n]; u / g lies within the series' range."""

    values: Floats
    weights: Floats

    def part(self, start: int, stop: int) -> Sums:
        """The units from `start` up to, but without, `stop`."""
        return Sums(self.values[start:stop], self.weights[start:stop])

    def concat(self, later: Sums) -> Sums:
        """These units, then the later ones."""
        return Sums(np.concatenate([self.values, later.values]), np.concatenate([self.weights, later.weights]))

    def merge(self, start: int, group: int) -> Sums:
        """The units from `start` on, each `group` consecutive ones as their mean; an incomplete group waits."""
        return Sums(_group(self.values, start, group).mean(axis=1), _group(self.weights, start, group).mean(axis=1))


@dataclass(frozen=True, slots=True)
class UnitSeries:
    """One test's unit values in folding order.

    `lower` and `upper` differ only where something is missing: each holds the value that is worst for the
    bound of its name, and `observed` leaves it out.  `lowest` and `highest` bound the mean.  `upper_worst` is
    the size of the worst value of the upper side where that is not `highest - theta`.  With `has_light_extremes` a unit
    of next to no weight may have the sum `lowest` or `highest`.  `dependence` replaces the unit values where
    autocorrelation is judged.  `uncredited` is `upper` without values below the range, for bets that cannot bear them:
    a test bets on the upper side, where a low value only gains.
    """

    lower: Sums
    upper: Sums
    observed: Sums
    lowest: float
    highest: float
    upper_worst: float | None = None
    dependence: Floats | None = None
    uncredited: Sums | None = None
    has_light_extremes: bool = field(default=False, kw_only=True)

    @property
    def num_units(self) -> int:
        return len(self.lower.values)

    def part(self, start: int, stop: int) -> UnitSeries:
        """The units from `start` up to, but without, `stop`."""
        if start == 0 and stop == self.num_units:
            return self
        return replace(
            self,
            lower=self.lower.part(start, stop),
            upper=self.upper.part(start, stop),
            observed=self.observed.part(start, stop),
            dependence=None if self.dependence is None else self.dependence[start:stop],
            uncredited=None if self.uncredited is None else self.uncredited.part(start, stop),
        )

    def concat(self, later: UnitSeries) -> UnitSeries:
        """These units, then the later ones of the same test."""
        assert (self.dependence is None) == (later.dependence is None), "units of different tests"
        dependence = uncredited = None
        if self.dependence is not None and later.dependence is not None:
            dependence = np.concatenate([self.dependence, later.dependence])
        if self.uncredited is not None and later.uncredited is not None:
            uncredited = self.uncredited.concat(later.uncredited)
        return replace(
            self,
            lower=self.lower.concat(later.lower),
            upper=self.upper.concat(later.upper),
            observed=self.observed.concat(later.observed),
            dependence=dependence,
            uncredited=uncredited,
        )

    def merge(self, start: int, group: int) -> UnitSeries:
        """The series that restarts at unit `start` with `group` consecutive units merged into one."""
        return replace(
            self,
            lower=self.lower.merge(start, group),
            upper=self.upper.merge(start, group),
            observed=self.observed.merge(start, group),
            dependence=None if self.dependence is None else _group(self.dependence, start, group).min(axis=1),
            uncredited=None if self.uncredited is None else self.uncredited.merge(start, group),
        )

    def ratios(self, side: Side, theta: float) -> Floats:
        """y / b of every unit, [n], at least -1: the evidence against a mean at or below (above) theta."""
        if side == "lower":
            values = self.lower.values - theta * self.lower.weights
        else:
            values = theta * self.upper.weights - self.upper.values
        worst = self.worst(side, theta)
        ratios: Floats = np.maximum(values / worst, -1.0)
        return ratios

    def worst(self, side: Side, theta: float) -> float:
        """The size b of a unit's worst value against a mean at or below (above) theta."""
        described = self.lowest, self.highest, self.upper_worst, self.has_light_extremes
        return float(worst_values(side, np.array([theta]), *described)[0])

    def dependence_values(self, null: float) -> Floats:
        """The values whose lag-1 autocorrelation is judged, [n]."""
        return self.lower.values - null * self.lower.weights if self.dependence is None else self.dependence


def worst_values(
    side: Side, thetas: Floats, lowest: float, highest: float, upper_worst: float | None, has_light_extremes: bool
) -> Floats:
    """The size b of the worst value of a unit whose sum u lies from `lowest` to `highest`, at each null; [G].

    At the lower side y = u - theta * g, with a weight g from 0 to 1.  Where u / g lies within the range, y is least
    at full weight: lowest - theta.  Where a light unit may have an extreme sum, it is the lesser of lowest (g = 0) and
    lowest - theta (g = 1), as y is linear in g.  The upper side is the same of the negative sums and nulls.
    """
    if side == "upper" and upper_worst is not None:
        return np.full(len(thetas), upper_worst)
    size, extra = (-lowest, thetas) if side == "lower" else (highest, -thetas)
    worst: Floats = size + (np.maximum(extra, 0.0) if has_light_extremes else extra)
    return worst


def log_capital_path(ratios: Floats, weights: Sequence[float] = WEIGHTS, num_lost: Floats | None = None) -> Floats:
    """Natural logarithm of the capital after each unit of `ratios` [n]; [n].

    By each unit `num_lost` [n] others were lost, which count at their worst.
    """
    summed = np.log1p(np.multiply.outer(FRACTIONS, ratios)).cumsum(axis=1)
    if num_lost is not None:
        summed += np.multiply.outer(np.log1p(-FRACTIONS), num_lost)
    path: Floats = np.logaddexp.reduce(np.log(weights)[:, None] + summed, axis=0)
    return path


def opposite(side: Side) -> Side:
    """The other side."""
    return "upper" if side == "lower" else "lower"


def is_rejected(log_capital_now: float | Floats, level: float) -> NDArray[np.bool_]:
    """Whether the null falls at `level`: capital at or above 1 / level, now and not at its best moment; elementwise."""
    return np.asarray(log_capital_now >= -math.log(level))


@lru_cache(maxsize=4_096)
def min_units(best_ratio: float, level: float, weights: tuple[float, ...] = WEIGHTS) -> int:
    """Smallest number of units at which the null can fall, every unit being at its best, `best_ratio` = y / b > 0."""
    high = 1
    while not is_rejected(_log_capital_of_equal(best_ratio, high, weights), level):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        has_fallen = is_rejected(_log_capital_of_equal(best_ratio, middle, weights), level)
        low, high = (low, middle) if has_fallen else (middle, high)
    return high


def _log_capital_of_equal(ratio: float, num_units: int, weights: tuple[float, ...]) -> float:
    return float(np.logaddexp.reduce(np.log(weights) + num_units * np.log1p(FRACTIONS * ratio)))


def _group(values: Floats, start: int, group: int) -> Floats:
    kept = values[start:]
    return kept[: len(kept) // group * group].reshape(-1, group)
