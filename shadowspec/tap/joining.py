"""Joining the two events of a call: its request and its response, which may come in either order.

A pair becomes one record under its request's key.  A request without a response within the window becomes a record
without a response.  A response whose request does not come is unsupported ("response_without_request").  A half that
came before is a duplicate.  A call that is written in pieces waits for the whole window, because no piece is the last.

The fate of a half depends only on the order of the records.  Time is event time, per partition.  A half waits from the
newest time of its partition when it came, until a half of that partition is more than the window newer.  So a partition
that is read later than others, or again, gives the same result.  Only a partition without new records is judged by the
time that `expire` gets, after `QUIET_WINDOWS` windows.

No state survives a restart: the offsets of waiting halves are not finished, so those halves are delivered again.
Reading must not begin between the two halves of a pair that is counted: either the ledger passes both at once, or
reading begins one window before its place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shadowspec.errors import RecordError
from shadowspec.tap.formats.opened import EventHalf, Opened
from shadowspec.tap.parameters import unsupported_error
from shadowspec.tap.records import EPOCH, read_record
from shadowspec.types import FunnelCounter, PartitionId, RecordKey

DEFAULT_WINDOW = timedelta(minutes=5)  # longer than a long answer takes
QUIET_WINDOWS = 12  # an hour at the default of 5 minutes: far more than partitions of one topic drift apart
MAX_WAITING_BYTES = 32 * 1024 * 1024  # of messages, per partition: 10 s of answers at 1,000 requests/s of 3 kB
MAX_REMEMBERED = 100_000  # calls per partition whose halves both came, or whose window ended; about 30 MB

_JoinKey = tuple[tuple[str, ...], str]  # scope, id


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: RecordKey
    half: EventHalf
    deadline: datetime  # in its partition's time
    quiet_deadline: datetime  # in the time of `expire`
    pieces: dict[tuple[int, str], tuple[RecordKey, EventHalf]] = field(default_factory=dict)  # this one among them

    @property
    def halves(self) -> list[EventHalf]:
        return [half for _, half in self.pieces.values()] or [self.half]


@dataclass(slots=True)
class _Partition:
    """One partition's halves, in the order in which they came, and the calls that are over."""

    watermark: datetime = EPOCH
    size: int = 0  # bytes that wait
    waiting: OrderedDict[_JoinKey, _Waiting] = field(default_factory=OrderedDict)
    over: OrderedDict[_JoinKey, tuple[datetime, bool, bool]] = field(default_factory=OrderedDict)


