"""Bounds of latency quantiles that hold at all looks at once: shown beside the tail test, judged by none.

How many of n values lie at or below the true quantile of probability p is binomial(n, p); a Beta mixture over
the alternatives is a martingale under it, so that ranks whose likelihood ratio ever reaches 1/level are
excluded (the beta-binomial mixture of Howard and Ramdas, arXiv 1906.09712).
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np

from shadowspec.gate.evidence.series import Blocks, add_times
from shadowspec.gate.stats.autocorrelation import Moments
from shadowspec.types import Figure, Run

PROBABILITIES = {"p95": 0.95, "p99": 0.99}
ARMS = ("baseline", "speculative")
BIN_GROWTH = 1.01
LOWEST_BIN = -700  # a microsecond
INFINITE_BIN = 2_400  # nine months or longer: of requests that failed


@dataclass(frozen=True, slots=True)
class QuantileBounds:
    """Estimate and bounds of one quantile, ms; an estimate or upper bound of None is infinite, a lower one is 0."""

    estimate: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """One request per block, drawn by hash: its end-to-end times in both arms, counted in bins of 1%.

    Bin i holds times from BIN_GROWTH^i up to, but without, BIN_GROWTH^(i+1) ms; a time of 0 counts in `LOWEST_BIN`, an
    infinite one in `INFINITE_BIN`.  `moments` are those of the finite times' logarithms in folding order: the bounds
    hold for independent times.
    """

    counts: Mapping[str, Mapping[int, int]] = field(default_factory=lambda: {arm: {} for arm in ARMS})
    moments: Mapping[str, Moments] = field(default_factory=lambda: {arm: Moments() for arm in ARMS})

    def fold(self, blocks: Blocks) -> LatencyHistogram:
        """The histogram with a request of each of these blocks added.

        One that failed took the baseline no time and speculation for ever, whichever failed: its worst.
        """
        timed = add_times(blocks)
        drawn: dict[int, tuple[bytes, int]] = {}
        for at, place in enumerate(timed.places.tolist()):
            draw = _draw(timed.runs[at].run), at
            drawn[place] = min(drawn.get(place, draw), draw)
        chosen = [at for _, at in drawn.values()]
        is_failed = timed.is_missing[chosen]
        times = {
            "baseline": np.where(is_failed, 0.0, timed.baseline_ms[chosen]),
            "speculative": np.where(is_failed, np.inf, timed.speculative_ms[chosen]),
        }
        known = {arm: np.maximum(times[arm][~is_failed], BIN_GROWTH**LOWEST_BIN) for arm in ARMS}
        return LatencyHistogram(
            {arm: Counter(self.counts[arm]) + Counter(map(bin_of, times[arm].tolist())) for arm in ARMS},
            {arm: self.moments[arm].fold(np.log(known[arm])) for arm in ARMS},
        )

    def with_lost(self, num_requests: int) -> LatencyHistogram:
        """The histogram with `num_lost` more requests that took each arm its worst time."""
        if not num_requests:
            return self
        added = {"baseline": {LOWEST_BIN: num_requests}, "speculative": {INFINITE_BIN: num_requests}}
        return replace(self, counts={arm: Counter(self.counts[arm]) + Counter(added[arm]) for arm in ARMS})

    @property
    def num_units(self) -> int:
        """Requests counted."""
        return sum(self.counts["baseline"].values())

    @property
    def autocorrelation(self) -> float | None:
        """r1 of the times' logarithms, of the arm in which it is larger; None where some were counted without it."""
        num_infinite = self.counts["speculative"].get(INFINITE_BIN, 0)
        if any(self.moments[arm].num != self.num_units - num_infinite for arm in ARMS):
            return None
        return max(self.moments[arm].autocorrelation for arm in ARMS)

    def bounds(self, arm: str, probability: float, level: float) -> QuantileBounds | None:
        """Two-sided bounds at `level`, each at the outer edge of its bin; the estimate is the middle of its bin."""
        bins = sorted(self.counts[arm].items())
        if not bins:
            return None
        numbers, reached = [number for number, _ in bins], list(accumulate(count for _, count in bins))
        ranks = quantile_ranks(reached[-1], probability, level)
        estimate, lower, upper = (
            None if rank is None else numbers[bisect_left(reached, rank)]
            for rank in (ranks.estimate, ranks.lower, ranks.upper)
        )
        assert estimate is not None, "the estimate's rank is always one of them"
        return QuantileBounds(
            estimate=None if estimate == INFINITE_BIN else BIN_GROWTH ** (estimate + 0.5),
            lower=None if lower is None or lower == LOWEST_BIN else BIN_GROWTH**lower,
            upper=None if upper is None or upper == INFINITE_BIN else BIN_GROWTH ** (upper + 1),
        )

    def figures(self, level: float) -> dict[str, Figure]:
        """p95 and p99 of end-to-end time of both arms, ms, each with its bounds."""
        figures: dict[str, Figure] = {"quantile_alpha": level, "quantile_units": self.num_units}
        for arm in ARMS:
            for name, probability in PROBABILITIES.items():
                bounds = self.bounds(arm, probability, level)
                figures[f"{arm}_{name}_ms"] = bounds.estimate if bounds else None  # infinite, or without requests
                figures[f"{arm}_{name}_lower_ms"] = bounds.lower if bounds else None
                figures[f"{arm}_{name}_upper_ms"] = bounds.upper if bounds else None
        return figures


@dataclass(frozen=True, slots=True)
class QuantileRanks:
    """Which of the values in rising order, from 1, are estimate and bounds; None: none is."""

    estimate: int
    lower: int | None
    upper: int | None


def bin_of(time_ms: float) -> int:
    """The bin that holds a time of at least 0."""
    if time_ms >= BIN_GROWTH**INFINITE_BIN:
        return INFINITE_BIN
    if time_ms < BIN_GROWTH**LOWEST_BIN:
        return LOWEST_BIN
    number = math.floor(math.log(time_ms) / math.log(BIN_GROWTH))
    return number + 1 if BIN_GROWTH ** (number + 1) <= time_ms else number  # the logarithm rounds


@lru_cache(maxsize=4_096)
def quantile_ranks(total: int, probability: float, level: float) -> QuantileRanks:
    """The ranks of estimate and bounds among `total` > 0 values.

    The mixture falls up to the expected count and rises beyond it, so that both ends are found by bisection.
    """
    middle = probability * total

    def is_excluded(count: int) -> bool:
        return _log_mixture(count, total, probability) >= -math.log(level)

    below, above = math.ceil(middle) - 1, math.floor(middle) + 1  # the counts next to the expected one
    num_below = bisect_left(range(below + 1), True, key=lambda count: not is_excluded(count))
    num_above = bisect_left(range(above, total + 1), True, key=is_excluded)
    lower, highest = num_below - 1, above + num_above
    return QuantileRanks(
        estimate=min(math.ceil(middle), total),
        lower=lower + 1 if lower >= 0 else None,
        upper=highest if highest <= total else None,
    )


def _draw(run: Run) -> bytes:
    """Of the runs of a block the one with the least draw is taken."""
    return hashlib.sha256(str(run.key).encode()).digest()


def _log_mixture(count: int, total: int, probability: float) -> float:
    """log of the Beta(p/(1-p), 1) mixture's likelihood ratio against binomial(total, p), at `count`."""
    shape = probability / (1.0 - probability)
    return (
        math.lgamma(shape + count)
        + math.lgamma(1.0 + total - count)
        - math.lgamma(shape + 1.0 + total)
        + math.log(shape)
        - count * math.log(probability)
        - (total - count) * math.log1p(-probability)
    )
