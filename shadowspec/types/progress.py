"""The progress of a consumer or a backfill: the stored place of each partition and block, and one write's additions.

The ledger in the database, not the broker's committed offset, decides which records are counted.  Rows, funnel counts
and the new place of a partition are written in one transaction, and only from the ledger's current place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from shadowspec.types.consumed_records import FunnelCounter, StoredRecord
from shadowspec.types.measurement import BlockResult

FunnelKey = tuple[str | None, FunnelCounter, str | None]  # endpoint, counter, reason


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """A partition of a topic, or a file: topic id or the file's sha256, and the partition (0 for a file)."""

    source: str
    partition: int = 0


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The place of one consumer in one partition: everything below `next_offset` is stored and counted.

    `watermark` is the newest event time below `next_offset`; `is_behind`: records beyond it are known but not finished;
    `is_ended`: none will follow (a file read to its end).  `resume_offset` is where to read from, if not at
    `next_offset`: a message below that makes one record with one at or beyond it.
    """

    consumer: str
    partition: PartitionId
    next_offset: int
    num_messages: int
    num_records: int  # the sum of the partition's funnel counts
    watermark: datetime | None
    is_behind: bool
    is_ended: bool
    resume_offset: int | None = None

    @property
    def has_position(self) -> bool:
        """Whether it is known where the consumer began.  A partition that it has only started is at 0."""
        return self.next_offset > 0


@dataclass(frozen=True, slots=True)
class Advance:
    """One partition's step forward; refused unless the ledger is at `expected` (None: not started)."""

    partition: PartitionId
    expected: int | None
    next_offset: int
    num_messages: int  # newly finished: offsets that exist (compaction leaves gaps)
    funnel: Mapping[FunnelKey, int]  # newly finished records by where they ended
    watermark: datetime | None
    is_behind: bool = False
    is_ended: bool = False
    resume_offset: int | None = None
    first_offset: int = 0  # where the consumer began; only the step that leaves 0 stores it


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """The rows and places of one transaction: rows first, then the places that they allow."""

    records: tuple[StoredRecord, ...] = ()  # not measured, but needed for units
    blocks: tuple[tuple[BlockResult, tuple[StoredRecord, ...]], ...] = ()  # each with its measured requests' records
    advances: tuple[Advance, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """The additions of one write, without rows that were stored before."""

    num_new_runs: int
    num_new_records: int
    num_new_blocks: int


class SessionRate(NamedTuple):
    """How a session was drawn in one slice, fixed at its first record there; `is_thinned` as in `StoredRecord`."""

    sampling_rate: float
    is_thinned: bool | None = None


@dataclass(frozen=True, slots=True)
class UnitMemory:
    """The stored rows' memory of one unit: a session's day, or its substitute."""

    position: int  # usable requests so far
    first_seen: datetime
    last_seen: datetime
    rates: Mapping[str, SessionRate] = field(default_factory=dict)  # by slice


class BlockPlace(NamedTuple):
    """A block of a file: the digest of its content, and the block's number in it, from 0."""

    source: str
    number: int


@dataclass(frozen=True, slots=True)
class BackfilledBlock:
    """The results of the records of one block.

    `num_records` is the sum of `num_replayed` and the funnel; the same content cut by the same `work` (the job's
    settings, see `work_id` of the backfill) has the same blocks.
    """

    place: BlockPlace
    is_last: bool  # of its file
    num_records: int
    num_replayed: int
    num_near_ties: int
    funnel: Mapping[FunnelKey, int]  # of the records that were not replayed
    last_event: datetime | None  # aware, UTC; None: nothing was replayed
