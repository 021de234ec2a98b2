"""Finished work that waits to be written: measured blocks, rows, and the next place of each partition's ledger.

A batch holds the blocks and the ledger's steps together, so a partition never passes a request whose rows are
not in the same transaction or an earlier one.  The `Writer` of a worker writes the batches and commits offsets.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from shadowspec.errors import FencedError
from shadowspec.store import Store
from shadowspec.types import (
    BlockResult,
    FingerprintedConfig,
    FunnelCounter,
    FunnelKey,
    LedgerEntry,
    PartitionId,
    RecordKey,
    StoredRecord,
    WriteBatch,
    WriteOutcome,
)
from shadowspec.worker.background import Background, RetriedCall
from shadowspec.worker.tracker import LedgerStep, PartitionTracker

if TYPE_CHECKING:
    from shadowspec.tap.dead_letter_topic import DeadLetterWriter
    from shadowspec.tap.kafka.consumer import KafkaTap
    from shadowspec.worker.telemetry import Telemetry

log = logging.getLogger(__name__)

_MeasuredBlock = tuple[BlockResult, tuple[StoredRecord, ...]]


class Outbox:
    """One process's.  At most one batch is in hand at a time."""

    def __init__(self) -> None:
        self._trackers: dict[tuple[str, int], PartitionTracker] = {}  # by source and partition
        self._measured: list[_MeasuredBlock] = []
        self._unwritten: dict[RecordKey, StoredRecord] = {}  # of blocks that are measured
        self._steps: list[tuple[PartitionTracker, LedgerStep]] = []  # being written
        self._writing: WriteBatch | None = None
        self.counts: Counter[FunnelKey] = Counter()  # records ended; for metrics, which take them away
        self.num_finished = 0  # records ended since the last batch

    # partitions

    def start(self, partition: PartitionId, entry: LedgerEntry | None, *, is_reread: bool) -> None:
        """Follow a partition from its ledger's place."""
        self._trackers[partition.source, partition.partition] = PartitionTracker(partition, entry, is_reread=is_reread)

    def forget(self, partition: PartitionId) -> None:
        """Drop a partition's unfinished messages; its measured blocks are still written."""
        self._trackers.pop((partition.source, partition.partition), None)

    def tracker(self, key: RecordKey) -> PartitionTracker | None:
        """That of the record's partition, if it is read here."""
        return self._trackers.get(key[:2])

    def claim(self, partition: PartitionId) -> None:
        """Write the partition's ledger entry with the next batch, finished messages or not."""
        self._trackers[partition.source, partition.partition].claim()

    @property
    def without_messages(self) -> frozenset[PartitionId]:
        """The partitions of which no message has ever come."""
        return frozenset(tracker.partition for tracker in self._trackers.values() if tracker.has_no_messages)

    @property
    def fronts(self) -> frozenset[tuple[PartitionId, int]]:
        """Of each partition, the offset of the unfinished message that its ledger waits for."""
        fronts = ((tracker.partition, tracker.front) for tracker in self._trackers.values())
        return frozenset((partition, front) for partition, front in fronts if front is not None)

    @property
    def num_unfinished(self) -> int:
        """Messages whose offsets are held."""
        return sum(tracker.num_held for tracker in self._trackers.values())

    # the ends of records and halves

    def end(self, record: StoredRecord, *, row: StoredRecord | None) -> None:
        """A record ended in its counter; `row` is its stored row if it is not a block's."""
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

    def end_elsewhere(self, key: RecordKey, event_time: datetime | None) -> None:
        """A record ended that another worker counts."""
        if (tracker := self.tracker(key)) is not None:
            tracker.end(key.offset, None, event_time, None)

    def end_half(self, key: RecordKey, whole: RecordKey) -> None:
        """A message became part of the record that is counted under another message's key."""
        tracker = self.tracker(key)
        if tracker is not None:
            if partition_of(key) == partition_of(whole):
                tracker.tie(key.offset, whole.offset)
            tracker.end(key.offset, None, None, None)

    def add(self, result: BlockResult, records: Sequence[StoredRecord]) -> None:
        """A block was measured; its requests' records end with it, those whose measurement failed as failed."""
        failures = {run.key: run.failure for run in result.runs if run.failure is not None}
        ended = tuple(
            replace(record, counter=FunnelCounter.FAILED, reason=failures[record.key])
            if record.key in failures
            else record
            for record in records
        )
        for record in ended:
            self.end(record, row=None)
        self._measured.append((result, ended))
        self._unwritten |= {record.key: record for record in ended}

    def unwritten(self, key: RecordKey) -> StoredRecord | None:
        """The record of a measured request whose block is not written yet; None: there is none."""
        return self._unwritten.get(key)

    # writing

    @property
    def has_writable(self) -> bool:
        """Whether a batch is in hand or could be made."""
        return self._writing is not None or bool(self._measured) or any(t.has_step for t in self._trackers.values())

    def batch(self, *, behind: frozenset[PartitionId] = frozenset(), is_ended: bool = False) -> WriteBatch | None:
        """The next batch, for one transaction; None if there is none, or while the last one is unsettled."""
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
        for _, records in () if self._writing is None else self._writing.blocks:
            for record in records:
                self._unwritten.pop(record.key, None)
        self._steps, self._writing = [], None
        return places

    def without(self, partition: PartitionId) -> WriteBatch:
        """The batch in hand without a partition that another member has by now."""
        assert self._writing is not None, "no batch is in hand"
        self._steps = [pair for pair in self._steps if pair[0].partition != partition]
        self._writing = _batch(self._writing.blocks, self._steps)
        return self._writing


