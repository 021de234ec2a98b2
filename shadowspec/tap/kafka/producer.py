"""Writes to topics: dead letters, replays, and traffic for tests.

A message is safe when `flush` has returned.  Undelivered messages are retained and delivered by the next flush, so a
message may be written twice, and is never dropped.

Recorded traffic is put on a topic by `batches`: which key a record gets, and when it is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

from kafka import KafkaProducer, errors

from shadowspec.errors import DeadLetterError, RecordError, ServiceUnavailableError
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.kafka.broker_clients import await_topics, is_lasting, open_client, unavailable
from shadowspec.tap.kafka.kafka_settings import KafkaSettings
from shadowspec.tap.sources import RawRecord

DELIVERY_TIMEOUT_S: Final = 30.0  # a flush that takes longer is reported, and repeated
CLOSE_TIMEOUT_S: Final = 2.0
MAX_REQUEST_BYTES: Final = 2**30  # the broker and the topic set the limit
BATCH_BYTES: Final = 256 * 1024
LINGER_MS: Final = 5

# Errors that are the topic's objection to a message, not the broker's.
REFUSED: Final = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTimestampError,
    errors.InvalidRecordError,
    errors.PolicyViolationError,
    errors.TopicAuthorizationFailedError,
)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to write.  `timestamp_ms` None: now."""

    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    headers: tuple[tuple[str, bytes | None], ...] = field(default=(), repr=False)
    timestamp_ms: int | None = None


class TopicWriter:
    """Writes to one topic, acknowledged by every replica in sync; each message once per flush that succeeds.

    Batches are compressed, as those of a mirror are: a topic limits them as they are compressed, so that what came
    through one topic passes through another.  `send` may be called by one thread and `flush` by another.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        *,
        name: str,
        lesser: Callable[[OutgoingMessage], Iterable[OutgoingMessage]] | None = None,
    ) -> None:
        """Connect.

        Args:
            lesser: what to write, one after the other, in place of a message that the topic refuses (None: nothing).

        Raises:
            ServiceUnavailableError: no broker answers or it refuses, or there is no such topic.
        """
        self.topic = topic
        self._settings = settings
        self._lock = threading.Lock()
        self._waiting: list[OutgoingMessage] = []
        self._lesser = lesser
        self._producer, self._client = open_client(
            KafkaProducer,
            settings,
            name,
            acks="all",
            # An idempotent producer of the library fails for good once the topic has refused one message.
            enable_idempotence=lesser is None,
            max_request_size=MAX_REQUEST_BYTES,
            batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
            compression_type="zstd",
            max_block_ms=int(DELIVERY_TIMEOUT_S * 1000),
            delivery_timeout_ms=int(DELIVERY_TIMEOUT_S * 1000),
        )
        try:
            await_topics(self._client, settings, (topic,))
        except BaseException:
            self.close()
            raise

    def send(self, message: OutgoingMessage) -> None:
        """Hand over a message; nothing is written before `flush`."""
        with self._lock:
            self._waiting.append(message)

    def flush(self) -> int:
        """Write the waiting messages; returns the number written once every one of them is safe.

        Raises:
            DeadLetterError: the topic is gone or refuses such a message.
            ServiceUnavailableError: no broker took it in time; call again.
        """
        with self._lock:
            messages, self._waiting = self._waiting, []
        failed = messages  # interrupted: nothing is known to be safe
        try:
            failed, delivery_errors = self._deliver(messages)
            if self._lesser is not None and _refusal(delivery_errors) is not None:
                # A message that is refused fails the others of its batch too, with an error that says less.
                refused, failed, delivery_errors = failed, [], []
                for message in refused:
                    if error := self._deliver_alone(message):
                        failed.append(message)
                        delivery_errors.append(error)
        finally:
            if failed:
                with self._lock:
                    self._waiting = [*failed, *self._waiting]
        if delivery_errors:
            telling = _refusal(delivery_errors) or delivery_errors[0]
            raise self._explain(telling) from telling
        return len(messages)

    def _deliver(self, messages: list[OutgoingMessage]) -> tuple[list[OutgoingMessage], list[errors.KafkaError]]:
        """Write messages; returns those that are not safe, and why."""
        failed: list[OutgoingMessage] = []
        delivery_errors: list[errors.KafkaError] = []
        sent: list[tuple[OutgoingMessage, Any]] = []
        for message in messages:
            try:
                sent.append((message, self._produce(message)))
            except errors.KafkaError as error:  # no metadata of the topic
                delivery_errors.append(error)
                failed = messages[len(sent) :]
                break
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S + 1
        for message, delivery in sent:
            try:
                delivery.get(timeout=max(0.0, deadline - time.monotonic()))
            except errors.KafkaError as error:
                delivery_errors.append(error)
                failed.append(message)
        return failed, delivery_errors

    def _deliver_alone(self, message: OutgoingMessage) -> errors.KafkaError | None:
        """Write a message in a batch of its own, or the first lesser one that the topic takes; the error if none is."""
        assert self._lesser is not None
        error = None
        for form in (message, *self._lesser(message)):
            _, delivery_errors = self._deliver([form])
            error = delivery_errors[0] if delivery_errors else None
            if not isinstance(error, REFUSED):
                break
        return error

    def close(self) -> None:
        """Close the connection.  Messages that were not flushed are not written."""
        self._producer.close(timeout=CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _produce(self, message: OutgoingMessage) -> Any:
        # kafka-python writes neither a header that is null nor a message that is null in key and value: both
        # become empty.
        is_null = message.key is None and message.value is None
        return self._producer.send(
            self.topic,
            key=message.key,
            value=b"" if is_null else message.value,
            headers=[(name, b"" if value is None else value) for name, value in message.headers],
            timestamp_ms=message.timestamp_ms,
        )

    def _explain(self, error: Exception) -> ServiceUnavailableError:
        """A topic that is gone shows as a time-out; where the brokers answer, it is the topic."""
        if isinstance(error, REFUSED):
            return DeadLetterError(f"topic {self.topic} refuses a message: {_name(error)}")
        if self._client.is_connected and self._client.cluster.partitions_for_topic(self.topic) is None:
            return DeadLetterError(f"topic {self.topic} is gone")
        if is_lasting(error):
            return DeadLetterError(f"topic {self.topic}: {unavailable(self._settings, error)}")
        return unavailable(self._settings, error)


def _refusal(delivery_errors: Sequence[errors.KafkaError]) -> errors.KafkaError | None:
    return next((error for error in delivery_errors if isinstance(error, REFUSED)), None)


def _name(error: Exception) -> str:
    return type(error).__name__.removesuffix("Error")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message to produce, and when its request was made; None if it does not say."""

    message: OutgoingMessage
    time: datetime | None


