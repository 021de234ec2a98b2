"""The assigned partitions: the place of each, and its state on the broker.

A partition is assigned, started (deliver from an offset on), at an invalid offset (the broker does not have it) and
revoked.  While its offset is invalid it is paused, until the broker has reported its offsets.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kafka import TopicPartition

from shadowspec.tap.kafka.broker_clients import Client
from shadowspec.tap.kafka.membership import Assignments
from shadowspec.types import PartitionId

log = logging.getLogger(__name__)

LOOKUP_RETRY_S: Final = 0.5  # between two attempts to find a partition's place
LOOKUP_TIMEOUT_MS: Final = 2_000


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

    Handle `revoked` first: a partition that went and came back is in both.  An assigned one delivers nothing
    until it is started; a revoked one delivers nothing more, and commits of it are refused.
    """

    assigned: tuple[PartitionId, ...] = ()
    revoked: tuple[PartitionId, ...] = ()
    lost_ranges: tuple[LostRange, ...] = ()


@dataclass(slots=True)
class Partition:
    """A partition of ours.

    `number` is that of its assignment; `position` the next offset to be delivered (None: not known yet);
    `is_new` says that its topic was recreated while we ran, so that it is read from its begin.
    """

    id: PartitionId
    place: TopicPartition
    number: int
    is_new: bool = False
    position: int | None = None
    is_started: bool = False
    is_offset_invalid: bool = False
    has_lost_end: bool = False  # the broker's log ends before `position`, and the loss is reported


class AssignedPartitions:
    """The consumer's partitions.  Used by the thread that polls."""

    def __init__(self, consumer: Any, client: Client, assignments: Assignments, *, from_begin: bool) -> None:
        """`from_begin`: where a partition begins that neither ledger nor group knows: its begin, else its end."""
        self._consumer = consumer
        self._client = client
        self._assignments = assignments
        self._from_begin = from_begin
        self._ours: dict[TopicPartition, Partition] = {}
        self._topics: dict[str, str] = {}  # every source that was ever seen, to its name
        self._came: list[tuple[TopicPartition, int, bool]] = []  # place, number, is_new; not reported yet
        self._revoked: list[PartitionId] = []
        self._lost: list[LostRange] = []
        self._is_held = False
        self._next_lookup = 0.0
        self._refreshed: Any = None  # future of the metadata that a lookup waits for

    def take_changes(self) -> Changes:
        """Partitions that came and went, and lost ranges, since the last call."""
        for event in self._assignments.take_events():
            if event.is_ours:
                self._came.append((event.place, event.number, False))
                continue
            self._came = [came for came in self._came if came[1] != event.number]
            if (gone := self._ours.get(event.place)) is not None and gone.number == event.number:
                self._revoked.append(self._ours.pop(event.place).id)
        came, self._came = self._came, []
        assigned = []
        for place, number, is_new in came:
            source = self._source_of(place.topic)
            if source is None:  # deleted a moment ago; the group will take the partition away
                self._came.append((place, number, is_new))
                continue
            partition = Partition(PartitionId(source, place.partition), place, number, is_new)
            self._ours[place] = partition
            assigned.append(partition.id)
        changes = Changes(tuple(assigned), tuple(self._revoked), tuple(self._lost))
        self._revoked, self._lost = [], []
        return changes

    def start(self, partition: PartitionId, offset: int | None) -> None:
        """Fetch from an offset on; None: from where the broker's answers say.  Nothing if it has gone meanwhile."""
        assigned = self.find(partition)
        if assigned is None or not self._assignments.is_current(assigned.place, assigned.number):
            return
        assigned.is_started, assigned.position, assigned.is_offset_invalid = True, offset, offset is None
        if offset is not None:
            self._seek(assigned, offset)

    def hold(self) -> None:
        """Fetch nothing until `release`."""
        self._is_held = True
        for partition in self._ours.values():
            self._apply(self._consumer.pause, partition)

    def release(self) -> None:
        self._is_held = False
        for partition in self._ours.values():
            if partition.is_started and not partition.is_offset_invalid:
                self._apply(self._consumer.resume, partition)

    def find(self, partition: PartitionId) -> Partition | None:
        """A partition of ours by its id."""
        topic = self._topics.get(partition.source)
        assigned = None if topic is None else self._ours.get(TopicPartition(topic, partition.partition))
        return assigned if assigned is not None and assigned.id == partition else None

    def delivering(self, place: TopicPartition) -> Partition | None:
        """The partition, if its fetched records belong to the assignment that was started."""
        partition = self._ours.get(place)
        if partition is None or not partition.is_started:
            return None
        return partition if self._assignments.is_current(place, partition.number) else None

    def placed_partitions(self) -> list[Partition]:
        """Started partitions whose position is known."""
        return [partition for partition in self._ours.values() if partition.position is not None]

    def topic_of(self, source: str) -> str | None:
        """The name of the topic with this id, if it was ever seen."""
        return self._topics.get(source)

    def mark_offset_invalid(self, places: Iterable[TopicPartition]) -> None:
        """The broker does not have the expected offsets of these: pause them until `resolve_offsets`."""
        for place in places:
            if (partition := self._ours.get(place)) is not None and partition.is_started:
                partition.is_offset_invalid = True
                self._apply(self._consumer.pause, partition)
        # The topic may have been recreated; that is to be known before anything else.
        self._refreshed = self._client.cluster.request_update()

    def resolve_offsets(self) -> None:
        """Find valid offsets for the partitions that have none, as far as the broker's answers allow.

        Raises:
            kafka.errors.KafkaError: the broker does not answer; call again.
        """
        if time.monotonic() < self._next_lookup or not any(
            partition.is_offset_invalid for partition in self._ours.values()
        ):
            return
        if self._refreshed is not None and not self._refreshed.is_done:
            return
        self._next_lookup = time.monotonic() + LOOKUP_RETRY_S
        self.notice_recreated()
        unresolved = {place: partition for place, partition in self._ours.items() if partition.is_offset_invalid}
        unknown = [
            place for place, partition in unresolved.items() if partition.position is None and not partition.is_new
        ]
        extents = look_up(self._consumer, unresolved, unknown, LOOKUP_TIMEOUT_MS)
        for place, partition in unresolved.items():
            placement = judge(partition.position, extents[place], from_begin=self._from_begin or partition.is_new)
            if placement.loss is not None and not partition.has_lost_end:
                self._lose(partition, *placement.loss)
            partition.has_lost_end = placement.offset is None
            if placement.offset is not None:
                partition.is_offset_invalid = False
                self._seek(partition, placement.offset)

    def notice_recreated(self) -> None:
        """Partitions of a topic that has another id than when they came go, and come as another topic's."""
        for topic in {place.topic for place in self._ours}:
            source = self._source_of(topic)
            if source is None:
                continue
            for place, partition in list(self._ours.items()):
                if place.topic == topic and partition.id.source != source:
                    log.warning(
                        "topic %s was deleted and created again: partition %d starts from its beginning",
                        topic,
                        place.partition,
                    )
                    self._apply(self._consumer.pause, partition)
                    self._revoked.append(self._ours.pop(place).id)
                    self._came.append((place, partition.number, True))

    def step_over(self, place: TopicPartition, offset: int, end: int) -> None:
        """Give up the records from an offset up to `end`, which cannot be read."""
        partition = self._ours.get(place)
        if partition is not None:
            self._lose(partition, offset, end, Loss.UNREADABLE)
            self._seek(partition, end)

    def _source_of(self, topic: str) -> str | None:
        topic_id = self._client.cluster.topic_id(topic)
        if topic_id is None or not topic_id.int:  # unknown, or all zeros: it does not exist now
            return None
        source = topic_source(topic_id)
        self._topics[source] = topic
        return source

    def _seek(self, partition: Partition, offset: int) -> None:
        """Fetch from an offset on, at once unless everything is held."""
        try:
            self._consumer.seek(partition.place, offset)
        except ValueError:
            log.debug("%s went before it could be started", partition.place)
            return
        partition.position = offset
        if not self._is_held:
            self._apply(self._consumer.resume, partition)

    def _apply(self, method: Callable[[TopicPartition], None], partition: Partition) -> None:
        """Pause or resume, unless the partition has gone since: `take_changes` reports that."""
        try:
            method(partition.place)
        except KeyError:
            log.debug("%s went before it could be paused or resumed", partition.place)

    def _lose(self, partition: Partition, start: int, end: int, reason: Loss) -> None:
        lost = LostRange(partition.id, partition.place.topic, start, end, reason)
        log.error("lost %s: these offsets will never be measured or counted", lost)
        self._lost.append(lost)


