"""The ledger: the place of each consumer in each partition, and the funnel counts of its consumed records.

Both change in the transaction that writes the rows, and only from the ledger's place.  The sum of the funnel counts is
therefore always the sum of `num_records`, for any number of writers and repeated writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, delete, func, or_, select, tuple_, update

from shadowspec.errors import FencedError, StoreError, UsageError
from shadowspec.store import bulk
from shadowspec.store import table_definitions as tables
from shadowspec.types import (
    Advance,
    FunnelCounter,
    FunnelKey,
    LedgerEntry,
    PartitionId,
    RecordKey,
    Watermark,
    WatermarkHolder,
)

ENTRY_NAMES = (
    *tables.LEDGER_KEY, "next_offset", "num_messages", "num_records", "watermark", "is_behind", "is_ended",
    "resume_offset",
)  # fmt: skip
FUNNEL_KEY = (*tables.LEDGER_KEY, "endpoint", "counter", "reason")

STILL_AT_WORK = timedelta(minutes=10)  # a consumer that moved within it is taken to be running

_ledger = tables.ledger.c
_counts = tables.funnel_counts.c


def advance(connection: Connection, advances: Sequence[Advance], consumer: str) -> None:
    """Move the entries of these partitions, each from the place that its advance expects, and add the funnel counts.

    The entries stay locked until the transaction ends.

    Raises:
        FencedError: one is at another place, or was started by another worker.
        StoreError: two advances of one partition, or one that goes backwards.
    """
    held = _hold(connection, advances, consumer)
    ordered = sorted(advances, key=lambda advance: advance.partition)
    add_to_funnel(connection, ordered, consumer)
    for advance in ordered:
        entry = held[advance.partition]
        begins = {} if entry.has_position else {"first_offset": advance.first_offset}
        connection.execute(
            update(tables.ledger)
            .where(_ledger.consumer == consumer, _same_partition(advance.partition))
            .values(
                next_offset=advance.next_offset,
                num_messages=entry.num_messages + advance.num_messages,
                num_records=entry.num_records + sum(advance.funnel.values()),
                watermark=advance.watermark,
                is_behind=advance.is_behind,
                is_ended=advance.is_ended,
                resume_offset=advance.resume_offset,
                moved_at=datetime.now(UTC),
                **begins,
            )
        )


def _hold(connection: Connection, advances: Sequence[Advance], consumer: str) -> dict[PartitionId, LedgerEntry]:
    """Lock the entries of these partitions; they are where each advance expects.

    A partition not started gets its entry here: of two workers that begin it, one waits and finds itself fenced.
    """
    by_partition = {advance.partition: advance for advance in advances}
    if len(by_partition) < len(advances):
        raise StoreError("a batch moves each partition once")
    for advance in advances:
        if advance.next_offset < (advance.expected or 0) or min(advance.num_messages, *advance.funnel.values(), 0) < 0:
            raise StoreError(f"{_name(advance)}: a ledger never goes backwards")
    begun = [partition for partition in sorted(by_partition) if by_partition[partition].expected is None]
    new = [
        (
            consumer,
            partition.source,
            partition.partition,
            0,
            0,
            0,
            None,
            False,
            False,
            None,
            by_partition[partition].first_offset,
        )
        for partition in begun
    ]
    names = (*ENTRY_NAMES, "first_offset")
    inserted = {PartitionId(*key[1:]) for key in bulk.insert_new(connection, tables.ledger, names, new)}
    held = {entry.partition: entry for entry in _lock(connection, sorted(by_partition), consumer)}
    for partition in sorted(by_partition):
        advance, entry = by_partition[partition], held.get(partition)
        expected = 0 if partition in inserted else advance.expected
        if entry is None or entry.next_offset != expected:
            position = "is not in the ledger" if entry is None else f"is at {entry.next_offset}"
            wanted = "no entry" if advance.expected is None else str(advance.expected)
            message = f"{_name(advance)} of consumer {consumer!r} {position}, expected {wanted}"
            raise FencedError(message, source=partition.source, partition=partition.partition)
    return held


def add_to_funnel(connection: Connection, advances: Sequence[Advance], consumer: str) -> None:
    """Add the funnel counts of these advances."""
    added: Counter[tuple[str, str, int, str, str, str]] = Counter()
    for advance in advances:
        place = consumer, advance.partition.source, advance.partition.partition
        for (endpoint, counter, reason), number in advance.funnel.items():
            added[*place, endpoint or "", counter.value, reason or ""] += number
    values = [(*key, number) for key, number in sorted(added.items()) if number]
    bulk.add(connection, tables.funnel_counts, (*FUNNEL_KEY, "num_records"), values, FUNNEL_KEY)


def read_ledger(connection: Connection, consumer: str) -> list[LedgerEntry]:
    """Every partition that the consumer has started, sorted."""
    rows = connection.execute(select(tables.ledger).where(_ledger.consumer == consumer)).mappings()
    return sorted(map(_entry, rows), key=lambda entry: entry.partition)


def read_entry(connection: Connection, consumer: str, partition: PartitionId) -> LedgerEntry | None:
    """The consumer's place in a partition; None if it has not started."""
    statement = select(tables.ledger).where(_ledger.consumer == consumer, _same_partition(partition))
    row = connection.execute(statement).mappings().first()
    return None if row is None else _entry(row)


