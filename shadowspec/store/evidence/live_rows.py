"""Live evidence in the database: how far each replica was read, its windows, and their hours.

Windows are summed by the hour in which they ended (UTC), for each replica and series.  Hours change only with the
windows that an insert really added, in its transaction; one such transaction runs at a time per endpoint.  The sums use
each window's own counts, so a figure formed from hours equals the one formed from their windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from shadowspec.store import bulk
from shadowspec.store.rollups import hour_of
from shadowspec.store.table_definitions import live_hours, live_replicas, live_windows
from shadowspec.types import (
    COUNTS,
    LATENCIES,
    Buckets,
    LiveCounts,
    LiveHour,
    LiveReplica,
    LiveScrape,
    LiveWindow,
    Pool,
)
from shadowspec.types.live_windows import add_readings

HOUR = timedelta(hours=1)

_WINDOW_NAMES = (
    *("replica", "series", "began_at", "ended_at", "is_reset", "num_failed_scrapes"),
    *("num_running", "pool", "num_waiting", "kv_use"),
)
_WINDOW = ("endpoint", *_WINDOW_NAMES, *COUNTS, "num_accepted_tokens_per_pos", "latencies")
_MICROSECOND = timedelta(microseconds=1)
_HOUR_KEY = ("hour", "replica", "series")
_SUMS = (
    *("num_windows", "num_resets", "num_failed_scrapes", "requests_us", "output_tokens_us"),
    *("num_first_accepted_tokens", "num_first_drafts", "num_known_accepted_tokens", "num_known_drafts"),
)
_READINGS = ("running", "waiting", "kv_use")
_HOUR_NAMES = (*_HOUR_KEY, "began_at", "ended_at", "drafted_at", "pool", *_SUMS)


def read_replicas(connection: Connection, endpoint: str) -> dict[str, LiveReplica]:
    """How far the reading of each of an endpoint's replicas has come."""
    statement = select(live_replicas).where(live_replicas.c.endpoint == endpoint)
    return {row["replica"]: _replica(row) for row in connection.execute(statement).mappings()}


def read_windows(
    connection: Connection,
    endpoint: str,
    since: datetime | None = None,
    until: datetime | None = None,
    replicas: Collection[str] | None = None,
    limit: int | None = None,
) -> list[LiveWindow]:
    """The endpoint's windows that ended from `since` up to, but without, `until`, in the order of their ends.

    With a `limit` only the newest N, without their latencies, because a detector reads them often.
    """
    window_columns = live_windows.c
    columns = (
        live_windows.c
        if limit is None
        else [column for column in window_columns if column is not window_columns.latencies]
    )
    statement = (
        select(*columns)
        .where(window_columns.endpoint == endpoint)
        .order_by(window_columns.ended_at.desc(), window_columns.replica.desc())
    )
    if since is not None:
        statement = statement.where(window_columns.ended_at >= since)
    if until is not None:
        statement = statement.where(window_columns.ended_at < until)
    if replicas is not None:
        statement = statement.where(window_columns.replica.in_(sorted(replicas)))
    windows = [_window(row) for row in connection.execute(statement.limit(limit)).mappings()]
    return windows[::-1]


class LiveSession:
    """An endpoint's live evidence within one transaction, which keeps scrapes and their windows, or neither."""

    def __init__(self, connection: Connection, endpoint: str) -> None:
        self._connection, self._endpoint = connection, endpoint

    def replicas(self) -> dict[str, LiveReplica]:
        """How far the reading of each replica has come."""
        return read_replicas(self._connection, self._endpoint)

    def keep(self, replicas: Collection[LiveReplica], windows: Collection[LiveWindow]) -> int:
        """Keep how far these replicas were read, and the windows that are new; how many of those there were.

        The new ones are added to their hours: a window that was kept before is in its hour already.
        """
        columns = live_replicas.c
        names = [replica.replica for replica in replicas]
        self._connection.execute(
            delete(live_replicas).where(columns.endpoint == self._endpoint, columns.replica.in_(names))
        )
        if replicas:
            values = [{"endpoint": self._endpoint, **_replica_row(replica)} for replica in replicas]
            self._connection.execute(insert(live_replicas), values)
        by_key = {(window.replica, window.ended_at): window for window in windows}
        rows = [(self._endpoint, *_window_row(window)) for window in by_key.values()]
        kept = bulk.insert_new(self._connection, live_windows, _WINDOW, rows)
        add_windows(self._connection, self._endpoint, [by_key[replica, ended_at] for _, replica, ended_at in kept])
        return len(kept)


