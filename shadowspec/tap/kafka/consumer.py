"""The consumer: messages of the mirrored topics from the ledger's place, and commits behind it.

Invariants:
- No record of a partition is delivered before `start` was called for this assignment of it, nor after the
  partition has gone; a partition that comes back is restarted.
- A record's source is the id of its topic.  A topic that was deleted and made again has another id, so its
  partitions go and come as new ones.
- Offsets that can never be delivered are reported once, as lost ranges.
- Nothing is created and nothing is produced.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kafka import OffsetAndMetadata, TopicPartition, errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from shadowspec.tap.kafka.batches import TOO_LARGE_HEADER, DamagedBatchError
from shadowspec.tap.kafka.broker_clients import Consumer, await_topics, is_lasting, open_client, unavailable
from shadowspec.tap.kafka.kafka_settings import KafkaSettings
from shadowspec.tap.kafka.membership import Assignments
from shadowspec.tap.kafka.partitions import AssignedPartitions, Changes, Partition
from shadowspec.tap.sources import RawRecord
from shadowspec.types import PartitionId, RecordKey

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_S: Final = 2.0  # a commit that takes longer is made up for by the next one
CLOSE_TIMEOUT_S: Final = 5.0
LAG_MAX_AGE_S: Final = 5.0  # how old the known ends of the partitions may be
LOGIN_GRACE_S: Final = 60.0  # a broker that starts refuses good logins until it has read its users
ERROR_PAUSE_S: Final = 0.1  # after an error, so that the caller does not spin

REFUSALS: Final = {
    errors.RebalanceInProgressError: "rebalancing",
    errors.CommitFailedError: "not_a_member",
    errors.IllegalGenerationError: "not_a_member",
    errors.UnknownMemberIdError: "not_a_member",
}


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The result of a commit.  A refused offset is no loss: the ledger is further on, and a later commit of the
    partition, by its owner then, covers it."""

    refused: Mapping[PartitionId, str] = field(default_factory=dict)  # short reason code

    @property
    def is_complete(self) -> bool:
        return not self.refused


