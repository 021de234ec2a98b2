"""Batches that kafka-python cannot read: odd header names, damage without an error class, and too much in them.

Kafka's protocol calls a header's name a string, but brokers do not check: a producer may write any bytes.  kafka-python
refuses such a record, and with it the rest of its batch.  Here the invalid bytes are written as \\xNN, so that the
record is read like every other.  Any exception of a codec on a damaged batch becomes one error with the place of the
damage, so that the reader can step over it.

The broker limits a batch as it is compressed, and 18 kB may become gigabytes.  The library holds the whole of it; here
it is decompressed in steps.  A record above the limit is passed over and becomes a short one that gives its size, so
that its neighbours are read.  One poll returns about one largest record's bytes.

Everything else is the library's: checksums, transactions, positions and the layout of ordinary records.
"""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import lz4.frame
import snappy
import zstandard
from kafka import TopicPartition, errors
from kafka.codec import _detect_xerial_stream
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint, encode_varint

NEWEST_FORMAT = 2  # of batches, since Kafka 0.11: the only one that has headers

TOO_LARGE_HEADER: Final = "shadowspec.too_large"  # in place of the value: the record's bytes
MAX_LARGEST_IN_BATCH: Final = 4  # largest records that a batch may hold in memory; those behind them are passed over
MAX_LARGEST_IN_STREAM: Final = 64  # largest records that are decompressed of a batch before it counts as damaged
STEP_BYTES: Final = 1024 * 1024  # decompressed at a time
FRAME_BYTES: Final = 1024 * 1024  # beside the value of a record: its key and headers
HEAD_BYTES: Final = 32  # the most that attributes, time and offset of a record take


class DamagedBatchError(errors.CorruptRecordError):  # type: ignore[misc] # kafka-python has no types
    """The records from `offset` up to `end` of `place` cannot be read.

    Seek past them before the next poll: the library would retry the rest of the batch, which is empty, forever.
    """

    def __init__(self, place: TopicPartition, offset: int, end: int, cause: Exception) -> None:
        super().__init__(f"{place.topic}[{place.partition}]@{offset} cannot be read: {type(cause).__name__}")
        self.place, self.offset, self.end = place, offset, end


class UndecompressableError(errors.CorruptRecordError):  # type: ignore[misc]
    """A batch cannot be decompressed, or becomes too large: none of its records can be read."""


