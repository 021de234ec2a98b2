"""What the rollups of a hypothesis add up to on the board: its trend by day, and what speculation saves.

Everything is pooled over the measured runs of the days that it says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from shadowspec.metrics import ratio
from shadowspec.reports.costs import DeviceTime, device_time
from shadowspec.store import GroupSums
from shadowspec.types import Arm

TREND_DAYS = 14
SAVING_WINDOW = timedelta(days=7)  # of event time: a whole cycle of the traffic

DAY_SUMS = (  # what of each day's sums a board needs
    "num_runs",
    "num_timed",
    "timed_weight",
    "weighted_log_speedup",
    "weighted_drafts",
    "weighted_first_accepted_tokens",
    *(f"{arm}_{name}" for arm in Arm for name in ("prefill_ms", "decode_ms", "num_output_tokens")),
)


@dataclass(frozen=True, slots=True)
class Saving:
    """What speculation saves of the device, pooled over the timed runs of the window; negative where it costs more.

    Both arms have device time and tokens in it, so that `share` is defined.
    """

    time: DeviceTime
    price_per_hour: float | None  # None where the operator has named none

    @property
    def share(self) -> float:
        """Of the baseline's device time per token."""
        share = self.time.saved_share
        assert share is not None, "both arms have device time and tokens"
        return share

    @property
    def per_million_tokens(self) -> float | None:
        """In the currency of the price."""
        return None if self.price_per_hour is None else self.time.saved_per_million(self.price_per_hour)


@dataclass(frozen=True, slots=True)
class TrendDay:
    """One day (UTC) of event time: geometric mean of the requests' speedups, unclipped, and the pooled acceptance.

    Both weigh requests by the inverse of their sampling rate; None where nothing was measured.
    """

    day: date
    num_runs: int
    speedup: float | None
    first_position_acceptance_rate: float | None


def trend(days: Sequence[GroupSums], newest_day: date | None) -> tuple[TrendDay, ...]:
    """Each of the last `TREND_DAYS` up to the newest, oldest first; empty where nothing was measured in them."""
    if newest_day is None or not days:
        return ()
    by_day: dict[date, list[GroupSums]] = defaultdict(list)
    for own in days:
        assert own.start is not None, "sums by day have a day"
        by_day[own.start.date()].append(own)
    found = []
    for back in range(TREND_DAYS - 1, -1, -1):
        day = newest_day - timedelta(days=back)
        sums = [own.sums for own in by_day.get(day, ())]
        log = ratio(sum(own.weighted_log_speedup for own in sums), sum(own.timed_weight for own in sums))
        accepted = sum(own.weighted_first_accepted_tokens for own in sums)
        found.append(
            TrendDay(
                day=day,
                num_runs=sum(own.num_runs for own in sums),
                speedup=None if log is None else math.exp(log),
                first_position_acceptance_rate=ratio(accepted, sum(own.weighted_drafts for own in sums)),
            )
        )
    return tuple(found)


def saving(days: Sequence[GroupSums], newest_day: date | None, price_per_hour: float | None) -> Saving | None:
    """What speculation saves over the last `SAVING_WINDOW`; None where nothing was timed in it."""
    if newest_day is None:
        return None
    recent = (own for own in days if own.start is not None and newest_day - own.start.date() < SAVING_WINDOW)
    time = device_time(recent)
    return None if time.saved_share is None else Saving(time, price_per_hour)
