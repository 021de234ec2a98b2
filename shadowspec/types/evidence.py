"""Evidence as it is stored between looks, and the gate's input about one endpoint: rows and watermark of one moment.

The stored state holds open clusters, states of hypotheses, and the input of each look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shadowspec.types.consumed_records import StoredBlock, StoredRecord
from shadowspec.types.measurement import Evaluation, Run
from shadowspec.types.progress import PartitionId
from shadowspec.types.requests import RecordKey
from shadowspec.types.speculation import FingerprintedConfig
from shadowspec.types.verdicts import Decision

Arrival = tuple[datetime, RecordKey]
SliceKey = tuple[str, str]  # slice, key of a cluster in it


@dataclass(frozen=True, slots=True)
class OpenKey:
    """The state of one key within a slice: arrivals that are in no evidence yet, in event order.

    The first cluster that they make is described beside them, so that a store can find it.  `reopens_at` is when
    the key's last cluster in evidence lets a new one begin.
    """

    slice_key: str
    key: str
    arrivals: tuple[Arrival, ...]
    reopens_at: datetime | None = None
    first_event: datetime | None = None  # None: nothing waits
    closes_at: datetime | None = None
    is_full: bool = False

    def is_closed(self, closed_by: datetime | None) -> bool:
        """Whether the first cluster takes no more records at this watermark (None: none will come)."""
        assert self.closes_at is not None, "nothing waits"
        return closed_by is None or (self.closes_at <= closed_by if self.is_full else self.closes_at < closed_by)


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """The state of a block that is in no evidence yet: the records of the runs that came so far, one for each run, and
    the newest of their event times.
    """

    runs: tuple[RecordKey, ...]
    newest: datetime


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The offsets of a partition from `start` up to, but without, `stop`."""

    source: str
    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Fold:
    """The input of one step of a gate run, of one endpoint: enough to repeat it from the stored rows.

    `parameters` are the policy's, by name.  `begins` is the initial state of a fold that restarts the evidence (None:
    it continues the one before).  Both are the gate's documents, with their version.
    """

    spans: tuple[Span, ...]
    closed_by: datetime | None  # the watermark; None: every cluster was closed
    num_records: int
    num_runs: int
    parameters: Mapping[str, Any]
    folded_at: datetime
    begins: Mapping[str, Any] | None = None
    fold_id: int | None = None


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """A hypothesis's evidence as it is stored: `content` is the gate's encoding."""

    slice_key: str
    concurrency: int
    fingerprint: str
    content: bytes


@dataclass(frozen=True, slots=True)
class EndpointProgress:
    """The progress of an endpoint's evidence: `document` is the gate's encoding of everything but hypotheses."""

    fold_id: int  # of the last fold
    document: Mapping[str, Any]
    cursors: tuple[Span, ...]  # the folded records: ranges of offsets that neither meet nor overlap, sorted


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