def _replica_row(live_replica: LiveReplica) -> dict[str, Any]:
    scrape = live_replica.scrape
    return {
        "replica": live_replica.replica,
        "series": None if scrape is None else scrape.series,
        "scraped_at": None if scrape is None else scrape.scraped_at,
        "started_at": None if scrape is None else scrape.started_at,
        "counts": None if scrape is None else _scrape_document(scrape),
        "num_failed": live_replica.num_failed,
        "failed_at": live_replica.failed_at,
        "error": live_replica.error,
    }


def _replica(row: RowMapping) -> LiveReplica:
    scrape = None
    if row["counts"] is not None:
        document = row["counts"]
        scrape = LiveScrape(
            row["replica"],
            row["series"],
            row["scraped_at"],
            row["started_at"],
            read_counts(document),
            samples=document["samples"],
            has_end_mark=document["has_end_mark"],
        )
    return LiveReplica(row["replica"], scrape, row["num_failed"], row["failed_at"], row["error"])


def _window_row(window: LiveWindow) -> tuple[Any, ...]:
    document = counts_document(window.counts)
    return (
        *(getattr(window, name) for name in _WINDOW_NAMES),
        *(document[name] for name in (*COUNTS, "num_accepted_tokens_per_pos", "latencies")),
    )


def _window(row: RowMapping) -> LiveWindow:
    values = {name: row[name] for name in _WINDOW_NAMES}
    return LiveWindow(**values | {"pool": Pool(values["pool"])}, counts=read_counts(row))


def sum_windows(windows: Iterable[LiveWindow]) -> list[LiveHour]:
    """These windows by replica, series and hour, in the order of their keys."""
    return _merge_by_key(map(hour_of_window, windows))


def hour_of_window(window: LiveWindow) -> LiveHour:
    """The hour that consists of only this window."""
    counts, first, accepted = window.counts, window.counts.first_position, window.counts.accepted_tokens
    covered_us = (window.ended_at - window.began_at) // _MICROSECOND
    drafts = counts.num_drafts or 0
    return LiveHour(
        replica=window.replica,
        series=window.series,
        hour=hour_of(window.ended_at),
        began_at=window.began_at,
        ended_at=window.ended_at,
        drafted_at=window.began_at if drafts else None,
        num_windows=1,
        num_resets=int(window.is_reset),
        num_failed_scrapes=window.num_failed_scrapes,
        counts=counts,
        requests_us=0 if counts.num_requests is None else covered_us,
        output_tokens_us=0 if counts.num_output_tokens is None else covered_us,
        num_first_accepted_tokens=first[0] if first else 0,
        num_first_drafts=first[1] if first else 0,
        num_known_accepted_tokens=accepted if accepted is not None and drafts else 0,
        num_known_drafts=drafts if accepted is not None else 0,
        running=_reading(window.num_running),
        pool=window.pool,
        waiting=_reading(window.num_waiting),
        kv_use=_reading(None if window.kv_use is None else round(100 * window.kv_use)),
    )


def _reading(number: int | None) -> dict[int, int]:
    return {} if number is None else {number: 1}


def sum_counts(counts: Iterable[LiveCounts]) -> LiveCounts:
    """Counts in the order of their time summed up: unknown if all are, else the sum of the known ones.

    Another version of the engine has other bins, which do not add to these: the newest version's count.
    """
    rows = list(counts)
    known = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in COUNTS}
    sums: dict[str, Any] = {name: sum(rows) if rows else None for name, rows in known.items()}
    positions = zip_longest(*(row.num_accepted_tokens_per_pos for row in rows), fillvalue=0)
    return LiveCounts(
        **sums,
        num_accepted_tokens_per_pos=tuple(map(sum, positions)),
        latencies={name: bins for name in LATENCIES if (bins := _sum_bins(rows, name)) is not None},
    )


def _sum_bins(rows: Sequence[LiveCounts], name: str) -> Buckets | None:
    buckets = [row.latencies[name] for row in rows if name in row.latencies]
    if not buckets:
        return None
    bounds = buckets[-1].bounds
    alike = [bucket for bucket in buckets if bucket.bounds == bounds]
    sums_us = [bucket.sum_us for bucket in alike if bucket.sum_us is not None]
    columns = zip(*(bucket.counts for bucket in alike), strict=True)
    return Buckets(bounds, tuple(map(sum, columns)), sum(sums_us) if len(sums_us) == len(alike) else None)


