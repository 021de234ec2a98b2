"""Topics of the tests and what stands in them, through kafka-python's administration client and through kcat.

kcat (librdkafka) is the independent producer and consumer: what it writes, our consumer must read, and the
other way round.
"""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition, errors

from shadowspec.tap.kafka.broker_clients import Client
from tests.services import PATIENCE_S

# Topics that tests make on a broker that they share: by `create`, those of the documentation's pages, and the broker's
# own list of transactions, in which no message of a client stands.
OTHERS = re.compile(r"test-[0-9a-f]{12}|shadow\.(prompts|retry|dead-letters)|__transaction_state")
KCAT_TIMEOUT_S = 30  # it waits for a leader without a word, for as long as there is none
# What kcat says of a broker that is not ready yet.
PASSING = (
    "broker connections are down",
    "Local: Broker transport failure",
    "Local: Timed out",
    "Broker: Leader not available",
)


@dataclass(frozen=True, slots=True)
class Message:
    """One message to write; `partition` None: by key."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Topics:
    """Creates topics on one broker, and deletes them at the end unless the broker goes with them."""

    def __init__(self, bootstrap: str, *, deletes: bool = True) -> None:
        self.bootstrap = bootstrap
        self._deletes = deletes
        # The library's clients leave sockets open.
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap, kafka_client=Client())
        self._made: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            existing = set(self.admin.list_topics()) if self._deletes else set()
            if made := [name for name in self._made if name in existing]:
                self.admin.delete_topics(made)
        finally:
            self.admin.close()

    def create(self, partitions: int = 1, *, name: str | None = None, **settings: object) -> str:
        """A new topic; settings are the topic's own, dots written as underscores."""
        name = name or f"test-{uuid.uuid4().hex[:12]}"
        configs = {key.replace("_", "."): str(value) for key, value in settings.items()}
        wanted = {name: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}}
        self.admin.create_topics(wanted, wait_for_metadata=True)
        self._made.add(name)
        return name

    def names(self) -> set[str]:
        """The broker's topics, without those that other tests make on it meanwhile."""
        found = self.admin.list_topics()
        return {name for name in found if name in self._made or not OTHERS.fullmatch(name)}

    def create_again(self, name: str, partitions: int) -> None:
        """Create a topic that was just deleted, as soon as the broker lets us."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.create(partitions, name=name)
                return
            except errors.TopicAlreadyExistsError:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])

    def topic_id(self, name: str) -> uuid.UUID:
        (described,) = self.admin.describe_topics([name])
        return uuid.UUID(str(described["topic_id"]))

    def forget_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        self.admin.delete_records({TopicPartition(topic, partition): offset})

    def write(self, topic: str, messages: Iterable[Message], **settings: Any) -> list[tuple[int, int]]:
        """Write messages with kafka-python; their partitions and offsets."""
        entry = {"bootstrap_servers": self.bootstrap, "acks": "all", "max_request_size": 2**26}
        producer = KafkaProducer(kafka_client=Client(), **entry, **settings)
        try:
            sent = [
                producer.send(
                    topic, value=m.value, key=m.key, headers=list(m.headers), partition=m.partition,
                    timestamp_ms=m.timestamp_ms,
                )
                for m in messages
            ]  # fmt: skip
            producer.flush()
            found = [future.get(timeout=PATIENCE_S) for future in sent]
            return [(metadata.partition, metadata.offset) for metadata in found]
        finally:
            producer.close()


def kcat(bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run kcat; what it printed."""
    # librdkafka may try ::1 first for localhost, and kcat takes one refusal for the end of all brokers.
    command = ["kcat", "-b", bootstrap, "-X", "broker.address.family=v4", *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=KCAT_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        raise AssertionError(f"kcat: Local: Timed out, after {KCAT_TIMEOUT_S} s: {said}") from error
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def read_topic(bootstrap: str, topic: str, pattern: str = "%s", extra: Sequence[str] = ()) -> list[str]:
    """Everything in a topic, one text per message in kcat's format."""
    arguments = ("-C", "-t", topic, "-e", "-q", "-o", "beginning", "-f", pattern + "\x1e", *extra)
    # kcat does not connect again: whatever it meets at a broker that has just started, or on a busy machine, ends it.
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            printed = kcat(bootstrap, *arguments)
            break
        except AssertionError as error:
            if not any(passing in str(error) for passing in PASSING) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    return printed.decode(errors="backslashreplace").split("\x1e")[:-1]
