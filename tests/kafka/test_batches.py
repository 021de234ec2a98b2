"""Records with odd header names and damaged batches: what kafka-python alone refuses, and nothing else changes."""

from __future__ import annotations

import functools
import struct
import tracemalloc
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c, encode_varint

from shadowspec.tap.kafka.batches import TOO_LARGE_HEADER, DamagedBatchError, LenientBatch, PartitionRecords
from shadowspec.tap.kafka.broker_clients import is_lasting

HEAD_BYTES = 61  # of a batch, before its records
PLACE = TopicPartition("topic", 0)
LIMIT = 1024 * 1024  # of a record, in bytes
OURS = functools.partial(PartitionRecords, max_record_bytes=LIMIT)
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
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
        batch_size=2**27,
    )  # fmt: skip
    for offset, (timestamp, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp, key, value, headers)
    return bytearray(builder.build())


def fields(records: Any) -> list[tuple[Any, ...]]:
    """Records as tuples, whoever read them."""
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]


def sealed(content: bytes | bytearray) -> bytes:
    """A batch that was changed, with the checksum of what it holds now."""
    return bytes(content[:17]) + struct.pack(">I", calc_crc32c(memoryview(content)[21:])) + bytes(content[21:])


def fetched(reader: Any, content: bytes, offset: int = 0) -> tuple[list[Any], int]:
    """What a fetch of such bytes gives from an offset on, two records at a time, and where the next fetch begins."""
    part = reader(offset, PLACE, MemoryRecords(content))
    found = []
    while part:
        found += part.take(2)
    return fields(found), part.next_fetch_offset


@given(records=RECORDS)
def test_an_ordinary_batch_is_read_as_ever(records: Any) -> None:
    content = bytes(batch_of(records))
    assert fields(LenientBatch(content, LIMIT)) == fields(DefaultRecordBatch(content))


@given(records=RECORDS, name=st.binary(min_size=1, max_size=6), is_broker_time=st.booleans())
def test_any_name_of_a_header_is_read_and_changes_nothing_else(records: Any, name: bytes, is_broker_time: bool) -> None:
    marker = "\x01" * len(name)
    marked = [(timestamp, key, value, [*headers, (marker, b"odd")]) for timestamp, key, value, headers in records]
    content = batch_of(marked)
    if is_broker_time:
        content[22] |= 0x08  # the low bits of the attributes: log append time
    expected = fields(DefaultRecordBatch(bytes(content)))
    # The marker may stand elsewhere too: only the last header's name of each record is looked at below.
    odd = bytes(content.replace(marker.encode() + b"\x06odd", name + b"\x06odd"))
    readable = name.decode("utf-8", "backslashreplace")
    for was, is_now in zip(expected, fields(LenientBatch(odd, LIMIT)), strict=True):
        assert is_now[:4] == was[:4]
        assert is_now[4][-1] == (readable, b"odd")
        assert len(is_now[4]) == len(was[4])


def test_kafka_python_alone_refuses_odd_names() -> None:
    """Else there is nothing left to correct, and `LenientBatch` goes."""
    content = batch_of([(1, b"key", b"value", [("n", b"1"), ("n", b"2")])]).replace(b"\x02n", b"\x02\xff")
    with pytest.raises(CorruptRecordError):
        fields(DefaultRecordBatch(bytes(content)))
    ((_, _, _, _, headers),) = fields(LenientBatch(bytes(content), LIMIT))
    assert headers == (("\\xff", b"1"), ("\\xff", b"2"))


@given(content=st.binary(min_size=62, max_size=200), is_odd=st.booleans())
def test_junk_is_called_damage_or_read(content: bytes, is_odd: bool) -> None:
    """As a fetch reads it: nothing but the two errors, and the damage is said to be where reading goes on."""
    junk = b"\x00" * 8 + struct.pack(">i", len(content) + 5) + b"\x00" * 4 + (b"\x02" if is_odd else b"\x00") + content
    part = PartitionRecords(3, PLACE, MemoryRecords(junk), check_crcs=False, max_record_bytes=LIMIT)
    damage = None
    try:
        while part:
            part.take(100)
    except UnsupportedCodecError:  # ends the worker: nothing is skipped for it
        return
    except DamagedBatchError as error:
        damage = error
    assert damage is None or (damage.place == PLACE and damage.offset >= 3)