def read_hours(connection: Connection, endpoint: str, since: datetime, until: datetime) -> list[LiveHour]:
    """The sums of the endpoint's windows, for the hours from `since` up to, but without, `until`; sorted by key."""
    columns = live_hours.c
    statement = select(live_hours).where(columns.endpoint == endpoint, columns.hour >= since, columns.hour < until)
    ordered = statement.order_by(*(columns[name] for name in _HOUR_KEY))
    return [_hour(row) for row in connection.execute(ordered).mappings()]


def add_windows(connection: Connection, endpoint: str, windows: Iterable[LiveWindow]) -> None:
    """Add windows that are new to their hours; nobody else may do so for this endpoint meanwhile."""
    new = sum_windows(windows)
    if not new:
        return
    columns = live_hours.c
    is_one = bulk.one_of(connection, [columns[name] for name in _HOUR_KEY], [hour.key for hour in new])
    rows = connection.execute(select(live_hours).where(columns.endpoint == endpoint, is_one)).mappings()
    stored = {hour.key: hour for hour in map(_hour, rows)}
    for hour in new:
        known = stored.get(hour.key)
        if known is None:
            connection.execute(insert(live_hours).values(_hour_row(endpoint, hour)))
            continue
        same = (columns[name] == value for name, value in zip(_HOUR_KEY, hour.key, strict=True))
        whole = _hour_row(endpoint, _merge([known, hour]))
        connection.execute(update(live_hours).where(columns.endpoint == endpoint, *same).values(whole))


def _merge_by_key(hours: Iterable[LiveHour]) -> list[LiveHour]:
    by_key: dict[tuple[Any, ...], list[LiveHour]] = defaultdict(list)
    for hour in hours:
        by_key[hour.key].append(hour)
    return [_merge(by_key[key]) for key in sorted(by_key)]


def _merge(hours: Sequence[LiveHour]) -> LiveHour:
    """Of one key, sum_counts up."""
    ordered = sorted(hours, key=lambda hour: hour.ended_at)
    drafted = [hour.drafted_at for hour in ordered if hour.drafted_at is not None]
    return LiveHour(
        **{name: getattr(ordered[0], name) for name in _HOUR_KEY},
        began_at=min(hour.began_at for hour in ordered),
        ended_at=ordered[-1].ended_at,
        drafted_at=min(drafted, default=None),
        counts=sum_counts(hour.counts for hour in ordered),
        pool=ordered[-1].pool,
        running=add_readings(hour.running for hour in ordered),
        waiting=add_readings(hour.waiting for hour in ordered),
        kv_use=add_readings(hour.kv_use for hour in ordered),
        **{name: sum(getattr(hour, name) for hour in ordered) for name in _SUMS},
    )


def _hour_row(endpoint: str, hour: LiveHour) -> dict[str, Any]:
    row = {name: getattr(hour, name) for name in _HOUR_NAMES}
    readings = {
        name: {str(number): count for number, count in getattr(hour, name).items()} or None for name in _READINGS
    }
    return {"endpoint": endpoint, **row, **counts_document(hour.counts), **readings}


def _hour(row: RowMapping) -> LiveHour:
    readings = {name: {int(number): count for number, count in (row[name] or {}).items()} for name in _READINGS}
    values = {name: row[name] for name in _HOUR_NAMES}
    return LiveHour(**values | {"pool": Pool(values["pool"])} | readings, counts=read_counts(row))


def counts_document(counts: LiveCounts) -> dict[str, Any]:
    """Every count by its name; bins as their bounds and counts, with their sum where it is known."""
    latencies = {
        name: [list(bins.bounds), list(bins.counts), *([] if bins.sum_us is None else [bins.sum_us])]
        for name, bins in counts.latencies.items()
    }
    per_pos = list(counts.num_accepted_tokens_per_pos)
    return {name: getattr(counts, name) for name in COUNTS} | {
        "num_accepted_tokens_per_pos": per_pos,
        "latencies": latencies,
    }


def _scrape_document(scrape: LiveScrape) -> dict[str, Any]:
    """The counts, and what the next scrape is compared with beside them."""
    return counts_document(scrape.counts) | {"samples": dict(scrape.samples), "has_end_mark": scrape.has_end_mark}


def read_counts(document: Mapping[Any, Any]) -> LiveCounts:
    """The counts again; a row without latencies was read without them, an older document lacks newer counts."""
    return LiveCounts(
        **{name: document.get(name) for name in COUNTS},
        num_accepted_tokens_per_pos=tuple(document["num_accepted_tokens_per_pos"]),
        latencies={
            name: Buckets(tuple(buckets[0]), tuple(buckets[1]), *buckets[2:])
            for name, buckets in document.get("latencies", {}).items()
        },
    )
