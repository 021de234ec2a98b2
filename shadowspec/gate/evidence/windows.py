"""Windows of event time: the units of evidence in production.

Requests that come together share what happens then: an incident, a batch of one customer, a busy device.  In production
all blocks of a window of event time (`window_s`, an hour) are therefore one unit, so that what is shorter than a window
is one observation however many requests it concerns.  Recordings and trials, which are shorter than a few windows, have
blocks as units.

A window weighs by its traffic, so that the mean is the mean over requests and not over hours.  The tap measures a
budget of blocks in each window, and each block represents `stands_for` blocks of the traffic.  The traffic of a window
is estimated by the sum of `stands_for` / sampling rate over its measured requests.  The sum of their weighted values is
divided by a full window's traffic: the FULL_SHARE quantile of the windows before it, or its own where that is
larger.  Both are known before anything is known of the window's outcomes.  The busiest windows thus count as full ones.

The first windows, one day of them, only set that number.  They count in no test but `total_time`, whose cap is set by
ten windows of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from shadowspec.gate.evidence.series import BettingTest, Places, TimedBlocks, add_times
from shadowspec.gate.evidence.units import BlockUnit
from shadowspec.gate.stats.betting import Floats, Sums, UnitSeries
from shadowspec.types import window_of

FULL_SHARE = 0.9  # the quantile of earlier windows' traffic that is a full window
REMEMBERED = timedelta(days=7)  # event time of earlier windows that it is taken over: a whole cycle
DAY = timedelta(days=1)
MIN_FIRST_WINDOWS = 8
WINDOW = "window"  # the unit's name
TIMED_UNITS = ("block", WINDOW)  # of which a full one has the requests of a block


def robust_sd(logs: Sequence[float]) -> float:
    """A standard deviation that outliers do not move: of a normal law 1.4826 times the median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(np.array(logs) - np.median(logs))))


def num_first_windows(window: timedelta) -> int:
    """The windows that only set the size of a full one: a day of them."""
    return max(MIN_FIRST_WINDOWS, math.ceil(DAY / window))


@dataclass(frozen=True, slots=True)
class WindowMemory:
    """The windows that are in evidence.

    `until_s` is where the last one ends, seconds since the epoch: the policy may change their length.  `sizes` are the
    requests that the last ones represent, oldest first.  `num_late_blocks` of the run came after their window had
    entered: they count in no test.
    """

    until_s: float = 0.0
    sizes: tuple[float, ...] = ()
    num_late_blocks: int = 0

    def take(self, blocks: TimedBlocks, window: timedelta) -> Windows:
        """The windows of these blocks, in the order of their windows.

        They are all of their windows' blocks, but for those of windows that have entered: these come late, and are left
        out.
        """
        numbers = np.array([window_of(unit.newest, window) for unit in blocks.units], dtype=np.int64)
        is_late = np.array([unit.newest.timestamp() < self.until_s for unit in blocks.units], dtype=np.bool_)
        if is_late.any():
            blocks = add_times([unit for unit, late in zip(blocks.units, is_late.tolist(), strict=True) if not late])
            numbers = numbers[~is_late]
        weights = np.array([_requests_of_each(unit) for unit in blocks.units], dtype=np.float64)
        num_runs = blocks.sum_by_block(np.ones(len(blocks.runs)))
        named, places = np.unique(numbers, return_inverse=True)
        sizes = np.bincount(places, weights * num_runs, minlength=len(named))

        remembered, first = list(self.sizes), num_first_windows(window)
        full = np.zeros(len(named))  # 0: the window only sets the size of later ones
        for place, size in enumerate(sizes.tolist()):
            if len(remembered) >= first:
                full[place] = max(size, float(np.quantile(remembered, FULL_SHARE, method="inverted_cdf")))
            remembered = [*remembered, size][-max(first, math.ceil(REMEMBERED / window)) :]
        after = replace(
            self,
            until_s=(int(named[-1]) + 1) * window.total_seconds() if len(named) else self.until_s,
            sizes=tuple(remembered),
            num_late_blocks=self.num_late_blocks + int(is_late.sum()),
        )
        return Windows(blocks, places, weights, full, after)


def _requests_of_each(unit: BlockUnit) -> float:
    """Requests of the traffic that each measured request of the block represents, on average."""
    inverse_rates = [1.0 / measured.sampling_rate for measured in unit.runs]
    return unit.block.stands_for * sum(inverse_rates) / len(inverse_rates)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of some blocks, in their order.

    `places` [blocks] is each block's window, `weights` [blocks] the requests that each of its measured requests
    represents, `full` [windows] the requests of a full window (0: the window counts in no test).
    """

    blocks: TimedBlocks  # those that came in time
    places: Places
    weights: Floats
    full: Floats
    memory: WindowMemory  # after them

    @property
    def first_logs(self) -> Floats:
        """The log speedups of the requests in windows that count in no test, [n]."""
        is_first = self.full[self.places[self.blocks.places]] == 0.0
        logs: Floats = self.blocks.log_speedups[is_first & ~self.blocks.is_missing]
        return logs

    def totals(self, values: Floats) -> Floats:
        """Weighted sums by window of a value of each block, [blocks] to [windows]."""
        return np.bincount(self.places, values * self.weights, minlength=len(self.full)).astype(np.float64)

    def merge(self, test: BettingTest, rows: Places, shares: Floats) -> BettingTest:
        """The test with one unit a window, in place of the units of blocks or of requests.

        Args:
            test: over finer units.
            rows: the block of each of its units, [n].
            shares: the requests that a weight of 1 of each unit represents, [n], before `weights`.
        """
        windows = self.places[rows]
        is_in = self.full[windows] > 0.0
        parts = np.zeros(len(rows))
        parts[is_in] = (shares * self.weights[rows])[is_in] / self.full[windows[is_in]]
        with_units = np.unique(windows[is_in])

        def summed(sums: Sums) -> Sums:
            values, weights = (
                np.bincount(windows[is_in], (parts * column)[is_in], minlength=len(self.full))[with_units]
                for column in (sums.values, sums.weights)
            )
            return Sums(values.astype(np.float64), weights.astype(np.float64))

        series, dependence = test.series, None
        if series.dependence is not None:
            least = np.full(len(self.full), np.inf)
            np.minimum.at(least, windows[is_in], series.dependence[is_in])
            dependence = least[with_units]
        merged: UnitSeries = replace(
            series,
            lower=summed(series.lower),
            upper=summed(series.upper),
            observed=summed(series.observed),
            dependence=dependence,
            uncredited=None if series.uncredited is None else summed(series.uncredited),
        )
        return replace(test, series=merged)
