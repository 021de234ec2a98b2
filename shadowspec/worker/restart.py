"""What a worker must know of a partition before it reads it: where the ledger stands, and what the rows remember."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from shadowspec.tap.endpoints import EndpointRule
from shadowspec.types import LedgerEntry, PartitionId, RecordKey, StoredRecord, UnitMemory
from shadowspec.worker.ports import WorkerStore


@dataclass(frozen=True, slots=True)
class EndpointPast:
    """What admission has to remember of one endpoint's records in the partition."""

    units: Mapping[str, UnitMemory]
    request_ids: Collection[str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PartitionPast:
    """`stored` holds the rows at and beyond the ledger's place, `endpoints` what those before it amount to."""

    entry: LedgerEntry | None
    stored: Mapping[RecordKey, StoredRecord]
    endpoints: Mapping[str, EndpointPast]

    @property
    def resume_offset(self) -> int | None:
        """Where to read from; None: the ledger does not know it."""
        if self.entry is None or not self.entry.has_begun:
            return None
        return self.entry.next_offset if self.entry.resume_offset is None else self.entry.resume_offset


def partition_past(
    store: WorkerStore, consumer: str, partition: PartitionId, rules: Sequence[EndpointRule]
) -> PartitionPast:
    """Read it.  Records before the ledger's place are remembered, those at and beyond it are delivered again."""
    entry = store.ledger_entry(consumer, partition)
    if entry is None:
        return PartitionPast(None, store.finished_records(partition, 0), {})
    stored = store.finished_records(partition, entry.next_offset)
    endpoints: dict[str, EndpointPast] = {}
    if entry.watermark is not None:
        for rule in rules:
            since = entry.watermark - rule.forget_unit_after
            units = store.unit_memories(rule.name, since, partition=partition, before_offset=entry.next_offset)
            request_ids = store.recent_request_ids(
                rule.name, since, partition=partition, before_offset=entry.next_offset
            )
            endpoints[rule.name] = EndpointPast(units, request_ids)
    return PartitionPast(entry, stored, endpoints)
