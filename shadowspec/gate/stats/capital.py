"""Evidence of one test and side as a table of summed log-capitals: tables add up, and need no units afterwards.

Invariant: folding units in any pieces and any order, or merging tables, gives the sums that folding all of them at
once gives (up to rounding).  Rows are nulls theta, fixed when the table begins: a grid and the thresholds of that
moment.  A null between two rows is judged at the next row outward, where less is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce

import numpy as np

from shadowspec.gate.stats.betting import FRACTIONS, GRID_STEP, WEIGHTS, Floats, Side, is_rejected, worst_values

NUM_FRACTIONS = len(FRACTIONS)

_CHUNK = 512  # units at a time: the work area, a megabyte or two, stays in the processor's cache
_GROUP = 16  # factors multiplied before a logarithm is taken; each lies from 0.05 to about 1e4, so none overflows
_SAMPLE = 64  # units that are sampled to see whether the values repeat: mostly zeros and ones
_SAME = 1e-12  # nulls closer than this are one


def grid(lowest: float, highest: float, nulls: Iterable[float] = ()) -> Floats:
    """Every multiple of GRID_STEP strictly inside the range and the `nulls` inside it, rising."""
    first, last = math.floor(lowest / GRID_STEP) + 1, math.ceil(highest / GRID_STEP) - 1
    return with_nulls(np.arange(first, last + 1, dtype=np.float64) * GRID_STEP, lowest, highest, nulls)


def geometric_grid(lowest: float, highest: float, growth: float, nulls: Iterable[float] = ()) -> Floats:
    """Powers of `growth` strictly inside the range from `lowest` > 0, and the `nulls` inside it, rising."""
    first, last = math.floor(math.log(lowest) / math.log(growth)) + 1, math.ceil(math.log(highest) / math.log(growth))
    return with_nulls(growth ** np.arange(first, last, dtype=np.float64), lowest, highest, nulls)


def with_nulls(points: Floats, lowest: float, highest: float, nulls: Iterable[float]) -> Floats:
    """The points and nulls strictly inside the range, rising, none twice; a null takes the place of a point at it."""
    values = np.array(sorted(set(nulls)), dtype=np.float64)
    if len(values):
        points = points[np.abs(points[:, None] - values).min(axis=1) > _SAME]
    merged: Floats = np.sort(np.concatenate([points, values]))
    return merged[(merged > lowest + 1e-9) & (merged < highest - 1e-9)]


@dataclass(frozen=True)  # without slots, which would leave no place for cached properties
class CapitalTable:
    """One side's sums; the mean lies from `lowest` to `highest`, `weights` are the initial bets.

    The rest is as in `UnitSeries`.
    """

    side: Side
    thetas: Floats  # [G], rising
    logs: Floats  # [G, NUM_FRACTIONS]: sums over units of log(1 + f * y / b)
    lowest: float
    highest: float
    upper_worst: float | None
    has_light_extremes: bool
    weights: tuple[float, ...]

    @classmethod
    def empty(
        cls,
        side: Side,
        thetas: Floats,
        lowest: float,
        highest: float,
        upper_worst: float | None = None,
        has_light_extremes: bool = False,
        weights: tuple[float, ...] = WEIGHTS,
    ) -> CapitalTable:
        """The table of no units."""
        logs = np.zeros((len(thetas), NUM_FRACTIONS))
        return cls(side, thetas, logs, lowest, highest, upper_worst, has_light_extremes, weights)

    @cached_property
    def worst(self) -> Floats:
        """The size b of a unit's worst value at each null, [G]."""
        described = self.lowest, self.highest, self.upper_worst, self.has_light_extremes
        return worst_values(self.side, self.thetas, *described)

    def fold(self, values: Floats, weights: Floats) -> CapitalTable:
        """The table with these units added: sums [n] and weights [n]."""
        if not len(values):
            return self
        units = values + 1j * weights  # one number each, so that equal ones are found by a plain sort
        counts = np.ones(len(units))
        is_repeating = len(units) > 1 and 2 * len(np.unique(units[:_SAMPLE])) <= len(units[:_SAMPLE])
        if is_repeating:
            units, repeats = np.unique(units, return_counts=True)
            counts = repeats.astype(np.float64)
        logs: Floats = self.logs.copy()
        for start in range(0, len(units), _CHUNK):
            part = slice(start, start + _CHUNK)
            ratios = self._ratios(units[part].real, units[part].imag)
            logs += _weighted_logs(ratios, counts[part]) if is_repeating else _summed_logs(ratios)
        return self.with_logs(logs)

    def with_logs(self, logs: Floats) -> CapitalTable:
        """The table of the same nulls with these sums, [G, NUM_FRACTIONS]."""
        return replace(self, logs=logs)

    def without_units(self) -> CapitalTable:
        """The table of no units, of the same nulls."""
        return self.with_logs(np.zeros_like(self.logs))

    def with_worst(self, num_units: float) -> CapitalTable:
        """The table with `num_units` more units at their worst, y = -b, against every null; a fraction is allowed.

        A bet on a part of a unit may lose no less than that part of its logarithm: (1 - f) ^ `num_units`.
        """
        return self.with_logs(self.logs + num_units * np.log1p(-FRACTIONS)) if num_units else self

    def sums_at(self, theta: float) -> Floats | None:
        """Sums by fraction at the next null outward of `theta`, [NUM_FRACTIONS]; None without such a null."""
        row = self._row_at(theta)
        return None if row is None else self.logs[row]

    def log_capital(self, theta: float) -> float:
        """Natural logarithm of the capital against a mean at or below (above) `theta`; 0 where nothing is known."""
        row = self._row_at(theta)
        return 0.0 if row is None else float(self._log_capitals[row])

    def find_bound(self, level: float) -> float | None:
        """Confidence bound of the mean at `level`, valid at all looks at once; None where no null falls."""
        fallen = self._log_capitals >= -math.log(level)
        remaining = np.flatnonzero(~fallen)  # the capital is monotone in theta, so the fallen are an interval
        if self.side == "lower":
            index = int(remaining[0]) - 1 if len(remaining) else len(fallen) - 1
        else:
            index = int(remaining[-1]) + 1 if len(remaining) else 0
        return float(self.thetas[index]) if 0 <= index < len(fallen) else None

    def units_needed(self, theta: float, num_units: int, level: float) -> int | None:
        """A planning estimate: units still needed if each bet keeps its mean growth so far.

        0 where the null has fallen; None where no bet grows.
        """
        sums = self.sums_at(theta)
        if sums is None or not num_units:
            return None
        if is_rejected(self.log_capital(theta), level):
            return 0
        logs = _logarithms(self.weights) + sums
        missing, growth = -math.log(level) - logs, sums / num_units
        needed = [gap / rate for gap, rate in zip(missing.tolist(), growth.tolist(), strict=True) if rate > 1e-9]
        return math.ceil(min(needed)) if needed else None

    def _row_at(self, theta: float) -> int | None:
        """The row of the next null outward of `theta`."""
        if self.side == "lower":
            row = int(self.thetas.searchsorted(theta - _SAME, side="left"))
        else:
            row = int(self.thetas.searchsorted(theta + _SAME, side="right")) - 1
        return row if 0 <= row < len(self.thetas) else None

    @cached_property
    def _log_capitals(self) -> Floats:
        """Natural logarithm of the capital against every null, [G]; a look asks for several of them."""
        bets: Floats = (_logarithms(self.weights) + self.logs).T
        return reduce(np.logaddexp, bets)  # column by column, which takes half the time of numpy's own along rows

    def _ratios(self, values: Floats, weights: Floats) -> Floats:
        """y / b of units [n] at every null, at least -1; [G, n]."""
        if self.side == "lower":
            scores = values[None, :] - self.thetas[:, None] * weights[None, :]
        else:
            scores = self.thetas[:, None] * weights[None, :] - values[None, :]
        return np.maximum(scores / self.worst[:, None], -1.0)


@lru_cache
def _logarithms(weights: tuple[float, ...]) -> Floats:
    return np.log(weights)


def _summed_logs(ratios: Floats) -> Floats:
    """Sums over units of log(1 + f * ratio), [G, NUM_FRACTIONS], of `ratios` [G, n]."""
    num_rows, num_units = ratios.shape
    if num_units < _GROUP:
        few: Floats = np.log1p(FRACTIONS[:, None, None] * ratios).sum(axis=2).T
        return few
    sums = np.empty((num_rows, NUM_FRACTIONS))
    padded = np.zeros((num_rows, num_units + -num_units % _GROUP))
    padded[:, :num_units] = ratios
    grouped = padded.reshape(num_rows, _GROUP, -1)  # a group's factors lie apart, so that groups multiply side by side
    for place, fraction in enumerate(FRACTIONS):
        factors = fraction * grouped
        factors += 1.0
        sums[:, place] = np.log(factors.prod(axis=1)).sum(axis=1)
    return sums


def _weighted_logs(ratios: Floats, counts: Floats) -> Floats:
    """The same, where the unit of each column represents `counts` [n] of them."""
    return np.stack([np.log1p(fraction * ratios) @ counts for fraction in FRACTIONS], axis=1)