class LenientBatch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch of which every header name can be read, and which takes no more memory than its limit."""

    _buffer: bytearray
    _pos: int
    _decompressed: bool

    def __init__(self, buffer: Any, max_record_bytes: int) -> None:
        super().__init__(buffer)
        self._max_record_bytes = max_record_bytes

    def _maybe_uncompress(self) -> None:
        codec = self.compression_type
        if self._decompressed or codec == self.CODEC_NONE:
            self._decompressed = True
            return
        self._assert_has_codec(codec)
        payload = bytes(memoryview(self._buffer)[self._pos :])
        try:
            self._buffer = _within_limits(_STREAMS[codec](payload), self._max_record_bytes)
        except MemoryError:
            raise
        except Exception as error:
            raise UndecompressableError(type(error).__name__) from error
        self._pos = 0
        self._decompressed = True

    def _read_msg(self, *arguments: Any) -> DefaultRecord:
        try:
            return super()._read_msg(*arguments)
        except UnicodeDecodeError:  # the position is still before the record
            return self._read_odd_names()

    def _read_odd_names(self) -> DefaultRecord:
        """The record at the position, field by field as the protocol lays them out."""
        buffer = self._buffer
        length, begin = decode_varint(buffer, self._pos)
        _, position = decode_varint(buffer, begin)  # attributes, of which none is in use
        timestamp_delta, position = decode_varint(buffer, position)
        offset_delta, position = decode_varint(buffer, position)
        key, position = _bytes(buffer, position)
        value, position = _bytes(buffer, position)
        count, position = decode_varint(buffer, position)
        headers = []
        for _ in range(count):
            name, position = _bytes(buffer, position)
            content, position = _bytes(buffer, position)
            headers.append(((name or b"").decode("utf-8", "backslashreplace"), content))
        if position - begin != length:
            raise errors.CorruptRecordError("a record does not end where it says")
        self._pos = position
        is_broker_time = self.timestamp_type == self.LOG_APPEND_TIME
        timestamp = self.max_timestamp if is_broker_time else self.first_timestamp + timestamp_delta
        return DefaultRecord(
            length, self.base_offset + offset_delta, timestamp, self.timestamp_type, key, value, headers
        )


class PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The fetched records of one partition."""

    def __init__(self, *arguments: Any, max_record_bytes: int, **settings: Any) -> None:
        self.max_record_bytes = max_record_bytes
        self.is_full = False  # the last `take` ended before the records did
        super().__init__(*arguments, **settings)

    def take(self, n: int | None = None) -> list[Any]:
        """At most `n` records, and none after those that have a largest record's bytes together.

        An error behind the first record waits for the next call, as in the library.
        """
        self._maybe_raise_next_inline_exception()
        records: list[Any] = []
        room = self.max_record_bytes
        try:
            for record in itertools.islice(self.record_iterator, 0, n):
                records.append(record)
                room -= record.serialized_value_size
                if room <= 0:
                    break
        except Exception as error:
            if not records:
                raise
            self._next_inline_exception = error
        self.is_full = room <= 0
        return records

    def _unpack_records(self, tp: TopicPartition, records: Any, *deserializers: Any) -> Iterator[Any]:
        """The library's records.

        Raises:
            DamagedBatchError: damage, after the records before it.
            UnsupportedCodecError: compressed by a codec that this installation does not have.
        """
        batches = _Batches(self, records)
        try:
            yield from super()._unpack_records(tp, batches, *deserializers)
        except (errors.UnsupportedCodecError, MemoryError):
            raise
        except Exception as error:
            offset = max(self.fetch_offset, self.next_fetch_offset)
            # Of other damage the next record may follow in the same batch.
            end = batches.end if isinstance(error, UndecompressableError) else offset + 1
            raise DamagedBatchError(tp, offset, max(end, offset + 1), error) from error


