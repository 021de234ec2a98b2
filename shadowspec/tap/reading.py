"""Reading: everything in a record by itself, before earlier records are considered.

The result depends only on the record, the rules and the secret.  The records of a poll can therefore be read step by
step, all of them in each step, before the first of them is decided: the tables that classify text are larger than a
processor's nearest memory, and are fetched once for all records.  A record that ends here has its reason in `error`,
with everything known of it by then.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from shadowspec.errors import RecordError
from shadowspec.tap import openai
from shadowspec.tap.chat_messages import served_messages, served_tools
from shadowspec.tap.context_buckets import context_bucket
from shadowspec.tap.endpoints import EndpointRule, match_endpoint
from shadowspec.tap.formats import Opened
from shadowspec.tap.hashing import UNIT_NUMBER, KeyedHash
from shadowspec.tap.language import LANGUAGE, language
from shadowspec.tap.openai import ParsedRequest, reasoning_of
from shadowspec.tap.parameters import unsupported_error
from shadowspec.tap.prompt_class import prompt_class
from shadowspec.tap.records import MirroredRecord, order_time
from shadowspec.tap.routing import Hints
from shadowspec.types import (
    OUTPUT_CONSTRAINT,
    REASONING,
    UNSTATED,
    FunnelCounter,
    FunnelKey,
    LoggedResponse,
    RecordKey,
    SamplingParameters,
    SamplingRegime,
    format_slice_key,
)
from shadowspec.types.prompt_rules import TemplateTraits

MAX_REMEMBERED_MATCHES = 1_000  # records' matched fields hardly vary, but for paths with ids in them
ANY_LENGTH: Final = 2**31  # tokens: no context and no vocabulary is larger
NO_LABELS: Final[Mapping[str, str]] = {}

MAX_LABEL_CHARACTERS = 64
TENANT_HASH_CHARACTERS = 16  # 64 bits of the tenant's hash: enough to distinguish tenants, short enough to read
OTHER_VALUE = "other"  # replaces a label's value that the endpoint does not list


class Tokenizer(Protocol):
    """The target's tokenizer as the tap needs it.

    `render_chat` and `encode` return token ids as the server would see them (special tokens included).  They raise only
    `RecordError`, where this target has no chat template or its template refuses the messages.  `traits_of` says what
    decides how the messages have to look for that template.
    """

    @property
    def context_length(self) -> int: ...  # tokens, prompt and output together

    @property
    def vocabulary_size(self) -> int: ...

    def traits_of(self, tools: Sequence[Mapping[str, Any]] | None) -> TemplateTraits: ...

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...


@runtime_checkable
class BodyRenderer(Protocol):
    """A tokenizer that renders a chat from the client's whole body, as a server does that is asked for the ids."""

    def render_body(self, body: Mapping[str, Any]) -> list[int]: ...


@runtime_checkable
class BatchTokenizer(Protocol):
    """A tokenizer that encodes many texts together, on several cores.

    `chat_text` raises as `render_chat` does; an error of `encode_all` takes the place of a prompt's ids.
    """

    def chat_text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str: ...

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> Sequence[list[int] | RecordError]: ...


class NoTokenizer:
    """Takes the place of a tokenizer where only the records are examined: every prompt is one token."""

    context_length = vocabulary_size = ANY_LENGTH

    def traits_of(self, tools: Sequence[Mapping[str, Any]] | None) -> TemplateTraits:
        return TemplateTraits()

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        return [0]

    def encode(self, text: str) -> list[int]:
        return [0]