@settings(max_examples=400)
@given(records=RECORDS, place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_read_as_kafka_python_reads_it(records: Any, place: int, byte: int) -> None:
    content = batch_of(records)
    content[HEAD_BYTES + place % (len(content) - HEAD_BYTES)] = byte
    try:
        expected = fields(DefaultRecordBatch(bytes(content)))
    except CorruptRecordError:
        expected = None
    try:
        read = fields(LenientBatch(bytes(content), LIMIT))
    except CorruptRecordError:
        read = None
    if expected is not None:  # names that are no text are damage to kafka-python alone
        assert read == expected


def test_the_records_before_damage_are_given_and_the_damage_is_located() -> None:
    content = batch_of([(1, b"key", b"first", []), (2, b"key", b"second", []), (3, b"key", b"third", [])])
    content[content.index(b"second") - 1] = 0x7F
    part = PartitionRecords(0, PLACE, MemoryRecords(sealed(content)), max_record_bytes=LIMIT)
    assert [record.value for record in part.take(5)] == [b"first"]
    with pytest.raises(DamagedBatchError) as caught:
        part.take(5)
    assert (caught.value.place, caught.value.offset) == (PLACE, 1)
    # Stepping over it reads the batch again: what cannot be read now is what was asked for, not the first damage.
    with pytest.raises(DamagedBatchError) as caught:
        fetched(OURS, sealed(content), 2)
    assert caught.value.offset == 2


def test_offsets_that_compaction_removed_before_damage_are_not_part_of_it() -> None:
    first, second = batch_of([(1, b"key", b"first", [])]), batch_of([(2, b"key", b"second", [])])
    first[23:27] = (9).to_bytes(4, "big")  # the last offset of the batch, whose other records are gone
    content = sealed(first) + (10).to_bytes(8, "big") + bytes(second[8:-1]) + b"x"
    part = PartitionRecords(0, PLACE, MemoryRecords(content), max_record_bytes=LIMIT)
    assert [record.offset for record in part.take(5)] == [0]
    with pytest.raises(DamagedBatchError) as caught:
        part.take(5)
    assert caught.value.offset == part.next_fetch_offset == 10


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_a_codec_cannot_unpack_is_damage(codec: int) -> None:
    content = batch_of([(1, b"key", b"value " * 100, [])], codec)
    ((_, _, _, value, _),), _ = fetched(OURS, bytes(content))
    assert value == b"value " * 100
    content[61:] = bytes(len(content) - 61)
    with pytest.raises(DamagedBatchError):
        fetched(OURS, sealed(content))


def test_a_codec_that_nobody_knows_is_for_an_operator_to_mend() -> None:
    content = batch_of([(1, b"key", b"value", [])])
    content[22] = 7  # the low bits of the attributes
    with pytest.raises(UnsupportedCodecError) as caught:
        fetched(OURS, sealed(content))
    assert is_lasting(caught.value)


def test_a_fetch_gives_what_kafka_python_gives() -> None:
    """Batches with gaps between them, begun in the midst of the first.  Transactions: see test_delivery."""
    many = [(number, b"key", b"%d" % number, []) for number in range(5)]
    content = b"".join(base.to_bytes(8, "big") + bytes(batch_of(many)[8:]) for base in (0, 5, 17))
    expected = fetched(Fetcher.PartitionRecords, content, 3)
    found = fetched(OURS, content, 3)
    assert found == expected
    assert [offset for offset, *_ in found[0]] == [3, 4, *range(5, 10), *range(17, 22)]
    assert found[1] == 22


def test_a_wrong_checksum_is_damage() -> None:
    content = bytes(batch_of([(1, b"key", b"value", [])]))
    with pytest.raises(DamagedBatchError):
        fetched(OURS, content[:-1] + b"x")


def bomb_of(size: int, *, neighbour: bytes) -> bytes:
    """A batch of two records by zstd, never whole in memory: a value of `size` zeros, and a neighbour behind it."""
    frame = bytearray(b"\x00\x00\x00\x01")  # attributes, time, offset, no key
    encode_varint(size, frame.append)
    begin = bytearray()
    encode_varint(len(frame) + size + 1, begin.append)
    second = bytearray(b"\x00\x00\x02\x01")
    encode_varint(len(neighbour), second.append)
    second += neighbour + b"\x00"
    compressor = zstandard.ZstdCompressor().compressobj()
    parts = [compressor.compress(bytes(begin + frame))]
    parts += [compressor.compress(bytes(2**20)) for _ in range(size // 2**20)]
    tail = bytearray(b"\x00")
    encode_varint(len(second), tail.append)
    parts += [compressor.compress(bytes(tail + second)), compressor.flush()]
    content = batch_of([(1, None, bytes(500), []), (1, None, bytes(500), [])], 4)
    content[HEAD_BYTES:] = b"".join(parts)
    content[8:12] = (len(content) - 12).to_bytes(4, "big")
    return sealed(content)


@settings(max_examples=50)
@given(
    sizes=st.lists(st.sampled_from([0, 7, 40_000, 150_000, 400_000]), min_size=1, max_size=6),
    codec=st.sampled_from(sorted(CODECS)),
    name=st.sampled_from(["a", "\xe4"]),
)
def test_a_record_above_the_limit_costs_its_neighbours_nothing(sizes: list[int], codec: int, name: str) -> None:
    limit = 100_000
    many = [(place, b"key", bytes([place]) * size, [(name, b"x")]) for place, size in enumerate(sizes)]
    content = bytes(batch_of(many, codec))
    reader = functools.partial(PartitionRecords, max_record_bytes=limit)
    expected, _ = fetched(Fetcher.PartitionRecords, content)
    read, end = fetched(reader, content)
    assert end == len(sizes)
    for before, now in zip(expected, read, strict=True):
        if now[3] is not None:
            assert now == before
        else:  # it is above the limit, or the batch is above four times the limit
            assert max(len(before[3]), sum(sizes) // 4) > limit - 100
            assert now[:3] == (*before[:2], None)
            assert int(dict(now[4])[TOO_LARGE_HEADER]) > len(before[3])


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_record_above_the_limit_is_said_in_its_place(codec: int) -> None:
    large = bytes(3 * LIMIT)
    content = bytes(batch_of([(5, b"k", b"before", []), (6, b"k", large, []), (7, b"k", b"behind", [])], codec))
    (first, second, third), end = fetched(OURS, content)
    assert (first[3], third[3], end) == (b"before", b"behind", 3)
    assert (second[0], second[1], second[2], second[3]) == (1, 6, None, None)
    assert int(dict(second[4])[TOO_LARGE_HEADER]) > 3 * LIMIT


def test_what_becomes_large_in_memory_is_never_whole_in_memory() -> None:
    content = bomb_of(50 * LIMIT, neighbour=b"healthy")
    assert len(content) < 10_000
    tracemalloc.start()
    (first, second), end = fetched(OURS, content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (first[3], second[3], end) == (None, b"healthy", 2)
    assert peak < 8 * LIMIT


def test_a_batch_beyond_all_limits_is_damage_up_to_its_end() -> None:
    content = bomb_of(100 * LIMIT, neighbour=b"healthy")
    tracemalloc.start()
    with pytest.raises(DamagedBatchError) as caught:
        fetched(OURS, content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (caught.value.offset, caught.value.end) == (0, 2)
    assert peak < 8 * LIMIT


def test_many_records_of_the_limit_do_not_fill_the_memory_together() -> None:
    many = [(place, None, bytes(LIMIT), []) for place in range(12)]
    read, end = fetched(OURS, bytes(batch_of(many, 4)))
    assert end == 12
    assert [value is None for _, _, _, value, _ in read] == [False] * 3 + [True] * 9


def test_a_poll_ends_where_a_largest_record_fills_it() -> None:
    content = bytes(batch_of([(place, None, bytes(LIMIT // 2), []) for place in range(5)]))
    part = OURS(0, PLACE, MemoryRecords(content))
    taken = []
    while part:
        taken.append((len(part.take(500)), part.is_full))
    assert taken == [(2, True), (2, True), (1, False)]
