"""Live evidence in the database: how far each replica was read, and the windows that came of it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select

from shadowspec.store import bulk, live_hours
from shadowspec.store.live_rows import counts_document, counts_of
from shadowspec.store.tables import live_replicas, live_windows
from shadowspec.types import COUNTS, LiveReplica, LiveScrape, LiveWindow

_OWN = ("replica", "series", "began_at", "ended_at", "is_reset", "num_failed_scrapes")
WINDOW = ("endpoint", *_OWN, *COUNTS, "num_accepted_tokens_per_pos", "latencies")


def read_replicas(connection: Connection, endpoint: str) -> dict[str, LiveReplica]:
    """How far the reading of each of an endpoint's replicas has come."""
    statement = select(live_replicas).where(live_replicas.c.endpoint == endpoint)
    return {row["replica"]: _replica(row) for row in connection.execute(statement).mappings()}


def read_windows(
    connection: Connection,
    endpoint: str,
    since: datetime | None,
    until: datetime | None,
    replicas: Collection[str] | None = None,
    limit: int | None = None,
) -> list[LiveWindow]:
    """The windows that ended from `since` up to, but without, `until`, in the order of their ends.

    With a `limit` the newest so many, without their latencies: what a detector reads, and often.
    """
    own = live_windows.c
    columns = live_windows.c if limit is None else [column for column in own if column is not own.latencies]
    statement = select(*columns).where(own.endpoint == endpoint).order_by(own.ended_at.desc(), own.replica.desc())
    if since is not None:
        statement = statement.where(own.ended_at >= since)
    if until is not None:
        statement = statement.where(own.ended_at < until)
    if replicas is not None:
        statement = statement.where(own.replica.in_(sorted(replicas)))
    found = [_window(row) for row in connection.execute(statement.limit(limit)).mappings()]
    return found[::-1]


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
        own = live_replicas.c
        names = [each.replica for each in replicas]
        self._connection.execute(delete(live_replicas).where(own.endpoint == self._endpoint, own.replica.in_(names)))
        if replicas:
            values = [{"endpoint": self._endpoint, **_replica_row(each)} for each in replicas]
            self._connection.execute(insert(live_replicas), values)
        by_key = {(each.replica, each.ended_at): each for each in windows}
        rows = [(self._endpoint, *_window_row(each)) for each in by_key.values()]
        kept = bulk.insert_new(self._connection, live_windows, WINDOW, rows)
        live_hours.add_windows(
            self._connection, self._endpoint, [by_key[replica, ended_at] for _, replica, ended_at in kept]
        )
        return len(kept)


def _replica_row(own: LiveReplica) -> dict[str, Any]:
    scrape = own.scrape
    return {
        "replica": own.replica,
        "series": None if scrape is None else scrape.series,
        "scraped_at": None if scrape is None else scrape.scraped_at,
        "started_at": None if scrape is None else scrape.started_at,
        "counts": None if scrape is None else counts_document(scrape.counts),
        "num_failed": own.num_failed,
        "failed_at": own.failed_at,
        "error": own.error,
    }


def _replica(row: RowMapping) -> LiveReplica:
    scrape = None
    if row["counts"] is not None:
        counts = counts_of(row["counts"])
        scrape = LiveScrape(row["replica"], row["series"], row["scraped_at"], row["started_at"], counts)
    return LiveReplica(row["replica"], scrape, row["num_failed"], row["failed_at"], row["error"])


def _window_row(own: LiveWindow) -> tuple[Any, ...]:
    document = counts_document(own.counts)
    return (
        *(getattr(own, name) for name in _OWN),
        *(document[name] for name in (*COUNTS, "num_accepted_tokens_per_pos", "latencies")),
    )


def _window(row: RowMapping) -> LiveWindow:
    return LiveWindow(**{name: row[name] for name in _OWN}, counts=counts_of(row))
