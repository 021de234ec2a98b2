"""What production did, from live evidence: rates, acceptance and latencies of windows added up.

Counters say nothing of single requests: a quantile lies within the bin of the engine's own histogram that holds it, and
its estimate is read off a straight line within that bin, as Prometheus does it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from shadowspec.gate.guard_policy import FIRST_POSITION
from shadowspec.gate.live import accepted_tokens, scored
from shadowspec.metrics import ratio
from shadowspec.store import Quantile
from shadowspec.types import COUNTS, LATENCIES, Buckets, LiveCounts, LiveWindow

SHARES = (0.5, 0.95, 0.99)


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


@dataclass(frozen=True, slots=True)
class LivePoint:
    """A stretch of time: output tokens and requests per second of all replicas, and what was accepted."""

    began_at: datetime
    output_tokens_per_s: float | None
    requests_per_s: float | None
    first_position_acceptance_rate: float | None


def live_period(windows: Sequence[LiveWindow]) -> LivePeriod:
    """These windows added up."""
    whole = added(own.counts for own in windows)
    return LivePeriod(
        num_windows=len(windows),
        num_resets=sum(own.is_reset for own in windows),
        num_failed_scrapes=sum(own.num_failed_scrapes for own in windows),
        num_requests=whole.num_requests,
        requests_per_s=_per_second(windows, "num_requests"),
        output_tokens_per_s=_per_second(windows, "num_output_tokens"),
        cache_hit_rate=_ratio(whole.num_cached_tokens, whole.num_prompt_tokens),
        first_position_acceptance_rate=first_position_rate(windows),
        draft_acceptance_rate=_ratio(whole.num_accepted_tokens, whole.num_draft_tokens),
        mean_acceptance_length=mean_length(windows),
        latencies={
            name: {share: quantile(bins, share) for share in SHARES} for name, bins in sorted(whole.latencies.items())
        },
    )


def live_points(windows: Sequence[LiveWindow], since: datetime, step: timedelta) -> list[LivePoint]:
    """The windows by the stretch of time in which they began, counted from `since`; one without any has no point."""
    by_stretch: dict[int, list[LiveWindow]] = defaultdict(list)
    for own in windows:
        by_stretch[(own.began_at - since) // step].append(own)
    return [
        LivePoint(
            began_at=since + place * step,
            output_tokens_per_s=_per_second(own, "num_output_tokens"),
            requests_per_s=_per_second(own, "num_requests"),
            first_position_acceptance_rate=first_position_rate(own),
        )
        for place, own in sorted(by_stretch.items())
    ]


def switched_on_at(windows: Iterable[LiveWindow], enabled_at: datetime) -> datetime | None:
    """When production first drafted after it was enabled: from then on is after.  None: it has not drafted since.

    Where it drafted before too, the enabling itself parts before from after.
    """
    drafting = [own for own in windows if own.counts.num_drafts]
    if any(own.ended_at <= enabled_at for own in drafting):
        return enabled_at
    return min((max(own.began_at, enabled_at) for own in drafting), default=None)


def first_position_rate(windows: Iterable[LiveWindow]) -> float | None:
    """Pooled; where the engine tells no positions, what it is at most."""
    pairs = [found for own in windows if (found := scored(own.counts, FIRST_POSITION)) is not None]
    return ratio(sum(own[0] for own in pairs), sum(own[1] for own in pairs))


def mean_length(windows: Iterable[LiveWindow]) -> float | None:
    """Tokens emitted per verification, its own included; pooled."""
    accepted = drafts = 0
    for own in windows:
        number = accepted_tokens(own.counts)
        if number is not None and own.counts.num_drafts:
            accepted, drafts = accepted + number, drafts + own.counts.num_drafts
    found = ratio(accepted, drafts)
    return None if found is None else 1.0 + found


def added(counts: Iterable[LiveCounts]) -> LiveCounts:
    """Counts added up; what none of them knows is unknown, and what some know is what these know."""
    rows = list(counts)
    known = {name: [own for row in rows if (own := getattr(row, name)) is not None] for name in COUNTS}
    latencies: dict[str, Buckets] = {}
    for name in LATENCIES:
        for row in rows:
            if name in row.latencies:
                own = row.latencies[name]
                before = latencies.get(name)
                # Other bins came with another version of the engine: what they hold cannot be added to these.
                latencies[name] = own if before is None or before.bounds != own.bounds else before.plus(own)
    sums: dict[str, Any] = {name: sum(own) if own else None for name, own in known.items()}
    return LiveCounts(**sums, latencies=latencies)


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


def _per_second(windows: Iterable[LiveWindow], name: str) -> float | None:
    """Of each replica over the time that its windows cover, added over the replicas."""
    number: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for own in windows:
        if (value := getattr(own.counts, name)) is not None:
            number[own.replica] += value
            seconds[own.replica] += own.seconds
    rates = [found for replica in number if (found := ratio(number[replica], seconds[replica])) is not None]
    return math.fsum(rates) if rates else None


def _ratio(numerator: int | None, denominator: int | None) -> float | None:
    return None if numerator is None or denominator is None else ratio(numerator, denominator)
