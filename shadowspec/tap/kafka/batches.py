"""Batches that kafka-python cannot read: header names that are not UTF-8, and damage without an error class.

Kafka's protocol calls a header's name a string, but brokers do not check: a producer may write any bytes.  kafka-python
refuses such a record, and with it the rest of its batch.  Here the invalid bytes are written as \\xNN, so that the
record is read like every other.  Any exception of a codec on a damaged batch becomes one error with the place of the
damage, so that the reader can step over it.

Everything else is the library's: checksums, transactions, positions and the layout of ordinary records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka import TopicPartition, errors
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint

NEWEST_FORMAT = 2  # of batches, since Kafka 0.11: the only one that has headers


class DamagedBatchError(errors.CorruptRecordError):  # type: ignore[misc] # kafka-python has no types
    """The record at `offset` of `place` cannot be read.

    Seek past it before the next poll: the library would retry the rest of the batch, which is empty, forever.
    """

    def __init__(self, place: TopicPartition, offset: int, cause: Exception) -> None:
        super().__init__(f"{place.topic}[{place.partition}]@{offset} cannot be read: {type(cause).__name__}")
        self.place, self.offset = place, offset


class LenientBatch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch of which every header name can be read."""

    _buffer: bytearray
    _pos: int

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
    """The fetched records of one partition.  A consumer's fetcher makes them of its attribute `PartitionRecords`."""

    def _unpack_records(self, tp: TopicPartition, records: Any, *deserializers: Any) -> Iterator[Any]:
        """The library's records.

        Raises:
            DamagedBatchError: damage, after the records before it.
            UnsupportedCodecError: compressed by a codec that this installation does not have.
        """
        try:
            yield from super()._unpack_records(tp, _Batches(self, records), *deserializers)
        except (errors.UnsupportedCodecError, MemoryError):
            raise
        except Exception as error:
            raise DamagedBatchError(tp, max(self.fetch_offset, self.next_fetch_offset), error) from error


class _Batches:
    """The batches of a fetch, in order."""

    def __init__(self, part: PartitionRecords, records: Any) -> None:
        self._part, self._records = part, records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if batch is None or batch.magic != NEWEST_FORMAT:
            return batch
        # Compaction may have removed the last records of the previous batch: they are not part of this one's damage.
        self._part.next_fetch_offset = max(self._part.next_fetch_offset, batch.base_offset)
        return LenientBatch(batch._buffer)  # noqa: SLF001 - the library offers no other way to name the class


def _bytes(buffer: bytearray, position: int) -> tuple[bytes | None, int]:
    """A field with its length before it, and the position after it; a negative length is null."""
    length, position = decode_varint(buffer, position)
    if length < 0:
        return None, position
    return bytes(buffer[position : position + length]), position + length
