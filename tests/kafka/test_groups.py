"""Several members of a group: partitions move without stopping the others, and nobody commits for another."""

from __future__ import annotations

import threading
import time

import pytest
from kafka import KafkaConsumer, TopicPartition

from shadowspec.errors import ServiceUnavailableError
from shadowspec.tap.kafka.broker_clients import Client
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.types import PartitionId
from tests.kafka.reading import Reader, offsets, settings_for, step_all
from tests.kafka_topics import Message, Topics
from tests.services import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def committed(topics: Topics, group: str, topic: str, partition: int) -> int | None:
    """What the broker has for a group, asked by another client."""
    consumer = KafkaConsumer(
        bootstrap_servers=topics.bootstrap, group_id=group, enable_auto_commit=False, kafka_client=Client()
    )
    try:
        found: int | None = consumer.committed(TopicPartition(topic, partition))
        return found
    finally:
        consumer.close(autocommit=False)


def test_a_second_member_takes_its_share_and_the_rest_flows_on(topics: Topics) -> None:
    topic = topics.create(6)
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as first_tap:
        first = Reader(first_tap)
        first.until(lambda: len(first.owned) == 6)
        with KafkaTap(settings) as second_tap:
            second = Reader(second_tap)
            step_all((first, second), lambda: len(first.owned) == len(second.owned) == 3)
            kept = set(first.owned)
            assert set(first.revoked) == set(second.assigned)
            # Cooperative: what stayed was never revoked, so it was started once.
            assert not kept & set(first.revoked)
            assert sorted(first.assigned) == sorted(kept | second.owned)
            topics.write(topic, [Message(b"%d" % n, partition=n % 6) for n in range(60)])
            step_all((first, second), lambda: len(first.records) + len(second.records) >= 60)
            assert set(offsets(first.records)) == {partition.partition for partition in kept}
            assert set(offsets(second.records)) == {partition.partition for partition in second.owned}
            for found in (*offsets(first.records).values(), *offsets(second.records).values()):
                assert found == list(range(10))
        first.until(lambda: len(first.owned) == 6)  # the second has left
        assert kept <= first.owned
        assert sorted(first.assigned[6:]) == sorted(first.owned - kept)


def test_what_was_revoked_cannot_be_committed(topics: Topics) -> None:
    topic = topics.create(2)
    topics.write(topic, [Message(b"%d" % n, partition=n % 2) for n in range(20)])
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as first_tap:
        first = Reader(first_tap)
        first.read(20)
        with KafkaTap(settings) as second_tap:
            second = Reader(second_tap)
            step_all((first, second), lambda: len(second.owned) == 1 and len(first.owned) == 1)
            (moved,) = second.owned
            (kept,) = first.owned
            assert second_tap.commit({moved: 10}).is_complete
            # The broker would take it and set the new owner back.
            assert first_tap.commit({moved: 3}).refused == {moved: "not_assigned"}
            # The rest of a commit goes through, once the rebalance is over.
            step_all((first, second), lambda: set(first_tap.commit({moved: 3, kept: 9}).refused) == {moved})
    assert committed(topics, settings.group_id, topic, moved.partition) == 10
    assert committed(topics, settings.group_id, topic, kept.partition) == 9


def test_a_caller_that_is_busy_between_short_polls_joins_once(topics: Topics) -> None:
    """Joins end while nobody polls; what was joined must be taken up, not joined anew."""
    topic = topics.create(4)
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as first_tap, KafkaTap(settings) as second_tap:
        readers = [Reader(first_tap), Reader(second_tap)]
        deadline = time.monotonic() + PATIENCE_S
        while not all(len(reader.owned) == 2 for reader in readers):
            assert time.monotonic() < deadline, [reader.summary() for reader in readers]
            for reader in readers:
                reader.step(0.01)
            time.sleep(0.1)
        for _ in range(10):
            for reader in readers:
                reader.step(0.01)
            time.sleep(0.1)
        generations = {reader.tap._consumer.group_metadata().generation_id for reader in readers}
        assert len(generations) == 1
        assert max(generations) <= 5  # one to join for each, one for what moves, one for what moved


def test_a_commit_while_the_group_rebalances_is_refused_and_the_next_one_taken(topics: Topics) -> None:
    topic = topics.create(2)
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as tap, KafkaTap(settings) as other_tap:
        reader = Reader(tap)
        reader.until(lambda: len(reader.owned) == 2)
        (first, second) = sorted(reader.owned)
        # The other one joins and waits for us to join again; our heartbeat learns of it.
        joining = threading.Thread(target=other_tap.poll, args=(5.0,))
        joining.start()
        time.sleep(1.0)
        reader.step()
        outcome = tap.commit({first: 1, second: 1})
        assert set(outcome.refused.values()) <= {"rebalancing", "not_a_member", "not_assigned"}
        joining.join()
        other = Reader(other_tap)
        step_all((reader, other), lambda: len(reader.owned) == len(other.owned) == 1)
        (kept,) = reader.owned
        step_all((reader, other), lambda: tap.commit({kept: 5}).is_complete)
        assert committed(topics, settings.group_id, topic, kept.partition) == 5