def arrival(raw: RawRecord) -> Arrival:
    """A line of a file as a message.  A line that cannot be read is sent unchanged, without key and time.

    The key is the record's session, else its user, else its request id, so that a session's requests stay in order; of
    the halves of a call it is their common id.
    """
    opened = open_message(raw, MessageFormat.AUTO)[0]
    key: str | None = None
    time: datetime | None = None
    if opened.half is not None:
        key, time = opened.half.join_id, opened.half.event_time
    elif opened.record is not None:
        record = opened.record
        key = record.session() or record.user_id() or record.request_identity()
        try:
            time = record.event_time(0)
        except RecordError:
            time = None
    message = OutgoingMessage(None if key is None else key.encode("utf-8", "surrogatepass"), raw.value, raw.headers)
    return Arrival(message, time)


class Pace:
    """When each message is due, in seconds from the first: by a steady rate, by recorded times, or at once.

    A message that is earlier than the one before it, or has no time, is due with that one.
    """

    def __init__(self, *, rate: float | None = None, trace_speed: float | None = None) -> None:
        """`rate` in messages per second; `trace_speed` as a multiple of the recorded speed; at most one of them."""
        assert rate is None or trace_speed is None
        self._rate, self._speed = rate, trace_speed
        self._count = 0
        self._first: datetime | None = None
        self._due = 0.0

    def due_s(self, arriving: Arrival) -> float:
        """When this message, the next one, is due."""
        self._count += 1
        if self._rate is not None:
            return (self._count - 1) / self._rate
        if self._speed is not None and arriving.time is not None:
            self._first = self._first or arriving.time
            self._due = max(self._due, (arriving.time - self._first).total_seconds() / self._speed)
        return self._due


def batches(
    arrivals: Iterator[Arrival], pace: Pace, *, max_messages: int, max_bytes: int, tick_s: float
) -> Iterator[tuple[float, list[OutgoingMessage]]]:
    """Messages that can be sent together, with when the batch is due; none is more than a tick early."""
    batch: list[OutgoingMessage] = []
    batch_due = 0.0
    num_bytes = 0
    for arriving in arrivals:
        due = pace.due_s(arriving)
        if batch and (due > batch_due + tick_s or len(batch) >= max_messages or num_bytes >= max_bytes):
            yield batch_due, batch
            batch, num_bytes = [], 0
        if not batch:
            batch_due = due
        batch.append(arriving.message)
        num_bytes += len(arriving.message.value or b"")
    if batch:
        yield batch_due, batch
