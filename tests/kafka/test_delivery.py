"""What a message is when it comes out of the tap, and that none comes before its partition was started."""

from __future__ import annotations

import contextlib
import time

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.consumer import group
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch

from shadowspec.errors import ServiceUnavailableError
from shadowspec.tap.kafka.batches import TOO_LARGE_HEADER, PartitionRecords
from shadowspec.tap.kafka.broker_clients import Client
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.kafka.membership import Coordinator
from shadowspec.tap.kafka.partitions import topic_source
from shadowspec.types import PartitionId
from tests.kafka.reading import Reader, offsets, settings_for
from tests.kafka_topics import Message, Topics, kcat, read_topic
from tests.services import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]
MEGABYTE = 1024 * 1024


def test_a_message_comes_whole(topics: Topics) -> None:
    topic = topics.create(3)
    headers = (("a", b"1"), ("A", b"\xff\xfe"), ("a", b""), ("", b"nameless"))
    topics.write(topic, [Message(b"value", b"key\x00\xff", headers, partition=2, timestamp_ms=1_700_000_000_123)])
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        (record,) = Reader(tap).read(1)
        assert tap.topic_of(record.key.source) == topic
    assert record.key.source == topic_source(topics.topic_id(topic))
    assert (record.key.partition, record.key.offset, record.key.item) == (2, 0, 0)
    assert record.key.timestamp_ms == 1_700_000_000_123
    assert (record.value, record.message_key, record.problem) == (b"value", b"key\x00\xff", None)
    assert record.headers == headers


def test_a_tap_changes_nothing_for_other_consumers_of_the_process(topics: Topics) -> None:
    topic = topics.create()
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        assert isinstance(tap._consumer._coordinator, Coordinator)
        other = KafkaConsumer(bootstrap_servers=topics.bootstrap, group_id="another", kafka_client=Client())
        try:
            assert type(other._coordinator) is group.ConsumerCoordinator is ConsumerCoordinator
            assert type(other._fetcher) is Fetcher
            assert Fetcher.PartitionRecords is not PartitionRecords
            assert memory_records.DefaultRecordBatch is DefaultRecordBatch
        finally:
            other.close(autocommit=False)


def test_a_source_is_the_topic_id_as_kafka_prints_it(topics: Topics) -> None:
    source = topic_source(topics.topic_id(topics.create()))
    assert len(source) == 22  # 128 bits in URL-safe base64, unpadded


def test_what_an_independent_producer_writes_is_read(topics: Topics) -> None:
    topic = topics.create()
    send = ("-P", "-t", topic, "-p", "0")
    kcat(topics.bootstrap, *send, "-Z", "-K", ":", stdin=b"tombstone:")
    kcat(topics.bootstrap, *send, "-H", "h=1", "-H", "h=2", "-H", "empty", stdin=b"duplicates")
    kcat(topics.bootstrap, *send, stdin=b"\x00\xff schema-less junk")
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        tombstone, duplicates, junk = Reader(tap).read(3)
    assert (tombstone.value, tombstone.message_key) == (None, b"tombstone")
    assert duplicates.headers == (("h", b"1"), ("h", b"2"), ("empty", None))
    assert (junk.value, junk.message_key, junk.headers) == (b"\x00\xff schema-less junk", None, ())


def test_a_header_whose_name_is_no_text_stops_nothing(topics: Topics) -> None:
    topic = topics.create()
    send = ("-P", "-t", topic, "-p", "0")
    odd = b"\xff\xfename=v".decode("utf-8", "surrogateescape")
    kcat(topics.bootstrap, *send, stdin=b"before")
    kcat(topics.bootstrap, *send, "-H", odd, "-H", "plain=\u00e9", "-k", "key", stdin=b"odd")
    kcat(topics.bootstrap, *send, stdin=b"behind")
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        before, record, behind = Reader(tap).read(3)
    assert record.headers == (("\\xff\\xfename", b"v"), ("plain", "\u00e9".encode()))
    assert (record.value, record.message_key, record.key.offset) == (b"odd", b"key", 1)
    assert (before.value, behind.value) == (b"before", b"behind")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(topics: Topics, codec: str) -> None:
    topic = topics.create()
    lines = [f"{number} ".encode() + b"compressible " * 2_000 for number in range(100)]  # 2.6 MB in one batch
    kcat(topics.bootstrap, "-P", "-t", topic, "-z", codec, "-X", "batch.size=4000000", "-X", "linger.ms=300",
         "-X", "message.max.bytes=5000000", stdin=b"\n".join(lines))  # fmt: skip
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        assert [record.value for record in reader.read(100)] == lines


