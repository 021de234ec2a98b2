"""Lag-1 autocorrelation of unit values from running sums: what independence is judged on.

Unlike capital it depends on the order of folding, and does not merge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowspec.gate.stats.betting import Floats

NO_VARIANCE = 1e-12  # values that differ by less are equal


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
        sums = self.num, self.last - self.first, self.total, self.squares, self.products, spread
        return float(_autocorrelation(*map(np.asarray, sums)))


def autocorrelation_path(values: Floats) -> Floats:
    """r1 of the first n of `values`, for every n, [n]."""
    shifted = values - values[:1]
    products = np.concatenate([np.zeros_like(shifted[:1]), shifted[1:] * shifted[:-1]]).cumsum()
    spread = np.maximum.accumulate(values) - np.minimum.accumulate(values)
    num = np.arange(1, len(values) + 1)
    return _autocorrelation(num, shifted, shifted.cumsum(), (shifted**2).cumsum(), products, spread)


def _autocorrelation(
    num: NDArray[np.int64], last: Floats, total: Floats, squares: Floats, products: Floats, spread: Floats
) -> Floats:
    """r1, elementwise, of sums over values of which the first is 0."""
    mean = total / np.maximum(num, 1)
    variation = squares - num * mean * mean
    shared = products - mean * (2.0 * total - last) + (num - 1) * mean * mean
    is_varied = (spread >= NO_VARIANCE) & (variation > 0.0)
    return np.divide(shared, variation, out=np.zeros(np.shape(mean)), where=is_varied)
