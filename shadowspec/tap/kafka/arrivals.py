"""Traffic as messages of a topic: the key that a record gets, when it is due, and what stands in for a refused one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from msgspec import MsgspecError, Struct, to_builtins
from msgspec.json import Decoder, encode

from shadowspec.errors import RecordError
from shadowspec.tap.formats import FieldMap, MessageFormat, open_message
from shadowspec.tap.kafka.producer import OutgoingMessage
from shadowspec.tap.records import MirroredRecord
from shadowspec.tap.sources import RawRecord


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message to produce, and when its request was made; None if it does not say."""

    message: OutgoingMessage
    time: datetime | None


def arrival(raw: RawRecord, format: MessageFormat | FieldMap = MessageFormat.AUTO) -> Arrival:
    """A line of a file as a message.  A line that cannot be read is sent unchanged, without key and time.

    The key is the record's session, else its user, else its request id, so that a session's requests stay in order; of
    the halves of a call it is their common id.
    """
    opened = open_message(raw, format)[0]
    key: bytes | None = None
    time: datetime | None = None
    if opened.half is not None:
        key, time = _encoded(opened.half.join_id), opened.half.event_time
    elif opened.record is not None:
        key = key_of(opened.record)
        try:
            time = opened.record.event_time(0)
        except RecordError:
            time = None
    return Arrival(OutgoingMessage(key, raw.value, raw.headers), time)


def key_of(record: MirroredRecord) -> bytes | None:
    """The key of a record's message: its session, else its user, else its request id."""
    key = record.session() or record.user_id() or record.request_identity()
    return None if key is None else _encoded(key)


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


class _Head(Struct, omit_defaults=True):
    """What says of a record which one it is; msgspec skips the bodies."""

    timestamp: Any = None
    session_id: Any = None
    user: Any = None
    request_id: Any = None
    path: Any = None
    status: Any = None
    headers: Any = None


_HEADS: Final = Decoder(_Head)


def without_bodies(message: OutgoingMessage) -> tuple[OutgoingMessage]:
    """A record in place of one that a topic refuses for its size: the tap counts it as `truncated`.

    It begins with nothing but what the record says of itself; of another format than ours that is its time at most.
    """
    try:
        head = to_builtins(_HEADS.decode(message.value or b""))
    except MsgspecError:
        head = {}
    value = encode({"timestamp": time.time(), **head, "request_body": "", "metadata": {"truncated": True}})
    return (replace(message, value=value),)


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
