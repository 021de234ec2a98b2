"""Batches of records, read in one loop each, and those too that kafka-python cannot read.

Kafka's protocol calls a header's name a string, but brokers do not look: any producer may write any bytes.
kafka-python raises on the first such record, and its next poll never returns.  Here such a name is read
with its odd bytes written as \\xNN, so that the record comes like every other.  And what the codecs raise on a
damaged batch is one error, so that whoever polls can step over it.

Of every record kafka-python makes two objects, with some forty calls; here it is read into what the tap uses of it.
Checksums, transactions, positions and everything else are still the library's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kafka import TopicPartition, errors
from kafka.consumer.fetcher import Fetcher, IsolationLevel
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch

NEWEST_FORMAT: Final = 2  # of batches, since Kafka 0.11; a broker that was upgraded may still hold older ones
_VARINT_BITS = 64
MAX_REMEMBERED_NAMES = 1_000  # of headers; a mirror's hardly vary


class Message(NamedTuple):
    """One record as the tap takes it; `timestamp` in ms, the producer's or the broker's as the topic says."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class LenientBatch(DefaultRecordBatch):  # type: ignore[misc] # kafka-python has no types
    """A record batch that reads every name of a header, and calls damage by one name."""

    def _maybe_uncompress(self) -> None:
        try:
            super()._maybe_uncompress()
        except (errors.KafkaError, MemoryError):
            raise
        except Exception as error:
            raise errors.CorruptRecordError(f"a batch cannot be decompressed: {type(error).__name__}") from error

    def messages(self) -> Iterator[Message]:
        """Its records in order, field by field as the protocol lays them out.

        Raises:
            CorruptRecordError: damage, after the records before it.
            UnsupportedCodecError: packed by a codec that nobody here knows.
        """
        self._maybe_uncompress()
        buffer = bytes(self._buffer)  # a slice of a bytearray would be copied twice
        position: int = self._pos
        base_offset, first_timestamp = self.base_offset, self.first_timestamp
        broker_time = self.max_timestamp if self.timestamp_type == self.LOG_APPEND_TIME else None
        try:
            for _ in range(self._num_records):
                length, position = _varint(buffer, position)
                end = position + length
                delta, position = _varint(buffer, position + 1)  # behind the attributes, which say nothing
                timestamp = first_timestamp + delta if broker_time is None else broker_time
                delta, position = _varint(buffer, position)
                key, position = _bytes(buffer, position)
                value, position = _bytes(buffer, position)
                count, position = _varint(buffer, position)
                headers = []
                for _ in range(count):
                    name, position = _bytes(buffer, position)
                    content, position = _bytes(buffer, position)
                    headers.append((_header_name(name), content))
                if position != end or count < 0:
                    raise ValueError("a record does not end where it says")
                yield Message(base_offset + delta, timestamp, key, value, tuple(headers))
        except (ValueError, IndexError) as error:
            raise errors.CorruptRecordError(f"a record cannot be read: {type(error).__name__}") from error
        if position != len(buffer):
            raise errors.CorruptRecordError("a batch does not end with its last record")


class PartitionMessages(Fetcher.PartitionRecords):  # type: ignore[misc]
    """What was fetched of one partition, as messages."""

    def _unpack_records(self, tp: TopicPartition, records: Any, *_: object) -> Iterator[Message]:
        while (batch := records.next_batch()) is not None:
            if self.check_crcs and not batch.validate_crc():
                raise errors.CorruptRecordError(f"the checksum of the batch at offset {batch.base_offset} is wrong")
            if batch.magic == NEWEST_FORMAT:
                self.leader_epoch = batch.leader_epoch
                if not self._is_skipped(batch):
                    for message in batch.messages():
                        self.next_fetch_offset = message.offset + 1
                        yield message
                self.next_fetch_offset = batch.next_offset  # compaction may have taken its last records
            else:
                yield from self._old_messages(batch)
        self.drain()

    def _is_skipped(self, batch: LenientBatch) -> bool:
        """Whether nobody is to see the batch: it marks a transaction's end, or belongs to one that was aborted."""
        if self.isolation_level == IsolationLevel.READ_COMMITTED and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)

    def _old_messages(self, batch: Any) -> Iterator[Message]:
        """Records of the formats before the newest, as kafka-python reads them."""
        for record in batch:
            if self.check_crcs and not record.validate_crc():
                raise errors.CorruptRecordError(f"the checksum of the record at offset {record.offset} is wrong")
            self.next_fetch_offset = record.offset + 1
            yield Message(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))


def read_every_batch(consumer: Any) -> None:
    """Let a consumer, and every other of this process, read its batches so; its polls give `Message`s."""
    memory_records.DefaultRecordBatch = LenientBatch
    consumer._fetcher.PartitionRecords = PartitionMessages  # noqa: SLF001 - there is no other way in


def unreadable_place(consumer: Any) -> tuple[TopicPartition, int]:
    """The partition and offset that a consumer's poll has just failed to read.

    Seek past it before the next poll: kafka-python would try to go on with what is left of the batch, which is
    nothing, for ever.
    """
    failed = consumer._fetcher._next_partition_records  # noqa: SLF001 - its errors do not say
    return failed.topic_partition, failed.next_fetch_offset


def _varint(buffer: bytes, position: int) -> tuple[int, int]:
    """A zigzag number, and the place behind it."""
    result = buffer[position]
    position += 1
    if result > 0x7F:
        result &= 0x7F
        shift = 7
        while True:
            byte = buffer[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                break
            shift += 7
            if shift >= _VARINT_BITS:
                raise ValueError("a number has too many bytes")
    return (result >> 1) ^ -(result & 1), position


def _bytes(buffer: bytes, position: int) -> tuple[bytes | None, int]:
    """A field with its length before it, and the place behind it; a negative length is null."""
    length = buffer[position]
    if length > 0x7F:
        length, position = _varint(buffer, position)
    else:  # most are short: not worth a call
        length, position = (length >> 1) ^ -(length & 1), position + 1
    if length < 0:
        return None, position
    end = position + length
    return buffer[position:end], end


@lru_cache(maxsize=MAX_REMEMBERED_NAMES)
def _header_name(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "backslashreplace")
