"""Open keys in the database: the clusters of one endpoint that are not in evidence yet, or not to be opened again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, delete, func, or_, select

from shadowspec.store import bulk
from shadowspec.store import table_definitions as tables
from shadowspec.types import Arrival, OpenKey, RecordKey, SliceKey

AT_ONCE = 5_000  # keys in one statement
NAMES = ("endpoint", "clustering", "slice_key", "key", "arrivals", "reopens_at", "first_event", "closes_at", "is_full")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_own = tables.evidence_keys.c


class StoredKeys:
    """The keys of one clustering of an endpoint: satisfies `KeyTable`.  Lives as long as its transaction."""

    def __init__(self, connection: Connection, endpoint: str, clustering: str) -> None:
        self._connection = connection
        self._endpoint, self._clustering = endpoint, clustering
        self._is_ours = and_(_own.endpoint == endpoint, _own.clustering == clustering)

    def take(self, keys: Iterable[SliceKey]) -> list[OpenKey]:
        wanted = _sort_places(set(keys))
        open_keys: list[OpenKey] = []
        for start in range(0, len(wanted), AT_ONCE):
            part, columns = wanted[start : start + AT_ONCE], [_own.slice_key, _own.key]
            open_keys += map(_open_key, bulk.take(self._connection, tables.evidence_keys, self._is_ours, columns, part))
        return open_keys

    def take_waiting(self, until: datetime | None) -> list[OpenKey]:
        is_due = _own.first_event.is_not(None) if until is None else _own.first_event <= until
        statement = delete(tables.evidence_keys).where(self._is_ours, is_due).returning(*_own)
        return [_open_key(row) for row in self._connection.execute(statement).mappings().all()]

    def add(self, keys: Iterable[OpenKey]) -> None:
        by_place = {(open_key.slice_key, open_key.key): open_key for open_key in keys}
        rows = [self._row(by_place[place]) for place in _sort_places(by_place)]
        bulk.insert_new(self._connection, tables.evidence_keys, NAMES, rows)

    def first_unclosed(self, closed_by: datetime) -> datetime | None:
        is_closed = or_(
            and_(_own.is_full, _own.closes_at <= closed_by), and_(~_own.is_full, _own.closes_at < closed_by)
        )
        where = (self._is_ours, _own.first_event.is_not(None), ~is_closed)
        oldest: datetime | None = self._connection.scalar(select(func.min(_own.first_event)).where(*where))
        return oldest

    def forget(self, reopened_by: datetime) -> None:
        # Arrivals without a cluster are late for one in evidence, and wait only to be counted.
        nothing = (_own.first_event.is_(None), _own.reopens_at <= reopened_by)
        self._connection.execute(delete(tables.evidence_keys).where(self._is_ours, *nothing))

    def _row(self, open_key: OpenKey) -> tuple[Any, ...]:
        arrivals = [
            [(at - _EPOCH) // _MICROSECOND, key.source, key.partition, key.offset, key.timestamp_ms, key.item]
            for at, key in open_key.arrivals
        ]
        times = open_key.reopens_at, open_key.first_event, open_key.closes_at
        return self._endpoint, self._clustering, open_key.slice_key, open_key.key, arrivals, *times, open_key.is_full


def _arrival(stored: Sequence[Any]) -> Arrival:
    return _EPOCH + stored[0] * _MICROSECOND, RecordKey(*stored[1:])


def _sort_places(places: Iterable[SliceKey]) -> list[SliceKey]:
    """Sorted by key only, because slices are few."""
    by_slice: dict[str, list[str]] = {}
    for slice_key, key in places:
        by_slice.setdefault(slice_key, []).append(key)
    return [(slice_key, key) for slice_key in sorted(by_slice) for key in sorted(by_slice[slice_key])]


def _open_key(row: RowMapping) -> OpenKey:
    return OpenKey(
        slice_key=row["slice_key"],
        key=row["key"],
        arrivals=tuple(_arrival(arrival) for arrival in row["arrivals"]),
        reopens_at=row["reopens_at"],
        first_event=row["first_event"],
        closes_at=row["closes_at"],
        is_full=row["is_full"],
    )
