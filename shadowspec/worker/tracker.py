"""Which consumed messages are finished, and how far the ledger of each partition may therefore move.

A message is finished when every record in it has ended in a funnel counter and its rows are at hand.  The ledger moves
over the finished messages at the front, in the order of delivery; this is the meaning of "contiguous" where compaction
and transaction markers leave gaps in the offsets.  Finished messages behind an unfinished one are summed, so memory
grows with unfinished messages and unwritten rows, not with the traffic.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime

from shadowspec.types import Advance, FunnelKey, LedgerEntry, PartitionId, StoredRecord


@dataclass(slots=True)
class _Span:
    """Messages in a row: one that is unfinished (`pending` of its records are), or any number that are not."""

    last_offset: int
    pending: int
    num_messages: int = 1
    funnel: dict[FunnelKey, int] = field(default_factory=dict)
    rows: list[StoredRecord] = field(default_factory=list)
    watermark: datetime | None = None
    letters: list[str] = field(default_factory=list)  # the stages of which its dead letter was made

    def count(self, key: FunnelKey) -> None:
        self.funnel[key] = self.funnel.get(key, 0) + 1

    def absorb(self, later: _Span) -> None:
        self.last_offset = later.last_offset
        self.num_messages += later.num_messages
        funnel = self.funnel
        for key, number in later.funnel.items():
            funnel[key] = funnel.get(key, 0) + number
        if later.rows:
            self.rows += later.rows
        self.pass_time(later.watermark)

    def pass_time(self, event_time: datetime | None) -> None:
        if event_time is not None and (self.watermark is None or event_time > self.watermark):
            self.watermark = event_time


@dataclass(frozen=True, slots=True)
class LedgerStep:
    """The ledger's next step and the rows that belong to it."""

    advance: Advance
    records: tuple[StoredRecord, ...]