class Reading:
    """The known facts of one record, filled in the order of the steps.

    `error` ends the record; `is_placed` says that its event time and endpoint were known by then.  `is_elsewhere`:
    another worker counts it.
    """

    __slots__ = (
        "draw", "error", "event_time", "is_elsewhere", "is_placed", "key", "labels", "logged", "num_prompt_tokens",
        "num_served_tokens", "prompt_token_ids", "record", "request", "request_id_hash", "rule", "sampling",
        "sampling_rate", "session_hash", "slice_key", "unit_key", "user_hash",
    )  # fmt: skip

    record: MirroredRecord
    rule: EndpointRule
    unit_key: str
    request: ParsedRequest
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParameters

    def __init__(self, key: RecordKey, error: RecordError | None) -> None:
        self.key, self.error = key, error
        self.is_placed = self.is_elsewhere = False
        self.event_time: datetime | None = None
        self.session_hash: str | None = None
        self.user_hash: str | None = None
        self.request_id_hash: str | None = None  # of its id and its body; None without an id
        self.draw: float | None = None  # the session's, where its endpoint samples
        self.sampling_rate: float | None = None
        self.num_prompt_tokens: int | None = None
        self.num_served_tokens: int | None = None  # the server's count of a prompt that is rendered here
        self.labels: Mapping[str, str] = NO_LABELS
        self.slice_key: str | None = None
        self.logged: LoggedResponse | None = None


