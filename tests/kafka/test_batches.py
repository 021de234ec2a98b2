"""Batches whose header names are no text: read field by field as everybody else's are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import decode_varint

from shadowspec.tap.kafka.batches import LenientBatch, PartitionMessages, read_every_batch
from shadowspec.tap.kafka.client import is_lasting

HEAD_BYTES = 61  # of a batch, before its records
SHORT = st.binary(max_size=20)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.none() | SHORT,
        st.none() | SHORT,
        st.lists(st.tuples(st.text(st.characters(codec="ascii"), max_size=6), st.none() | SHORT), max_size=3),
    ),
    min_size=1,
    max_size=5,
)


def batch_of(records: Any, codec: int = 0) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=2**20,
    )  # fmt: skip
    for offset, (timestamp, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp, key, value, headers)
    return bytearray(builder.build())


def fields(records: Any) -> list[tuple[Any, ...]]:
    """Records as messages, whoever read them."""
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]


@given(records=RECORDS)
def test_an_ordinary_batch_is_read_as_ever(records: Any) -> None:
    content = bytes(batch_of(records))
    assert fields(LenientBatch(content).messages()) == fields(DefaultRecordBatch(content))


def test_numbers_of_every_length_are_read_as_ever() -> None:
    records = [(2**power, b"k" * (power * 3), b"v" * (2**power % 70_000), []) for power in range(0, 41)]
    content = bytes(batch_of([*records, (0, None, None, [(f"name-{n}", None) for n in range(200)])]))
    assert fields(LenientBatch(content).messages()) == fields(DefaultRecordBatch(content))


def test_a_broker_that_stamps_the_batch_is_believed() -> None:
    content = batch_of([(5, b"key", b"value", []), (9, b"key", b"value", [])])
    content[22] |= 0x08  # the low bits of the attributes: log append time
    read = fields(LenientBatch(bytes(content)).messages())
    assert read == fields(DefaultRecordBatch(bytes(content)))
    assert {timestamp for _, timestamp, *_ in read} == {9}


@given(records=RECORDS, name=st.binary(min_size=1, max_size=6))
def test_any_name_of_a_header_is_read_and_changes_nothing_else(records: Any, name: bytes) -> None:
    marker = "\x01" * len(name)
    marked = [(timestamp, key, value, [*headers, (marker, b"odd")]) for timestamp, key, value, headers in records]
    content = batch_of(marked)
    expected = fields(DefaultRecordBatch(bytes(content)))
    # The marker may stand elsewhere too: only the last header's name of each record is looked at below.
    odd = bytes(content.replace(marker.encode() + b"\x06odd", name + b"\x06odd"))
    readable = name.decode("utf-8", "backslashreplace")
    for was, is_now in zip(expected, fields(LenientBatch(odd).messages()), strict=True):
        assert is_now[:4] == was[:4]
        assert is_now[4][-1] == (readable, b"odd")
        assert len(is_now[4]) == len(was[4])


@given(content=st.binary(min_size=62, max_size=200))
def test_junk_is_called_damage_or_read(content: bytes) -> None:
    batch = LenientBatch(b"\x00" * 16 + b"\x02" + content)
    try:
        records = [record for _, record in zip(range(100), batch.messages(), strict=False)]
    except (CorruptRecordError, UnsupportedCodecError):  # the latter ends the worker: nothing is skipped for it
        return
    assert len(records) <= 100


def attribute_places(content: bytes) -> set[int]:
    """Where the attributes of each record stand: one byte by the protocol, a number of any length to kafka-python."""
    places, place = set(), HEAD_BYTES
    while place < len(content):
        length, start = decode_varint(content, place)
        places.add(start)
        place = start + length
    return places


@settings(max_examples=400)
@given(records=RECORDS, place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_read_as_kafka_python_reads_it(records: Any, place: int, byte: int) -> None:
    content = batch_of(records)
    changed = HEAD_BYTES + place % (len(content) - HEAD_BYTES)
    assume(byte <= 0x7F or changed not in attribute_places(bytes(content)))
    content[changed] = byte
    try:
        expected = fields(DefaultRecordBatch(bytes(content)))
    except CorruptRecordError:
        expected = None
    try:
        read = fields(LenientBatch(bytes(content)).messages())
    except CorruptRecordError:
        read = None
    if expected is not None:  # names that are no text are damage to kafka-python alone
        assert read == expected


def test_the_records_before_damage_are_given() -> None:
    content = batch_of([(1, b"key", b"first", []), (2, b"key", b"second", [])])
    content[content.index(b"second") - 1] = 0x7F
    messages = LenientBatch(bytes(content)).messages()
    assert next(messages).value == b"first"
    with pytest.raises(CorruptRecordError):
        next(messages)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_a_codec_cannot_unpack_is_damage(codec: int) -> None:
    content = batch_of([(1, b"key", b"value " * 100, [])], codec)
    assert fields(LenientBatch(bytes(content)).messages())[0][3] == b"value " * 100
    content[61:] = bytes(len(content) - 61)
    with pytest.raises(CorruptRecordError):
        list(LenientBatch(bytes(content)).messages())


def test_a_codec_that_nobody_knows_is_for_an_operator_to_mend() -> None:
    content = batch_of([(1, b"key", b"value", [])])
    content[22] = 7  # the low bits of the attributes
    with pytest.raises(UnsupportedCodecError) as caught:
        list(LenientBatch(bytes(content)).messages())
    assert is_lasting(caught.value)


def fetched(reader: Any, content: bytes, offset: int) -> tuple[list[Any], int]:
    """What a fetch of such bytes gives from an offset on, two at a time, and where the next one begins."""
    part = reader(offset, TopicPartition("topic", 0), MemoryRecords(content))
    found = []
    while part:
        found += part.take(2)
    return fields(found), part.next_fetch_offset


def test_a_fetch_gives_what_kafka_python_gives() -> None:
    """Batches with gaps between them, begun in the midst of the first.  Transactions: see test_delivery."""
    many = [(number, b"key", b"%d" % number, []) for number in range(5)]
    content = b"".join(base.to_bytes(8, "big") + bytes(batch_of(many)[8:]) for base in (0, 5, 17))
    expected = fetched(Fetcher.PartitionRecords, content, 3)
    read_every_batch(SimpleNamespace(_fetcher=SimpleNamespace()))
    found = fetched(PartitionMessages, content, 3)
    assert found == expected
    assert [offset for offset, *_ in found[0]] == [3, 4, *range(5, 10), *range(17, 22)]
    assert found[1] == 22


def test_a_wrong_checksum_is_damage() -> None:
    content = bytes(batch_of([(1, b"key", b"value", [])]))
    read_every_batch(SimpleNamespace(_fetcher=SimpleNamespace()))
    with pytest.raises(CorruptRecordError, match="checksum"):
        fetched(PartitionMessages, content[:-1] + b"x", 0)


def test_consumers_are_given_it() -> None:
    fetcher = SimpleNamespace()
    read_every_batch(SimpleNamespace(_fetcher=fetcher))
    assert memory_records.DefaultRecordBatch is LenientBatch
    assert fetcher.PartitionRecords is PartitionMessages
