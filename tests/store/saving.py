"""Rows written as a worker writes them, for tests that are about something else than the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shadowspec.store import Store
from shadowspec.types import Advance, BlockResult, PartitionId, StoredRecord, WriteBatch

CONSUMER = ""
LAST_OFFSET = 2**63 - 1


def save_records(store: Store, records: Sequence[StoredRecord]) -> int:
    """Keep the records whose keys are new, and count them; how many those were."""
    return store.save_batch(WriteBatch(tuple(records), (), _advances(store, records)), CONSUMER).num_new_records


def save_block(store: Store, result: BlockResult, records: Sequence[StoredRecord]) -> int:
    """Keep a block with its records and runs, and count the new records; how many runs were new."""
    batch = WriteBatch((), ((result, tuple(records)),), _advances(store, records))
    return store.save_batch(batch, CONSUMER).num_new_runs


def is_stored(store: Store, record: StoredRecord) -> bool:
    return record.key in store.finished_records(PartitionId(record.key.source, record.key.partition), 0)


def _advances(store: Store, records: Sequence[StoredRecord]) -> tuple[Advance, ...]:
    """The steps of the ledger over the records that are not stored yet."""
    by_partition: dict[PartitionId, dict[object, StoredRecord]] = {}
    for record in records:
        group = by_partition.setdefault(PartitionId(record.key.source, record.key.partition), {})
        group.setdefault(record.key, record)
    advances = []
    for partition, item in sorted(by_partition.items()):
        known = store.finished_records(partition, 0)
        new = [record for key, record in item.items() if key not in known]
        entry = store.ledger_entry(CONSUMER, partition)
        place = 0 if entry is None else entry.next_offset
        times = [record.event_time for record in new if record.event_time is not None]
        if entry is not None and entry.watermark is not None:
            times.append(entry.watermark)
        advances.append(
            Advance(
                partition,
                expected=None if entry is None else place,
                next_offset=min(max([place, *(record.key.offset + 1 for record in new)]), LAST_OFFSET),
                num_messages=len(new),
                funnel=Counter((record.endpoint, record.counter, record.reason) for record in new),
                watermark=max(times, default=None),
            )
        )
    return tuple(advances)
