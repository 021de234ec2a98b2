"""Partitions that go and come back between two polls: a race that no broker can be made to run on demand."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from shadowspec.tap.kafka.membership import Assignments
from shadowspec.tap.kafka.partitions import AssignedPartitions, topic_source

PLACE = TopicPartition("topic", 0)
TOPIC_ID = uuid.UUID(int=7)


class FakeConsumer:
    """What AssignedPartitions tells a consumer to do."""

    def __init__(self) -> None:
        self.paused: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}

    def pause(self, place: TopicPartition) -> None:
        self.paused.add(place)

    def resume(self, place: TopicPartition) -> None:
        self.paused.discard(place)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.positions[place] = offset


class FakeCluster:
    """The ids of topics."""

    def __init__(self) -> None:
        self.ids: dict[str, uuid.UUID] = {PLACE.topic: TOPIC_ID}

    def topic_id(self, topic: str) -> uuid.UUID | None:
        return self.ids.get(topic)


class FakeClient:
    def __init__(self) -> None:
        self.cluster = FakeCluster()


class Group:
    """A group that assigns and takes away as the test says."""

    def __init__(self) -> None:
        self.consumer, self.client = FakeConsumer(), FakeClient()
        self.assignor = CooperativeStickyAssignor()
        self.listener = Assignments(self.consumer, self.assignor)
        client: Any = self.client
        self.partitions = AssignedPartitions(self.consumer, client, self.listener, from_begin=True)


@pytest.fixture
def group() -> Group:
    return Group()


def test_what_comes_is_paused_before_anybody_is_told(group: Group) -> None:
    group.listener.on_partitions_assigned([PLACE])
    assert group.consumer.paused == {PLACE}
    assert group.partitions.delivering(PLACE) is None
    (came,) = group.partitions.take_changes().assigned
    assert group.partitions.delivering(PLACE) is None
    group.partitions.start(came, 5)
    assert group.consumer.paused == set()
    assert group.consumer.positions == {PLACE: 5}
    assert group.partitions.delivering(PLACE) is not None


def test_what_went_and_came_back_delivers_nothing_until_it_is_started_anew(group: Group) -> None:
    group.listener.on_partitions_assigned([PLACE])
    (came,) = group.partitions.take_changes().assigned
    group.partitions.start(came, 5)
    group.listener.on_partitions_lost([PLACE])
    assert group.partitions.delivering(PLACE) is None
    group.listener.on_partitions_assigned([PLACE])
    assert group.partitions.delivering(PLACE) is None  # what is fetched now begins somewhere else
    changes = group.partitions.take_changes()
    assert (changes.revoked, changes.assigned) == ((came,), (came,))
    assert group.partitions.delivering(PLACE) is None
    group.partitions.start(came, 6)
    assert group.partitions.delivering(PLACE) is not None


def test_a_start_that_was_meant_for_an_earlier_time_does_nothing(group: Group) -> None:
    group.listener.on_partitions_assigned([PLACE])
    (came,) = group.partitions.take_changes().assigned
    group.listener.on_partitions_revoked([PLACE])
    group.listener.on_partitions_assigned([PLACE])
    group.partitions.start(came, 5)
    assert group.consumer.paused == {PLACE}
    assert group.partitions.delivering(PLACE) is None


def test_what_came_and_went_unseen_is_not_told(group: Group) -> None:
    group.listener.on_partitions_assigned([PLACE])
    group.listener.on_partitions_revoked([PLACE])
    changes = group.partitions.take_changes()
    assert (changes.revoked, changes.assigned) == ((), ())


def test_a_partition_waits_until_its_topic_has_an_id(group: Group) -> None:
    for unknown in (None, uuid.UUID(int=0)):  # all zeros: the broker knows no such topic
        group.client.cluster.ids = {} if unknown is None else {PLACE.topic: unknown}
        group.listener.on_partitions_assigned([PLACE])
        assert group.partitions.take_changes().assigned == ()
        group.client.cluster.ids = {PLACE.topic: TOPIC_ID}
        (came,) = group.partitions.take_changes().assigned
        assert came.source == topic_source(TOPIC_ID)
        group.listener.on_partitions_revoked([PLACE])
        assert group.partitions.take_changes().revoked == (came,)


def test_another_id_is_another_partition_at_once(group: Group) -> None:
    group.listener.on_partitions_assigned([PLACE])
    (old,) = group.partitions.take_changes().assigned
    group.partitions.start(old, 5)
    group.client.cluster.ids = {PLACE.topic: uuid.UUID(int=0)}  # deleted, and not there again yet
    group.partitions.notice_recreated()
    assert group.partitions.delivering(PLACE) is not None
    group.client.cluster.ids = {PLACE.topic: uuid.UUID(int=8)}
    group.partitions.notice_recreated()
    assert group.partitions.delivering(PLACE) is None
    assert group.consumer.paused == {PLACE}
    changes = group.partitions.take_changes()
    assert changes.revoked == (old,)
    (new,) = changes.assigned
    assert new != old
    assert (group.partitions.topic_of(old.source), group.partitions.topic_of(new.source)) == ("topic", "topic")


def test_who_lost_its_membership_claims_nothing_when_it_joins_again(group: Group) -> None:
    assignment = ConsumerProtocolAssignment(1, [("topic", [0])], b"")
    group.assignor.on_assignment(assignment, 1)
    assert group.assignor.metadata(["topic"]).owned_partitions
    group.listener.on_partitions_assigned([PLACE])
    group.listener.on_partitions_lost([PLACE])
    assert not group.assignor.metadata(["topic"]).owned_partitions
