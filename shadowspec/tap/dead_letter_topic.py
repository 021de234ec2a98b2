"""Dead letters: messages that cannot be measured, kept whole on a separate topic with the reason.

The headers are those of Kafka Connect's dead-letter queue, so that its tools read them; the original key, value,
headers and timestamp are retained, and ours come last.  They never quote the message: the exception's
message is the reason code of the funnel.  A message of many records is one dead letter, with its reasons counted.  What
the topic refuses is written without its value, and at last without anything of the message's: nothing in a message may
stop its dead letter.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from kafka import TopicPartition, errors

from shadowspec.tap.kafka.batches import TOO_LARGE_HEADER
from shadowspec.tap.kafka.broker_clients import Consumer, await_topics, open_client, unavailable
from shadowspec.tap.kafka.kafka_settings import KafkaSettings
from shadowspec.tap.kafka.producer import OutgoingMessage, TopicWriter
from shadowspec.tap.sources import RawRecord

PREFIX: Final = "__connect.errors."
FIRST: Final = PREFIX + "topic"  # of our block of headers, which comes last
OMITTED: Final = "omitted.bytes"  # the size of a value that the letter does not hold
MAX_REASONS: Final = 20  # named in a letter; of the others only the number
REPLAYED: Final = "shadowspec.replayed."  # a replayed message's original coordinates
EXECUTING_CLASS: Final = "shadowspec.worker.pipeline.Pipeline"
EXCEPTION_CLASS: Final = "shadowspec.errors.RecordError"
READ_TIMEOUT_MS: Final = 10_000
POLL_MS: Final = 200
LATEST_MS: Final = 253_402_300_800_000  # the year 10000, where Python's calendar ends

Headers = tuple[tuple[str, bytes | None], ...]


class DeadLetterWriter:
    """Writes dead letters.  `send` may be called by one thread and `flush` by another."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect, and check that the topic exists.

        Raises:
            ServiceUnavailableError: no broker answers or it refuses, or there is no such topic.
        """
        self._settings = settings
        self._writer = TopicWriter(settings, settings.dead_letter_topic, name="shadowspec-dead-letters", lesser=_lesser)

    def send(self, raw: RawRecord, stage: str, reasons: Mapping[str, int], topic: str) -> None:
        """Hand over a message that came from a topic; it is safe once `flush` has returned.

        Args:
            reasons: why, with the numbers of its records; at least one.
        """
        headers = error_headers(raw, stage, reasons, topic, self._settings.group_id)
        # A topic refuses a time that is far ahead of its broker's clock, and one letter must not stop the rest.
        timestamp_ms = raw.key.timestamp_ms if 0 < raw.key.timestamp_ms <= time.time() * 1000 else None
        self._writer.send(OutgoingMessage(raw.message_key, raw.value, (*raw.headers, *headers), timestamp_ms))

    def flush(self) -> None:
        """Return once every message handed over is safe.

        Raises:
            DeadLetterError: the topic is gone or refuses a message.
            ServiceUnavailableError: no broker took it in time; the messages are retained, call again.
        """
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: its place, its origin, and the reason.  Coordinates are None where its headers have none."""

    partition: int
    offset: int
    time: datetime | None  # the original message's
    topic: str | None
    source_partition: int | None
    source_offset: int | None
    stage: str | None
    reason: str | None
    group: str | None
    num_omitted_bytes: int | None  # of a value that the topic did not take, or that the tap did not read; else None
    message: OutgoingMessage = field(repr=False)  # as it came, without the error headers


def read_dead_letters(settings: KafkaSettings, *, limit: int | None = None) -> Iterator[DeadLetter]:
    """The dead letters on the topic now, partition by partition, oldest first.

    Args:
        limit: the newest N of each partition.

    Raises:
        ServiceUnavailableError: no broker answers or it refuses, or there is no such topic.
    """
    topic = settings.dead_letter_topic
    consumer, client = open_client(
        Consumer, settings, "shadowspec-dead-letters", group_id=None, enable_auto_commit=False,
        auto_offset_reset="earliest", isolation_level="read_committed", max_record_bytes=settings.max_record_bytes,
    )  # fmt: skip
    try:
        await_topics(client, settings, (topic,))
        for number in sorted(client.cluster.partitions_for_topic(topic)):
            yield from _read_partition(consumer, TopicPartition(topic, number), limit)
    except errors.KafkaError as error:
        raise unavailable(settings, error) from error
    finally:
        consumer.close(autocommit=False)


