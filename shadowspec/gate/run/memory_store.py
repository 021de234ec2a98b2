"""The store in memory: unfinished units, an endpoint's rows, and both with evidence and decisions.

In: rows that were read or drawn, in any number of parts, in the order of their keys.
Out: what `recompute` folds again with (`MemoryUnits`), what curves are drawn from (`MemoryRows`), and the production
gate's store without a database (`MemoryStore`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any

from shadowspec.gate.evidence.clusters import KeyTable, is_over
from shadowspec.gate.run.gate_store import SourcePartition
from shadowspec.gate.verdict.trial_levels import HypothesisId, hypothesis_id
from shadowspec.types import (
    AuditedUnit,
    Decision,
    EndpointProgress,
    Evaluation,
    FingerprintedConfig,
    Fold,
    FunnelCounter,
    OpenBlock,
    OpenKey,
    Override,
    OverrideRecord,
    RecordKey,
    Run,
    SliceKey,
    Span,
    StoredAudit,
    StoredBlock,
    StoredEvidence,
    StoredRecord,
    Watermark,
)


class MemoryKeys:
    """A key table in memory: satisfies `KeyTable`."""

    def __init__(self) -> None:
        self._keys: dict[SliceKey, OpenKey] = {}

    def take(self, keys: Iterable[SliceKey]) -> list[OpenKey]:
        return [self._keys.pop(key) for key in list(keys) if key in self._keys]

    def take_waiting(self, until: datetime | None) -> list[OpenKey]:
        return self.take(
            place
            for place, open_key in self._keys.items()
            if open_key.first_event is not None and (until is None or open_key.first_event <= until)
        )

    def first_unclosed(self, closed_by: datetime) -> datetime | None:
        return min(
            (
                open_key.first_event
                for open_key in self._keys.values()
                if open_key.first_event and not open_key.is_closed(closed_by)
            ),
            default=None,
        )

    def add(self, keys: Iterable[OpenKey]) -> None:
        self._keys |= {(open_key.slice_key, open_key.key): open_key for open_key in keys}

    def forget(self, reopened_by: datetime) -> None:
        self._keys = {place: open_key for place, open_key in self._keys.items() if not is_over(open_key, reopened_by)}


class MemoryUnits:
    """Unfinished units in memory: satisfies `OpenUnits`."""

    def __init__(self) -> None:
        self._keys: dict[str, MemoryKeys] = {}
        self._blocks: dict[str, OpenBlock] = {}

    def keys(self, clustering: str) -> KeyTable:
        return self._keys.setdefault(clustering, MemoryKeys())

    def open_blocks(self) -> dict[str, OpenBlock]:
        return dict(self._blocks)

    def save_open_blocks(self, begun: Mapping[str, OpenBlock], entered: Iterable[str]) -> None:
        for block_id in entered:
            del self._blocks[block_id]
        self._blocks |= begun


class MemoryRows:
    """An endpoint's rows: satisfies `Rows`.  A block is complete once its runs of here are known."""

    def __init__(
        self, records: Iterable[StoredRecord] = (), blocks: Iterable[StoredBlock] = (), runs: Iterable[Run] = ()
    ) -> None:
        self._keys: list[RecordKey] = []  # of records and runs, sorted
        self._records: dict[RecordKey, StoredRecord] = {}
        self._runs: dict[RecordKey, list[Run]] = {}
        self._blocks: dict[str, StoredBlock] = {}
        self._sizes: Counter[str] = Counter()  # runs by block
        self.add(records, blocks, sorted(runs, key=lambda run: (run.key, run.fingerprint)))

    def add(self, records: Iterable[StoredRecord], blocks: Iterable[StoredBlock], runs: Iterable[Run]) -> None:
        """Store further rows.

        New keys follow those that are there.  A run may be of an earlier record, whose block was open; runs of one
        record keep their order.
        """
        new = {record.key: record for record in records}
        keys = set(new)
        for run in runs:
            if run.key not in self._runs:
                self._runs[run.key] = []
                keys.add(run.key)
            self._runs[run.key].append(run)
            self._sizes[run.block_id] += 1
        ordered = sorted(key for key in keys if key not in self._records)
        assert not (self._keys and ordered) or self._keys[-1] < ordered[0], "in the order of their keys"
        self._keys += ordered
        self._records |= new
        self._blocks |= {block.block_id: block for block in blocks}

    def records(self, spans: Iterable[Span]) -> list[StoredRecord]:
        return [self._records[key] for span in spans for key in self._within(span) if key in self._records]

    def runs(self, spans: Iterable[Span]) -> list[Run]:
        return [run for span in spans for key in self._within(span) for run in self._runs.get(key, ())]

    def num_rows(self, spans: Iterable[Span]) -> tuple[int, int]:
        """Records and runs in the spans."""
        span_list = list(spans)
        return len(self.records(span_list)), len(self.runs(span_list))

    def records_of(self, keys: Sequence[RecordKey]) -> list[StoredRecord]:
        return [self._records[key] for key in keys if key in self._records]

    def runs_of(self, keys: Sequence[RecordKey]) -> list[Run]:
        return [run for key in keys for run in self._runs.get(key, ())]

    def blocks(self, block_ids: Iterable[str]) -> dict[str, tuple[StoredBlock, int]]:
        return {name: (self._blocks[name], self._sizes[name]) for name in block_ids if name in self._blocks}

    def key_columns(
        self, slice_key: str, until: datetime, counters: Iterable[FunnelCounter]
    ) -> list[tuple[SourcePartition, int, str | None, str | None]]:
        wanted = frozenset(counters)
        return [
            ((record.key.source, record.key.partition), record.key.offset, record.session_hash, record.user_hash)
            for record in self._records.values()
            if record.slice_key == slice_key and record.counter in wanted
            if record.event_time is not None and record.event_time <= until
        ]

    def _within(self, span: Span) -> list[RecordKey]:
        place = span.source, span.partition
        start, stop = (bisect_left(self._keys, (*place, offset)) for offset in (span.start, span.stop))
        return self._keys[start:stop]


