"""Messages that are decoded at once give what their documents give."""

from __future__ import annotations

import json
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import asdict, astuple

from shadowspec.errors import RecordError
from shadowspec.tap import openai
from shadowspec.tap.bodies import ResponseBody
from shadowspec.tap.formats import MessageFormat, Opened, open_message
from shadowspec.tap.formats import message as opening
from shadowspec.tap.records import MirroredRecord, decode_record
from tests.builders.seeds import seeds
from tests.fuzz.mutation import mutated
from tests.fuzz.target import HEADERS
from tests.tap.formats.samples import message
from tests.tap.mirror import chat

WRITTEN = [seed[1:] for seed in seeds(MessageFormat.OPENAI)] + [json.dumps(chat()).encode()]
AT_MS = 1_700_000_400_000


def said(each: Opened) -> Any:
    """All that a record says, with the first thing that is wrong of it."""
    if each.record is None:
        return each.key, each.half, each.error and (each.error.counter, each.error.reason)
    record, found = each.record, []
    fields = {name: value for name, value in asdict(record).items() if name in MirroredRecord.__struct_fields__}
    del fields["response"]
    for read in (lambda: record.event_time(AT_MS), record.call_id, record.check_served):
        try:
            found.append(read())
        except RecordError as error:
            found.append((error.counter, error.reason))
    try:
        answer = (astuple(openai.parse_response(record)), to_builtins(openai.response_of(record)))
    except RecordError as error:
        answer = (error.counter, error.reason)
    return each.key, repr((fields, found, answer))  # True is not 1, nor is 1.0


def opened_both_ways(value: bytes, headers: Any, format: MessageFormat) -> tuple[list[Any], list[Any]]:
    raw = message(value, headers)
    directly = [said(each) for each in open_message(raw, format)]
    with mock.patch.object(opening, "decode_record", return_value=None):
        return directly, [said(each) for each in open_message(raw, format)]


@pytest.mark.parametrize("format", [MessageFormat.OPENAI, MessageFormat.AUTO])
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(WRITTEN), st.randoms(use_true_random=False), st.sampled_from(HEADERS[:2]))
def test_changed_messages_say_what_their_documents_say(
    format: MessageFormat, seed: bytes, generator: Random, headers: Any
) -> None:
    directly, by_document = opened_both_ways(mutated(seed, generator), headers, format)
    assert directly == by_document


FIELDS = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=3) | st.just({"a": 1})
)
CHANGES = st.dictionaries(
    st.sampled_from(
        [
            *("request", "response", "endpoint", "timestamp", "session_id", "user", "tenant", "request_id", "path"),
            *("url", "status", "cache_hit", "is_silent_experiment", "metadata", "headers", "call_type", "specversion"),
            "other",
        ]
    ),
    FIELDS,
    max_size=3,
)
ANSWER_CHANGES = st.dictionaries(
    st.sampled_from(["id", "created", "error", "model", "choices", "usage", "prompt_token_ids", "other"]),
    FIELDS | st.just([]) | st.just([{}, {}]) | st.just([{"token_ids": [1, 2], "logprobs": None, "text": "x"}]),
    max_size=3,
)


@pytest.mark.parametrize("format", [MessageFormat.OPENAI, MessageFormat.AUTO])
@settings(max_examples=400, deadline=None)
@given(CHANGES, ANSWER_CHANGES)
def test_odd_fields_say_what_they_say_in_documents(
    format: MessageFormat, changes: dict[str, Any], of_answer: dict[str, Any]
) -> None:
    record = chat()
    record["response"] = {**record["response"], **of_answer}
    value = json.dumps({**record, **changes}).encode()
    directly, by_document = opened_both_ways(value, (), format)
    assert directly == by_document


def test_an_ordinary_message_is_read_without_a_document() -> None:
    with mock.patch.object(opening, "split_message", side_effect=AssertionError("a document was made")):
        for format in (MessageFormat.OPENAI, MessageFormat.AUTO):
            (found,) = open_message(message(chat(), (("x-session-id", b"s"),)), format)
            assert found.record is not None
            assert isinstance(found.record.response, ResponseBody)


ODD = [b'"\xff"', rb'"\ud800 and on"', b"NaN", b'"\x01"', b"[" * 3_000 + b"]" * 3_000]


@pytest.mark.parametrize(
    ("field", "odd"),
    [
        *((field, odd) for field in (b'"request": {', b'"response": {', b"{") for odd in ODD),
        (b'"request": {', b"[" * 300 + b"]" * 300),  # stepped over elsewhere, if not beyond the decoder's own limit
    ],
)
def test_what_no_document_may_hold_is_refused(field: bytes, odd: bytes) -> None:
    value = json.dumps(chat()).encode().replace(field, field + b'"other": ' + odd + b", ", 1)
    assert decode_record(value, {}) is None
    directly, by_document = opened_both_ways(value, (), MessageFormat.OPENAI)
    assert directly == by_document
    assert directly[0][2][0] == "malformed"
