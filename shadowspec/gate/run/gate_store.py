"""The gate's part of a store: an endpoint's rows, its open units, and sessions over its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from shadowspec.gate.evidence.clusters import KeyTable
from shadowspec.gate.run.audit_run import AuditStore
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

SourcePartition = tuple[str, int]  # source, partition


class Rows(Protocol):
    """The stored rows of one endpoint."""

    def records(self, spans: Iterable[Span]) -> list[StoredRecord]:
        """The endpoint's records in the spans."""

    def runs(self, spans: Iterable[Span]) -> list[Run]:
        """The runs of those records."""

    def records_of(self, keys: Sequence[RecordKey]) -> list[StoredRecord]:
        """These records."""

    def runs_of(self, keys: Sequence[RecordKey]) -> list[Run]:
        """The runs of these records."""

    def blocks(self, block_ids: Iterable[str]) -> dict[str, tuple[StoredBlock, int]]:
        """These blocks, each with the number of its runs."""

    def key_columns(
        self, slice_key: str, until: datetime, counters: Iterable[FunnelCounter]
    ) -> list[tuple[SourcePartition, int, str | None, str | None]]:
        """Partition, offset, session and user of a slice's records up to an event time."""


class OpenUnits(Protocol):
    """Units that are started and not in evidence yet."""

    def keys(self, clustering: str) -> KeyTable:
        """The open keys of one clustering."""

    def open_blocks(self) -> dict[str, OpenBlock]:
        """The blocks that were started and are in no evidence yet, by id."""

    def save_open_blocks(self, begun: Mapping[str, OpenBlock], entered: Iterable[str]) -> None:
        """Keep blocks as they are now, and forget those that entered."""


class Offsets(Protocol):
    """Where records are stored."""

    def finished_spans(self) -> list[Span]:
        """Of each consumer and partition of the endpoint: the offsets of which everything is stored."""

    def ended_places(self) -> frozenset[SourcePartition]:
        """Where nothing follows: files that were read to their end."""

    def first_offset(self, span: Span) -> int | None:
        """The first offset in the span of which a record is stored; None: none is."""


class GateSession(Rows, OpenUnits, Offsets, Protocol):
    """One transaction over an endpoint's evidence."""

    @property
    def progress(self) -> EndpointProgress | None:
        """How far the evidence has come."""

    def watermark(self) -> Watermark:
        """How far the endpoint's input is known."""

    def num_rows(self, spans: Iterable[Span]) -> tuple[int, int]:
        """Stored records and runs of the endpoint in the spans."""

    def num_folded(self) -> tuple[int, int]:
        """Records and runs that the folds took in since the evidence last restarted."""

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        """Every config measured."""

    def evaluations(self) -> list[Evaluation]:
        """The task sets that were evaluated, oldest first."""

    def latest_decisions(self) -> list[Decision]:
        """The last decision on every hypothesis of the endpoint."""

    def evidence(self) -> list[StoredEvidence]:
        """The evidence of every hypothesis."""

    def save_evidence(self, changed: Sequence[StoredEvidence]) -> None:
        """Keep evidence."""

    def discard_evidence(self) -> None:
        """Forget everything that was folded."""

    def append(self, fold: Fold, document: Mapping[str, Any], cursors: Sequence[Span]) -> int:
        """Store a fold, and the progress and evidence after it."""

    def append_decisions(self, decisions: Sequence[Decision], fold_id: int) -> list[int]:
        """Append decisions; their ids."""


class GateStore(AuditStore, Protocol):
    """The gate's part of a store."""

    def endpoint_lock(self, endpoint: str) -> AbstractContextManager[object]:
        """Held by one gate at a time."""

    def evidence_session(self, endpoint: str) -> AbstractContextManager[GateSession]:
        """A transaction that commits at the end, or leaves nothing behind if an exception leaves it."""
