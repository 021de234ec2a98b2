"""Brokers that go and come back: nothing is lost, nothing is raised that waiting heals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from shadowspec.errors import ServiceUnavailableError
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.kafka.producer import OutgoingMessage, TopicWriter
from tests.kafka.reading import Reader, offsets, settings_for
from tests.kafka_server import KafkaServer
from tests.kafka_topics import Message, Topics, read_topic
from tests.services import PATIENCE_S

pytestmark = pytest.mark.integration
NewKafka = Callable[[], KafkaServer]


@pytest.mark.representative("True")
@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_broker_that_goes_and_comes_back_loses_nothing(new_kafka: NewKafka, is_killed: bool) -> None:
    server = new_kafka()
    with Topics(server.bootstrap, deletes=False) as topics:
        topic = topics.create(2)
        topics.write(topic, [Message(b"%d" % n, partition=n % 2) for n in range(20)])
        with KafkaTap(settings_for(server.bootstrap, topic)) as tap:
            reader = Reader(tap)
            reader.read(20)
            assert tap.is_connected
            server.kill() if is_killed else server.stop()
            reader.until(lambda: not tap.is_connected)
            began = time.monotonic()
            # Commits fail softly and in time, polls return nothing.
            outcome = tap.commit(dict.fromkeys(reader.owned, 10))
            assert time.monotonic() - began < 4
            assert set(outcome.refused.values()) <= {"unavailable", "rebalancing", "not_a_member"}
            assert not outcome.is_complete
            assert tap.last_error is not None
            reader.during(1.0)
            server.start()
            reader.until(lambda: tap.is_connected, patience_s=PATIENCE_S)
            assert tap.last_error is None
            topics.write(topic, [Message(b"%d" % n, partition=n % 2) for n in range(20, 40)])
            reader.until(lambda: len(reader.records) >= 40, patience_s=PATIENCE_S)
            reader.during(0.5)
            # Whether the membership survived or not: a partition that came back was started anew at its commit.
            came = offsets(reader.records)
            assert {place: sorted(set(found)) for place, found in came.items()} == {
                0: list(range(20)),
                1: list(range(20)),
            }
            if not reader.revoked:
                assert came == {0: list(range(20)), 1: list(range(20))}
            reader.until(lambda: tap.commit(dict.fromkeys(reader.owned, 20)).is_complete, patience_s=PATIENCE_S)


@pytest.mark.all
@pytest.mark.slow
def test_a_broker_that_hangs_is_waited_for(new_kafka: NewKafka) -> None:
    server = new_kafka()
    with Topics(server.bootstrap, deletes=False) as topics:
        topic = topics.create(1)
        with KafkaTap(settings_for(server.bootstrap, topic)) as tap:
            reader = Reader(tap)
            topics.write(topic, [Message(b"before")])
            reader.read(1)
            server.pause()
            reader.during(3.0)
            assert not tap.commit(dict.fromkeys(reader.owned, 1)).is_complete
            server.go_on()
            topics.write(topic, [Message(b"behind")])
            reader.until(lambda: b"behind" in reader.values(), patience_s=PATIENCE_S)
            reader.until(lambda: tap.commit(dict.fromkeys(reader.owned, 2)).is_complete, patience_s=PATIENCE_S)


@pytest.mark.all
@pytest.mark.slow
def test_a_tap_that_is_closed_while_the_broker_is_gone_ends_in_time(new_kafka: NewKafka) -> None:
    server = new_kafka()
    with Topics(server.bootstrap, deletes=False) as topics:
        topic = topics.create(1)
        tap = KafkaTap(settings_for(server.bootstrap, topic))
        reader = Reader(tap)
        reader.until(lambda: bool(reader.owned))
        before = threading.active_count()
        server.kill()
        began = time.monotonic()
        tap.close()
        assert time.monotonic() - began < 15
        assert threading.active_count() == before - 1
        server.start()


def test_a_broker_that_is_not_there_is_named(topics: Topics) -> None:
    began = time.monotonic()
    with pytest.raises(ServiceUnavailableError, match=r"Kafka at localhost:1: .*ECONNREFUSED") as caught:
        KafkaTap(settings_for("localhost:1", "topic", connect_timeout_ms=1_000))
    assert caught.value.is_retryable
    assert time.monotonic() - began < 10


def test_a_name_that_no_server_has_is_named() -> None:
    with pytest.raises(ServiceUnavailableError, match=r"no-such-host\.invalid:9092: .*DNS"):
        KafkaTap(settings_for("no-such-host.invalid:9092", "topic", connect_timeout_ms=1_000))


def test_one_broker_of_several_is_enough(topics: Topics) -> None:
    topic = topics.create()
    topics.write(topic, [Message(b"value")])
    settings = settings_for("localhost:1", topic, bootstrap_servers=("localhost:1", topics.bootstrap))
    with KafkaTap(settings) as tap:
        Reader(tap).read(1)


@pytest.mark.all
@pytest.mark.slow
def test_what_was_not_delivered_is_delivered_by_the_next_flush(
    new_kafka: NewKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowspec.tap.kafka.producer.DELIVERY_TIMEOUT_S", 3.0)
    monkeypatch.setattr("shadowspec.tap.kafka.broker_clients.REQUEST_TIMEOUT_MS", 2_000)
    server = new_kafka()
    with Topics(server.bootstrap, deletes=False) as topics:
        topic = topics.create(2)
        with TopicWriter(settings_for(server.bootstrap, topic), topic, name="test") as writer:
            writer.send(OutgoingMessage(b"k", b"0"))
            assert writer.flush() == 1
            server.kill()
            for number in range(1, 4):
                writer.send(OutgoingMessage(b"k", b"%d" % number))
            with pytest.raises(ServiceUnavailableError) as caught:
                writer.flush()
            assert caught.value.is_retryable
            writer.send(OutgoingMessage(b"k", b"4"))
            server.start()
            assert flushed(writer) == 4
            assert writer.flush() == 0
        assert sorted(set(read_topic(server.bootstrap, topic))) == ["0", "1", "2", "3", "4"]


def flushed(writer: TopicWriter) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return writer.flush()
        except ServiceUnavailableError:
            assert time.monotonic() < deadline