def test_ten_megabytes_pass_and_more_than_the_limit_is_said_to_be_too_large(topics: Topics) -> None:
    topic = topics.create(max_message_bytes=32 * MEGABYTE)
    sizes = [10 * MEGABYTE, 10 * MEGABYTE + 1, 5]
    topics.write(topic, [Message(bytes([65 + place]) * size) for place, size in enumerate(sizes)])
    with KafkaTap(settings_for(topics.bootstrap, topic, max_record_bytes=10 * MEGABYTE)) as tap:
        large, too_large, small = Reader(tap).read(3)
    assert [record.problem for record in (large, too_large, small)] == [None, "too_large", None]
    assert [len(record.value or b"") for record in (large, too_large, small)] == [sizes[0], 0, sizes[2]]
    assert too_large.headers == ((TOO_LARGE_HEADER, b"%d" % sizes[1]),)  # for its dead letter


def test_a_value_that_becomes_large_when_it_is_unpacked_is_passed_over(topics: Topics) -> None:
    topic = topics.create()
    producer = KafkaProducer(bootstrap_servers=topics.bootstrap, compression_type="zstd", max_request_size=2**30)
    with contextlib.closing(producer):
        for value in (b"before", bytes(60 * MEGABYTE), b"behind"):
            producer.send(topic, value=value)
        producer.flush()
    with KafkaTap(settings_for(topics.bootstrap, topic, max_record_bytes=MEGABYTE)) as tap:
        before, large, behind = Reader(tap).read(3)
    assert (before.value, large.value, behind.value) == (b"before", b"", b"behind")
    assert (before.problem, large.problem, behind.problem) == (None, "too_large", None)


def test_nothing_comes_before_its_partition_is_started(topics: Topics) -> None:
    topic = topics.create(3)
    topics.write(topic, [Message(b"%d" % n, partition=n % 3) for n in range(30)])
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        reader.is_starting = False
        reader.until(lambda: len(reader.owned) == 3)
        reader.during(1.5)
        assert reader.records == []
        first, second, third = sorted(reader.owned)
        tap.start(second, 4)
        reader.read(6)
        assert offsets(reader.records) == {1: [4, 5, 6, 7, 8, 9]}
        tap.start(first, 9)
        tap.start(third, 10)
        reader.read(7)
        assert offsets(reader.records) == {1: [4, 5, 6, 7, 8, 9], 0: [9]}


def test_a_held_tap_polls_on_and_delivers_nothing(topics: Topics) -> None:
    topic = topics.create(2)
    with KafkaTap(settings_for(topics.bootstrap, topic, session_timeout_ms=2_000)) as tap:
        reader = Reader(tap)
        tap.pause_all()
        reader.until(lambda: len(reader.owned) == 2)
        topics.write(topic, [Message(b"%d" % n, partition=n % 2) for n in range(20)])
        reader.during(4.0)  # twice the session: polling keeps the membership
        assert reader.records == []
        assert reader.revoked == []
        tap.resume_all()
        reader.read(20)
        tap.pause_all()
        topics.write(topic, [Message(b"later", partition=0)])
        reader.during(1.0)
        assert len(reader.records) == 20
        tap.resume_all()
        reader.read(21)


def test_a_hold_keeps_what_was_fetched_before_it(topics: Topics) -> None:
    topic = topics.create()
    topics.write(topic, [Message(b"%d" % n) for n in range(50)])
    with KafkaTap(settings_for(topics.bootstrap, topic, max_poll_records=7)) as tap:
        reader = Reader(tap)
        while len(reader.records) < 50:
            tap.pause_all()
            assert reader.step(0.1) == []
            tap.resume_all()
            reader.step(0.1)
    assert offsets(reader.records) == {0: list(range(50))}


