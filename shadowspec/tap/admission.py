"""Admission: what becomes of each consumed record.

Every record leaves `Admission.admit` in exactly one funnel counter.  What it decides depends on the records
before it and on the secret, never on outcomes, the clock or a generator: a second pass over the same input
gives the same fates, and whether a request is measured is settled before anything is known of its result.

A session is timed once per endpoint, at its J-th usable request; requests without a session count for
their user, and those without either for the ten minutes in which they came.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from shadowspec.errors import RecordError
from shadowspec.tap import openai
from shadowspec.tap.endpoints import EndpointRule, match_endpoint
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.labels import slice_labels
from shadowspec.tap.parameters import malformed, unsupported
from shadowspec.tap.records import EPOCH, decode
from shadowspec.tap.sources import RawRecord
from shadowspec.types import (
    FunnelCounter,
    SamplingParameters,
    ShadowPrompt,
    StoredRecord,
    format_slice_key,
)

MAX_REMEMBERED_REQUESTS = 1_000_000  # ids per endpoint against which duplicates are seen; about 150 MB


class Tokenizer(Protocol):
    """The target's tokenizer as the tap needs it.

    `render_chat` and `encode` return token ids as the server would see them (special tokens included) and
    raise `RecordError` alone, where this target has no chat template or its template refuses the messages.
    """

    @property
    def context_length(self) -> int: ...  # tokens, prompt and output together

    @property
    def vocabulary_size(self) -> int: ...

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request to measure, at the load `concurrency`.  Its record becomes `failed` if measuring it fails."""

    prompt: ShadowPrompt
    record: StoredRecord
    concurrency: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is not measured; its counter and reason say why."""

    record: StoredRecord


@dataclass(slots=True)
class _Unit:
    """How many usable requests a session (or what stands for it) has had, and when the last one came."""

    position: int
    last_seen: datetime


@dataclass(slots=True)
class _EndpointState:
    """What is remembered of an endpoint's stream.  `newest` is the watermark: the newest event time so far."""

    forget_unit_after: timedelta
    newest: datetime = EPOCH
    units: OrderedDict[str, _Unit] = field(default_factory=OrderedDict)  # least recently seen first
    requests: OrderedDict[str, None] = field(default_factory=OrderedDict)  # oldest first

    def advance(self, event_time: datetime) -> None:
        self.newest = max(self.newest, event_time)
        while self.units and self.newest - next(iter(self.units.values())).last_seen > self.forget_unit_after:
            self.units.popitem(last=False)

    def next_position(self, unit_key: str) -> int:
        unit = self.units.setdefault(unit_key, _Unit(0, self.newest))
        unit.position += 1
        unit.last_seen = self.newest
        self.units.move_to_end(unit_key)
        return unit.position

    def is_duplicate(self, identities: Sequence[str]) -> bool:
        seen = any(identity in self.requests for identity in identities)
        self.requests.update(dict.fromkeys(identities))
        while len(self.requests) > MAX_REMEMBERED_REQUESTS:
            self.requests.popitem(last=False)
        return seen