class PartitionTracker:
    """One partition, from its ledger's place.  Messages below it are known and ignored."""

    def __init__(self, partition: PartitionId, entry: LedgerEntry | None, *, is_reread: bool = False) -> None:
        self.partition = partition
        self.is_reread = is_reread
        self.position = self._begin = 0 if entry is None else entry.next_offset
        has_position = entry is not None and entry.has_position
        self._first: int | None = 0 if has_position else None  # where the ledger begins; reported with its first step
        self._expected = None if entry is None else entry.next_offset
        self._watermark = None if entry is None else entry.watermark
        self._was_ended = entry is not None and entry.is_ended
        self._was_behind = entry is not None and entry.is_behind
        self._spans: deque[_Span] = deque()
        self._pending: dict[int, _Span] = {}  # by offset
        self._ties: dict[int, int] = {}  # the later message of a pair, to the earlier one
        self._in_flight: LedgerStep | None = None
        self._claims = False

    def claim(self) -> None:
        """Write the partition's ledger entry before any of its messages is finished, if it has none yet."""
        self._claims = True

    @property
    def has_no_messages(self) -> bool:
        """Whether no message of it has ever come, as far as the ledger and this tracker know."""
        return self._first is None

    @property
    def num_unfinished(self) -> int:
        """Messages with a record that has not ended."""
        return len(self._pending)

    @property
    def num_held(self) -> int:
        """Messages that the ledger has not passed, finished or not."""
        return sum(span.num_messages for span in self._spans)

    @property
    def front(self) -> int | None:
        """The offset of the unfinished message that the ledger waits for; None without one."""
        return self._spans[0].last_offset if self._spans and self._spans[0].pending else None

    @property
    def has_step(self) -> bool:
        """Whether the ledger could move, or is moving."""
        is_finished = bool(self._spans and self._spans[0].pending == 0)
        return self._in_flight is not None or is_finished or self._must_report(self._was_behind or bool(self._spans))

    def _must_report(self, is_behind: bool) -> bool:
        """Whether the ledger says otherwise, or nothing yet where the partition was claimed.

        It must not: where nothing is behind, the newest event anywhere is taken for known (see `Watermark`).
        """
        return self._claims if self._expected is None else is_behind != self._was_behind

    def was_passed(self, offset: int) -> bool:
        """Whether the ledger had passed the message before this tracker began."""
        return offset < self._begin

    def claim_letter(self, offset: int, stage: str) -> bool:
        """Whether a message has no dead letter of a stage yet and may get one, which this call makes it have.

        A message that the ledger has passed got its letter when it was first read.
        """
        span = self._pending.get(offset)
        if span is None or stage in span.letters:
            return False
        span.letters.append(stage)
        return True

    def deliver(self, offset: int, num_records: int) -> bool:
        """A message came, with this number of records to end; False if the ledger has passed it already."""
        if offset < self.position:
            return False
        self.position = offset + 1
        self._first = offset if self._first is None else self._first
        span = _Span(offset, num_records)
        if num_records > 0:
            self._pending[offset] = span
            self._spans.append(span)
        else:
            self._settle(span)
        return True

    def pass_over(self, offset: int, key: FunnelKey, event_time: datetime | None) -> bool:
        """A message came whose only record has ended already; False if the ledger has passed it already."""
        if offset < self.position:
            return False
        self.position = offset + 1
        self._first = offset if self._first is None else self._first
        if not self._spans or self._spans[-1].pending:
            self._spans.append(_Span(offset, 0, num_messages=0))
        span = self._spans[-1]
        span.last_offset = offset
        span.num_messages += 1
        span.count(key)
        span.pass_time(event_time)
        return True

    def end(self, offset: int, key: FunnelKey | None, event_time: datetime | None, row: StoredRecord | None) -> bool:
        """One of the message's records ended; `key` is None where it counts under another message (a join).

        Records of messages that the ledger has passed, or that this tracker never saw, are ignored and give False.
        """
        span = self._pending.get(offset)
        if span is None:
            return False
        span.pending -= 1
        if key is not None:
            span.count(key)
        if row is not None:
            span.rows.append(row)
        span.pass_time(event_time)
        if span.pending == 0:
            del self._pending[offset]
            if span is self._spans[-1]:
                self._spans.pop()
                self._settle(span)
        return True

    def tie(self, first: int, second: int) -> None:
        """Two messages make one record: a process that reads the later one again must read the earlier one too."""
        self._ties[max(first, second)] = min(first, second)

    def step(self, *, is_behind: bool = False, is_ended: bool = False) -> LedgerStep | None:
        """The next step to write; None without one, or while the last step is not settled.

        Args:
            is_behind: more is known to follow, or may follow, in addition to unfinished messages here.
            is_ended: nothing follows; takes effect once nothing is unfinished.
        """
        if self._in_flight is not None:
            return None
        done: _Span | None = None
        while self._spans and self._spans[0].pending == 0:
            span = self._spans.popleft()
            if done is None:
                done = span
            else:
                done.absorb(span)
        ends = is_ended and not self._spans
        is_behind = is_behind or bool(self._spans)
        if done is None and ends and not self._was_ended:
            done = _Span(self.position - 1, 0, num_messages=0)
        elif done is None and self._must_report(is_behind):
            place = self._first or 0 if self._expected is None else self._expected
            done = _Span(place - 1, 0, num_messages=0)
        elif done is None:
            return None
        self._watermark = _newest(self._watermark, done.watermark)
        advance = Advance(
            partition=self.partition,
            expected=self._expected,
            next_offset=done.last_offset + 1,
            num_messages=done.num_messages,
            funnel=done.funnel,
            watermark=self._watermark,
            is_behind=is_behind,
            is_ended=ends,
            resume_offset=self._resume_offset(done.last_offset + 1),
            first_offset=self._first or 0,
        )
        self._in_flight = LedgerStep(advance, tuple(done.rows))
        return self._in_flight

    def settle(self) -> None:
        """The last step is written."""
        assert self._in_flight is not None, "no step was taken"
        self._expected = self._in_flight.advance.next_offset
        self._was_ended = self._in_flight.advance.is_ended
        self._was_behind = self._in_flight.advance.is_behind
        self._in_flight = None

    def _resume_offset(self, next_offset: int) -> int | None:
        """The first message below the ledger's new place that belongs to one beyond it."""
        self._ties = {later: earlier for later, earlier in self._ties.items() if later >= next_offset}
        return min((earlier for earlier in self._ties.values() if earlier < next_offset), default=None)

    def _settle(self, span: _Span) -> None:
        """Put a finished span at the end, into the finished one before it if there is one."""
        if self._spans and self._spans[-1].pending == 0:
            self._spans[-1].absorb(span)
        else:
            self._spans.append(span)


def _newest(first: datetime | None, second: datetime | None) -> datetime | None:
    if first is None or second is None:
        return first or second
    return max(first, second)