class Writer:
    """Writes an outbox's batches, one at a time, on the database's thread.

    1. The dead letters of the batch's messages are flushed.
    2. Its rows and the ledger's steps are written in one transaction.
    3. Only then the offsets that the ledger has passed are committed to the broker.

    A crash between two of these loses nothing: messages that are not committed are delivered again, and meet the rows
    and the ledger that were written.
    """

    def __init__(
        self,
        outbox: Outbox,
        database: Background,
        store: Store,
        source: KafkaTap,
        dead_letters: DeadLetterWriter,
        telemetry: Telemetry,
        *,
        consumer: str,
        flush_interval_s: float,
        on_fenced: Callable[[PartitionId], None],
    ) -> None:
        """
        Args:
            flush_interval_s: from the end of a write to the next one's begin, at least.
            on_fenced: called with a partition whose ledger another worker has moved.
        """
        self._outbox, self._database = outbox, database
        self._store, self._source, self._dead_letters = store, source, dead_letters
        self._telemetry, self._consumer, self._on_fenced = telemetry, consumer, on_fenced
        self._flush_interval_s = flush_interval_s
        self._write: RetriedCall[WriteOutcome] | None = None
        self._known: frozenset[str] = frozenset()  # fingerprints that are in the database
        self._ended_at = self._began_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Nothing is being written, or could be."""
        return self._write is None and not self._outbox.has_writable

    def step(self, configs: Sequence[FingerprintedConfig], *, may_begin: bool, at_once: bool = False) -> None:
        """Begin to write the finished work when it is due, and follow a write to its end; never waits.

        Args:
            configs: the engines' configs.
            may_begin: whether the ledger of every partition that is assigned here is known.  A batch that is being
                written is followed anyway.
            at_once: all finished work is due.
        """
        if self._write is None:
            is_due = at_once or time.monotonic() - self._ended_at >= self._flush_interval_s
            batch = self._outbox.batch(behind=self._behind()) if may_begin and is_due else None
            if batch is None:
                return
            self._write = self._begin(batch, configs)
        if not self._write.is_done():
            return
        try:
            outcome = self._write.result()
        except FencedError as error:
            # Another worker has moved this partition's ledger, and has done the work that is unfinished here.  If the
            # partition is assigned here again by now, it is read from the new place.
            log.warning("%s", error)
            partition = PartitionId(error.source, error.partition)
            self._on_fenced(partition)
            self._write = self._begin(self._outbox.without(partition), configs)
            return
        self._write, self._ended_at = None, time.monotonic()
        self._telemetry.record_write(outcome, self._ended_at - self._began_at)
        offsets = self._outbox.settle()
        if offsets and not self._source.commit(offsets).is_complete:
            self._telemetry.commit_failed()

    def _begin(self, batch: WriteBatch, configs: Sequence[FingerprintedConfig]) -> RetriedCall[WriteOutcome]:
        fingerprints = frozenset(config.fingerprint for config in configs)

        def write() -> WriteOutcome:
            self._dead_letters.flush()
            if not fingerprints <= self._known:
                self._store.save_fingerprints(list({config.fingerprint: config for config in configs}.values()))
                self._known = fingerprints
            return self._store.save_batch(batch, self._consumer)

        self._began_at = time.monotonic()
        return self._database.call("writing measurements", write)

    def _behind(self) -> frozenset[PartitionId]:
        """Partitions of which more is to come; of one without a message so far, as long as its lag is unknown."""
        lag = self._source.lag()
        more = frozenset(partition for partition, number in lag.items() if number > 0)
        return more | (self._outbox.without_messages - lag.keys())


def partition_of(key: RecordKey) -> PartitionId:
    """Where a record came from."""
    return PartitionId(key.source, key.partition)


def _batch(blocks: tuple[_MeasuredBlock, ...], steps: Sequence[tuple[PartitionTracker, LedgerStep]]) -> WriteBatch:
    rows = tuple(record for _, step in steps for record in step.records)
    return WriteBatch(rows, blocks, tuple(step.advance for _, step in steps))
