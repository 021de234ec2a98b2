"""The gate's input about one endpoint: rows and watermark of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shadowspec.types.consumed_records import StoredBlock, StoredRecord
from shadowspec.types.fold_state import EndpointProgress, Fold, StoredEvidence
from shadowspec.types.measurement import Evaluation, Run
from shadowspec.types.progress import PartitionId
from shadowspec.types.speculation import FingerprintedConfig
from shadowspec.types.verdicts import Decision


@dataclass(frozen=True, slots=True)
class WatermarkHolder:
    """A consumer's partition that holds the watermark back: more was known there when it last moved."""

    consumer: str
    partition: PartitionId
    time: datetime | None  # newest event that it has finished
    moved_at: datetime | None  # None: before this was kept

    def __str__(self) -> str:
        at = "at no event yet" if self.time is None else f"at {self.time.isoformat()}"
        moved = "" if self.moved_at is None else f", last moved at {self.moved_at.isoformat()}"
        place = f"{self.partition.source}[{self.partition.partition}]"
        return f"consumer {self.consumer!r} in {place} is {at}{moved}"


@dataclass(frozen=True, slots=True)
class Watermark:
    """The event time up to which an endpoint's input is known: nothing older than `time` is still to come.

    `time` is None where no event time is known; `is_ended`: no record will follow.  `held_by` is the cause that keeps
    it behind the newest event that is finished anywhere; None without one.
    """

    time: datetime | None
    is_ended: bool
    held_by: WatermarkHolder | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EndpointRows:
    """One endpoint as one snapshot of the store shows it."""

    endpoint: str
    records: tuple[StoredRecord, ...]  # in the order of event time, ties by key
    blocks: tuple[StoredBlock, ...]  # in start order
    runs: tuple[Run, ...]  # in the start order of their blocks, within a block by key and fingerprint
    folds: tuple[Fold, ...]  # that the evidence rests on, oldest first
    watermark: Watermark
    fingerprints: Mapping[str, FingerprintedConfig]  # every config, by fingerprint
    latest_decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class EvidenceSnapshot:
    """An endpoint's folded evidence after the last gate run; `progress` is None before the first."""

    endpoint: str
    progress: EndpointProgress | None
    evidence: tuple[StoredEvidence, ...]
    watermark: Watermark
    fingerprints: Mapping[str, FingerprintedConfig]
    latest_decisions: tuple[Decision, ...]
    evaluations: tuple[Evaluation, ...] = ()