class Reader:
    """Reads the records of one configuration's endpoints; several threads may share it."""

    def __init__(
        self,
        rules: Sequence[EndpointRule],
        tokenizers: Mapping[str, Tokenizer],
        keyed_hash: KeyedHash,
        elsewhere: Collection[str] = (),
    ) -> None:
        """
        Args:
            elsewhere: endpoints of `rules` whose records other workers count; what belongs to no endpoint is counted
                with the first of all.
        """
        self._rules, self._elsewhere = tuple(rules), frozenset(elsewhere)
        self._leaves_unplaced = bool(self._rules) and self._rules[0].name in self._elsewhere
        self._takes_untimed = all(rule.is_trial for rule in rules)
        self._tokenizers = tokenizers
        self._batches = {name: of for name, of in tokenizers.items() if isinstance(of, BatchTokenizer)}
        self._hash = keyed_hash
        self._matched: dict[tuple[str | None, str | None, str | None], EndpointRule | None] = {}
        # Values that hardly vary are made once and shared by all: by class, regime, context, constraint, language,
        # reasoning and endpoint.
        self._labelled: dict[
            tuple[str, SamplingRegime, str, str, str, str | None, str], tuple[Mapping[str, str], str]
        ] = {}

    def presample(self, key: RecordKey, hints: Hints) -> FunnelKey | None:
        """Where a record ends whose key or headers already say that its session is not sampled, else None."""
        endpoint, session = hints
        if endpoint is None or session is None or key.timestamp_ms <= 0:
            return None
        rule = self._match(endpoint, None, None)
        if rule is None or rule.sample_rate >= 1.0 or rule.name in self._elsewhere:
            return None  # the body may still say more
        session_key = _session_key(self._hash.identifier("session", session))
        unit_key = _numbered(session_key, key.timestamp_ms / 1000, rule.unit_span)
        is_sampled = self.draw(rule, unit_key) < rule.sample_rate
        return None if is_sampled else (rule.name, FunnelCounter.SAMPLED_OUT, "not_sampled")

    def read(self, opened: Iterable[tuple[Opened, Hints]]) -> list[Reading]:
        """The records' readings, in order; no record may be half of one.  Never raises for their content.

        The steps, in which each record ends with its first error: 1. event time; 2. endpoint; 3. session and user;
        4. was it an ordinary answer; 5. the session's draw against the endpoint's rate; 6. did this model serve it;
        7. bodies; 8. class; 9. tokens, those of all texts of an endpoint together; 10. tokens checked against the
        context, identity and slice.
        """
        readings, placed = [], []
        for opened_record, hints in opened:
            readings.append(reading := Reading(opened_record.key, opened_record.error))
            if opened_record.record is not None and _is_done(self._place, reading, opened_record.record, hints):
                placed.append(reading)
            reading.is_elsewhere |= self._leaves_unplaced and not reading.is_placed
        parsed = [reading for reading in placed if _is_done(self._parse, reading)]
        classes = [_prompt_class(reading.record, reading.request, reading.rule) for reading in parsed]
        self._encode(parsed)
        for reading, name in zip(parsed, classes, strict=True):
            if reading.error is None:
                _is_done(self._count_and_label, reading, name)
        return readings

    def draw(self, rule: EndpointRule, unit_key: str) -> float:
        """The number in [0, 1) by which a unit is sampled, the same for all of its slices."""
        return self._hash.uniform("sample", rule.name, unit_key)

    def _place(self, reading: Reading, record: MirroredRecord, hints: Hints) -> None:
        """Steps 1 to 5."""
        # Step 1
        reading.record = record
        is_untimed = self._takes_untimed and record.is_untimed(reading.key.timestamp_ms)
        event_time = order_time(reading.key) if is_untimed else record.event_time(reading.key.timestamp_ms)
        reading.event_time = event_time
        # Step 2
        endpoint, hinted_session = hints
        rule = self._match(record.endpoint if endpoint is None else endpoint, record.model, record.request_path)
        if rule is None:
            raise unsupported_error("no_endpoint")
        if rule.name in self._elsewhere:
            reading.is_elsewhere = True
            raise unsupported_error("elsewhere")
        reading.rule, reading.is_placed = rule, True
        # Step 3
        identifier = self._hash.identifier
        session = record.session() if hinted_session is None else hinted_session
        if (user := record.user_id()) is not None:
            reading.user_hash = identifier("user", user)
        elif session is None and is_untimed:  # its order says nothing of who wrote it
            session = record.opening()
        if session is not None:
            reading.session_hash = identifier("session", session)
        # Step 4
        record.check_served()
        if record.is_unsampled and not rule.is_trial:
            raise unsupported_error("no_sampling")
        # Step 5: one hash of the unit, the same at every record of it, the first included.
        is_hinted = hinted_session is not None and reading.key.timestamp_ms > 0  # as in `presample`
        at_s = reading.key.timestamp_ms / 1000 if is_hinted else event_time.timestamp()
        reading.unit_key = _unit_key(reading.session_hash, reading.user_hash, at_s, rule)
        if rule.sample_rate < 1.0:
            reading.draw = self.draw(rule, reading.unit_key)
            if reading.draw >= rule.sample_rate:
                reading.sampling_rate = rule.sample_rate
                raise RecordError(FunnelCounter.SAMPLED_OUT, "not_sampled")

    def _parse(self, reading: Reading) -> None:
        """Steps 6 and 7."""
        record, rule = reading.record, reading.rule
        # Step 6
        response = openai.parse_response(record)
        _check_model(rule, record.model, response.model)
        # Step 7
        reading.request = openai.parse_request(
            record,
            served_prompt_token_ids=response.prompt_token_ids,
            default_sampling=rule.default_sampling,
            unseeded=rule.unseeded,
            takes_constraints=rule.takes_constraints,
            takes_chats=rule.takes_chats,
            tool_call_format=rule.tool_call_format,
        )
        reading.logged = response.logged
        if reading.request.prompt_token_ids is None:
            reading.num_served_tokens = response.num_prompt_tokens

    def _encode(self, readings: Iterable[Reading]) -> None:
        """Step 9."""
        waiting: dict[str, list[tuple[Reading, tuple[str, bool]]]] = {}
        for reading in readings:
            _is_done(self._find_ids, reading, waiting)
        for endpoint, asked in waiting.items():
            tokenizer = self._batches[endpoint]
            for (reading, _), ids in zip(asked, tokenizer.encode_all([text for _, text in asked]), strict=True):
                if isinstance(ids, RecordError):
                    reading.error = ids
                else:
                    reading.prompt_token_ids = tuple(ids)

    def _find_ids(self, reading: Reading, waiting: dict[str, list[tuple[Reading, tuple[str, bool]]]]) -> None:
        """A prompt's ids, or what is to be encoded with others: the text, and whether special tokens are added."""
        request, rules, name = reading.request, reading.rule.prompt_rules, reading.rule.name
        tokenizer, batches = self._tokenizers[name], self._batches.get(name)
        if request.prompt_token_ids is not None:
            reading.prompt_token_ids = request.prompt_token_ids
        elif request.chat is not None and isinstance(tokenizer, BodyRenderer):
            reading.prompt_token_ids = tuple(tokenizer.render_body(request.chat))
        elif request.is_chat:
            tools = (
                served_tools(request.tools, rules) if request.offers_tools or not rules.hides_refused_tools else None
            )
            messages = served_messages(request.messages, rules, tokenizer.traits_of(tools))
            if batches is None:
                reading.prompt_token_ids = tuple(tokenizer.render_chat(messages, tools))
            else:
                waiting.setdefault(name, []).append((reading, (batches.chat_text(messages, tools), False)))
        elif batches is None:
            reading.prompt_token_ids = tuple(tokenizer.encode(request.text or ""))
        else:
            waiting.setdefault(name, []).append((reading, (request.text or "", True)))

    def _count_and_label(self, reading: Reading, class_name: str) -> None:
        """Step 10."""
        rule, request = reading.rule, reading.request
        tokenizer = self._tokenizers[rule.name]
        ids = reading.prompt_token_ids
        _check_ids(ids, request, tokenizer)
        reading.num_prompt_tokens = len(ids)
        if request.is_rendered_otherwise and reading.num_served_tokens is not None:
            reading.num_prompt_tokens = reading.num_served_tokens
        if (call_id := reading.record.call_id()) is not None:
            kind, name = call_id
            reading.request_id_hash = self._hash.identifier(kind, f"{_body_digest(request, ids)}{name}")
        reading.sampling = _bound_length(request, rule, reading.num_prompt_tokens, tokenizer.context_length)
        regime, bucket = reading.sampling.regime, context_bucket(reading.num_prompt_tokens)
        constraint = request.asked.constraint
        kind = UNSTATED if constraint is None else constraint.kind.value
        thinks = reasoning_of(request, reading.record.response) if rule.takes_chats else None
        is_language_asked = LANGUAGE in rule.slice_by and LANGUAGE not in rule.labels  # else detection is not used
        spoken = _language(reading.record, request, rule) if is_language_asked else ""
        asked = (class_name, regime, bucket, kind, spoken, thinks, rule.name)
        if (labels_and_key := self._labelled.get(asked)) is None:
            labels = {"prompt_class": class_name, "sampling_regime": regime.value, "context_bucket": bucket}
            if constraint is not None or OUTPUT_CONSTRAINT in rule.slice_by:
                labels[OUTPUT_CONSTRAINT] = kind
            if thinks is not None or REASONING in rule.slice_by:
                labels[REASONING] = thinks or UNSTATED
            if spoken:
                labels[LANGUAGE] = spoken
            labels_and_key = self._labelled[asked] = (labels, format_slice_key(labels, rule.slice_by))
        reading.labels, reading.slice_key = labels_and_key
        tenant = reading.record.tenant_id()
        tenant_hash = None if tenant is None else self._hash.identifier("tenant", tenant)
        if own_labels := _own_labels(reading.record, rule, tenant_hash):
            reading.labels = labels = {**reading.labels, **own_labels}
            reading.slice_key = format_slice_key(labels, rule.slice_by)

    def _match(self, endpoint: str | None, model: str | None, path: str | None) -> EndpointRule | None:
        """The rule for a record's fields; recent results are cached."""
        asked = (endpoint, model, path)
        if asked in self._matched:
            return self._matched[asked]
        rule = match_endpoint(self._rules, endpoint=endpoint, model=model, path=path)
        if len(self._matched) >= MAX_REMEMBERED_MATCHES:
            self._matched.clear()
        self._matched[asked] = rule
        return rule


