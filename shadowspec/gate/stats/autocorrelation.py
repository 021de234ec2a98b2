"""Lag-1 autocorrelation of unit values, and sums over means of batches: the basis for judging independence.

Lag 1 misses a slow component under much noise.  The means of longer batches show it: where units depend on each other,
these means vary more than those of independent units.  Unlike capital both depend on the order of folding, and do not
merge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowspec.gate.stats.betting import Floats, Side, Sums

NO_VARIANCE = 1e-12  # values that differ by less are equal
BATCH_LENGTHS = (4, 8, 16, 32, 64)  # units
MIN_BATCHES = 4  # fewer say nothing of how much they vary
NO_DOUBT = 1e9  # standard errors where the error is 0; unlike infinity, JSON can hold it


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the values in folding order, each less the first value, so that nothing cancels."""

    num: int = 0
    first: float = 0.0
    last: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    products: float = 0.0  # of neighbours

    def fold(self, values: Floats) -> Moments:
        """The moments with `values` [n] added at the end."""
        if not len(values):
            return self
        first = self.first if self.num else float(values[0])
        shifted = values - first
        products = float((shifted[:-1] * shifted[1:]).sum())
        if self.num:
            products += (self.last - first) * float(shifted[0])
        return Moments(
            num=self.num + len(values),
            first=first,
            last=float(values[-1]),
            lowest=min(float(values.min()), self.lowest if self.num else np.inf),
            highest=max(float(values.max()), self.highest if self.num else -np.inf),
            total=self.total + float(shifted.sum()),
            squares=self.squares + float((shifted**2).sum()),
            products=self.products + products,
        )

    @property
    def autocorrelation(self) -> float:
        """r1; 0 at zero variance."""
        spread = self.highest - self.lowest
        return float(
            _autocorrelation(self.num, self.last - self.first, self.total, self.squares, self.products, spread)
        )


def autocorrelation_path(values: Floats) -> Floats:
    """r1 of the first n of `values`, for every n, [n]."""
    shifted = values - values[:1]
    products = np.concatenate([np.zeros_like(shifted[:1]), shifted[1:] * shifted[:-1]]).cumsum()
    spread = np.maximum.accumulate(values) - np.minimum.accumulate(values)
    num = np.arange(1, len(values) + 1)
    return _autocorrelation(num, shifted, shifted.cumsum(), (shifted**2).cumsum(), products, spread)


def _autocorrelation(
    num: int | NDArray[np.int64],
    last: float | Floats,
    total: float | Floats,
    squares: float | Floats,
    products: float | Floats,
    spread: float | Floats,
) -> Floats:
    """r1, elementwise, of sums over values of which the first is 0."""
    mean = total / np.maximum(num, 1)
    variation = squares - num * mean * mean
    shared = products - mean * (2.0 * total - last) + (num - 1) * mean * mean
    is_varied = (spread >= NO_VARIANCE) & (variation > 0.0)
    return np.divide(shared, variation, out=np.zeros(np.shape(mean)), where=is_varied)


@dataclass(frozen=True, slots=True)
class BatchSums:
    """Sums over the means of batches of consecutive units (u their sums, g their weights), per length.

    `unfinished` [lengths, 3] holds number, u and g of the units in no whole batch yet; `sums` [lengths, 6] the number
    of batches, and over their means u, g, u * u, u * g and g * g.
    """

    unfinished: Floats
    sums: Floats

    @classmethod
    def empty(cls) -> BatchSums:
        """Those of no units."""
        return cls(np.zeros((len(BATCH_LENGTHS), 3)), np.zeros((len(BATCH_LENGTHS), 6)))

    def fold(self, units: Sums) -> BatchSums:
        """Those with these units added at the end."""
        if not len(units.values):
            return self
        num_units, both = len(units.values), np.array([units.values, units.weights])
        unfinished, sums = self.unfinished + np.array([num_units, *both.sum(axis=1)]), self.sums
        for row, (num_left, length) in enumerate(zip(self.unfinished[:, 0].tolist(), BATCH_LENGTHS, strict=True)):
            first = length - int(num_left)
            if num_units < first:
                continue
            if sums is self.sums:
                sums = sums.copy()
            whole = first + (num_units - first) // length * length
            joined = self.unfinished[row, 1:, None] + both[:, :first].sum(axis=1, keepdims=True)
            totals = np.concatenate([joined, both[:, first:whole].reshape(2, -1, length).sum(axis=2)], axis=1)
            u, g = totals / length
            sums[row] += (len(u), u.sum(), g.sum(), u @ u, u @ g, g @ g)
            unfinished[row] = (num_units - whole, *both[:, whole:].sum(axis=1))
        return BatchSums(unfinished, sums)

    def errors(self, side: Side, theta: float) -> float:
        """By how many of its standard errors the mean lies beyond `theta`, by the length of batches that says least.

        NO_DOUBT where no length has MIN_BATCHES.
        """
        return float(_errors(self.sums, side, theta).min())


def errors_path(units: Sums, side: Side, theta: float) -> Floats:
    """`BatchSums.errors` after each of `units`, [n]."""
    num_units = len(units.values)
    least = np.full(num_units, NO_DOUBT)
    for length in BATCH_LENGTHS:
        num = num_units // length
        u, g = (values[: num * length].reshape(-1, length).mean(axis=1) for values in (units.values, units.weights))
        sums = np.stack([np.arange(1, num + 1), *(x.cumsum() for x in (u, g, u * u, u * g, g * g))], axis=1)
        after = np.concatenate([[NO_DOUBT], _errors(sums, side, theta)])
        least = np.minimum(least, after[np.arange(1, num_units + 1) // length])
    return least


def _errors(sums: Floats, side: Side, theta: float) -> Floats:
    """Elementwise over rows of sums [..., 6]; NO_DOUBT where there are fewer than MIN_BATCHES."""
    num, u, g, uu, ug, gg = (sums[..., place] for place in range(6))
    sign, many = (1.0 if side == "lower" else -1.0), np.maximum(num, 2.0)
    mean = sign * (u - theta * g) / many
    variance = np.maximum((uu - 2.0 * theta * ug + theta * theta * gg) / many - mean * mean, 0.0) * many / (many - 1.0)
    # Sums that cancel leave a little of the variance of equal means.
    is_varied, sure = variance > NO_VARIANCE, np.where(mean > 0.0, NO_DOUBT, -NO_DOUBT)
    errors = np.divide(mean, np.sqrt(variance / many), out=sure, where=is_varied)
    distance: Floats = np.where(num >= MIN_BATCHES, errors, NO_DOUBT)
    return distance