class KafkaTap:
    """A member of the consumer group.  Not thread-safe: one thread polls, commits and closes it."""

    def __init__(self, settings: KafkaSettings, *, name: str = "shadowspec-worker") -> None:
        """Connect and subscribe.

        Raises:
            ServiceUnavailableError: no broker answers or it refuses, or a topic is missing or not to be read.
        """
        self.settings = settings
        assignor = CooperativeStickyAssignor()
        self._consumer, self._client = open_client(
            Consumer,
            settings,
            name,
            group_id=settings.group_id,
            group_instance_id=settings.group_instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            max_poll_records=settings.max_poll_records,
            partition_assignment_strategy=(assignor,),
            auto_offset_reset="none",  # a range that is gone must be noticed, not skipped
            enable_auto_commit=False,
            isolation_level="read_committed",
            max_record_bytes=settings.max_record_bytes,
        )
        assignments = Assignments(self._consumer, assignor)
        self._partitions = AssignedPartitions(
            self._consumer, self._client, assignments, from_begin=settings.auto_offset_reset == "earliest"
        )
        self._failing_since: float | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._ends_at = float("-inf")
        try:
            # In this order: the topics known when the group is joined count for the first assignment.
            self._consumer.subscribe(list(settings.consumed_topics), listener=assignments)
            await_topics(self._client, settings, settings.consumed_topics)
        except BaseException:
            self.close()
            raise

    def poll(self, timeout_s: float) -> Sequence[RawRecord]:
        """Messages of the started partitions, in order within each; waits at most about the time given.

        A temporary fault (a broker that is gone, a leader that moved) gives no messages.

        Raises:
            ServiceUnavailableError: a fault that only an operator can fix.
        """
        try:
            self._partitions.resolve_offsets()
            fetched = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except errors.OffsetOutOfRangeError as error:
            self._partitions.mark_offset_invalid(error.args[0])
            return []
        except errors.LogTruncationError as error:
            self._partitions.mark_offset_invalid(error.divergent_offsets)
            return []
        except DamagedBatchError as error:
            self._partitions.step_over(error.place, error.offset, error.end)
            return []
        except errors.KafkaError as error:
            self._fail(error)
            return []
        if self._client.is_connected:
            self._failing_since = None
        self._partitions.notice_recreated()
        records: list[RawRecord] = []
        for place, messages in fetched.items():
            if (partition := self._partitions.delivering(place)) is not None:
                records += _raw_records(messages, partition.id, self.settings.max_record_bytes)
                partition.position = messages[-1].offset + 1
        return records

    def changes(self) -> Changes:
        """Partitions that were assigned and revoked, and lost ranges, since the last call."""
        return self._partitions.take_changes()

    def start(self, partition: PartitionId, offset: int | None) -> None:
        """Deliver a partition's messages from an offset on.

        None: from where the group has committed, else from the end that `auto_offset_reset` names.  Does nothing
        if the partition has gone meanwhile: `changes` reports it.
        """
        self._partitions.start(partition, offset)

    def pause_all(self) -> None:
        """Deliver nothing until `resume_all`; the caller must still call poll()."""
        self._partitions.hold()

    def resume_all(self) -> None:
        self._partitions.release()

    def commit(self, offsets: Mapping[PartitionId, int]) -> CommitOutcome:
        """Commit next offsets, and wait for the answer.

        An offset of a partition that is no longer ours is refused here: the broker would accept it, and set its new
        owner's back.

        Raises:
            ServiceUnavailableError: a fault that only an operator can fix.
        """
        refused: dict[PartitionId, str] = {}
        wanted: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, offset in offsets.items():
            assigned = self._partitions.find(partition)
            if assigned is None or self._partitions.delivering(assigned.place) is None:
                refused[partition] = "not_assigned"
            else:
                wanted[assigned.place] = OffsetAndMetadata(offset, "", -1)
        if not wanted:
            return CommitOutcome(refused)
        try:
            self._consumer.commit(wanted, timeout_ms=int(COMMIT_TIMEOUT_S * 1000))
        except errors.KafkaError as error:
            if is_lasting(error) and not _is_login(error):
                raise unavailable(self.settings, error) from error
            log.info("commit refused (%s); written rows stay", type(error).__name__)
            reason = REFUSALS.get(type(error), "unavailable")
            refused |= {partition: reason for partition in offsets if partition not in refused}
        return CommitOutcome(refused)

    def lag(self) -> dict[PartitionId, int]:
        """Offsets between the last delivered one and the end, for every started partition whose end is known."""
        placed = self._partitions.placed_partitions()
        is_new = any(partition.place not in self._ends for partition in placed)
        if placed and (is_new or time.monotonic() - self._ends_at > LAG_MAX_AGE_S):
            self._ends_at = time.monotonic()
            try:
                places = [partition.place for partition in placed]
                self._ends = self._consumer.end_offsets(places, timeout_ms=int(COMMIT_TIMEOUT_S * 1000))
            except errors.KafkaError as error:
                log.info("the ends of the partitions are not known: %s", type(error).__name__)
        return {
            partition.id: max(0, self._ends[partition.place] - self._next_offset(partition))
            for partition in placed
            if partition.place in self._ends
        }

    def topic_of(self, source: str) -> str | None:
        """The name of the topic with this id, if it was ever seen."""
        return self._partitions.topic_of(source)

    @property
    def is_connected(self) -> bool:
        """Whether a broker is connected and the last poll found nothing wrong."""
        return self._failing_since is None and self._client.is_connected

    @property
    def last_error(self) -> str | None:
        """Why the last connection failed, in Kafka's text; None after a success."""
        error = self._client.last_error
        return None if error is None else str(error) or type(error).__name__

    def close(self) -> None:
        """Leave the group.  Commits nothing."""
        try:
            self._consumer.close(autocommit=False, timeout_ms=int(CLOSE_TIMEOUT_S * 1000))
        except errors.KafkaError as error:
            log.info("closed without leaving the group: %s", type(error).__name__)
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_offset(self, partition: Partition) -> int:
        """The next offset to be fetched; beyond the last record where transaction markers follow it."""
        assert partition.position is not None
        try:
            position = self._consumer.position(partition.place, timeout_ms=0)
        except errors.KafkaError:  # it has gone, or its offset is invalid
            return partition.position
        return max(partition.position, position or 0)

    def _fail(self, error: errors.KafkaError) -> None:
        """Wait on a temporary fault, raise on a lasting one."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            log.warning("Kafka at %s: %s", self.settings.brokers, error)
        if is_lasting(error) and not (_is_login(error) and now - self._failing_since < LOGIN_GRACE_S):
            raise unavailable(self.settings, error) from error
        time.sleep(ERROR_PAUSE_S)


def _is_login(error: Exception) -> bool:
    return isinstance(error, errors.SaslAuthenticationFailedError)


def _raw_records(messages: Sequence[Any], id: PartitionId, max_bytes: int) -> list[RawRecord]:
    """kafka-python's records of one partition as ours.  One that is too large comes without its value."""
    return [_raw_record(message, id, max_bytes) for message in messages]


def _raw_record(message: Any, id: PartitionId, max_bytes: int) -> RawRecord:
    key = RecordKey(id.source, id.partition, message.offset, max(0, message.timestamp or 0))
    value, headers = message.value, tuple(message.headers)
    if value is not None and len(value) > max_bytes:
        return RawRecord(key, b"", "too_large", message.key, (*headers, (TOO_LARGE_HEADER, str(len(value)).encode())))
    is_cut = value is None and bool(headers) and headers[-1][0] == TOO_LARGE_HEADER
    return RawRecord(key, b"" if is_cut else value, "too_large" if is_cut else None, message.key, headers)
