"""The services that the worker's loop uses, as protocols declared by their user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from shadowspec.tap.sources import RawRecord
from shadowspec.types import Block, FingerprintedConfig, PartitionId
from shadowspec.worker.recovery import BlockOutcome


class Lost(Protocol):
    """Offsets that the broker deleted before they were read."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> PartitionId: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class Changes(Protocol):
    """Partitions that came and went since one last asked; one that went and came back is in both."""

    @property
    def assigned(self) -> Sequence[PartitionId]: ...

    @property
    def revoked(self) -> Sequence[PartitionId]: ...

    @property
    def lost_ranges(self) -> Sequence[Lost]: ...


class Commit(Protocol):
    """The result of a commit."""

    @property
    def is_complete(self) -> bool: ...


class MessageSource(Protocol):
    """The mirrored topics.  A partition delivers nothing until it is started."""

    def poll(self, timeout_s: float) -> Sequence[RawRecord]: ...

    def changes(self) -> Changes: ...

    def start(self, partition: PartitionId, offset: int | None) -> None: ...

    def pause_all(self) -> None: ...

    def resume_all(self) -> None: ...

    def commit(self, offsets: Mapping[PartitionId, int]) -> Commit: ...

    def lag(self) -> Mapping[PartitionId, int]: ...

    def topic_of(self, source: str) -> str | None: ...

    @property
    def is_connected(self) -> bool: ...


class BlockSupervisor(Protocol):
    """The engine processes behind a bounded queue."""

    def offer(self, block: Block) -> bool: ...

    def step(self) -> Sequence[BlockOutcome]: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def num_queued(self) -> int: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def configs_by_endpoint(self) -> Mapping[str, Sequence[FingerprintedConfig]]: ...


class DeadLetterQueue(Protocol):
    """Where malformed messages go."""

    def flush(self) -> None: ...