def read_funnel(connection: Connection) -> dict[FunnelKey, int]:
    """Records by endpoint, counter and reason, over all consumers; they add up to the records consumed."""
    columns = (_counts.endpoint, _counts.counter, _counts.reason)
    totals = connection.execute(select(*columns, func.sum(_counts.num_records)).group_by(*columns))
    return {
        (endpoint or None, FunnelCounter(counter), reason or None): int(number)
        for endpoint, counter, reason, number in totals
    }


def read_watermark(connection: Connection, endpoint: str) -> Watermark:
    """The event time up to which the input of an endpoint is known.

    The sources are those in which the endpoint has been seen, by consumer.  The result is the least watermark of their
    partitions that are behind and still read; without such a partition, the greatest of all.  Partitions that the same
    consumers have only started count too: they may hold the endpoint's records.
    """
    sources = select(_counts.consumer, _counts.source).where(_counts.endpoint == endpoint).distinct()
    is_seen = tuple_(_ledger.consumer, _ledger.source).in_(sources)
    may_be_seen = and_(
        _ledger.consumer.in_(select(sources.subquery().c.consumer)), _ledger.num_messages == 0, _ledger.is_behind
    )
    statement = select(tables.ledger).where(or_(is_seen, may_be_seen))
    entries = [(_entry(row), row["moved_at"]) for row in connection.execute(statement).mappings()]
    newest = max((entry.watermark for entry, _ in entries if entry.watermark), default=None)
    is_ended = bool(entries) and all(entry.is_ended for entry, _ in entries)
    behind = [
        WatermarkHolder(entry.consumer, entry.partition, entry.watermark, moved_at)
        for entry, moved_at in entries
        if entry.is_behind and not entry.is_ended
    ]
    if not behind:
        return Watermark(newest, is_ended)
    last = min(
        behind, key=lambda holder: (holder.time is not None, holder.time or newest, holder.consumer, holder.partition)
    )
    return Watermark(last.time, is_ended, None if last.time == newest else last)


def forget_consumer(connection: Connection, consumer: str, *, is_forced: bool = False) -> int:
    """Exclude a retired consumer from every watermark until it moves again; the number of its partitions that counted.

    Its finished records stay counted and folded.

    Raises:
        UsageError: there is no such consumer, or it moved within `STILL_AT_WORK` and it is not forced.
    """
    condition = _ledger.consumer == consumer
    number, moved_at = connection.execute(select(func.count(), func.max(_ledger.moved_at)).where(condition)).one()
    if not number:
        names = connection.scalars(select(_ledger.consumer).distinct().order_by(_ledger.consumer))
        raise UsageError(f"the ledger has no consumer {consumer!r}; it has {', '.join(map(repr, names)) or 'none'}")
    if not is_forced and moved_at is not None and moved_at > datetime.now(UTC) - STILL_AT_WORK:
        raise UsageError(f"consumer {consumer!r} moved at {moved_at:%Y-%m-%d %H:%M:%S} UTC: stop it first")
    forgotten = connection.execute(update(tables.ledger).where(condition, _ledger.is_behind).values(is_behind=False))
    return forgotten.rowcount


def record_attempt(connection: Connection, keys: Sequence[RecordKey]) -> dict[RecordKey, int]:
    """Count one more attempt to measure each record singly, before it begins; the attempts so far."""
    names = (*tables.attempts.primary_key.columns.keys(), "num_attempts")
    ordered = [(key.source, key.partition, key.offset, key.timestamp_ms, key.item, 1) for key in sorted(set(keys))]
    bulk.add(connection, tables.attempts, names, ordered, names[:-1])
    return read_attempts(connection, keys)


def clear_attempts(connection: Connection, keys: Sequence[RecordKey]) -> None:
    """Reset the attempts of these records to zero: measured singly, they did no harm."""
    columns = tables.attempts.primary_key.columns
    wanted = [(key.source, key.partition, key.offset, key.timestamp_ms, key.item) for key in keys]
    if wanted:
        connection.execute(delete(tables.attempts).where(tuple_(*columns).in_(wanted)))


def read_attempts(connection: Connection, keys: Sequence[RecordKey]) -> dict[RecordKey, int]:
    """Attempts so far of each record; 0 of one that was never tried singly."""
    columns = tables.attempts.primary_key.columns
    wanted = [(key.source, key.partition, key.offset, key.timestamp_ms, key.item) for key in keys]
    attempts = connection.execute(select(tables.attempts).where(tuple_(*columns).in_(wanted))) if wanted else ()
    numbers = {RecordKey(*row[:-1]): int(row[-1]) for row in attempts}
    return {key: numbers.get(key, 0) for key in keys}


def _lock(connection: Connection, partitions: Sequence[PartitionId], consumer: str) -> list[LedgerEntry]:
    wanted = [(partition.source, partition.partition) for partition in partitions]
    place = (_ledger.source, _ledger.source_partition)
    statement = select(tables.ledger).where(_ledger.consumer == consumer, tuple_(*place).in_(wanted))
    rows = connection.execute(statement.order_by(*place).with_for_update()).mappings() if wanted else ()
    return [_entry(row) for row in rows]


def _same_partition(partition: PartitionId) -> Any:
    return and_(_ledger.source == partition.source, _ledger.source_partition == partition.partition)


def _entry(row: RowMapping) -> LedgerEntry:
    values = {name: row[name] for name in ENTRY_NAMES if name not in ("source", "source_partition")}
    return LedgerEntry(partition=PartitionId(row["source"], row["source_partition"]), **values)


def _name(advance: Advance) -> str:
    return f"{advance.partition.source}[{advance.partition.partition}]"
