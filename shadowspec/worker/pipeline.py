"""From consumed messages to blocks, and from measured blocks to batches.

Every decision before a block is measured (fates, sessions, blocks) depends only on the records and the ledger.  Records
that are delivered again after a crash therefore get the same fates, and those whose rows are already stored are not
measured a second time.  No I/O but for dead letters: the pipeline's owner reads the source, has the blocks measured and
writes the batches.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from shadowspec.tap.admission import Admission, Admitted, Rejected
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.formats import FieldMap, MessageFormat, Opened, open_message
from shadowspec.tap.joining import Joiner
from shadowspec.tap.load_trace import ArrivalTimes
from shadowspec.tap.reading import Reading
from shadowspec.tap.records import EPOCH, transport_time
from shadowspec.tap.routing import NO_HINTS, Hints, Routing
from shadowspec.tap.sources import RawRecord
from shadowspec.types import (
    Block,
    BlockResult,
    CachedPrompts,
    FunnelCounter,
    FunnelKey,
    LedgerEntry,
    PartitionId,
    RecordKey,
    StoredRecord,
)
from shadowspec.worker.outbox import Outbox, partition_of
from shadowspec.worker.tracker import PartitionTracker

_Taken = tuple[RawRecord, Hints, FunnelKey | None]  # a message, and where it ends unread if it does

# Usable requests of sampled sessions make units, so they are kept as rows; every other record is a count.
COUNTERS_WITH_ROWS = frozenset({FunnelCounter.SAMPLED_OUT, FunnelCounter.SHED})
EVENT_HEADERS = frozenset({"ce_type", "content-type"})
READ_BYTES = 4 * 1024 * 1024  # of messages read before the first is decided; their documents take ten times that
TICK = timedelta(seconds=1)  # of event time: how finely the waits of halves and blocks are looked after


class DeadLetters(Protocol):
    """Takes messages that cannot be read or measured."""

    def send(self, raw: RawRecord, stage: str, reasons: Mapping[str, int]) -> None:
        """Hand over a message; it is safe once the writer of the batch has flushed.

        Args:
            reasons: why, with the numbers of its records; at least one.
        """


class _WaitingRequest(Struct, frozen=True, gc=False):
    """An admitted request whose block is not measured yet; its message is kept where it may become a dead letter."""

    record: StoredRecord
    raw: RawRecord | None


class Pipeline:
    """The records of the partitions that one process reads, until they are written."""

    def __init__(
        self,
        admission: Admission,
        former: BlockFormer,
        *,
        message_format: MessageFormat | FieldMap = MessageFormat.AUTO,
        routing: Routing | None = None,
        joiner: Joiner,
        dead_letters: DeadLetters | None = None,
        keeps_messages: bool = True,
        arrivals: ArrivalTimes | None = None,
    ) -> None:
        """
        Args:
            dead_letters: where malformed records and poisoned requests go (None: they are only counted).
            keeps_messages: of admitted requests, until they are measured; without them none that is poisoned is sent.
            arrivals: gives the records of one file other times.
        """
        self._admission, self._former, self._joiner = admission, former, joiner
        self._format, self._reader = message_format, admission.reader
        self._routing = routing if routing is not None and routing.has_hints else None
        self._dead_letters, self._arrivals = dead_letters, arrivals
        self._keeps_messages = keeps_messages and dead_letters is not None
        self.outbox = Outbox()
        self._stored: dict[tuple[str, int], Mapping[RecordKey, StoredRecord]] = {}  # by source and partition
        self._waiting: dict[RecordKey, _WaitingRequest] = {}
        self._messages: dict[RecordKey, tuple[RawRecord, Hints]] = {}  # halves whose other half has not come
        # By message and stage: a message of many records makes one dead letter, not a copy of itself for every record.
        self._letters: dict[tuple[RecordKey, str], tuple[RawRecord, Counter[str]]] = {}
        self.ready: deque[Block] = deque()
        self.shedding: Collection[str] = ()  # endpoints whose admitted requests are shed instead of measured
        self._next_tick = EPOCH + TICK
        self.num_admitted = 0
        self.num_found = 0  # admitted requests whose rows were stored already
        self.num_compared_prompts = 0  # prompts that production's server counted
        self.num_other_prompts = 0  # of these, those that have another length here
        self.cached = CachedPrompts()  # of measured prompts, in the caches of production and of the servers

    # partitions

    def start(
        self,
        partition: PartitionId,
        entry: LedgerEntry | None,
        stored: Mapping[RecordKey, StoredRecord],
        *,
        is_reread: bool = False,
    ) -> None:
        """Start a partition at its ledger's place.

        Args:
            stored: the rows at and beyond that place: measured before a crash, their offsets not passed.
            is_reread: it is read from its beginning, and the records before the place restore admission's memory.
        """
        self.outbox.start(partition, entry, is_reread=is_reread)
        self._stored[partition.source, partition.partition] = stored

    def forget(self, partition: PartitionId) -> None:
        """Drop everything unfinished of a partition that this process no longer reads: another one gets it again.

        Blocks in measurement continue; their rows are as good as another process's.
        """
        self.outbox.forget(partition)
        self._stored.pop((partition.source, partition.partition), None)
        self._admission.forget(partition)
        self._joiner.forget(partition)
        for key in [key for key in self._messages if partition_of(key) == partition]:
            del self._messages[key]
        for prompt in self._former.forget(partition):
            self._waiting.pop(prompt.key, None)

    def reads(self, key: RecordKey) -> bool:
        """Whether the partition is started; messages before that are delivered again."""
        return self.outbox.tracker(key) is not None

    @property
    def num_waiting(self) -> int:
        """Requests admitted and not measured."""
        return len(self._waiting)

    # records

    def take(self, raw: RawRecord) -> None:
        """Take one message in; blocks that may start are appended to `ready`."""
        self.take_all([raw], lambda _: None)

    def take_all(self, raws: Iterable[RawRecord], topic_of: Callable[[str], str | None]) -> None:
        """Take messages in, in their order; blocks that may start are appended to `ready`.

        Args:
            topic_of: the name of a source's topic, if it has one.
        """
        taken: list[_Taken] = []
        size = 0
        for raw in raws:
            hints, early = NO_HINTS, None
            if self._routing is not None:
                hints = self._routing.hints(raw, topic_of(raw.key.source))
                early = None if self._may_be_half(raw) else self._reader.presample(raw.key, hints)
            taken.append((raw, hints, early))
            if early is None:
                size += len(raw.value or b"")
                if size >= READ_BYTES:
                    self._take_in(taken)
                    taken, size = [], 0
        self._take_in(taken)

    def _take_in(self, taken: Sequence[_Taken]) -> None:
        """Read the messages' records, then decide them one after the other."""
        messages = [open_message(raw, self._format) for raw, _, early in taken if early is None]
        if self._arrivals is not None:
            for record in chain.from_iterable(messages):
                self._arrivals.give(record)
        hints_of = [hints for _, hints, early in taken if early is None]
        readings = iter(
            self._reader.read(
                (record, hints)
                for opened, hints in zip(messages, hints_of, strict=True)
                for record in opened
                if record.half is None
            )
        )
        left = iter(messages)
        for raw, hints, early in taken:
            tracker = self.outbox.tracker(raw.key)
            assert tracker is not None, "a message of a partition that was not resumed"
            if early is not None:
                self._pass_over(tracker, raw.key, early)
                continue
            opened = next(left)
            is_new = tracker.deliver(raw.key.offset, len(opened))
            for record in opened:
                if record.half is not None:
                    self._messages[record.key] = (raw, hints)
                    self._admit_joined(self._joiner.add(record.key, record.half))
                    if self._arrivals is None:  # else a half's time is not that of its record
                        self._pass_time(record.half.event_time)
                    continue
                reading = next(readings)
                if is_new or tracker.is_reread:  # else the ledger has passed it, and only halves matter
                    self._decide(reading, raw)
        self._send_letters()

    def _pass_over(self, tracker: PartitionTracker, key: RecordKey, counted: FunnelKey) -> None:
        """A message came that ends before its body is read."""
        event_time = transport_time(key.timestamp_ms)
        self.outbox.pass_over(tracker, key.offset, counted, event_time)
        if event_time is not None:
            self._pass_time(event_time)

    def start_fronts(self) -> None:
        """Start the open blocks for which the ledgers wait: too many messages behind them are finished."""
        self.ready += self._former.start_with(self.outbox.fronts)

    def drain(self) -> None:
        """Start every block that is still open: this process ends, and waiting halves are read again."""
        self.ready += self._former.drain()

    def end_waiting(self) -> None:
        """Nothing follows, or not for long: halves continue without their other half, and open blocks start."""
        self._admit_joined(self._joiner.drain())
        self._send_letters()
        self.drain()

    def finish(self, result: BlockResult, poisoned: Mapping[RecordKey, str] | None = None) -> None:
        """Take back a measured block; `poisoned` requests become dead letters of the stage `engine`."""
        popped = (self._waiting.pop(prompt.key, None) for prompt in result.block.requests)
        measured = [waiting for waiting in popped if waiting is not None]
        records = {waiting.record.key: waiting.record for waiting in measured}
        for run in result.runs:
            record = records.get(run.key)
            found = None if record is None else CachedPrompts.of(record, run)
            self.cached += found or CachedPrompts()
        for waiting in measured:
            if poisoned and waiting.raw is not None and waiting.record.key in poisoned:
                self._note_letter(waiting.raw, "engine", poisoned[waiting.record.key])
        self._send_letters()
        self.outbox.add(result, [waiting.record for waiting in measured])

    def shed(self, block: Block, reason: str) -> None:
        """A block is not going to be measured: its requests are shed."""
        for prompt in block.requests:
            if (waiting := self._waiting.pop(prompt.key, None)) is not None:
                shed = replace(waiting.record, counter=FunnelCounter.SHED, reason=reason)
                self.outbox.end(shed, row=shed)

    # one record

    def _admit_joined(self, settled: Sequence[Opened]) -> None:
        for record in settled:
            raw, hints = self._messages[record.key]
            for member in record.members:
                del self._messages[member]
                if member != record.key:
                    self.outbox.end_half(member, record.key)
            tracker = self.outbox.tracker(record.key)
            if tracker is not None and tracker.was_passed(record.key.offset) and not tracker.is_reread:
                continue  # counted already; it was read again for its other half
            if self._arrivals is not None:
                self._arrivals.give(record)
            (reading,) = self._reader.read([(record, hints)])
            self._decide(reading, raw)

    def _decide(self, reading: Reading, raw: RawRecord) -> None:
        if not reading.is_elsewhere:
            self._end(self._admission.decide(reading), raw)
            return
        self.outbox.end_elsewhere(reading.key, reading.event_time)
        if reading.event_time is not None:
            self._pass_time(reading.event_time)

    def _end(self, fate: Admitted | Rejected, raw: RawRecord) -> None:
        """A record ends here, or waits for its block."""
        if fate.record.num_served_tokens is not None:
            self.num_compared_prompts += 1
            self.num_other_prompts += fate.record.num_served_tokens != fate.record.num_prompt_tokens
        if isinstance(fate, Rejected):
            self._reject(fate, raw)
            return
        key, slice_key = fate.record.key, fate.record.slice_key or ""
        stored_records = self._stored.get(key[:2])
        stored = (stored_records.get(key) if stored_records else None) or self.outbox.unwritten(key)
        if stored is not None:
            self.num_found += 1
            self._former.remember(fate.prompt, slice_key)
            self.outbox.end(stored, row=None)
            return
        self._pass_time(fate.prompt.event_time)
        if key in self._waiting:
            return  # its block was started before its partition left this process and came back: that block ends it
        if self._former.is_over(fate.prompt, fate.record.session_position):
            late = replace(fate.record, counter=FunnelCounter.SAMPLED_OUT, reason="conversation_over")
            self.outbox.end(late, row=late)
        elif self._former.passes_over(fate.prompt, fate.concurrency, slice_key):
            passed = replace(fate.record, counter=FunnelCounter.SAMPLED_OUT, reason="window_budget")
            self.outbox.end(passed, row=passed)
        elif fate.prompt.endpoint in self.shedding or self._former.is_shed(fate.prompt):
            shed = replace(fate.record, counter=FunnelCounter.SHED, reason="queue_full")
            self.ready += self._former.shed(fate.prompt, fate.concurrency, slice_key)
            self.outbox.end(shed, row=shed)
        else:
            self.num_admitted += 1
            self._waiting[key] = _WaitingRequest(fate.record, raw if self._keeps_messages else None)
            self.ready += self._former.add(fate.prompt, fate.concurrency, slice_key)

    def _pass_time(self, event_time: datetime) -> None:
        """Advance the time of every waiting block: a quiet endpoint's blocks do not wait for its next record."""
        if event_time >= self._next_tick:
            self._next_tick = event_time + TICK
            self._admit_joined(self._joiner.expire(event_time))
            self.ready += self._former.advance_all(event_time)

    def _reject(self, fate: Rejected, raw: RawRecord) -> None:
        record = fate.record
        if record.counter is FunnelCounter.MALFORMED:
            self._note_letter(raw, "tap", record.reason or "malformed")
        is_kept = record.counter in COUNTERS_WITH_ROWS and record.unit_key is not None
        self.outbox.end(record, row=record if is_kept else None)
        if record.event_time is not None:
            self._pass_time(record.event_time)

    def _note_letter(self, raw: RawRecord, stage: str, reason: str) -> None:
        """A record of the message is to be in its dead letter; called before the record ends."""
        tracker = self.outbox.tracker(raw.key)
        if self._dead_letters is None or tracker is None:
            return
        if tracker.claim_letter(raw.key.offset, stage):
            self._letters[raw.key, stage] = (raw, Counter())
        if (letter := self._letters.get((raw.key, stage))) is not None:
            letter[1][reason] += 1

    def _send_letters(self) -> None:
        if self._dead_letters is not None and self._letters:
            for (_, stage), (raw, reasons) in self._letters.items():
                self._dead_letters.send(raw, stage, reasons)
            self._letters.clear()

    def _may_be_half(self, raw: RawRecord) -> bool:
        """Whether key and headers say too little: two messages may be one record."""
        if self._format is not MessageFormat.AUTO:
            return self._format in (MessageFormat.CLOUDEVENTS, MessageFormat.BATCH)
        # Of every message, where a generator would take twice as long.
        return bool(raw.headers) and not EVENT_HEADERS.isdisjoint([name.lower() for name, _ in raw.headers])
