"""Admission: the fate of each consumed record.

Every record leaves `Admission.decide` in exactly one funnel counter.  The decision depends on the records before it and
on the secret, never on outcomes, the clock or a generator.  A second pass over the same input therefore gives the same
fates, and whether a request is measured is settled before anything is known of its result.

A session is timed once per endpoint and day (`unit_span`), at its J-th usable request of that day: one that stays in
use is a new unit each day, with its own draw, position and load.  Requests without a session count for their user, and
those without either for the ten minutes in which they came.  Where an endpoint measures conversations, all of a
session's first requests are measured, unless they come when its conversation is over (`blocks`); its slice and load are
those of its first request.  One draw per session decides which of its slices are sampled: those whose rate, at the
slice's first record, is above the draw.  The session counts for the whole endpoint where the smallest rate of all
slices, at that time, is above the draw too, so that the endpoint's evidence has the mix of the traffic for any rates of
its slices.  A session whose draw is above the endpoint's rate is dropped before its bodies are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.formats import Opened
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.openai import ParsedRequest, intervention_of, response_of
from shadowspec.tap.reading import Reader, Reading, Tokenizer
from shadowspec.tap.records import EPOCH
from shadowspec.tap.responses import response_text
from shadowspec.tap.routing import NO_HINTS, Hints
from shadowspec.types import (
    FunnelCounter,
    OutputContract,
    PartitionId,
    SessionRate,
    ShadowPrompt,
    StoredRecord,
    UnitMemory,
)

MAX_REMEMBERED_REQUESTS = 1_000_000  # ids per endpoint against which duplicates are seen; about 150 MB

# The present inclusion rate of a slice of an endpoint; of the whole (""), the smallest of its slices'.
SliceRate = Callable[[EndpointRule, str], float]


@dataclass(slots=True)
class AdmissionUnit:
    """A session's day, or its substitute: how many usable requests it has had, and when the first one came.

    `rates` holds how it was drawn in each of its slices, fixed at the slice's first record; `partition`
    is where its last record came from.
    """

    position: int
    first_seen: datetime
    partition: PartitionId
    rates: dict[str, SessionRate] = field(default_factory=dict)


class EndpointMemory:
    """Admission's memory of an endpoint's stream: sessions in progress, and recent requests.

    All of it can be rebuilt from the stored rows of a partition below the place of its ledger.  `forget` drops a
    partition that leaves this process, `restore` loads one that comes back.  `newest` is the watermark: the newest
    event time so far.
    """

    def __init__(self, forget_unit_after: timedelta) -> None:
        self.newest: datetime = EPOCH
        self._forget_unit_after = forget_unit_after
        self._units: OrderedDict[str, AdmissionUnit] = OrderedDict()  # longest known first
        self._requests: OrderedDict[str, PartitionId] = OrderedDict()  # oldest first

    def advance(self, event_time: datetime) -> None:
        """Move the watermark, and drop the units that are over."""
        if event_time > self.newest:
            self.newest = event_time
        while self._units and self.newest - next(iter(self._units.values())).first_seen > self._forget_unit_after:
            self._units.popitem(last=False)

    def count(self, unit_key: str, partition: PartitionId) -> AdmissionUnit:
        """The unit with one more usable request."""
        unit = self._units.get(unit_key)
        if unit is None:
            unit = self._units[unit_key] = AdmissionUnit(1, self.newest, partition)
            return unit
        unit.position += 1
        unit.partition = partition
        return unit

    def is_duplicate(self, identity: str | None, partition: PartitionId) -> bool:
        """Whether the call was seen before, by the hash of its id and body; it is remembered.  None: it has no id."""
        if identity is None:
            return False
        is_seen = identity in self._requests
        self._requests[identity] = partition
        while len(self._requests) > MAX_REMEMBERED_REQUESTS:
            self._requests.popitem(last=False)
        return is_seen

    def forget(self, partition: PartitionId) -> None:
        """Drop the memory of a partition that this process no longer reads."""
        for key in [key for key, unit in self._units.items() if unit.partition == partition]:
            del self._units[key]
        for identity in [identity for identity, origin in self._requests.items() if origin == partition]:
            del self._requests[identity]

    def restore(self, partition: PartitionId, units: Mapping[str, UnitMemory], request_ids: Iterable[str]) -> None:
        """Add the memory in the rows of a partition."""
        for key, memory in sorted(units.items(), key=lambda entry: (entry[1].first_seen, entry[0])):
            self._units[key] = AdmissionUnit(memory.position, memory.first_seen, partition, dict(memory.rates))
            self._units.move_to_end(key)
            self.newest = max(self.newest, memory.last_seen)
        self._requests.update(dict.fromkeys(request_ids, partition))


class Admitted(Struct, frozen=True, gc=False):
    """A request to measure, at the load `concurrency`.  Its record becomes `failed` if measuring it fails."""

    prompt: ShadowPrompt
    record: StoredRecord
    concurrency: int


class Rejected(Struct, frozen=True, gc=False):
    """A record that is not measured; its counter and reason say why."""

    record: StoredRecord


class Admission:
    """Decides each record's fate, in the order of delivery.  One instance lives as long as its input."""

    def __init__(
        self,
        rules: Sequence[EndpointRule],
        tokenizers: Mapping[str, Tokenizer],
        keyed_hash: KeyedHash,
        slice_rate: SliceRate = lambda rule, slice_key: rule.sample_rate,
        elsewhere: Collection[str] = (),
    ) -> None:
        """
        Args:
            rules: the endpoints, in the order in which they are tried.
            tokenizers: each endpoint's target tokenizer, by endpoint name.
            keyed_hash: hashes under the operator's secret.
            slice_rate: the rate at which a slice is sampled now, at most the endpoint's `sample_rate`; of the slice
                "", the smallest that is in force.
            elsewhere: those of the endpoints whose records other workers decide.
        """
        decided = [rule for rule in rules if rule.name not in elsewhere]
        missing = [rule.name for rule in decided if rule.name not in tokenizers]
        if missing:
            raise ValueError(f"no tokenizer for {', '.join(missing)}")
        self.reader = Reader(rules, tokenizers, keyed_hash, elsewhere)
        self._hash = keyed_hash
        self._slice_rate = slice_rate
        self._partitions: dict[tuple[str, int], PartitionId] = {}  # one of each, not one of each record
        self._memories = {rule.name: EndpointMemory(rule.forget_unit_after) for rule in decided}

    def restore(
        self, partition: PartitionId, endpoint: str, units: Mapping[str, UnitMemory], request_ids: Iterable[str]
    ) -> None:
        """Add the memory of an endpoint in the stored rows of a partition."""
        if endpoint in self._memories:
            self._memories[endpoint].restore(partition, units, request_ids)

    def forget(self, partition: PartitionId) -> None:
        """Drop the memory of a partition that this process no longer reads."""
        for memory in self._memories.values():
            memory.forget(partition)

    def admit(self, opened: Opened, hints: Hints = NO_HINTS) -> Admitted | Rejected:
        """The fate of one record, or of a message that could not be read as one."""
        return self.decide(self.reader.read([(opened, hints)])[0])

    def decide(self, reading: Reading) -> Admitted | Rejected:
        """The fate of a record that was read, after those that were decided before it.

        The steps in order: 1. age; 2. an error found in reading; 3. duplicates; 4. count its place in its session;
        5. the session's draw against the slice's rate; 6. whether this place is the timed one, or one of a measured
        conversation.
        """
        error = reading.error
        if not reading.is_placed:
            assert error is not None, "neither read nor refused"
            return Rejected(
                StoredRecord(reading.key, FunnelCounter(error.counter), error.reason, event_time=reading.event_time)
            )
        # Step 1
        rule, event_time = reading.rule, reading.event_time
        assert event_time is not None, "placed without a time"
        memory = self._memories[rule.name]
        memory.advance(event_time)
        if rule.max_age is not None and memory.newest - event_time > rule.max_age:
            return Rejected(_make_expired_row(reading, event_time))
        # Step 2
        if error is not None:
            return Rejected(_make_row(reading, FunnelCounter(error.counter), error.reason, reading.sampling_rate))
        # Step 3
        assert reading.slice_key is not None, "read to the end without a slice"
        place_of = reading.key[:2]
        if (partition := self._partitions.get(place_of)) is None:
            partition = self._partitions[place_of] = PartitionId(*place_of)
        if memory.is_duplicate(reading.request_id_hash, partition):
            return Rejected(_make_row(reading, FunnelCounter.DUPLICATE, "seen_before"))
        # Step 4
        unit_key, slice_key = reading.unit_key, reading.slice_key
        unit = memory.count(unit_key, partition)
        if _is_conversation(reading) and unit.rates:
            slice_key = reading.slice_key = min(unit.rates)  # there is one, but for rows from before the mode
        if (drawn := unit.rates.get(slice_key)) is None:
            smallest, rate = self._slice_rate(rule, ""), self._slice_rate(rule, slice_key)
            drawn = unit.rates[slice_key] = SessionRate(rate, is_thinned(smallest, rate, lambda: self._draw(reading)))
        rate = drawn.sampling_rate
        place = (rate, unit_key, unit.position, drawn.is_thinned)
        # Step 5
        if rate < 1.0 and self._draw(reading) >= rate:
            return Rejected(_make_row(reading, FunnelCounter.SAMPLED_OUT, "not_sampled", *place))
        # Step 6
        if not self._is_timed(reading, unit.position):
            return Rejected(_make_row(reading, FunnelCounter.SAMPLED_OUT, "not_timed", *place))
        prompt = ShadowPrompt(
            reading.key, rule.name, event_time, reading.labels, reading.prompt_token_ids, reading.sampling,
            reading.session_hash, reading.user_hash, reading.request_id_hash, reading.logged,
            _contract(rule, reading.labels["prompt_class"], reading.request),
            intervention_of(reading.record, reading.logged), reading.request.asked.constraint,
            response_text(response_of(reading.record)), unit_key,
            None if reading.request.chat is None else msgspec.json.encode(reading.request.chat),
        )  # fmt: skip
        return Admitted(
            prompt, _make_row(reading, FunnelCounter.MEASURED, None, *place), self._concurrency(rule, unit_key)
        )

    def _is_timed(self, reading: Reading, position: int) -> bool:
        """Whether the request at this place of a sampled session is measured."""
        rule = reading.rule
        if _is_conversation(reading):
            return position <= rule.timed_positions
        return position == 1 + self._hash.choice("timed_position", rule.timed_positions, rule.name, reading.unit_key)

    def _draw(self, reading: Reading) -> float:
        return self.reader.draw(reading.rule, reading.unit_key) if reading.draw is None else reading.draw

    def _concurrency(self, rule: EndpointRule, unit_key: str) -> int:
        """The session's load, drawn in proportion to the shares."""
        if len(rule.loads) == 1:
            return rule.loads[0].concurrency
        remaining = self._hash.uniform("load", rule.name, unit_key) * sum(load.share for load in rule.loads)
        for load in rule.loads:
            remaining -= load.share
            if remaining < 0:
                return load.concurrency
        return rule.loads[-1].concurrency  # rounding error left a positive remainder


