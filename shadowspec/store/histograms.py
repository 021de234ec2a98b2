"""Histograms over fixed logarithmic bins: they add up, and their quantiles have a bound.

Bin i holds values from 1.05^i up to, but without, 1.05^(i+1).  A quantile is the middle (geometric) of the bin that
holds it, so it is wrong by a factor of at most sqrt(1.05): 2.47%.  Values outside LOWEST..HIGHEST count in the
outermost bins, whose bounds are then 0 and infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

GROWTH = 1.05
MAX_RELATIVE_ERROR = math.sqrt(GROWTH) - 1
LOWEST, HIGHEST = 1e-3, 1e9  # a microsecond to eleven days, in milliseconds; a speedup lies far within

_LOG_GROWTH = math.log(GROWTH)
LOWEST_BIN, HIGHEST_BIN = (math.floor(math.log(limit) / _LOG_GROWTH) for limit in (LOWEST, HIGHEST))


def bin_of(value: float) -> int:
    """The bin that holds a value of at least 0."""
    if not LOWEST <= value < HIGHEST:
        return LOWEST_BIN if value < LOWEST else HIGHEST_BIN
    return math.floor(math.log(value) / _LOG_GROWTH)


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile as a histogram knows it: it lies from `lower` to `upper`."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Runs by bin, and the sum of their weights (inverse inclusion rates) by bin."""

    num_runs: Mapping[int, int]
    weights: Mapping[int, float]

    def quantile(self, share: float) -> Quantile | None:
        """The smallest value that at least this share (0 to 1) of the weight does not exceed; None if empty."""
        figures = self.weights
        total = math.fsum(figures.values())
        if total <= 0:
            return None
        reached = 0.0
        bin_number = max(figures)
        for number in sorted(figures):
            reached += figures[number]
            if reached >= share * total and figures[number] > 0:
                bin_number = number
                break
        return Quantile(
            estimate=GROWTH ** (bin_number + 0.5),
            lower=0.0 if bin_number == LOWEST_BIN else GROWTH**bin_number,
            upper=math.inf if bin_number == HIGHEST_BIN else GROWTH ** (bin_number + 1),
        )
