"""Measuring a file of mirrored traffic: the worker's pipeline, with the engine in this process or elsewhere.

A file is a partition that ends: its source is the content's digest, its offsets are lines.  In a second pass, lines
that the ledger has passed only restore admission's memory.  So it continues where the first pass stopped, and a full
second pass changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from shadowspec.store import Store
from shadowspec.tap.sources import RawRecord
from shadowspec.types import Block, BlockResult, CachedPrompts, PartitionId
from shadowspec.worker.engine_process import BlockEngine, measure_timed
from shadowspec.worker.pipeline import Pipeline

CONSUMER: Final = "file"  # the consumer of files in the ledger: any process that reads one, in any place
FLUSH_MESSAGES = 500  # finished lines written at a time where nothing is measured


class BlockRunner(Protocol):
    """Has blocks measured, here or elsewhere."""

    def submit(self, block: Block) -> None:
        """Take a block, after waiting for a place for it."""

    def take_finished(self) -> Sequence[BlockResult]:
        """The blocks measured since the last call, in any order; never waits."""

    def drain(self) -> Iterator[BlockResult]:
        """All that is still measured, as it comes."""


class InProcess:
    """Measures blocks with engines of this process, one after the other."""

    def __init__(self, engines: Mapping[str, BlockEngine]) -> None:
        """`engines` by endpoint name."""
        self._engines = engines
        self._results: list[BlockResult] = []

    def submit(self, block: Block) -> None:
        self._results.append(measure_timed(self._engines[block.endpoint], block))

    def take_finished(self) -> Sequence[BlockResult]:
        results, self._results = self._results, []
        return results

    def drain(self) -> Iterator[BlockResult]:
        yield from self.take_finished()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come, for a progress bar."""

    records_read: int
    blocks_measured: int
    requests_found: int  # measured by an earlier run
    requests_measured: int
    num_compared_prompts: int = 0  # that production's server counted
    num_other_prompts: int = 0  # of these, those that have another length here
    cached: CachedPrompts = field(default_factory=CachedPrompts)  # of prompts that were measured now


class FileRun:
    """Measures one file.  Lives as long as that file is read."""

    def __init__(
        self,
        pipeline: Pipeline,
        runner: BlockRunner,
        store: Store,
        *,
        max_requests: int | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """
        Args:
            runner: idle, and of all endpoints.
            max_requests: stop reading once this number of requests is to be measured (None: read to the end).
            on_progress: called after every record and block.
        """
        self._pipeline, self._runner, self._store = pipeline, runner, store
        self._max_requests = max_requests
        self._on_progress = on_progress
        self._records_read = self._blocks_measured = self._requests_measured = 0

    def run(self, records: Iterable[RawRecord]) -> Progress:
        """Measure all records; safe to interrupt and to repeat."""
        partition: PartitionId | None = None
        is_whole = False
        try:
            for raw in records:
                if partition is None:
                    partition = PartitionId(raw.key.source, raw.key.partition)
                    entry = self._store.ledger_entry(CONSUMER, partition)
                    stored = self._store.finished_records(partition, 0)
                    self._pipeline.start(partition, entry, stored, is_reread=True)
                self._pipeline.take(raw)
                self._records_read += 1
                self._report()
                self._measure_ready()
                if self._pipeline.outbox.num_finished >= FLUSH_MESSAGES:
                    self._write()
                if self._max_requests is not None and self._pipeline.num_admitted >= self._max_requests:
                    self._pipeline.drain()
                    break
            else:
                is_whole = True
                self._pipeline.end_waiting()
            self._measure_ready()
            for result in self._runner.drain():
                self._finish_block(result)
        finally:
            self._write(is_ended=is_whole)
        return self._progress()

    def _measure_ready(self) -> None:
        while self._pipeline.ready:
            self._runner.submit(self._pipeline.ready.popleft())
            for result in self._runner.take_finished():
                self._finish_block(result)

    def _finish_block(self, result: BlockResult) -> None:
        self._pipeline.finish(result)
        self._blocks_measured += 1
        self._requests_measured += len(result.block.requests)
        self._write()
        self._report()

    def _write(self, *, is_ended: bool = False) -> None:
        batch = self._pipeline.outbox.batch(is_ended=is_ended)
        if batch is not None:
            self._store.save_batch(batch, CONSUMER)
            self._pipeline.outbox.settle()

    def _progress(self) -> Progress:
        return Progress(
            self._records_read,
            self._blocks_measured,
            self._pipeline.num_found,
            self._requests_measured,
            self._pipeline.num_compared_prompts,
            self._pipeline.num_other_prompts,
            self._pipeline.cached,
        )

    def _report(self) -> None:
        self._on_progress(self._progress())
