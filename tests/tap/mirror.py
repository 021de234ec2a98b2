"""Mirrored records and a tokenizer to read them with: one token per byte."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shadowspec.errors import RecordError
from shadowspec.tap.admission import Admission, Admitted, Rejected
from shadowspec.tap.endpoints import EndpointRule, MatchRule
from shadowspec.tap.formats import MessageFormat, Opened, open_message
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.parameters import malformed_error
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, RecordKey
from shadowspec.types.prompt_rules import TemplateTraits
from tests.fakes import endpoint_rule

SECRET = b"a secret for the tests alone"
START = 1_700_000_400  # epoch seconds, at a multiple of ten minutes
RULE = endpoint_rule(name="chat", served_models=("model-a",), match=MatchRule(model="model-*"))


class ByteTokenizer:
    """One token per byte, roles included; a message of the role "refused" is not in this template."""

    context_length = 4_096
    vocabulary_size = 256

    def traits_of(self, tools: Sequence[Mapping[str, Any]] | None) -> TemplateTraits:
        return TemplateTraits()

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        if any(message["role"] == "refused" for message in messages):
            raise RecordError(FunnelCounter.UNSUPPORTED, "chat_template")
        text = "".join(f"{message['role']}:{message['content']}" for message in messages)
        return list((text + json.dumps(tools or "")).encode())

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def chat(**changes: Any) -> dict[str, Any]:
    """A chat record; `request_` and `response_` keys change the bodies, None removes a key."""
    request: dict[str, Any] = {
        "model": "model-a",
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": 20,
        "temperature": 0.8,
    }
    response: dict[str, Any] = {
        "id": "resp-1",
        "model": "model-a",
        "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [1, 2, 3]}],
        "usage": {"completion_tokens": 3},
    }
    record: dict[str, Any] = {
        "timestamp": START,
        "session_id": "s-1",
        "path": "/v1/chat/completions",
        "request": request,
        "response": response,
    }
    for name, value in changes.items():
        part, _, inner = name.partition("_")
        target, key = (
            ({"request": request, "response": response}[part], inner)
            if (part in {"request", "response"} and inner and name != "request_id")
            else (record, name)
        )
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
    return record


def raw(record: Any, line: int = 1) -> RawRecord:
    value = record if isinstance(record, bytes) else json.dumps(record).encode()
    return RawRecord(RecordKey("0" * 64, 0, line), value)


def admission(*rules: EndpointRule, secret: bytes = SECRET) -> Admission:
    rules = rules or (RULE,)
    return Admission(rules, {rule.name: ByteTokenizer() for rule in rules}, KeyedHash(secret))


def admit(decide: Admission, message: RawRecord) -> Admitted | Rejected:
    """The fate of a message that holds one record in our own format; an array of several is none."""
    opened = open_message(message, MessageFormat.OPENAI)
    is_json = opened[0].error is None or opened[0].error.reason not in {"not_json", "invalid_unicode"}
    is_array = is_json and (message.value or b"").lstrip().startswith(b"[")
    return decide.admit(Opened(message.key, error=malformed_error("not_an_object")) if is_array else opened[0])


def fates(records: Iterable[Any], *rules: EndpointRule, secret: bytes = SECRET) -> list[Admitted | Rejected]:
    decide = admission(*rules, secret=secret)
    return [admit(decide, raw(record, line)) for line, record in enumerate(records, 1)]


def fate(record: Any, *rules: EndpointRule) -> tuple[FunnelCounter, str | None]:
    """Counter and reason of one record alone; timed at its first position, so that a usable one is measured."""
    decided = fates([record], *(rules or (first_only(RULE),)))[0].record
    return decided.counter, decided.reason


def first_only(rule: EndpointRule) -> EndpointRule:
    """The rule with every session timed at its first request."""
    return replace(rule, timed_positions=1)


def responses(text: str = "Why is the sky blue?", *, answer: str = "It scatters.", **changes: Any) -> dict[str, Any]:
    """A record of OpenAI's Responses API; changes are of its request, None removes a key."""
    part = {"type": "output_text", "text": answer, "annotations": []}
    return {
        "timestamp": START,
        "session_id": "s-1",
        "path": "/v1/responses",
        "request": _changed({"model": "model-a", "input": text, "max_output_tokens": 20, "temperature": 0.8}, changes),
        "response": {
            "id": "resp_1",
            "object": "response",
            "created_at": START,
            "model": "model-a",
            "status": "completed",
            "error": None,
            "output": [{"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}],
            "usage": {"input_tokens": 7, "output_tokens": 3},
        },
    }


def messages(text: str = "Why is the sky blue?", *, answer: str = "It scatters.", **changes: Any) -> dict[str, Any]:
    """A record of Anthropic's Messages API; changes are of its request, None removes a key."""
    turn = {"role": "user", "content": [{"type": "text", "text": text}]}
    return {
        "timestamp": START,
        "session_id": "s-1",
        "path": "/v1/messages",
        "request": _changed({"model": "model-a", "messages": [turn], "max_tokens": 20, "temperature": 0.8}, changes),
        "response": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "model-a",
            "content": [{"type": "text", "text": answer}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 7, "output_tokens": 3},
        },
    }


def _changed(request: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (request | changes).items() if value is not None}
