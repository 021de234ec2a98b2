"""What a fold reads of an endpoint's rows, and keeps of its begun units: declared here, where it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from shadowspec.gate.open_clusters import KeyTable
from shadowspec.types import FunnelCounter, OpenBlock, RecordKey, Run, Span, StoredBlock, StoredRecord

Place = tuple[str, int]  # source, partition


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
    ) -> list[tuple[Place, int, str | None, str | None]]:
        """Place, offset, session and user of a slice's records up to an event time."""


class OpenUnits(Protocol):
    """Units that are begun and not in evidence yet."""

    def keys(self, way: str) -> KeyTable:
        """The open keys of one way of making clusters."""

    def open_blocks(self) -> dict[str, OpenBlock]:
        """The blocks that were begun and are in no evidence yet, by id."""

    def save_open_blocks(self, begun: Mapping[str, OpenBlock], entered: Iterable[str]) -> None:
        """Keep blocks as they are now, and forget those that entered."""