class Joiner:
    """Holds halves until they are joined or their window ends.  One instance per process."""

    def __init__(self, window: timedelta, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        """
        Args:
            window: how long a half waits for the other one, in event time.
            max_waiting_bytes: of messages that wait, per partition; above it the oldest is released.
        """
        if window <= timedelta(0):
            raise ValueError("the window must be above 0")
        self._window = window
        self._max_waiting_bytes = max_waiting_bytes
        self._partitions: dict[PartitionId, _Partition] = {}
        self._places: dict[_JoinKey, PartitionId] = {}  # where a half waits, or its call is remembered
        self._time = EPOCH  # the newest given to `expire`

    @property
    def num_waiting(self) -> int:
        """Halves that wait."""
        return sum(len(partition.waiting) for partition in self._partitions.values())

    def add(self, key: RecordKey, half: EventHalf) -> list[Opened]:
        """Add a half; returns the records that it completes, first the halves whose window ends with its time."""
        identity = PartitionId(key.source, key.partition)
        partition = self._partitions.setdefault(identity, _Partition())
        partition.watermark = max(partition.watermark, half.event_time)
        settled = list(self._release_overdue(partition))
        call: _JoinKey = (half.scope, half.join_id)
        place = self._partitions.get(self._places.get(call, identity))
        assert place is not None, "a call is remembered in a partition that is not"
        other = place.waiting.get(call)
        if call in place.over:
            settled.append(_late(place, call, key, half))
        elif other is None:
            self._wait(identity, partition, call, key, half)
            settled += self._release_excess(partition)
        elif half.part is not None and other.half.part is not None and half.part not in other.pieces:
            other.pieces[half.part] = (key, half)
            place.size += half.size
            settled += self._release_excess(place)
        elif half.part is not None or other.half.part is not None or other.half.is_request is half.is_request:
            settled.append(_refuse(key, RecordError(FunnelCounter.DUPLICATE, "seen_before")))
        else:
            self._take(place, call)
            self._remember(identity, partition, call, has_request=True, has_response=True)
            came = ((key, half), (other.key, other.half))
            settled.append(_pair(*(came if half.is_request else reversed(came))))
        return settled

    def expire(self, watermark: datetime) -> list[Opened]:
        """Release the waiting halves of quiet partitions, by the newest event time of all records."""
        self._time = max(self._time, watermark)
        settled = []
        for partition in self._partitions.values():
            while partition.waiting:
                call, first = next(iter(partition.waiting.items()))
                if first.quiet_deadline >= self._time:
                    break
                settled.append(self._release(partition, call))
        return settled

    def drain(self) -> list[Opened]:
        """Release everything: no half follows."""
        return [
            self._release(partition, call)
            for partition in self._partitions.values()
            for call in list(partition.waiting)
        ]

    def forget(self, partition: PartitionId) -> None:
        """Drop the halves of a partition that this process no longer reads."""
        dropped = self._partitions.pop(partition, None)
        if dropped is not None:
            for call in (*dropped.waiting, *dropped.over):
                self._places.pop(call, None)

    def _wait(
        self, identity: PartitionId, partition: _Partition, call: _JoinKey, key: RecordKey, half: EventHalf
    ) -> None:
        deadline = partition.watermark + self._window
        quiet_deadline = max(self._time, partition.watermark) + QUIET_WINDOWS * self._window
        pieces = {} if half.part is None else {half.part: (key, half)}
        partition.waiting[call] = _Waiting(key, half, deadline, quiet_deadline, pieces)
        partition.size += half.size
        self._places[call] = identity

    def _release_overdue(self, partition: _Partition) -> Iterator[Opened]:
        while partition.waiting:
            call, first = next(iter(partition.waiting.items()))
            if first.deadline >= partition.watermark:
                break
            yield self._release(partition, call)
        while partition.over:
            call, (until, _, _) = next(iter(partition.over.items()))
            if until >= partition.watermark and len(partition.over) <= MAX_REMEMBERED:
                break
            del partition.over[call], self._places[call]

    def _release_excess(self, partition: _Partition) -> Iterator[Opened]:
        while partition.size > self._max_waiting_bytes:
            yield self._release(partition, next(iter(partition.waiting)))

    def _release(self, partition: _Partition, call: _JoinKey) -> Opened:
        """End the wait of a half without a partner."""
        waited = self._take(partition, call)
        identity, sides = (
            PartitionId(waited.key.source, waited.key.partition),
            {each.is_request for each in waited.halves},
        )
        self._remember(identity, partition, call, has_request=True in sides, has_response=False in sides)
        return _assembled(waited.pieces) if waited.pieces else _alone(waited.key, waited.half)

    def _take(self, partition: _Partition, call: _JoinKey) -> _Waiting:
        waited = partition.waiting.pop(call)
        partition.size -= sum(half.size for half in waited.halves)
        del self._places[call]
        return waited

    def _remember(
        self, identity: PartitionId, partition: _Partition, call: _JoinKey, *, has_request: bool, has_response: bool
    ) -> None:
        partition.over[call] = (partition.watermark + self._window, has_request, has_response)
        self._places[call] = identity


def _late(partition: _Partition, call: _JoinKey, key: RecordKey, half: EventHalf) -> Opened:
    """The fate of a half whose call is over: it came before, or it comes too late for the other one."""
    until, has_request, has_response = partition.over[call]
    if half.part is not None:  # a call in pieces is over when its window ends
        return _refuse(key, unsupported_error("late_piece"))
    if has_request if half.is_request else has_response:
        return _refuse(key, RecordError(FunnelCounter.DUPLICATE, "seen_before"))
    partition.over[call] = (until, True, True)
    return _alone(key, half)


def _alone(key: RecordKey, half: EventHalf) -> Opened:
    if not half.is_request:
        return _refuse(key, unsupported_error("response_without_request"))
    return _pair((key, half), None)


def _pair(request: tuple[RecordKey, EventHalf], response: tuple[RecordKey, EventHalf] | None) -> Opened:
    key, half = request
    document = {
        "request": half.body,
        "response": None if response is None else response[1].body,
        "endpoint": half.endpoint,
        "path": half.path,
        "timestamp": None if half.event_time == EPOCH else half.event_time.isoformat(),
        "request_id": half.join_id,
    }
    headers = half.headers if response is None else {**response[1].headers, **half.headers}
    members = (key,) if response is None else (key, response[0])
    try:
        return Opened(key, read_record(document, headers), members=members)
    except RecordError as error:
        return Opened(key, error=error.without_traceback(), members=members)


def _assembled(pieces: Mapping[tuple[int, str], tuple[RecordKey, EventHalf]]) -> Opened:
    """The record of a call that was written in pieces, under the key of the first of its request."""
    members = tuple(sorted(key for key, _ in pieces.values()))
    asking = [pieces[part] for part in sorted(pieces) if pieces[part][1].is_request]
    if not asking:
        return Opened(members[0], error=unsupported_error("response_without_request"), members=members)
    key, half = asking[0]
    assert half.assemble is not None, "a piece says how a call is assembled"
    times = [each.event_time for _, each in pieces.values() if each.event_time != EPOCH]
    try:
        document = half.assemble({part: each.body for part, (_, each) in pieces.items()})
        document |= {"timestamp": min(times).isoformat() if times else None, "request_id": half.join_id}
        return Opened(key, read_record(document, half.headers), members=members)
    except RecordError as error:
        return Opened(key, error=error.without_traceback(), members=members)


def _refuse(key: RecordKey, error: RecordError) -> Opened:
    """A half that makes no record."""
    return Opened(key, error=error, members=(key,))
