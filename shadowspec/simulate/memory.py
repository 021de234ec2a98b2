"""A store in memory of one endpoint with one partition: the production gate's store without a database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any

from shadowspec.gate.evidence.clusters import KeyTable
from shadowspec.gate.run.gate_store import Place
from shadowspec.gate.run.recompute import MemoryUnits
from shadowspec.gate.verdict.trial_levels import HypothesisId, hypothesis_id
from shadowspec.types import (
    Decision,
    EndpointProgress,
    Evaluation,
    FingerprintedConfig,
    Fold,
    FunnelCounter,
    OpenBlock,
    RecordKey,
    Run,
    Span,
    StoredBlock,
    StoredEvidence,
    StoredRecord,
    Watermark,
)


class MemoryStore:
    """One endpoint's rows, evidence and decisions: satisfies `EvidenceStore` and `GateSession`.

    Record i of those that were added has offset i.  A gate sees the records of which `finish` says that they are
    finished, with the watermark that it states.
    """

    def __init__(self, endpoint: str, place: Place, configs: Iterable[FingerprintedConfig]) -> None:
        self.endpoint, self._place = endpoint, place
        self._configs = {config.fingerprint: config for config in configs}
        self._records: list[StoredRecord] = []
        self._runs: list[list[Run]] = []  # by offset
        self._blocks: dict[str, StoredBlock] = {}
        self._sizes: Counter[str] = Counter()  # runs by block
        self._num_finished, self._mark = 0, Watermark(None, is_ended=False)

        self.progress: EndpointProgress | None = None
        self._units = MemoryUnits()
        self._evidence: dict[HypothesisId, StoredEvidence] = {}
        self._decisions: dict[HypothesisId, Decision] = {}
        self._folds: list[Fold] = []  # since the evidence last began
        self._num_folds = self._num_decisions = 0

    # Measurements.

    def add(self, records: Sequence[StoredRecord], blocks: Iterable[StoredBlock], runs: Iterable[Run]) -> None:
        """Store further records in the order of their offsets, with their blocks and runs."""
        assert all(record.key.offset == at for at, record in enumerate(records, len(self._records))), "without gaps"
        self._records += records
        self._runs += [[] for _ in records]
        self._blocks |= {block.block_id: block for block in blocks}
        for run in runs:
            self._runs[run.key.offset].append(run)
            self._sizes[run.block_id] += 1

    @property
    def num_records(self) -> int:
        """Records that are stored."""
        return len(self._records)

    def finish(self, num_records: int, mark: Watermark) -> None:
        """State how many records, from the first on, are finished, and how far the input is known."""
        self._num_finished, self._mark = num_records, mark

    # Transactions.

    @contextmanager
    def evidence_session(self, endpoint: str) -> Iterator[MemoryStore]:
        """The store itself.  After an exception its open units are gone: the gate folds from the first record on."""
        try:
            yield self
        except BaseException:
            self._units = MemoryUnits()
            raise

    def endpoint_lock(self, endpoint: str) -> AbstractContextManager[object]:
        """Nothing: one gate runs at a time."""
        return nullcontext()

    # Rows.

    def watermark(self) -> Watermark:
        return self._mark

    def finished_spans(self) -> list[Span]:
        """The offsets of which everything is stored."""
        return [Span(*self._place, 0, self._num_finished)]

    def ended_places(self) -> frozenset[Place]:
        """Where nothing follows."""
        return frozenset([self._place] if self._mark.is_ended else [])

    def first_offset(self, span: Span) -> int | None:
        return span.start if span.start < len(self._records) else None

    def num_rows(self, spans: Iterable[Span]) -> tuple[int, int]:
        span_list = list(spans)
        return len(self.records(span_list)), len(self.runs(span_list))

    def records(self, spans: Iterable[Span]) -> list[StoredRecord]:
        return [record for span in spans for record in self._records[span.start : span.stop]]

    def runs(self, spans: Iterable[Span]) -> list[Run]:
        return [run for span in spans for runs in self._runs[span.start : span.stop] for run in runs]

    def records_of(self, keys: Sequence[RecordKey]) -> list[StoredRecord]:
        return [self._records[key.offset] for key in keys]

    def runs_of(self, keys: Sequence[RecordKey]) -> list[Run]:
        return [run for key in keys for run in self._runs[key.offset]]

    def blocks(self, block_ids: Iterable[str]) -> dict[str, tuple[StoredBlock, int]]:
        return {name: (self._blocks[name], self._sizes[name]) for name in block_ids if name in self._blocks}

    def key_columns(
        self, slice_key: str, until: datetime, counters: Iterable[FunnelCounter]
    ) -> list[tuple[Place, int, str | None, str | None]]:
        wanted = frozenset(counters)
        return [
            (self._place, record.key.offset, record.session_hash, record.user_hash)
            for record in self._records
            if record.slice_key == slice_key and record.counter in wanted
            if record.event_time is not None and record.event_time <= until
        ]

    # The gate's state.

    def keys(self, clustering: str) -> KeyTable:
        return self._units.keys(clustering)

    def open_blocks(self) -> dict[str, OpenBlock]:
        return self._units.open_blocks()

    def save_open_blocks(self, begun: Mapping[str, OpenBlock], entered: Iterable[str]) -> None:
        self._units.save_open_blocks(begun, entered)

    def num_folded(self) -> tuple[int, int]:
        return sum(fold.num_records for fold in self._folds), sum(fold.num_runs for fold in self._folds)

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        return self._configs

    def evaluations(self) -> list[Evaluation]:
        """None: a world has no task sets."""
        return []

    def latest_decisions(self) -> list[Decision]:
        return list(self._decisions.values())

    def evidence(self) -> list[StoredEvidence]:
        return list(self._evidence.values())

    def save_evidence(self, changed: Collection[StoredEvidence]) -> None:
        self._evidence |= {(each.slice_key, each.concurrency, each.fingerprint): each for each in changed}

    def discard_evidence(self) -> None:
        self._evidence, self._folds, self._units = {}, [], MemoryUnits()

    def append(self, fold: Fold, document: Mapping[str, Any], cursors: Sequence[Span]) -> int:
        self._num_folds += 1
        self._folds.append(replace(fold, fold_id=self._num_folds))
        self.progress = EndpointProgress(self._num_folds, document, tuple(cursors))
        return self._num_folds

    def append_decisions(self, decisions: Sequence[Decision], fold_id: int) -> list[int]:
        """Keep the latest decision on each hypothesis; the ids of these."""
        first = self._num_decisions + 1
        self._num_decisions += len(decisions)
        ids = list(range(first, first + len(decisions)))
        named = zip(decisions, ids, strict=True)
        self._decisions |= {
            hypothesis_id(decision): replace(decision, decision_id=number) for decision, number in named
        }
        return ids
