"""Measuring a stream of mirrored records: admit, fill blocks, measure, store.

Rows are written as blocks finish and every write is idempotent.  All that is decided before a block is
measured (fates, sessions, blocks) is a function of the input alone, so a second pass over the same input
finds the blocks that are already stored and goes on where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shadowspec.tap.admission import Admission, Admitted
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.sources import RawRecord
from shadowspec.types import Block, BlockResult, FunnelCounter, RecordKey, StoredRecord

FLUSH_RECORDS = 500  # rejected records written at a time: few transactions, little lost on a crash


class BlockEngine(Protocol):
    """What measures a block."""

    def measure(self, block: Block) -> BlockResult:
        """Run both arms on the block's requests."""


class RunStore(Protocol):
    """Where what was measured is kept."""

    def save_records(self, records: Sequence[StoredRecord]) -> int:
        """Store records that were not measured; how many were new."""

    def save_block(self, result: BlockResult, records: Sequence[StoredRecord]) -> int:
        """Store a block with its runs and records in one transaction; how many runs were new."""

    def stored_block_ids(self, source: str | None = None) -> set[str]:
        """Blocks already measured."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come, for a progress bar."""

    records_read: int
    blocks_measured: int
    blocks_found: int  # already stored by an earlier run
    requests_measured: int


class Worker:
    """Measures one input.  Lives as long as that input."""

    def __init__(
        self,
        admission: Admission,
        former: BlockFormer,
        engines: Mapping[str, BlockEngine],
        store: RunStore,
        *,
        max_requests: int | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """
        Args:
            engines: the engine of each endpoint, by endpoint name.
            max_requests: stop reading once so many requests are to be measured (None: read to the end).
            on_progress: called after every record and block.
        """
        self._admission, self._former, self._engines, self._store = admission, former, engines, store
        self._max_requests = max_requests
        self._on_progress = on_progress
        self._progress = Progress(0, 0, 0, 0)
        self._rejected: list[StoredRecord] = []
        self._waiting: dict[RecordKey, StoredRecord] = {}  # admitted, their block not yet measured
        self._admitted = 0

    def run(self, records: Iterable[RawRecord]) -> Progress:
        """Measure all records; safe to interrupt and to repeat."""
        stored = self._store.stored_block_ids()
        try:
            for raw in records:
                for block in self._admit(raw):
                    self._measure(block, stored)
                if self._max_requests is not None and self._admitted >= self._max_requests:
                    break
            for block in self._former.drain():
                self._measure(block, stored)
        finally:
            self._flush()
        return self._progress

    def _admit(self, raw: RawRecord) -> list[Block]:
        """Take one record in; the blocks that may start now."""
        fate = self._admission.admit(raw)
        self._report(records_read=self._progress.records_read + 1)
        if isinstance(fate, Admitted):
            self._admitted += 1
            self._waiting[raw.key] = fate.record
            return self._former.add(fate.prompt, fate.concurrency)
        self._rejected.append(fate.record)
        if len(self._rejected) >= FLUSH_RECORDS:
            self._flush()
        record = fate.record
        if record.endpoint is not None and record.event_time is not None:
            return self._former.advance(record.endpoint, record.event_time)
        return []

    def _measure(self, block: Block, stored: set[str]) -> None:
        records = [self._waiting.pop(prompt.key) for prompt in block.requests]
        if block.block_id in stored:
            self._report(blocks_found=self._progress.blocks_found + 1)
            return
        result = self._engines[block.endpoint].measure(block)
        self._store.save_block(result, with_failures(result, records))
        self._report(
            blocks_measured=self._progress.blocks_measured + 1,
            requests_measured=self._progress.requests_measured + len(records),
        )

    def _flush(self) -> None:
        self._store.save_records(self._rejected)
        self._rejected = []

    def _report(self, **changes: int) -> None:
        self._progress = replace(self._progress, **changes)
        self._on_progress(self._progress)


def with_failures(result: BlockResult, records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """The block's records, those whose measurement failed counted as failed."""
    failures = {run.key: run.failure for run in result.runs if run.failure is not None}
    return [
        replace(record, counter=FunnelCounter.FAILED, reason=failures[record.key]) if record.key in failures else record
        for record in records
    ]