def _is_done(step: Callable[..., None], reading: Reading, *arguments: Any) -> bool:
    """Continue reading a record; False where it ends with an error."""
    try:
        step(reading, *arguments)
    except RecordError as error:
        reading.error = error.without_traceback()
        return False
    return True


def _check_model(rule: EndpointRule, asked: str | None, answered: str | None) -> None:
    if asked is None and answered is None and not rule.is_trial:
        raise unsupported_error("no_model")
    for model in (asked, answered):
        if model is not None and model not in rule.served_models:
            raise unsupported_error("other_model")


def _check_ids(ids: Sequence[int], request: ParsedRequest, tokenizer: Tokenizer) -> None:
    if not ids:
        raise unsupported_error("empty_prompt")
    if max(max(ids), *request.sampling.stop_token_ids, 0) >= tokenizer.vocabulary_size:
        raise unsupported_error("token_not_in_vocabulary")


def _body_digest(request: ParsedRequest, prompt_token_ids: Sequence[int]) -> str:
    """What an id has to come with to be the same call again: prompt, sampling and constraint, however they are written.

    One id often names several calls: those of a trace, or of a server that numbers its answers from a small space.
    """
    digest = hashlib.sha256(array("I", prompt_token_ids).tobytes())
    digest.update(msgspec.json.encode((request.sampling, request.max_tokens, request.asked.constraint)))
    if request.is_rendered_otherwise:
        digest.update(msgspec.json.encode(request.chat, order="sorted"))
    return digest.hexdigest()


