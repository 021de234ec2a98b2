"""Production before and after an enabling: hours where whole hours do, windows of the hours that a moment cuts.

A moment cuts an hour if windows of it lie on both sides: where the time begins and ends, and where production first
drafted.  So the figures are those of the windows, of which few are read.  Where retention has removed a cut hour's
windows, the hour stays whole: it counts where its last window ended and, if the moment lies within it, on neither side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from shadowspec.reports.live import LivePeriod, LivePoint, live_period, live_points, switched_on_at
from shadowspec.store.live_hours import HOUR, hour_of_window
from shadowspec.store.rollups import hour_of
from shadowspec.types import LiveHour, LiveWindow

NUM_POINTS = 96  # of a line, at most


class LiveSource(Protocol):
    """What live evidence is read from; the store satisfies it."""

    def live_hours(self, endpoint: str, since: datetime, until: datetime) -> Sequence[LiveHour]:
        """What the endpoint's windows add up to by replica, series and the hour in which they ended."""

    def live_windows(
        self,
        endpoint: str,
        since: datetime | None = None,
        until: datetime | None = None,
        replicas: Collection[str] | None = None,
    ) -> Sequence[LiveWindow]:
        """The endpoint's windows that ended from `since` up to, but without, `until`."""


@dataclass(frozen=True, slots=True)
class Production:
    """Both sides of a moment, and the line through it.  `switched_on` is None where nothing was drafted since."""

    switched_on: datetime | None
    before: LivePeriod
    after: LivePeriod
    points: tuple[LivePoint, ...]


def around(source: LiveSource, endpoint: str, enabled_at: datetime, span: timedelta) -> Production | None:
    """What the endpoint's engines counted within `span` of the enabling on either side; None: nothing was read.

    Windows belong to the time in which they ended; one that was open at the moment is on neither side.
    """
    since, until = enabled_at - span, enabled_at + span
    hours = source.live_hours(endpoint, hour_of(since), until)
    for moment in (since, until):
        hours = _parted(source, endpoint, hours, moment)
    hours = [own for own in hours if since <= own.ended_at < until]
    if not hours:
        return None
    switched_on = switched_on_at(hours, enabled_at)
    moment = switched_on or until
    hours = _parted(source, endpoint, hours, moment)
    return Production(
        switched_on=switched_on,
        before=live_period(own for own in hours if own.ended_at <= moment),
        after=live_period(own for own in hours if own.began_at >= moment),
        points=tuple(live_points(hours, hour_of(since), _step(span))),
    )


def _parted(source: LiveSource, endpoint: str, hours: Sequence[LiveHour], moment: datetime) -> Sequence[LiveHour]:
    """The hours, those that the moment cuts as their windows, each an hour of its own."""
    cut = [own for own in hours if own.num_windows > 1 and own.began_at < moment <= own.ended_at]
    windows: dict[tuple[datetime, str, str], list[LiveHour]] = defaultdict(list)
    for start in sorted({own.hour for own in cut}):
        names = {own.replica for own in cut if own.hour == start}
        for each in source.live_windows(endpoint, start, start + HOUR, names):
            windows[start, each.replica, each.series].append(hour_of_window(each))
    kept = {own.key: windows[own.key] for own in cut if len(windows[own.key]) >= own.num_windows}
    return [each for own in hours for each in kept.get(own.key, [own])]


def _step(span: timedelta) -> timedelta:
    """Whole hours that part both sides into `NUM_POINTS` stretches at most."""
    return math.ceil(2 * span / (NUM_POINTS * HOUR)) * HOUR
