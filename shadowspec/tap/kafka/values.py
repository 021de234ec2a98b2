"""What the tap tells its caller."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shadowspec.types import PartitionId


class Loss(StrEnum):
    """Why records cannot be read."""

    RETENTION = "retention"  # the broker deleted them before we read them
    TRUNCATED = "truncated"  # the broker lost the end of the log and wrote on below the place we had reached
    UNREADABLE = "unreadable"  # damaged on the broker: checksum, compression or layout


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets `start` to `end` (exclusive) of a partition that were never delivered to us and never will be.

    Offsets, not records: compaction and transaction markers leave gaps, so it is an upper bound.
    """

    partition: PartitionId
    topic: str
    start: int
    end: int
    reason: Loss

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition.partition}]@{self.start}..{self.end - 1} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Changes:
    """Partitions that came and went since one last asked.

    Handle `revoked` first: a partition that went and came back stands in both.  An assigned one delivers nothing
    until it is started; a revoked one delivers nothing more, and commits of it are refused.
    """

    assigned: tuple[PartitionId, ...] = ()
    revoked: tuple[PartitionId, ...] = ()
    lost_ranges: tuple[LostRange, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What became of a commit.  A refused offset is no loss: the ledger stands further on, and a later commit
    of the partition, by whoever owns it then, covers it."""

    refused: Mapping[PartitionId, str] = field(default_factory=dict)  # short reason code

    @property
    def is_complete(self) -> bool:
        return not self.refused


def topic_source(topic_id: uuid.UUID) -> str:
    """The name under which a topic's records are kept: its id as Kafka's own tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")