def _bound_length(
    request: ParsedRequest, rule: EndpointRule, num_prompt_tokens: int, context_length: int
) -> SamplingParameters:
    """The sampling parameters with the output length that prompt and context leave."""
    room = context_length - num_prompt_tokens
    max_tokens = room if request.max_tokens is None else request.max_tokens
    if rule.max_new_tokens is not None:
        max_tokens = min(max_tokens, rule.max_new_tokens)
    if room < 1 or max_tokens > room:
        raise unsupported_error("longer_than_context")
    sampling = request.sampling
    min_tokens = min(sampling.min_tokens, max_tokens)
    if max_tokens == sampling.max_tokens and min_tokens == sampling.min_tokens:
        return sampling
    return replace(sampling, max_tokens=max_tokens, min_tokens=min_tokens)


def _unit_key(session_hash: str | None, user_hash: str | None, at_s: float, rule: EndpointRule) -> str:
    """The unit of a request at `at_s`, seconds since the epoch: its session, else its user, with a number; else a time.

    A session or user that stays in use is a new unit in every `unit_span`, with its own draw, position and load.  The
    number depends on nothing but key and time, so no memory of a key is needed, and partitions may come in any order.
    """
    if session_hash is not None:
        return _numbered(_session_key(session_hash), at_s, rule.unit_span)
    if user_hash is not None:
        return _numbered(f"user:{user_hash}", at_s, rule.unit_span)
    return f"time:{int(at_s // rule.time_block.total_seconds())}"


def _session_key(session_hash: str) -> str:
    return f"session:{session_hash}"


def _numbered(key: str, at_s: float, span: timedelta) -> str:
    """The key with the number of its span.

    Spans of different keys begin at different times: else every user would be timed in the first hours of each day.
    """
    span_s = span.total_seconds()
    return f"{key}{UNIT_NUMBER}{int((at_s + zlib.crc32(key.encode()) / 2**32 * span_s) // span_s)}"


def _prompt_class(record: MirroredRecord, request: ParsedRequest, rule: EndpointRule) -> str:
    """The class of a request: the record's label, else the classifier's."""
    declared = _annotation(record, rule, "prompt_class")
    return prompt_class(
        request.texts,
        declared=declared if isinstance(declared, str) else None,
        offers_tools=request.offers_tools,
        asks_for_json=request.asked.asks_for_json,
    )


def _language(record: MirroredRecord, request: ParsedRequest, rule: EndpointRule) -> str:
    """The language of a request: the record's label, else by its text."""
    declared = _annotation(record, rule, LANGUAGE)
    return language(request.texts, declared=declared if isinstance(declared, str) else None)


def _own_labels(record: MirroredRecord, rule: EndpointRule, tenant_hash: str | None) -> dict[str, str]:
    """The labels that only some requests have: the tenant, and the endpoint's configured ones.

    A value that the endpoint does not list is "other": no text gets into a label, and nobody makes slices without end.
    """
    labels = {} if tenant_hash is None else {"tenant": tenant_hash[:TENANT_HASH_CHARACTERS]}
    for name, values in rule.labels.items():
        value = _annotation(record, rule, name)
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)[:MAX_LABEL_CHARACTERS]
            labels[name] = text if text in values else OTHER_VALUE
    return labels


def _annotation(record: MirroredRecord, rule: EndpointRule, name: str) -> Any:
    """The mirror's word on a record; the client's only where the endpoint takes it."""
    said = record.annotation(name)
    return record.client_annotation(name) if said is None and rule.client_labels else said
