"""The stored state of evidence between looks: open clusters, states of hypotheses, and the input of each look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shadowspec.types.requests import RecordKey

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
    it continues the one before).  Both are the gate's documents; without a version they are of the first.
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
    """A hypothesis's evidence as it is stored: `document` and `tables` are the gate's encoding."""

    slice_key: str
    concurrency: int
    fingerprint: str
    document: Mapping[str, Any]
    tables: bytes


@dataclass(frozen=True, slots=True)
class EndpointProgress:
    """The progress of an endpoint's evidence: `document` is the gate's encoding of everything but hypotheses."""

    fold_id: int  # of the last fold
    document: Mapping[str, Any]
    cursors: tuple[Span, ...]  # the folded records: ranges of offsets that neither meet nor overlap, sorted
