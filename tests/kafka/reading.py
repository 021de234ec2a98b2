"""A caller of the tap as the worker is one: it starts what is assigned and keeps what is delivered."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace

from shadowspec.tap.kafka import KafkaSettings
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.kafka.partitions import LostRange
from shadowspec.tap.sources import RawRecord
from shadowspec.types import PartitionId
from tests.services import PATIENCE_S


def settings_for(bootstrap: str, *topics: str, **other: object) -> KafkaSettings:
    """A group of its own, with timings that make tests quick."""
    quick = KafkaSettings(
        bootstrap_servers=(bootstrap,),
        topics=topics,
        group_id=f"group-{uuid.uuid4().hex[:12]}",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=300,
        max_poll_interval_ms=60_000,
        connect_timeout_ms=10_000,
    )
    return replace(quick, **other)  # type: ignore[arg-type]


class Reader:
    """Polls a tap.  `starts` gives the offsets to start at; partitions that are not in it start at None."""

    def __init__(self, tap: KafkaTap, starts: dict[PartitionId, int] | None = None) -> None:
        self.tap = tap
        self.starts = starts or {}
        self.records: list[RawRecord] = []
        self.owned: set[PartitionId] = set()
        self.assigned: list[PartitionId] = []  # every coming, in order
        self.revoked: list[PartitionId] = []
        self.lost: list[LostRange] = []
        self.is_starting = True

    def step(self, timeout_s: float = 0.05) -> list[RawRecord]:
        """One poll, and what the worker does about changes."""
        came = list(self.tap.poll(timeout_s))
        self.records += came
        changes = self.tap.changes()
        self.lost += changes.lost_ranges
        self.revoked += changes.revoked
        self.owned -= set(changes.revoked)
        for partition in changes.assigned:
            self.assigned.append(partition)
            self.owned.add(partition)
            if self.is_starting:
                self.tap.start(partition, self.starts.get(partition))
        return came

    def until(self, is_done: Callable[[], bool], *, patience_s: float = PATIENCE_S, step_s: float = 0.05) -> None:
        deadline = time.monotonic() + patience_s
        while not is_done():
            assert time.monotonic() < deadline, self.summary()
            self.step(step_s)

    def read(self, count: int) -> list[RawRecord]:
        """Poll until so many records have come in all, and a little longer lest there be more."""
        self.until(lambda: len(self.records) >= count)
        self.during(0.3)
        assert len(self.records) == count, self.summary()
        return self.records

    def during(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.step()

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    def summary(self) -> str:
        return f"{len(self.records)} records, owned {self.owned}, lost {self.lost}, error {self.tap.last_error}"


def step_all(readers: Iterable[Reader], is_done: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    """Poll several members of a group in turn."""
    readers = list(readers)
    deadline = time.monotonic() + patience_s
    while not is_done():
        assert time.monotonic() < deadline, [reader.summary() for reader in readers]
        for reader in readers:
            reader.step()


def offsets(records: Iterable[RawRecord]) -> dict[int, list[int]]:
    """The offsets that came, by partition, in their order."""
    found: dict[int, list[int]] = {}
    for record in records:
        found.setdefault(record.key.partition, []).append(record.key.offset)
    return found
