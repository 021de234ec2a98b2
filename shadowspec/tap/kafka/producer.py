"""Writes to topics: dead letters, replays, and traffic for tests.

A message is safe when `flush` has returned.  Undelivered messages are retained and delivered by the next flush, so a
message may be written twice, and is never dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kafka import KafkaProducer, errors

from shadowspec.errors import DeadLetterError, ServiceUnavailableError
from shadowspec.tap.kafka.broker_clients import await_topics, is_lasting, open_client, unavailable
from shadowspec.tap.kafka.kafka_settings import KafkaSettings

DELIVERY_TIMEOUT_S: Final = 30.0  # a flush that takes longer is reported, and repeated
PATIENCE_S: Final = 120.0  # of waiting for a broker that is gone
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


def deliver(
    writer: TopicWriter,
    messages: Iterable[OutgoingMessage] = (),
    *,
    patience_s: float = PATIENCE_S,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Write messages, and go on trying while that may help.

    Raises:
        ServiceUnavailableError: the brokers stayed away for `patience_s` or until `is_stopping`, or refuse.
    """
    for message in messages:
        writer.send(message)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            writer.flush()
            return
        except ServiceUnavailableError as error:
            if not error.is_retryable or time.monotonic() > deadline or is_stopping():
                raise