@dataclass(frozen=True, slots=True)
class Placement:
    """Deliver from `offset` on; None: not yet, ask again.  `loss` is a range that will never be delivered."""

    offset: int | None
    loss: tuple[int, int, Loss] | None = None


@dataclass(frozen=True, slots=True)
class Extent:
    """The broker's range of offsets of a partition, and the group's place in it."""

    begin: int
    end: int
    committed: int | None


def judge(wanted: int | None, extent: Extent, *, from_begin: bool) -> Placement:
    """The offset to begin at, and the ranges that are lost.

    Args:
        wanted: the ledger's place, or the offset to be fetched next; None if neither is known.
        from_begin: where a partition without a known place begins: at its begin, else at its end.
    """
    if wanted is None:
        # An offset beyond the end was committed for a topic that has been recreated since.
        if extent.committed is None or extent.committed > extent.end:
            return Placement(extent.begin if from_begin else extent.end)
        wanted = extent.committed
    if wanted < extent.begin:
        return Placement(extent.begin, (wanted, extent.begin, Loss.RETENTION))
    if wanted > extent.end:
        # The ledger never goes back.  Records that the broker writes below its place have offsets that are counted
        # already, so they count as lost, and delivery continues at the place.
        return Placement(None, (extent.end, wanted, Loss.TRUNCATED))
    return Placement(wanted)


def look_up(
    consumer: Any, partitions: Collection[TopicPartition], ask_group: Collection[TopicPartition], timeout_ms: int
) -> Mapping[TopicPartition, Extent]:
    """Ask the broker.

    Raises:
        kafka.errors.KafkaError: it does not answer in time, or refuses.
    """
    begins = consumer.beginning_offsets(list(partitions), timeout_ms=timeout_ms)
    ends = consumer.end_offsets(list(partitions), timeout_ms=timeout_ms)
    committed = {partition: consumer.committed(partition, timeout_ms=timeout_ms) for partition in ask_group}
    return {partition: Extent(begins[partition], ends[partition], committed.get(partition)) for partition in partitions}


def topic_source(topic_id: uuid.UUID) -> str:
    """The stored name of a topic's records: the topic's id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")