class Admission:
    """Decides each record's fate, in the order of delivery.  One instance lives as long as its input."""

    def __init__(
        self, rules: Sequence[EndpointRule], tokenizers: Mapping[str, Tokenizer], keyed_hash: KeyedHash
    ) -> None:
        """
        Args:
            rules: the endpoints, in the order in which they are tried.
            tokenizers: each endpoint's target tokenizer, by endpoint name.
            keyed_hash: hashes under the operator's secret.
        """
        missing = [rule.name for rule in rules if rule.name not in tokenizers]
        if missing:
            raise ValueError(f"no tokenizer for {', '.join(missing)}")
        self._rules = tuple(rules)
        self._tokenizers = tokenizers
        self._hash = keyed_hash
        self._states = {rule.name: _EndpointState(rule.forget_unit_after) for rule in rules}

    def admit(self, raw: RawRecord) -> Admitted | Rejected:
        """The fate of one record.  Never raises for what a record holds."""
        trail = _Trail(StoredRecord(key=raw.key, counter=FunnelCounter.MALFORMED))
        try:
            return self._admit(raw, trail)
        except RecordError as error:
            return Rejected(replace(trail.record, counter=FunnelCounter(error.counter), reason=error.reason))

    def _admit(self, raw: RawRecord, trail: _Trail) -> Admitted:
        """The steps in order; each raises RecordError where the record ends.

        1. decode; 2. find its endpoint; 3. hash its ids; 4. age; 5. refuse what was not served by this model
        in the ordinary way; 6. read the bodies; 7. tokenise and hold against the context; 8. slice;
        9. duplicates; 10. count its place in its session; 11. sampling; 12. whether this place is the timed one.
        """
        # Step 1
        if raw.problem is not None:
            raise malformed(raw.problem)
        record = decode(raw.value)
        event_time = record.event_time(raw.key.timestamp_ms)
        trail.update(event_time=event_time)
        # Step 2
        rule = match_endpoint(self._rules, endpoint=record.endpoint, model=record.model, path=record.request_path)
        if rule is None:
            raise unsupported("no_endpoint")
        state = self._states[rule.name]
        # Step 3
        session_hash = self._hashed("session", record.session())
        user_hash = self._hashed("user", record.user_id())
        request_id_hash = self._hashed("request", record.request_identity())
        response_id_hash = self._hashed("response", record.response_identity())
        tenant_hash = self._hashed("tenant", record.tenant_id())
        trail.update(endpoint=rule.name, session_hash=session_hash, user_hash=user_hash)
        # Step 4
        state.advance(event_time)
        if rule.max_age is not None and state.newest - event_time > rule.max_age:
            raise RecordError(FunnelCounter.EXPIRED, "older_than_max_age")
        # Step 5
        record.check_served()
        response = openai.parse_response(record)
        _check_model(rule, record.model, response.model)
        # Step 6
        request = openai.parse_request(
            record, served_prompt_token_ids=response.prompt_token_ids, default_sampling=rule.default_sampling
        )
        # Step 7
        tokenizer = self._tokenizers[rule.name]
        prompt_token_ids = _prompt_token_ids(request, tokenizer)
        trail.update(num_prompt_tokens=len(prompt_token_ids))
        sampling = _bounded(request, rule, len(prompt_token_ids), tokenizer.context_length)
        # Step 8
        labels = slice_labels(record, request, rule, sampling.regime, len(prompt_token_ids), tenant_hash)
        slice_key = format_slice_key(labels, rule.slice_by)
        trail.update(labels=labels, slice_key=slice_key)
        # Step 9
        identities = [identity for identity in (request_id_hash, response_id_hash) if identity is not None]
        if state.is_duplicate(identities):
            raise RecordError(FunnelCounter.DUPLICATE, "seen_before")
        # Step 10
        unit_key = _unit_key(session_hash, user_hash, (event_time - EPOCH) // rule.time_block)
        position = state.next_position(unit_key)
        trail.update(session_position=position, sampling_rate=rule.sample_rate)
        # Step 11: a hash of (session, slice) alone is the same at every record of theirs, the first included.
        if self._hash.uniform("sample", rule.name, unit_key, slice_key) >= rule.sample_rate:
            raise RecordError(FunnelCounter.SAMPLED_OUT, "not_sampled")
        # Step 12
        if position != 1 + self._hash.choice("timed_position", rule.timed_positions, rule.name, unit_key):
            raise RecordError(FunnelCounter.SAMPLED_OUT, "not_timed")
        trail.update(counter=FunnelCounter.MEASURED)
        prompt = ShadowPrompt(
            key=raw.key,
            endpoint=rule.name,
            event_time=event_time,
            labels=labels,
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            session_hash=session_hash,
            user_hash=user_hash,
            request_id_hash=request_id_hash,
            response=response.logged,
        )
        return Admitted(prompt, trail.record, self._concurrency(rule, unit_key))

    def _hashed(self, purpose: str, value: str | None) -> str | None:
        return None if value is None else self._hash.identifier(purpose, value)

    def _concurrency(self, rule: EndpointRule, unit_key: str) -> int:
        """The session's load, drawn in proportion to the shares."""
        remaining = self._hash.uniform("load", rule.name, unit_key) * sum(load.share for load in rule.loads)
        for load in rule.loads:
            remaining -= load.share
            if remaining < 0:
                return load.concurrency
        return rule.loads[-1].concurrency  # rounding left a crumb


class _Trail:
    """What is known of a record so far, kept for the row that is stored wherever it ends."""

    def __init__(self, record: StoredRecord) -> None:
        self.record = record

    def update(self, **known: Any) -> None:
        self.record = replace(self.record, **known)


def _check_model(rule: EndpointRule, asked: str | None, answered: str | None) -> None:
    named = [model for model in (asked, answered) if model is not None]
    if not named:
        raise unsupported("no_model")
    if any(model not in rule.served_models for model in named):
        raise unsupported("other_model")


def _prompt_token_ids(request: openai.ParsedRequest, tokenizer: Tokenizer) -> tuple[int, ...]:
    if request.prompt_token_ids is not None:
        ids = request.prompt_token_ids
    elif request.is_chat:
        ids = tuple(tokenizer.render_chat(request.messages, request.tools))
    else:
        ids = tuple(tokenizer.encode(request.text or ""))
    if not ids:
        raise unsupported("empty_prompt")
    named = (*ids, *request.sampling.stop_token_ids)
    if max(named) >= tokenizer.vocabulary_size:
        raise unsupported("token_not_in_vocabulary")
    return ids


def _bounded(
    request: openai.ParsedRequest, rule: EndpointRule, num_prompt_tokens: int, context_length: int
) -> SamplingParameters:
    """The sampling parameters with the output length that prompt and context leave."""
    room = context_length - num_prompt_tokens
    max_tokens = room if request.max_tokens is None else request.max_tokens
    if rule.max_new_tokens is not None:
        max_tokens = min(max_tokens, rule.max_new_tokens)
    if room < 1 or max_tokens > room:
        raise unsupported("longer_than_context")
    min_tokens = min(request.sampling.min_tokens, max_tokens)
    return replace(request.sampling, max_tokens=max_tokens, min_tokens=min_tokens)


def _unit_key(session_hash: str | None, user_hash: str | None, time_block: int) -> str:
    if session_hash is not None:
        return f"session:{session_hash}"
    if user_hash is not None:
        return f"user:{user_hash}"
    return f"time:{time_block}"
