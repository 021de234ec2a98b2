"""What production did, from live evidence: rates, acceptance and latencies of windows, and both sides of an enabling.

Counters say nothing of single requests: a quantile lies within the bin of the engine's own histogram that holds it, and
its estimate is read off a straight line within that bin, as Prometheus does it.

Before and after an enabling are hours where whole hours do, and windows of the hours that a moment cuts.  A moment cuts
an hour if windows of it lie on both sides: where the time begins and ends, and where production first drafted.  Where
retention has removed a cut hour's windows, the hour stays whole: it counts where its last window ended and, if the
moment lies within it, on neither side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shadowspec.metrics import ratio
from shadowspec.store import Quantile, Store
from shadowspec.store.evidence.live_rows import HOUR, hour_of_window, sum_counts
from shadowspec.store.rollups import hour_of
from shadowspec.types import Buckets, LiveHour, Pool
from shadowspec.types.memory_pressure import MemoryPressure

SHARES = (0.5, 0.95, 0.99)
US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class LivePeriod:
    """Windows of a time added up over the replicas; None where the engine does not count it, or nothing was counted.

    Rates are per second of the time that each replica's windows cover.  Acceptance is pooled.
    """

    num_windows: int
    num_resets: int
    num_failed_scrapes: int
    num_requests: int | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    cache_hit_rate: float | None  # of prompt tokens
    first_position_acceptance_rate: float | None
    draft_acceptance_rate: float | None
    mean_acceptance_length: float | None
    latencies: Mapping[str, Mapping[float, Quantile | None]]  # seconds, by name and share
    pressure: MemoryPressure | None = None


@dataclass(frozen=True, slots=True)
class LivePoint:
    """A stretch of time: output tokens and requests per second of all replicas, and what was accepted."""

    began_at: datetime
    output_tokens_per_s: float | None
    requests_per_s: float | None
    first_position_acceptance_rate: float | None


def live_period(hours: Iterable[LiveHour]) -> LivePeriod:
    """These hours added up; a single window is an hour too."""
    ordered = sorted(hours, key=lambda hour: hour.ended_at)
    whole = sum_counts(hour.counts for hour in ordered)
    return LivePeriod(
        num_windows=sum(hour.num_windows for hour in ordered),
        num_resets=sum(hour.num_resets for hour in ordered),
        num_failed_scrapes=sum(hour.num_failed_scrapes for hour in ordered),
        num_requests=whole.num_requests,
        requests_per_s=_requests_per_s(ordered),
        output_tokens_per_s=_output_tokens_per_s(ordered),
        cache_hit_rate=_ratio(whole.num_cached_tokens, whole.num_prompt_tokens),
        first_position_acceptance_rate=_first_position_rate(ordered),
        draft_acceptance_rate=_ratio(whole.num_accepted_tokens, whole.num_draft_tokens),
        mean_acceptance_length=_mean_length(ordered),
        latencies={
            name: {share: quantile(bins, share) for share in SHARES} for name, bins in sorted(whole.latencies.items())
        },
        pressure=MemoryPressure.of(ordered),
    )


def live_points(hours: Iterable[LiveHour], since: datetime, step: timedelta) -> list[LivePoint]:
    """By stretches of whole hours from `since`, the start of one; a stretch in which no window ended has no point."""
    by_stretch: dict[int, list[LiveHour]] = defaultdict(list)
    for hour in hours:
        by_stretch[(hour.hour - since) // step].append(hour)
    return [
        LivePoint(
            began_at=since + place * step,
            output_tokens_per_s=_output_tokens_per_s(live_hours),
            requests_per_s=_requests_per_s(live_hours),
            first_position_acceptance_rate=_first_position_rate(live_hours),
        )
        for place, live_hours in sorted(by_stretch.items())
    ]


def switched_on_at(hours: Iterable[LiveHour], enabled_at: datetime) -> datetime | None:
    """When production first drafted after it was enabled: from then on is after.  None: it has not drafted since.

    Where it drafted before too, the enabling itself parts before from after.
    """
    first = min((hour.drafted_at for hour in hours if hour.drafted_at is not None), default=None)
    return None if first is None else max(first, enabled_at)


def _first_position_rate(hours: Iterable[LiveHour]) -> float | None:
    """Pooled; its largest possible value where the engine reports no positions."""
    pairs = [(hour.num_first_accepted_tokens, hour.num_first_drafts) for hour in hours]
    return ratio(sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs))


def _mean_length(hours: Iterable[LiveHour]) -> float | None:
    """Tokens emitted per verification, its own included; pooled."""
    pairs = [(hour.num_known_accepted_tokens, hour.num_known_drafts) for hour in hours]
    mean = ratio(sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs))
    return None if mean is None else 1.0 + mean


def quantile(bins: Buckets, share: float) -> Quantile | None:
    """The time that at least this share does not exceed; None below 1 / (1 - share) of them."""
    total = bins.total
    if total < round(1.0 / (1.0 - share)):
        return None
    reached, wanted = 0, share * total
    for place, number in enumerate(bins.counts):
        if number and reached + number >= wanted:
            lower = bins.bounds[place - 1] if place else 0.0
            if place == len(bins.bounds):
                return Quantile(lower, lower, math.inf)
            upper = bins.bounds[place]
            return Quantile(lower + (upper - lower) * (wanted - reached) / number, lower, upper)
        reached += number
    return None


def _requests_per_s(hours: Iterable[LiveHour]) -> float | None:
    return _per_second((hour.replica, hour.counts.num_requests, hour.requests_us) for hour in hours)


def _output_tokens_per_s(hours: Iterable[LiveHour]) -> float | None:
    return _per_second((hour.replica, hour.counts.num_output_tokens, hour.output_tokens_us) for hour in hours)


def _per_second(counted: Iterable[tuple[str, int | None, int]]) -> float | None:
    """Of each replica, whose number and microseconds these are, over its time; added over the replicas."""
    number: dict[str, int] = defaultdict(int)
    covered_us: dict[str, int] = defaultdict(int)
    for replica, value, time_us in counted:
        if value is not None:
            number[replica] += value
            covered_us[replica] += time_us
    rates = [rate for replica in number if (rate := ratio(number[replica], covered_us[replica] / US_PER_S)) is not None]
    return math.fsum(rates) if rates else None


def _ratio(numerator: int | None, denominator: int | None) -> float | None:
    return None if numerator is None or denominator is None else ratio(numerator, denominator)


NUM_POINTS = 96  # of a line, at most


@dataclass(frozen=True, slots=True)
class Production:
    """Both sides of a moment, and the line through it.  `switched_on` is None where nothing was drafted since."""

    switched_on: datetime | None
    before: LivePeriod
    after: LivePeriod
    points: tuple[LivePoint, ...]


def around(store: Store, endpoint: str, enabled_at: datetime, span: timedelta) -> Production | None:
    """What the endpoint's engines counted within `span` of the enabling on either side; None: nothing was read.

    Windows belong to the time in which they ended; one that was open at the moment is on neither side.  The plain pool
    is left out: a control has no before and after.
    """
    since, until = enabled_at - span, enabled_at + span
    hours = [hour for hour in store.live_hours(endpoint, hour_of(since), until) if hour.pool is not Pool.PLAIN]
    for moment in (since, until):
        hours = _split_hours(store, endpoint, hours, moment)
    hours = [hour for hour in hours if since <= hour.ended_at < until]
    if not hours:
        return None
    switched_on = switched_on_at(hours, enabled_at)
    moment = switched_on or until
    hours = _split_hours(store, endpoint, hours, moment)
    return Production(
        switched_on=switched_on,
        before=live_period(hour for hour in hours if hour.ended_at <= moment),
        after=live_period(hour for hour in hours if hour.began_at >= moment),
        points=tuple(live_points(hours, hour_of(since), _step(span))),
    )


def _split_hours(store: Store, endpoint: str, hours: Sequence[LiveHour], moment: datetime) -> list[LiveHour]:
    """The hours, those that the moment cuts as their windows, each a separate hour."""
    cut = [hour for hour in hours if hour.num_windows > 1 and hour.began_at < moment <= hour.ended_at]
    windows: dict[tuple[datetime, str, str], list[LiveHour]] = defaultdict(list)
    for start in sorted({hour.hour for hour in cut}):
        names = {hour.replica for hour in cut if hour.hour == start}
        for window in store.live_windows(endpoint, start, start + HOUR, names):
            windows[start, window.replica, window.series].append(hour_of_window(window))
    kept = {hour.key: windows[hour.key] for hour in cut if len(windows[hour.key]) >= hour.num_windows}
    return [window for hour in hours for window in kept.get(hour.key, [hour])]


def _step(span: timedelta) -> timedelta:
    """Whole hours that part both sides into `NUM_POINTS` stretches at most."""
    return math.ceil(2 * span / (NUM_POINTS * HOUR)) * HOUR