class BoundedFetcher(Fetcher):  # type: ignore[misc]
    """A consumer's fetcher that ends a poll where a partition's records have filled it.

    A consumer makes its fetcher itself: set the class of that one, and `max_record_bytes`.
    """

    max_record_bytes: int

    def PartitionRecords(self, *arguments: Any, **settings: Any) -> PartitionRecords:  # noqa: N802 - the library's
        return PartitionRecords(*arguments, max_record_bytes=self.max_record_bytes, **settings)

    def _append(self, drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        number: int = super()._append(drained, part, max_records, update_offsets)
        return max_records if number and part.is_full else number


class _Batches:
    """The batches of a fetch, in order."""

    def __init__(self, part: PartitionRecords, records: Any) -> None:
        self._part, self._records = part, records
        self.end = 0  # of the last batch: the offset behind it

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if batch is None or batch.magic != NEWEST_FORMAT:
            return batch
        # Compaction may have removed the last records of the previous batch: they are not part of this one's damage.
        self._part.next_fetch_offset = max(self._part.next_fetch_offset, batch.base_offset)
        self.end = batch.next_offset
        # The library offers no other way to name the class.
        return LenientBatch(batch._buffer, self._part.max_record_bytes)  # noqa: SLF001


def _within_limits(steps: Iterable[bytes], max_record_bytes: int) -> bytearray:
    """The records of a decompressed batch; one beyond the limits has no value, and its size in a header.

    Raises:
        CorruptRecordError: the stream ends inside a record, or goes on beyond all limits.
    """
    stream = _Stream(steps, MAX_LARGEST_IN_STREAM * max_record_bytes)
    if stream.fill(max_record_bytes + 1) <= max_record_bytes:  # the rule: no record can be above the limit
        return stream.held
    kept, limit = bytearray(), max_record_bytes + FRAME_BYTES
    while stream.fill(1):
        length = stream.length_of_record()
        if length <= limit and len(kept) + length <= MAX_LARGEST_IN_BATCH * max_record_bytes:
            encode_varint(length, kept.append)
            kept += stream.take(length)
        else:
            head = stream.take(min(length, HEAD_BYTES))
            stream.skip(length - len(head))
            kept += _stand_in(head, length)
    return kept


def _stand_in(head: bytes, size: int) -> bytes:
    """A record in place of one of `size` bytes, whose first bytes are given."""
    position = 0
    for _ in range(3):  # attributes, time and offset are as they were
        _, position = decode_varint(head, position)
    body = bytearray(head[:position])
    name, value = TOO_LARGE_HEADER.encode(), str(size).encode()
    for number in (-1, -1, 1):  # no key, no value, one header
        encode_varint(number, body.append)
    for content in (name, value):
        encode_varint(len(content), body.append)
        body += content
    record = bytearray()
    encode_varint(len(body), record.append)
    return bytes(record + body)


class _Stream:
    """Bytes that come in steps, of which only the unread ones are held."""

    def __init__(self, steps: Iterable[bytes], max_bytes: int) -> None:
        self._steps, self._room = iter(steps), max_bytes
        self.held = bytearray()

    def fill(self, number: int) -> int:
        """Have so many bytes at hand; returns how many there are, fewer only at the end."""
        while len(self.held) < number and (step := next(self._steps, None)) is not None:
            self._room -= len(step)
            if self._room < 0:
                raise errors.CorruptRecordError("a batch is too large")
            self.held += step
        return len(self.held)

    def take(self, number: int) -> bytes:
        if self.fill(number) < number:
            raise errors.CorruptRecordError("a batch ends inside a record")
        taken = bytes(memoryview(self.held)[:number])
        del self.held[:number]
        return taken

    def skip(self, number: int) -> None:
        while number > 0:
            number -= len(self.take(min(number, STEP_BYTES)))

    def length_of_record(self) -> int:
        self.fill(10)  # the longest a number may be
        length, position = decode_varint(self.held, 0)
        if length < 0:
            raise errors.CorruptRecordError("a record has a negative length")
        del self.held[:position]
        return int(length)


def _gzip_steps(payload: bytes) -> Iterator[bytes]:
    while payload:  # of several members too
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not member.eof:
            step = member.decompress(payload, STEP_BYTES)
            if not step and not member.unconsumed_tail and not member.eof:
                raise EOFError("gzip ends too early")
            payload = member.unconsumed_tail
            yield step
        payload = member.unused_data


def _lz4_steps(payload: bytes) -> Iterator[bytes]:
    while payload:
        frame = lz4.frame.LZ4FrameDecompressor()
        unread: bytes | None = payload
        while not frame.eof:
            step = frame.decompress(unread or b"", STEP_BYTES)
            if not step and frame.needs_input and not frame.eof:
                raise EOFError("lz4 ends too early")
            unread = None
            yield step
        payload = frame.unused_data or b""


def _zstd_steps(payload: bytes) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(payload), read_across_frames=True) as reader:
        while step := reader.read(STEP_BYTES):
            yield step


def _snappy_steps(payload: bytes) -> Iterator[bytes]:
    """Snappy's blocks have no steps; one becomes at most about 21 times as large."""
    if not _detect_xerial_stream(payload):
        yield snappy.decompress(payload)
        return
    position = 16
    while position < len(payload):
        (size,) = struct.unpack_from("!i", payload, position)
        position += 4
        if size <= 0:
            raise errors.CorruptRecordError("a block has no length")
        yield snappy.decompress(payload[position : position + size])
        position += size


_STREAMS: Final = {
    DefaultRecordBatch.CODEC_GZIP: _gzip_steps,
    DefaultRecordBatch.CODEC_SNAPPY: _snappy_steps,
    DefaultRecordBatch.CODEC_LZ4: _lz4_steps,
    DefaultRecordBatch.CODEC_ZSTD: _zstd_steps,
}


def _bytes(buffer: bytearray, position: int) -> tuple[bytes | None, int]:
    """A field with its length before it, and the position after it; a negative length is null."""
    length, position = decode_varint(buffer, position)
    if length < 0:
        return None, position
    return bytes(buffer[position : position + length]), position + length
