"""Live windows added up by the hour in which they ended (UTC), for each replica and series.

They change only with the windows that an insert really added, in its transaction, of which there is one at a time per
endpoint.  The windows' own reading of themselves is added up, so that a figure formed from hours is that formed from
their windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select, update

from shadowspec.store import bulk
from shadowspec.store.live_rows import counts_document, counts_of
from shadowspec.store.rollups import hour_of
from shadowspec.store.tables import live_hours
from shadowspec.types import COUNTS, LATENCIES, Buckets, LiveCounts, LiveHour, LiveWindow

HOUR = timedelta(hours=1)

_MICROSECOND = timedelta(microseconds=1)
_KEY = ("hour", "replica", "series")
_SUMS = (
    *("num_windows", "num_resets", "num_failed_scrapes", "requests_us", "output_tokens_us"),
    *("num_first_accepted_tokens", "num_first_drafts", "num_known_accepted_tokens", "num_known_drafts"),
)
_OWN = (*_KEY, "began_at", "ended_at", "drafted_at", *_SUMS)


def added_up(windows: Iterable[LiveWindow]) -> list[LiveHour]:
    """These windows by replica, series and hour, in the order of their keys."""
    return _together(map(hour_of_window, windows))


def hour_of_window(own: LiveWindow) -> LiveHour:
    """An hour of this window alone."""
    counts, first, accepted = own.counts, own.counts.first_position, own.counts.accepted_tokens
    covered_us = (own.ended_at - own.began_at) // _MICROSECOND
    drafts = counts.num_drafts or 0
    return LiveHour(
        replica=own.replica,
        series=own.series,
        hour=hour_of(own.ended_at),
        began_at=own.began_at,
        ended_at=own.ended_at,
        drafted_at=own.began_at if drafts else None,
        num_windows=1,
        num_resets=int(own.is_reset),
        num_failed_scrapes=own.num_failed_scrapes,
        counts=counts,
        requests_us=0 if counts.num_requests is None else covered_us,
        output_tokens_us=0 if counts.num_output_tokens is None else covered_us,
        num_first_accepted_tokens=first[0] if first else 0,
        num_first_drafts=first[1] if first else 0,
        num_known_accepted_tokens=accepted if accepted is not None and drafts else 0,
        num_known_drafts=drafts if accepted is not None else 0,
    )


def added(counts: Iterable[LiveCounts]) -> LiveCounts:
    """Counts in the order of their time added up; what none of them knows is unknown, else what some know.

    Other bins come with another version of the engine, and cannot be added to these: the newest version's count.
    """
    rows = list(counts)
    known = {name: [own for row in rows if (own := getattr(row, name)) is not None] for name in COUNTS}
    sums: dict[str, Any] = {name: sum(own) if own else None for name, own in known.items()}
    positions = zip_longest(*(row.num_accepted_tokens_per_pos for row in rows), fillvalue=0)
    return LiveCounts(
        **sums,
        num_accepted_tokens_per_pos=tuple(map(sum, positions)),
        latencies={name: bins for name in LATENCIES if (bins := _newest(rows, name)) is not None},
    )


def _newest(rows: Sequence[LiveCounts], name: str) -> Buckets | None:
    own = [row.latencies[name] for row in rows if name in row.latencies]
    if not own:
        return None
    bounds = own[-1].bounds
    columns = zip(*(each.counts for each in own if each.bounds == bounds), strict=True)
    return Buckets(bounds, tuple(map(sum, columns)))


def read_hours(connection: Connection, endpoint: str, since: datetime, until: datetime) -> list[LiveHour]:
    """The hours that begin from `since` up to, but without, `until`, in the order of their keys."""
    own = live_hours.c
    statement = select(live_hours).where(own.endpoint == endpoint, own.hour >= since, own.hour < until)
    ordered = statement.order_by(*(own[name] for name in _KEY))
    return [_hour(row) for row in connection.execute(ordered).mappings()]


def add_windows(connection: Connection, endpoint: str, windows: Iterable[LiveWindow]) -> None:
    """Add windows that are new to their hours; nobody else may do so for this endpoint meanwhile."""
    new = added_up(windows)
    if not new:
        return
    own = live_hours.c
    is_one = bulk.one_of(connection, [own[name] for name in _KEY], [each.key for each in new])
    rows = connection.execute(select(live_hours).where(own.endpoint == endpoint, is_one)).mappings()
    stored = {each.key: each for each in map(_hour, rows)}
    for each in new:
        known = stored.get(each.key)
        if known is None:
            connection.execute(insert(live_hours).values(_row(endpoint, each)))
            continue
        same = (own[name] == value for name, value in zip(_KEY, each.key, strict=True))
        whole = _row(endpoint, _merged([known, each]))
        connection.execute(update(live_hours).where(own.endpoint == endpoint, *same).values(whole))


def _together(hours: Iterable[LiveHour]) -> list[LiveHour]:
    by_key: dict[tuple[Any, ...], list[LiveHour]] = defaultdict(list)
    for own in hours:
        by_key[own.key].append(own)
    return [_merged(by_key[key]) for key in sorted(by_key)]


def _merged(hours: Sequence[LiveHour]) -> LiveHour:
    """Of one key, added up."""
    ordered = sorted(hours, key=lambda own: own.ended_at)
    drafted = [own.drafted_at for own in ordered if own.drafted_at is not None]
    return LiveHour(
        **{name: getattr(ordered[0], name) for name in _KEY},
        began_at=min(own.began_at for own in ordered),
        ended_at=ordered[-1].ended_at,
        drafted_at=min(drafted, default=None),
        counts=added(own.counts for own in ordered),
        **{name: sum(getattr(own, name) for own in ordered) for name in _SUMS},
    )


def _row(endpoint: str, own: LiveHour) -> dict[str, Any]:
    return {"endpoint": endpoint, **{name: getattr(own, name) for name in _OWN}, **counts_document(own.counts)}


def _hour(row: RowMapping) -> LiveHour:
    return LiveHour(**{name: row[name] for name in _OWN}, counts=counts_of(row))