class MemoryStore(MemoryRows):
    """One endpoint with one partition, its evidence and decisions: satisfies `GateStore`, `GateSession` and
    `AuditTransaction`.

    Record i of those that were added has offset i.  A gate sees the records of which `finish` says that they are
    finished, with the watermark that it states.
    """

    def __init__(self, endpoint: str, place: SourcePartition, configs: Iterable[FingerprintedConfig]) -> None:
        super().__init__()
        self.endpoint, self._place = endpoint, place
        self._configs = {config.fingerprint: config for config in configs}
        self._num_finished, self._mark = 0, Watermark(None, is_ended=False)

        self.progress: EndpointProgress | None = None
        self._units = MemoryUnits()
        self._evidence: dict[HypothesisId, StoredEvidence] = {}
        self._decisions: dict[HypothesisId, Decision] = {}
        self._folds: list[Fold] = []  # since the evidence last began
        self._num_folds = self._num_decisions = 0

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

    @contextmanager
    def audit_session(self, endpoint: str) -> Iterator[MemoryStore]:
        """The store itself: a world has no audited runs."""
        yield self

    def take(self) -> list[AuditedUnit]:
        return []

    def states(self) -> list[StoredAudit]:
        return []

    def save(self, changed: Sequence[StoredAudit]) -> None:
        assert not changed, "without audited runs no audit changes"

    def overrides(self, endpoint: str | None = None) -> list[OverrideRecord]:
        return []

    def add_override(self, override: Override) -> int:
        raise NotImplementedError("only an audit's alarm sets an override")

    # Rows.

    def watermark(self) -> Watermark:
        return self._mark

    def finished_spans(self) -> list[Span]:
        """The offsets of which everything is stored."""
        return [Span(*self._place, 0, self._num_finished)]

    def ended_places(self) -> frozenset[SourcePartition]:
        """Where nothing follows."""
        return frozenset([self._place] if self._mark.is_ended else [])

    def first_offset(self, span: Span) -> int | None:
        return span.start if span.start < len(self._records) else None

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
        self._evidence |= {(stored.slice_key, stored.concurrency, stored.fingerprint): stored for stored in changed}

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
