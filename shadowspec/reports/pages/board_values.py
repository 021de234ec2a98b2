"""What a board is built of: everything of one moment of the store, and what the rollups of a hypothesis add up to.

Sums are pooled over the measured runs of the days that they say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from shadowspec.metrics import ratio
from shadowspec.planning.demand import Demand, read_demand
from shadowspec.reports.figures.token_costs import DeviceTime, device_time
from shadowspec.rollout.check.answer import EndpointTerms
from shadowspec.store import GroupSums, RollupSums, Store, Traffic
from shadowspec.types import Arm, Decision, FingerprintedConfig, Rollout

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
    by_day: dict[date, list[RollupSums]] = defaultdict(list)
    for groups in days:
        assert groups.start is not None, "sums by day have a day"
        by_day[groups.start.date()].append(groups.sums)
    return tuple(_trend_day(newest_day - timedelta(days=back), by_day) for back in reversed(range(TREND_DAYS)))


def _trend_day(day: date, by_day: Mapping[date, Sequence[RollupSums]]) -> TrendDay:
    groups = by_day.get(day, ())
    log = ratio(sum(sums.weighted_log_speedup for sums in groups), sum(sums.timed_weight for sums in groups))
    num_accepted = sum(sums.weighted_first_accepted_tokens for sums in groups)
    return TrendDay(
        day=day,
        num_runs=sum(sums.num_runs for sums in groups),
        speedup=None if log is None else math.exp(log),
        first_position_acceptance_rate=ratio(num_accepted, sum(sums.weighted_drafts for sums in groups)),
    )


def saving(days: Sequence[GroupSums], newest_day: date | None, price_per_hour: float | None) -> Saving | None:
    """What speculation saves over the last `SAVING_WINDOW`; None where nothing was timed in it."""
    time = device_time(day for day in days if is_recent(day, newest_day))
    return None if time.saved_share is None else Saving(time, price_per_hour)


def is_recent(day: GroupSums, newest_day: date | None) -> bool:
    """Whether a day's sums are of the last `SAVING_WINDOW`."""
    return newest_day is not None and day.start is not None and newest_day - day.start.date() < SAVING_WINDOW


@dataclass(frozen=True, slots=True)
class BoardValues:
    """What a board is built of: everything of one moment of the store.

    `days` are the sums by day (only `DAY_SUMS`) of the last `TREND_DAYS` before `newest_day`; `prices` those of the
    device per hour.
    """

    endpoints: Sequence[str]
    decisions: Sequence[Decision]
    configs: Mapping[str, FingerprintedConfig]
    days: Sequence[GroupSums]
    rollouts: Sequence[Rollout]
    newest_day: date | None
    prices: Mapping[str, float | None]
    terms: Mapping[str, EndpointTerms]  # of the configured endpoints
    traffic: Mapping[str, Sequence[Traffic]]  # what each endpoint was measured with
    demands: Mapping[str, Demand] = field(default_factory=dict)  # production's, where it is measured
    owners: Mapping[str, str] = field(default_factory=dict)  # of the configured endpoints, where they are named


def board_values(
    store: Store,
    prices: Mapping[str, float | None],
    terms: Mapping[str, EndpointTerms],
    now: datetime,
    owners: Mapping[str, str] | None = None,
) -> BoardValues:
    """Everything that a board needs at `now`; `prices`, `terms` and `owners` are the configured endpoints'."""
    endpoints = sorted({*store.named_endpoints(), *terms})
    newest = [hours[1] for name in endpoints if (hours := store.rollup_hours(name)) is not None]
    newest_day = max(newest).astimezone(UTC).date() if newest else None
    days: list[GroupSums] = []
    if newest_day is not None:
        since = datetime(newest_day.year, newest_day.month, newest_day.day, tzinfo=UTC) - timedelta(days=TREND_DAYS - 1)
        days = [sums for name in endpoints for sums in store.group_sums(name, since, step="day", names=DAY_SUMS)]
    return BoardValues(
        endpoints=endpoints,
        decisions=store.latest_decisions(),
        configs=store.fingerprints(),
        days=days,
        rollouts=store.rollouts(),
        newest_day=newest_day,
        prices=prices,
        terms=terms,
        traffic={name: store.traffic(name) for name in endpoints},
        owners=owners or {},
        demands={
            name: demand
            for name, of in terms.items()
            if (demand := read_demand(store, name, now, of.policy.mix_window_s)) is not None
        },
    )
