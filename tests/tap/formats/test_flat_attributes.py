"""Spans that spread messages over attributes: OpenInference's, and Traceloop's of old."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import RecordError
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.openai import parse_request, parse_response, response_of
from shadowspec.tap.records import MirroredRecord
from shadowspec.tap.responses import response_text
from tests.builders.otlp import attributes, logs, span, traces
from tests.tap.formats.samples import message, record_of, refusal, refused_later

TOOL = {"type": "function", "function": {"name": "look_up", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}
ASKED = [
    {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "blue"},
]
# What the two instrumentations wrote of a call with these messages and this tool, and a format of JSON.
OPENINFERENCE: dict[str, Any] = {
    "openinference.span.kind": "LLM",
    "llm.invocation_parameters": json.dumps({"model": "model-a", "temperature": 0.5, "stop": ["x"]}),
    "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.contents.0.message_content.type": "text",
    "llm.input_messages.0.message.contents.0.message_content.text": "Hi",
    "llm.input_messages.0.message.contents.1.message_content.type": "text",
    "llm.input_messages.0.message.contents.1.message_content.text": "you",
    "llm.input_messages.1.message.role": "assistant",
    "llm.input_messages.1.message.tool_calls.0.tool_call.id": "c",
    "llm.input_messages.1.message.tool_calls.0.tool_call.function.name": "look_up",
    "llm.input_messages.1.message.tool_calls.0.tool_call.function.arguments": '{"a": 1}',
    "llm.input_messages.2.message.role": "tool",
    "llm.input_messages.2.message.tool_call_id": "c",
    "llm.input_messages.2.message.content": "blue",
    "llm.model_name": "model-a",
    "llm.token_count.prompt": 9,
    "llm.token_count.completion": 2,
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "Rayleigh.",
    "llm.finish_reason": "stop",
}
TRACELOOP: dict[str, Any] = {
    "llm.request.type": "chat",
    "gen_ai.request.model": "model-a",
    "gen_ai.request.temperature": 0.5,
    "llm.frequency_penalty": 0.5,
    "llm.chat.stop_sequences": ["x"],
    "llm.user": "u-1",
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": json.dumps(ASKED[0]["content"]),
    "gen_ai.prompt.1.role": "assistant",
    "gen_ai.prompt.1.tool_calls.0.id": "c",
    "gen_ai.prompt.1.tool_calls.0.name": "look_up",
    "gen_ai.prompt.1.tool_calls.0.arguments": '{"a": 1}',
    "gen_ai.prompt.2.role": "tool",
    "gen_ai.prompt.2.content": "blue",
    "gen_ai.prompt.2.tool_call_id": "c",
    "llm.request.functions.0.name": "look_up",
    "llm.request.functions.0.description": "d",
    "llm.request.functions.0.parameters": json.dumps({"type": "object"}),
    "gen_ai.response.model": "model-a",
    "gen_ai.usage.completion_tokens": 2,
    "gen_ai.completion.0.finish_reason": "stop",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Rayleigh.",
}
BOTH = [OPENINFERENCE, TRACELOOP]
MESSAGES_OF = {id(OPENINFERENCE): "llm.input_messages", id(TRACELOOP): "gen_ai.prompt"}


def document(given: dict[str, Any], **fields: Any) -> dict[str, Any]:
    changed = {key: value for key, value in given.items() if value is not None}
    return traces(span(attributes=attributes(changed), **fields))


@pytest.mark.parametrize("given", BOTH)
def test_messages_tools_parameters_and_answer(given: dict[str, Any]) -> None:
    record = record_of(document(given))
    expected = MirroredRecord(
        request={"model": "model-a", "messages": ASKED, "tools": [TOOL], "temperature": 0.5, "stop": ["x"]}
    )
    if given is TRACELOOP:
        expected.request["frequency_penalty"] = 0.5
        assert record.user_id() == "u-1"
    read, wanted = parse_request(record), parse_request(expected)
    assert (read.messages, read.tools, read.sampling) == (wanted.messages, wanted.tools, wanted.sampling)
    record.check_served()
    logged = parse_response(record).logged
    assert logged is not None
    assert (response_text(response_of(record)), logged.finish_reason) == ("Rayleigh.", "stop")
    assert logged.num_output_tokens == 2


@pytest.mark.parametrize("given", BOTH)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_message_that_was_not_logged_is_no_gap_in_silence(given: dict[str, Any], number: int) -> None:
    name = MESSAGES_OF[id(given)]
    cut = {key: value for key, value in given.items() if not key.startswith(f"{name}.{number}.")}
    if number < 2:
        assert refusal(document(cut)) == ("malformed", f"invalid:{name}")
    else:  # the last: only the SDK's count of what it dropped tells
        assert refused_later(record_of(document(cut, droppedAttributesCount=3))) == ("unsupported", "truncated")


def test_a_part_that_the_instrumentation_leaves_out_is_no_gap_in_silence() -> None:
    moved = {key.replace("contents.1", "contents.2"): value for key, value in OPENINFERENCE.items()}
    assert refusal(document(moved)) == ("malformed", "invalid:llm.input_messages")


def test_the_whole_body_counts_before_the_numbered_messages() -> None:
    body = {"model": "model-a", "messages": [{"role": "user", "content": "Hi"}], "top_k": 3}
    whole = {"input.value": json.dumps(body), "input.mime_type": "application/json"}
    record = record_of(document(OPENINFERENCE | whole))
    assert record.request == body
    # What LangChain's instrumentation writes there is no body.
    other = {"input.value": json.dumps({"messages": [[{"lc": 1}]]}), "input.mime_type": "application/json"}
    assert record_of(document(OPENINFERENCE | other)).request["messages"][2]["content"] == "blue"
    cut = {"input.value": json.dumps(body)[:-9], "input.mime_type": "application/json"}
    assert record_of(document(OPENINFERENCE | cut)).request["stop"] == ["x"]


def test_text_completions() -> None:
    prompt = {"openinference.span.kind": "LLM", "llm.invocation_parameters": '{"model": "m", "max_tokens": 3}'}
    read = parse_request(record_of(document(prompt | {"llm.prompts.0.prompt.text": "Why?"})))
    assert (read.is_chat, read.text, read.max_tokens) == (False, "Why?", 3)
    old = {"llm.request.type": "completion", "gen_ai.request.model": "m", "gen_ai.prompt.0.user": "Why?"}
    read = parse_request(record_of(document(old)))
    assert (read.is_chat, read.text) == (False, "Why?")


@pytest.mark.parametrize(
    ("given", "changes", "reason"),
    [
        (OPENINFERENCE, {"input.value": "__REDACTED__"}, "redacted"),
        (OPENINFERENCE, {"llm.input_messages.2.message.content": "__REDACTED__"}, "redacted"),
        (OPENINFERENCE, {"llm.tools.0.tool.json_schema": None}, "no_tool_definitions"),
        (TRACELOOP, {"llm.request.functions.0.parameters": None}, "no_tool_definitions"),
    ],
)
def test_what_a_span_lacks_is_named(given: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    assert refused_later(record_of(document(given | changes))) == ("unsupported", reason)


@pytest.mark.parametrize("given", BOTH)
def test_a_span_without_content_has_no_payload(given: dict[str, Any]) -> None:
    names = ("llm.input_messages", "gen_ai.prompt", "gen_ai.completion", "llm.output_messages")
    bare = {key: value for key, value in given.items() if not key.startswith(names)}
    assert refused_later(record_of(document(bare))) == ("unsupported", "no_payload")


def test_a_span_without_parameters_is_marked() -> None:
    assert not record_of(document(OPENINFERENCE)).is_unsampled
    assert record_of(document(OPENINFERENCE | {"llm.invocation_parameters": None})).is_unsampled


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llm.invocation_parameters", '{"model": '),
        ("llm.tools.0.tool.json_schema", "{"),
        ("llm.input_messages.0", "x"),
        ("llm.input_messages.0.message.role.x", "x"),
        ("llm.input_messages.x.message.role", "user"),
    ],
)
def test_broken_attributes_are_malformed(key: str, value: str) -> None:
    assert refusal(document(OPENINFERENCE | {key: value}))[0] == "malformed"


def test_embeddings_and_other_kinds() -> None:
    embedding = record_of(document({"openinference.span.kind": "EMBEDDING", "input.value": "x"}))
    assert embedding.request_path == "/v1/embeddings"
    assert record_of(document({"llm.request.type": "embedding"})).request_path == "/v1/embeddings"
    assert refusal(document({"openinference.span.kind": "CHAIN"})) == ("unsupported", "no_genai")
    assert refusal(document({"llm.request.type": "rerank"})) == ("unsupported", "no_genai")
    assert refusal(logs({"attributes": attributes(OPENINFERENCE)})) == ("unsupported", "no_genai")  # no span


@pytest.mark.parametrize("schema", [{"type": "json_object"}, {"type": "object", "properties": {}}])
def test_a_structured_output_that_traceloop_logs_is_not_lost(schema: dict[str, Any]) -> None:
    record = record_of(document(TRACELOOP | {"gen_ai.request.structured_output_schema": json.dumps(schema)}))
    with pytest.raises(RecordError, match="grammar"):
        parse_request(record)
    constraint = parse_request(record, takes_constraints=True).asked.constraint
    assert constraint is not None
    assert constraint.text == ("" if schema == {"type": "json_object"} else json.dumps(schema))


def test_a_text_that_begins_as_parts_do_is_a_text() -> None:
    for text in ('[{"a": 1}]', '[{"type": "text"', '[{"type": "x"}]'):
        assert record_of(document(TRACELOOP | {"gen_ai.prompt.0.content": text})).request["messages"][0] == {
            "role": "user",
            "content": text,
        }


KEYS = st.sampled_from(sorted(OPENINFERENCE) + sorted(TRACELOOP))
TAILS = st.sampled_from(["", ".0", ".message", ".0.message.role", ".1000000000", "." * 40, ".é", ".content"])
SECRET = "xsecretx"
VALUES = st.sampled_from([None, "", "x", SECRET, 3, 2.5, True, [], ["a"], {"a": 1}, "[{", '[{"type": "text"}]', "null"])


@given(st.sampled_from(BOTH), st.lists(st.tuples(KEYS, TAILS, VALUES), max_size=6))
def test_attributes_of_any_value_end_as_one_record_or_refusal(
    base: dict[str, Any], changes: list[tuple[str, str, Any]]
) -> None:
    changed = base | {key + tail: value for key, tail, value in changes}
    (opened,) = open_message(message(traces(span(attributes=attributes(changed)))), MessageFormat.AUTO)
    assert SECRET not in str(opened.error)
    assert SECRET not in repr(opened)
