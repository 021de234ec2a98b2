"""What is finished and waits to be written: measured blocks, rows, and how far each partition's ledger may move.

A batch holds the blocks and the ledger's steps together, so a partition never passes a request whose rows are
not in the same transaction or an earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from shadowspec.types import (
    BlockResult,
    FunnelCounter,
    FunnelKey,
    LedgerEntry,
    PartitionId,
    RecordKey,
    StoredRecord,
    WriteBatch,
)
from shadowspec.worker.tracker import PartitionTracker, Step

_MeasuredBlock = tuple[BlockResult, tuple[StoredRecord, ...]]


class Outbox:
    """One process's.  At most one batch is in hand at a time."""

    def __init__(self) -> None:
        self._trackers: dict[tuple[str, int], PartitionTracker] = {}  # by source and partition
        self._measured: list[_MeasuredBlock] = []
        self._steps: list[tuple[PartitionTracker, Step]] = []  # being written
        self._writing: WriteBatch | None = None
        self.counts: Counter[FunnelKey] = Counter()  # records ended; for metrics, which take them away
        self.num_finished = 0  # records ended since the last batch

    # partitions

    def start(self, partition: PartitionId, entry: LedgerEntry | None, *, is_read_anew: bool) -> None:
        """Follow a partition from where its ledger stands."""
        self._trackers[partition.source, partition.partition] = PartitionTracker(
            partition, entry, is_read_anew=is_read_anew
        )

    def forget(self, partition: PartitionId) -> None:
        """Drop what is unfinished of a partition; what is measured is written all the same."""
        self._trackers.pop((partition.source, partition.partition), None)

    def tracker(self, key: RecordKey) -> PartitionTracker | None:
        """That of the record's partition, if it is read here."""
        return self._trackers.get(key[:2])

    def claim(self, partition: PartitionId) -> None:
        """Let the ledger tell of the partition with the next batch, whatever is finished of it by then."""
        self._trackers[partition.source, partition.partition].claim()

    @property
    def unheard(self) -> frozenset[PartitionId]:
        """The partitions of which no message has ever come."""
        return frozenset(tracker.partition for tracker in self._trackers.values() if tracker.is_unheard)

    @property
    def num_unfinished(self) -> int:
        """Messages whose offsets are held."""
        return sum(tracker.num_held for tracker in self._trackers.values())

    # what ends

    def end(self, record: StoredRecord, *, row: StoredRecord | None) -> None:
        """A record ended in its counter; `row` is what is to be stored of it beside a block's own."""
        key = record.key
        tracker = self.tracker(key)
        if tracker is None:
            return
        counted = (record.endpoint, record.counter, record.reason)
        if tracker.end(key.offset, counted, record.event_time, row):
            self.num_finished += 1
            self.counts[counted] += 1

    def pass_over(
        self, tracker: PartitionTracker, offset: int, counted: FunnelKey, event_time: datetime | None
    ) -> None:
        """A message came whose only record has ended already, and of which nothing is to be stored."""
        if tracker.pass_over(offset, counted, event_time):
            self.num_finished += 1
            self.counts[counted] += 1

    def end_half(self, key: RecordKey, whole: RecordKey) -> None:
        """A message went into the record that is counted under another one's key."""
        tracker = self.tracker(key)
        if tracker is not None:
            if partition_of(key) == partition_of(whole):
                tracker.tie(key.offset, whole.offset)
            tracker.end(key.offset, None, None, None)

    def add(self, result: BlockResult, records: Sequence[StoredRecord]) -> None:
        """A block was measured; its requests' records end with it."""
        for record in records:
            self.end(record, row=None)
        self._measured.append((result, tuple(records)))

    # writing

    @property
    def has_writable(self) -> bool:
        """Whether a batch is in hand or could be made."""
        return self._writing is not None or bool(self._measured) or any(t.has_step for t in self._trackers.values())

    def batch(self, *, behind: frozenset[PartitionId] = frozenset(), is_ended: bool = False) -> WriteBatch | None:
        """What may be written now, in one transaction; None if nothing is, or while the last batch is unsettled."""
        if self._writing is not None:
            return None
        for tracker in self._trackers.values():
            step = tracker.step(is_behind=tracker.partition in behind, is_ended=is_ended)
            if step is not None:
                self._steps.append((tracker, step))
        if not self._steps and not self._measured:
            return None
        blocks, self._measured = tuple(self._measured), []
        self.num_finished = 0
        self._writing = _batch(blocks, self._steps)
        return self._writing

    def settle(self) -> dict[PartitionId, int]:
        """The batch is written: the offsets that may be committed, by partition still read here."""
        places: dict[PartitionId, int] = {}
        for tracker, step in self._steps:
            tracker.settle()
            partition = tracker.partition
            if self._trackers.get((partition.source, partition.partition)) is tracker:
                places[partition] = step.advance.next_offset
        self._steps, self._writing = [], None
        return places

    def without(self, partition: PartitionId) -> WriteBatch:
        """The batch in hand without a partition that turned out to be somebody else's by now."""
        assert self._writing is not None, "no batch is in hand"
        self._steps = [pair for pair in self._steps if pair[0].partition != partition]
        self._writing = _batch(self._writing.blocks, self._steps)
        return self._writing


def partition_of(key: RecordKey) -> PartitionId:
    """Where a record came from."""
    return PartitionId(key.source, key.partition)


def with_failures(result: BlockResult, records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """The block's records, those whose measurement failed counted as failed."""
    failures = {run.key: run.failure for run in result.runs if run.failure is not None}
    if not failures:
        return list(records)
    return [
        replace(record, counter=FunnelCounter.FAILED, reason=failures[record.key]) if record.key in failures else record
        for record in records
    ]


def _batch(blocks: tuple[_MeasuredBlock, ...], steps: Sequence[tuple[PartitionTracker, Step]]) -> WriteBatch:
    rows = tuple(record for _, step in steps for record in step.records)
    return WriteBatch(rows, blocks, tuple(step.advance for _, step in steps))