def is_thinned(smallest: float, rate: float, draw: Callable[[], float]) -> bool | None:
    """Whether a session whose slice is sampled at `rate` is left out of its endpoint's evidence; None if not.

    `smallest` is the smallest rate in force at the endpoint's slices.
    """
    return (smallest < rate and draw() >= smallest) or None


def _is_conversation(reading: Reading) -> bool:
    """Whether the record is a turn of a session whose turns are measured together."""
    return reading.rule.measures_conversations and reading.session_hash is not None


def _make_row(
    reading: Reading,
    counter: FunnelCounter,
    reason: str | None,
    sampling_rate: float | None = None,
    unit_key: str | None = None,
    position: int | None = None,
    is_thinned: bool | None = None,
) -> StoredRecord:
    """The row of a record that was read so far; by place, as that takes half the time of naming every field."""
    return StoredRecord(
        reading.key, counter, reason, reading.rule.name, reading.slice_key, reading.labels, reading.event_time,
        reading.session_hash, reading.user_hash, reading.request_id_hash, unit_key, position, sampling_rate,
        reading.num_prompt_tokens, is_thinned, None if reading.logged is None else reading.logged.num_cached_tokens,
        reading.num_served_tokens,
    )  # fmt: skip


def _make_expired_row(reading: Reading, event_time: datetime) -> StoredRecord:
    """Only its place and time count; everything else that was read of it is dropped."""
    return StoredRecord(
        reading.key, FunnelCounter.EXPIRED, "older_than_max_age", reading.rule.name, event_time=event_time,
        session_hash=reading.session_hash, user_hash=reading.user_hash, request_id_hash=reading.request_id_hash,
    )  # fmt: skip


def _contract(rule: EndpointRule, prompt_class: str, request: ParsedRequest) -> OutputContract | None:
    """The operator's contract for this class of prompts, else the request's; None without one.

    Where tools are offered, a call of one of them satisfies the contract too.  A contract that only the request states
    also accepts a plain-text answer, unless the request requires JSON or a call.
    """
    configured = rule.contracts.get(prompt_class) or rule.contracts.get("")
    if configured is None:
        return request.asked.contract
    tools = tuple(request.tools or ()) if request.offers_tools else ()
    return replace(configured, tools=tools) if tools else configured
