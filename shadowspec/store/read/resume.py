"""The state that a worker needs to start a partition: rows ahead of the ledger, and admission's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from shadowspec.store import table_definitions as tables
from shadowspec.store.read import row_reads
from shadowspec.types import PartitionId, RecordKey, SessionRate, StoredRecord, UnitMemory

_records = tables.records.c


def read_finished_records(
    connection: Connection, partition: PartitionId, from_offset: int
) -> dict[RecordKey, StoredRecord]:
    """The stored records of a partition from an offset on: they were finished before earlier ones were."""
    records = row_reads.read_records_where(
        connection, *_match_partition(partition), _records.source_offset >= from_offset
    )
    return {record.key: record for record in records}


def read_unit_memories(
    connection: Connection,
    endpoint: str,
    since: datetime,
    *,
    partition: PartitionId | None = None,
    before_offset: int | None = None,
) -> dict[str, UnitMemory]:
    """Admission's memory of each unit, from the stored records since `since` (of one partition, below an offset)."""
    where = [*_match_recent(endpoint, since, partition, before_offset), _records.unit_key.is_not(None)]
    memories: dict[str, UnitMemory] = {}
    at = _records.event_time
    statement = select(_records.unit_key, func.max(_records.session_position), func.min(at), func.max(at))
    for unit_key, position, *seen in connection.execute(statement.where(*where).group_by(_records.unit_key)):
        memories[unit_key] = UnitMemory(position or 0, *seen)
    for unit_key, slice_key, *drawn in connection.execute(_select_first_rates(where)):
        memory = memories[unit_key]
        memories[unit_key] = replace(memory, rates={**memory.rates, slice_key: SessionRate(*drawn)})
    return memories


def _select_first_rates(where: Sequence[ColumnElement[bool]]) -> Any:
    """How each unit was drawn in its slices, at their first records."""
    first = func.row_number().over(
        partition_by=(_records.unit_key, _records.slice_key),
        order_by=(_records.session_position, _records.event_time, _records.source_offset, _records.source_item),
    )
    sampled = (_records.slice_key.is_not(None), _records.sampling_rate.is_not(None))
    columns = (_records.unit_key, _records.slice_key, _records.sampling_rate, _records.is_thinned)
    numbered = select(*columns, first.label("place")).where(*where, *sampled).subquery()
    return select(*(numbered.c[column.name] for column in columns)).where(numbered.c.place == 1)


def read_recent_request_ids(
    connection: Connection,
    endpoint: str,
    since: datetime,
    *,
    partition: PartitionId | None = None,
    before_offset: int | None = None,
) -> set[str]:
    """Hashed request ids of the endpoint's stored records from `since` on (of one partition, below an offset)."""
    where = [*_match_recent(endpoint, since, partition, before_offset), _records.request_id_hash.is_not(None)]
    return set(connection.scalars(select(_records.request_id_hash).where(*where)))


def read_recent_identities(connection: Connection, endpoint: str, now: datetime, window: timedelta) -> set[str]:
    """Hashes of the sessions and users in the endpoint's records of the last `window`, by the newest event time."""
    newest = connection.scalar(select(func.max(_records.event_time)).where(_records.endpoint == endpoint))
    if newest is None:
        return set()
    where = _match_recent(endpoint, min(newest, now) - window, None, None)
    rows = connection.execute(select(_records.session_hash, _records.user_hash).where(*where).distinct())
    return {identity for row in rows for identity in row if identity is not None}


def _match_recent(
    endpoint: str, since: datetime, partition: PartitionId | None, before_offset: int | None
) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [_records.endpoint == endpoint, _records.event_time >= since]
    if partition is not None:
        where += _match_partition(partition)
    if before_offset is not None:
        where.append(_records.source_offset < before_offset)
    return where


def _match_partition(partition: PartitionId) -> list[ColumnElement[bool]]:
    return [_records.source == partition.source, _records.source_partition == partition.partition]
