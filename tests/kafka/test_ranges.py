"""What the broker no longer has, or has anew: retention, topics made again, damaged batches."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.kafka.partitions import Extent, Loss, Placement, judge
from shadowspec.types import PartitionId
from tests.kafka.reading import Reader, offsets, settings_for
from tests.kafka_server import KafkaServer
from tests.kafka_topics import Message, Topics

OFFSETS = st.integers(0, 50)


@given(wanted=st.none() | OFFSETS, committed=st.none() | OFFSETS, begin=OFFSETS, size=OFFSETS, from_begin=st.booleans())
def test_a_partition_is_placed_where_nothing_is_skipped_silently(
    wanted: int | None, committed: int | None, begin: int, size: int, from_begin: bool
) -> None:
    end = begin + size
    found = judge(wanted, Extent(begin, end, committed), from_begin=from_begin)
    known = wanted if wanted is not None else committed
    if found.offset is None:  # waits for the broker's log to grow up to where the ledger stands
        assert wanted is not None
        assert wanted > end
        assert found.loss == (end, wanted, Loss.TRUNCATED)
        return
    assert begin <= found.offset <= end
    if known is None or (wanted is None and known > end):
        assert found == Placement(begin if from_begin else end)
    elif known < begin:
        assert found == Placement(begin, (known, begin, Loss.RETENTION))
    else:
        assert found == Placement(known)


@pytest.mark.integration
def test_what_retention_took_is_told_once_and_the_rest_is_read(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(2)
    topics.write(topic, [Message(b"%d" % n, partition=n % 2) for n in range(40)])
    topics.forget_before(topic, 1, 12)
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        reader.until(lambda: len(reader.owned) == 2)
        first, second = sorted(reader.owned)
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap, {first: 15, second: 5})
        reader.read(5 + 8)
        assert offsets(reader.records) == {0: [15, 16, 17, 18, 19], 1: list(range(12, 20))}
        (lost,) = reader.lost
    assert (lost.partition, lost.topic, lost.start, lost.end, lost.reason) == (second, topic, 5, 12, Loss.RETENTION)
    assert f"lost {topic}[1]@5..11 (retention)" in caplog.text


@pytest.mark.integration
def test_a_group_that_committed_before_what_is_left_is_told_too(topics: Topics) -> None:
    topic = topics.create()
    topics.write(topic, [Message(b"%d" % n) for n in range(20)])
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as tap:
        reader = Reader(tap)
        reader.read(20)
        assert tap.commit(dict.fromkeys(reader.owned, 4)).is_complete
    topics.forget_before(topic, 0, 9)
    with KafkaTap(settings) as tap:
        reader = Reader(tap)
        assert offsets(reader.read(11)) == {0: list(range(9, 20))}
        assert [(lost.start, lost.end) for lost in reader.lost] == [(4, 9)]


@pytest.mark.integration
def test_what_retention_takes_while_a_partition_is_held_is_told(topics: Topics) -> None:
    topic = topics.create()
    topics.write(topic, [Message(b"%d" % n) for n in range(5)])
    with KafkaTap(settings_for(topics.bootstrap, topic, max_poll_records=1)) as tap:
        reader = Reader(tap)
        reader.read(5)
        tap.pause_all()
        reader.during(0.7)  # the last fetch is over
        topics.write(topic, [Message(b"%d" % n) for n in range(5, 30)])
        topics.forget_before(topic, 0, 25)
        tap.resume_all()
        reader.until(lambda: len(reader.records) + sum(lost.end - lost.start for lost in reader.lost) >= 30)
        reader.during(0.3)
        reported = {offset for lost in reader.lost for offset in range(lost.start, lost.end)}
        came = set(offsets(reader.records)[0])
        assert reported | came == set(range(30))
        assert not reported & came


@pytest.mark.integration
def test_a_place_beyond_the_end_is_waited_for(topics: Topics) -> None:
    """The broker has lost the end of its log: the ledger stands further on than the log."""
    topic = topics.create()
    topics.write(topic, [Message(b"%d" % n) for n in range(10)])
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        reader.until(lambda: bool(reader.owned))
        (partition,) = reader.owned
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap, {partition: 15})
        reader.until(lambda: bool(reader.lost))
        reader.during(1.5)
        assert [(lost.start, lost.end, lost.reason) for lost in reader.lost] == [(10, 15, Loss.TRUNCATED)]
        topics.write(topic, [Message(b"%d" % n) for n in range(10, 20)])
        assert offsets(reader.read(5)) == {0: [15, 16, 17, 18, 19]}
        assert len(reader.lost) == 1


@pytest.mark.integration
@pytest.mark.parametrize(("is_longer", "is_at_once"), [(False, False), (True, False), (False, True)])
def test_a_topic_made_anew_while_running_is_another_source(topics: Topics, is_longer: bool, is_at_once: bool) -> None:
    topic = topics.create(2)
    topics.write(topic, [Message(b"old %d" % n, partition=n % 2) for n in range(20)])
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as tap:
        reader = Reader(tap)
        reader.read(20)
        old = set(reader.owned)
        assert tap.commit(dict.fromkeys(old, 10)).is_complete
        topics.delete(topic)
        if not is_at_once:  # else the group never sees it gone
            reader.during(1.0)
        topics.create_again(topic, 2)
        count = 60 if is_longer else 8
        topics.write(topic, [Message(b"new %d" % n, partition=n % 2) for n in range(count)])
        reader.until(lambda: len({record.key.source for record in reader.records}) == 2)
        reader.until(lambda: len(reader.records) >= 20 + count)
        reader.during(0.5)
        new = {record.key for record in reader.records[20:]}
        assert old <= set(reader.revoked)
        assert {key.source for key in new} == {partition.source for partition in reader.owned}
        assert not {key.source for key in new} & {partition.source for partition in old}
        assert offsets(reader.records[20:]) == {0: list(range(count // 2)), 1: list(range(count // 2))}
        # The broker would take the old topic's offsets for the new one's.
        assert set(tap.commit(dict.fromkeys(old, 10)).refused.values()) == {"not_assigned"}
        assert {tap.topic_of(partition.source) for partition in old | reader.owned} == {topic}


@pytest.mark.integration
def test_a_topic_made_anew_while_nobody_ran_is_read_from_its_begin(topics: Topics) -> None:
    topic = topics.create()
    topics.write(topic, [Message(b"old %d" % n) for n in range(10)])
    settings = settings_for(topics.bootstrap, topic)
    with KafkaTap(settings) as tap:
        reader = Reader(tap)
        reader.read(10)
        assert tap.commit(dict.fromkeys(reader.owned, 10)).is_complete
        (old,) = reader.owned
    topics.delete(topic)
    topics.create_again(topic, 1)
    topics.write(topic, [Message(b"new %d" % n) for n in range(15)])
    with KafkaTap(settings) as tap:
        reader = Reader(tap, {old: 10})  # the ledger knows the old topic only
        assert offsets(reader.read(15)) == {0: list(range(15))}
        assert reader.lost == []


@pytest.mark.all
@pytest.mark.integration
def test_a_damaged_batch_is_stepped_over_and_told(new_kafka: Callable[[], KafkaServer]) -> None:
    server = new_kafka()
    with Topics(server.bootstrap, deletes=False) as topics:
        topic = topics.create(2)
        for n in range(3):  # a batch each, the one in the middle with three records
            topics.write(topic, [Message(b"record %d.%d" % (n, m), partition=0) for m in range(3 if n == 1 else 1)],
                         linger_ms=50)  # fmt: skip
        topics.write(topic, [Message(b"elsewhere", partition=1)])
        server.stop()
        (log,) = Path(server.folder, "data").glob(f"{topic}-0/*.log")
        damage(log, b"record 1.1")
        server.start()
        with KafkaTap(settings_for(server.bootstrap, topic)) as tap:
            reader = Reader(tap)
            reader.until(lambda: len(reader.records) == 3 and len(reader.lost) == 3)
            assert sorted(reader.values(), key=str) == [b"elsewhere", b"record 0.0", b"record 2.0"]
            place = PartitionId(reader.records[0].key.source, 0)
            assert [(lost.partition, lost.start, lost.end) for lost in reader.lost] == [
                (place, n, n + 1) for n in (1, 2, 3)
            ]
            assert {lost.reason for lost in reader.lost} == {Loss.UNREADABLE}
            topics.write(topic, [Message(b"later", partition=0)])
            reader.read(4)


def damage(log: Path, where: bytes) -> None:
    """Turn one bit of a record on the disk; its batch's checksum no longer holds."""
    content = bytearray(log.read_bytes())
    place = content.index(where)
    content[place + 2] ^= 1
    log.write_bytes(bytes(content))
    assert struct.unpack_from(">q", content)[0] == 0  # the log still begins with its first offset