def test_a_transaction_that_was_aborted_is_not_read_and_markers_are_no_lag(topics: Topics) -> None:
    from kafka import KafkaProducer

    topic = topics.create()
    producer = KafkaProducer(bootstrap_servers=topics.bootstrap, transactional_id=f"t-{topic}", kafka_client=Client())
    producer.init_transactions()
    for value, is_kept in ((b"kept", True), (b"aborted", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.send(topic, value=value)
        producer.flush()
        producer.commit_transaction() if is_kept else producer.abort_transaction()
    producer.close()
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        reader.read(2)
        assert reader.values() == [b"kept", b"kept too"]
        assert offsets(reader.records) == {0: [0, 4]}
        reader.until(lambda: list(tap.lag().values()) == [0])


def test_the_lag_is_what_was_not_delivered(topics: Topics) -> None:
    topic = topics.create(2)
    topics.write(topic, [Message(b"x", partition=0)] * 5)
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        tap.pause_all()
        reader.until(lambda: len(reader.owned) == 2)
        first, second = sorted(reader.owned)
        tap.start(first, 2)
        tap.start(second, 0)
        assert tap.lag() == {first: 3, second: 0}
        tap.resume_all()
        reader.read(3)
        assert tap.lag() == {first: 0, second: 0}


def test_a_group_goes_on_where_it_committed_and_a_ledger_wins(topics: Topics) -> None:
    topic = topics.create()
    topics.write(topic, [Message(b"%d" % n) for n in range(10)])
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as tap:
        reader = Reader(tap)
        reader.read(10)
        (partition,) = reader.owned
        assert tap.commit({partition: 7}).is_complete
    with KafkaTap(settings) as tap:
        assert offsets(Reader(tap).read(3)) == {0: [7, 8, 9]}
    with KafkaTap(settings) as tap:
        assert offsets(Reader(tap, {partition: 5}).read(5)) == {0: [5, 6, 7, 8, 9]}


def test_where_nothing_is_known_the_setting_says_where_to_begin(topics: Topics) -> None:
    topic = topics.create()
    topics.write(topic, [Message(b"old")])
    with KafkaTap(settings_for(topics.bootstrap, topic, auto_offset_reset="latest")) as tap:
        reader = Reader(tap)
        reader.until(lambda: bool(reader.owned))
        reader.during(1.0)
        topics.write(topic, [Message(b"new")])
        assert [record.value for record in reader.read(1)] == [b"new"]


def test_a_topic_that_is_missing_is_named_and_not_created(topics: Topics) -> None:
    topic = topics.create()
    with pytest.raises(ServiceUnavailableError, match="there is no topic no-such-topic") as caught:
        KafkaTap(settings_for(topics.bootstrap, topic, "no-such-topic"))
    assert caught.value.exit_code == 5
    assert not caught.value.is_retryable
    assert "no-such-topic" not in topics.admin.list_topics()


def test_nothing_is_written_anywhere(topics: Topics) -> None:
    topic = topics.create(2)
    topics.write(topic, [Message(b"x", partition=n % 2) for n in range(10)])
    before = topics.names()
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as tap:
        reader = Reader(tap)
        reader.read(10)
        tap.commit(dict.fromkeys(reader.owned, 5))
    assert len(read_topic(topics.bootstrap, topic)) == 10
    assert topics.names() - before <= {"__consumer_offsets"}


def test_starting_what_is_not_ours_does_nothing(topics: Topics) -> None:
    topic = topics.create()
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        reader.until(lambda: bool(reader.owned))
        stranger = PartitionId("another-topic", 0)
        tap.start(stranger, 0)
        assert tap.commit({stranger: 1}).refused == {stranger: "not_assigned"}
        assert tap.topic_of("another-topic") is None


def test_close_ends_every_thread(topics: Topics) -> None:
    import threading

    topic = topics.create()
    before = threading.active_count()
    for _ in range(3):
        with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
            Reader(tap).step()
    with pytest.raises(ServiceUnavailableError):
        KafkaTap(settings_for("localhost:1", topic, connect_timeout_ms=500))
    deadline = time.monotonic() + PATIENCE_S
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before