def make_retry_message(letter: DeadLetter) -> OutgoingMessage:
    """The message to put on a retry topic: as it came, with its original coordinates beside it."""
    coordinates = {
        "topic": letter.topic,
        "partition": letter.source_partition,
        "offset": letter.source_offset,
        "reason": letter.reason,
    }
    kept = tuple(header for header in letter.message.headers if not header[0].startswith(REPLAYED))
    added = tuple((REPLAYED + name, str(value).encode()) for name, value in coordinates.items() if value is not None)
    message = letter.message
    return OutgoingMessage(message.key, message.value, (*kept, *added), message.timestamp_ms)


def error_headers(raw: RawRecord, stage: str, reasons: Mapping[str, int], topic: str, group: str) -> Headers:
    """Kafka Connect's headers for a message that failed at a stage for reasons (short codes, all of them).

    The exception's message is the most frequent reason; where there are more failed records, all are counted.
    """
    (reason, number), *others = ordered = Counter(reasons).most_common()
    values = {
        "topic": topic,
        "partition": str(raw.key.partition),
        "offset": str(raw.key.offset),
        "connector.name": group,
        "task.id": "0",
        "stage": stage,
        "class.name": EXECUTING_CLASS,
        "exception.class.name": EXCEPTION_CLASS,
        "exception.message": reason,
    }
    if number > 1 or others:
        rest = sum(number for _, number in ordered[MAX_REASONS:])
        shown = [*ordered[:MAX_REASONS], ("others", rest)] if rest else ordered
        values["reasons"] = " ".join(f"{reason}={number}" for reason, number in shown)
    if (size := dict(raw.headers).get(TOO_LARGE_HEADER)) is not None:
        values[OMITTED] = size.decode("utf-8", "replace")
    return tuple((PREFIX + name, value.encode()) for name, value in values.items())


def split_headers(headers: Headers) -> tuple[Headers, Mapping[str, str]]:
    """The original headers, and our headers by their short names.

    A message may have been a dead letter of another system before, so only the last block is ours.
    """
    begin = max((place for place, (name, _) in enumerate(headers) if name == FIRST), default=None)
    if begin is None:
        return headers, {}
    own_headers = {
        name.removeprefix(PREFIX): (value or b"").decode("utf-8", "replace")
        for name, value in headers[begin:]
        if name.startswith(PREFIX)
    }
    return headers[:begin], own_headers


def _lesser(message: OutgoingMessage) -> Iterator[OutgoingMessage]:
    """What to write in place of a letter that the topic refuses: without its value, then our headers alone."""
    begin = max(place for place, (name, _) in enumerate(message.headers) if name == FIRST)
    own = message.headers[begin:]
    if message.value and all(name != PREFIX + OMITTED for name, _ in own):
        own = (*own, (PREFIX + OMITTED, str(len(message.value)).encode()))
    yield OutgoingMessage(message.key, None, (*message.headers[:begin], *own), message.timestamp_ms)
    yield OutgoingMessage(None, None, own)


def _read_partition(consumer: Any, place: TopicPartition, limit: int | None) -> Iterator[DeadLetter]:
    begin = consumer.beginning_offsets([place], timeout_ms=READ_TIMEOUT_MS)[place]
    end = consumer.end_offsets([place], timeout_ms=READ_TIMEOUT_MS)[place]
    consumer.assign([place])
    consumer.seek(place, begin if limit is None else max(begin, end - limit))
    progressed_at = time.monotonic()
    # The position, not the last record, says when the end is reached: transaction markers may be the end.
    while (position := consumer.position(place, timeout_ms=READ_TIMEOUT_MS)) < end:
        for messages in consumer.poll(timeout_ms=POLL_MS).values():
            yield from (_letter(place.partition, message) for message in messages if message.offset < end)
        if consumer.position(place, timeout_ms=READ_TIMEOUT_MS) > position:
            progressed_at = time.monotonic()
        elif time.monotonic() - progressed_at > READ_TIMEOUT_MS / 1000:
            raise errors.KafkaTimeoutError(f"nothing came of {place.topic}[{place.partition}] in {READ_TIMEOUT_MS} ms")


def _letter(partition: int, message: Any) -> DeadLetter:
    original, said = split_headers(tuple(message.headers))
    timestamp_ms = message.timestamp if 0 < message.timestamp < LATEST_MS else None
    return DeadLetter(
        partition=partition,
        offset=message.offset,
        time=None if timestamp_ms is None else datetime.fromtimestamp(timestamp_ms / 1000, UTC),
        topic=said.get("topic"),
        source_partition=_number(said.get("partition")),
        source_offset=_number(said.get("offset")),
        stage=said.get("stage"),
        reason=said.get("exception.message"),
        group=said.get("connector.name"),
        num_omitted_bytes=_number(said.get(OMITTED)),
        message=OutgoingMessage(message.key, message.value, original, timestamp_ms),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
