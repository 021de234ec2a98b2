"""Writes to topics: dead letters, replays, and traffic for tests.

A message is safe when `flush` has returned.  Undelivered messages are retained and delivered by the next flush, so a
message may be written twice, and is never dropped.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kafka import KafkaProducer, errors

from shadowspec.errors import DeadLetterError, ServiceUnavailableError
from shadowspec.tap.kafka.broker_clients import await_topics, is_lasting, open_client, unavailable
from shadowspec.tap.kafka.kafka_settings import KafkaSettings

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

    `send` may be called by one thread and `flush` by another.
    """

    def __init__(self, settings: KafkaSettings, topic: str, *, name: str) -> None:
        """Connect.

        Raises:
            ServiceUnavailableError: no broker answers or it refuses, or there is no such topic.
        """
        self.topic = topic
        self._settings = settings
        self._lock = threading.Lock()
        self._waiting: list[OutgoingMessage] = []
        self._producer, self._client = open_client(
            KafkaProducer,
            settings,
            name,
            acks="all",
            enable_idempotence=True,
            max_request_size=MAX_REQUEST_BYTES,
            batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
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
        failed: list[OutgoingMessage] = []
        found: list[errors.KafkaError] = []
        sent: list[tuple[OutgoingMessage, Any]] = []
        try:
            for message in messages:
                try:
                    sent.append((message, self._produce(message)))
                except errors.KafkaError as error:  # no metadata of the topic
                    found.append(error)
                    failed = messages[len(sent) :]
                    break
            deadline = time.monotonic() + DELIVERY_TIMEOUT_S + 1
            for message, delivery in sent:
                try:
                    delivery.get(timeout=max(0.0, deadline - time.monotonic()))
                except errors.KafkaError as error:
                    found.append(error)
                    failed.append(message)
        except BaseException:  # interrupted: nothing is known to be safe
            failed = messages
            raise
        finally:
            if failed:
                with self._lock:
                    self._waiting = [*failed, *self._waiting]
        if found:
            # A message that is refused fails the others of its batch too, with an error that says less.
            telling = next((error for error in found if isinstance(error, REFUSED)), found[0])
            raise self._explain(telling) from telling
        return len(messages)

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


def _name(error: Exception) -> str:
    return type(error).__name__.removesuffix("Error")