def test_who_does_not_poll_loses_everything_and_starts_anew(topics: Topics) -> None:
    topic = topics.create(2)
    topics.write(topic, [Message(b"%d" % n, partition=n % 2) for n in range(20)])
    settings = settings_for(
        topics.bootstrap, topic, session_timeout_ms=2_000, heartbeat_interval_ms=300, max_poll_interval_ms=2_000
    )
    with KafkaTap(settings) as first_tap, KafkaTap(settings) as second_tap:
        first, second = Reader(first_tap), Reader(second_tap)
        step_all((first, second), lambda: len(first.owned) == len(second.owned) == 1)
        (lost,) = first.owned
        first.during(0.5)
        # The first one stalls for longer than its poll interval: the other takes its partition over.
        deadline = time.monotonic() + PATIENCE_S
        while len(second.owned) < 2 and time.monotonic() < deadline:
            second.step()
        assert lost in second.owned
        assert second_tap.commit({lost: 10}).is_complete
        assert not first_tap.commit({lost: 4}).is_complete
        count = len(first.records)
        first.step(0.0)
        assert [
            record.key.partition for record in first.records[count:] if record.key.partition == lost.partition
        ] == []
        step_all((first, second), lambda: len(first.owned) == len(second.owned) == 1 and lost in first.revoked)
    assert (committed(topics, settings.group_id, topic, lost.partition) or 0) >= 10


def test_records_fetched_before_a_revocation_are_not_delivered_after_it(topics: Topics) -> None:
    topic = topics.create(2)
    topics.write(topic, [Message(b"%d" % n, partition=n % 2) for n in range(400)])
    settings = settings_for(topics.bootstrap, topic, max_poll_records=1)
    with KafkaTap(settings) as first_tap:
        first = Reader(first_tap)
        first.until(lambda: len(offsets(first.records)) == 2)
        with KafkaTap(settings) as second_tap:
            second = Reader(second_tap)
            # While the partition moves the first has hundreds of its records in hand.
            step_all((first, second), lambda: bool(first.revoked) and bool(second.owned))
            (moved,) = second.owned
            count = len(first.records)
            step_all((first, second), lambda: len(second.records) >= 200)
            assert moved.partition not in offsets(first.records[count:])
    assert offsets(second.records) == {moved.partition: list(range(200))}


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(topics: Topics) -> None:
    topic = topics.create(2)
    settings = settings_for(topics.bootstrap, topic, session_timeout_ms=15_000)
    named = [settings_for(topics.bootstrap, topic, session_timeout_ms=15_000, group_id=settings.group_id,
                          group_instance_id=f"worker-{n}") for n in range(2)]  # fmt: skip
    with KafkaTap(named[0]) as staying:
        stays = Reader(staying)
        with KafkaTap(named[1]) as leaving:
            leaves = Reader(leaving)
            step_all((stays, leaves), lambda: len(stays.owned) == len(leaves.owned) == 1)
            expected = set(leaves.owned)
        came, went = len(stays.assigned), len(stays.revoked)
        stays.during(1.0)
        with KafkaTap(named[1]) as returned:
            returns = Reader(returned)
            step_all((stays, returns), lambda: len(returns.owned) == 1)
            assert returns.owned == expected
        assert (len(stays.assigned), len(stays.revoked)) == (came, went)


def test_of_two_workers_with_one_name_the_older_one_ends(topics: Topics) -> None:
    topic = topics.create(1)
    settings = settings_for(topics.bootstrap, topic, group_instance_id="worker-0")
    with KafkaTap(settings) as older_tap, KafkaTap(settings) as newer_tap:
        older, newer = Reader(older_tap), Reader(newer_tap)
        older.until(lambda: bool(older.owned))
        newer.until(lambda: bool(newer.owned))
        (partition,) = newer.owned

        def older_goes_on() -> None:
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                older.step()
                older_tap.commit({partition: 1})
                newer.step()

        with pytest.raises(ServiceUnavailableError, match="another worker has joined the group as worker-0") as caught:
            older_goes_on()
        assert not caught.value.is_retryable


@pytest.mark.all
def test_partitions_that_are_added_are_found(topics: Topics) -> None:
    topic = topics.create(1)
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        reader.until(lambda: len(reader.owned) == 1)
        topics.admin.create_partitions({topic: 3})
        reader.until(lambda: len(reader.owned) == 3, step_s=0.002)  # shorter than joining takes
        assert {partition.partition for partition in reader.assigned} == {0, 1, 2}
        assert len(reader.assigned) == 3
        assert PartitionId(reader.assigned[0].source, 2) in reader.owned
