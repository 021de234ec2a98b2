"""Vertex AI's table: Gemini's bodies as chats, and what no chat can say."""

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
from tests.tap.formats.log_samples import answer, body, vertex_own_row, vertex_row
from tests.tap.formats.samples import message, record_of, refusal, refused_later

CALLED = {"functionCall": {"name": "look_up", "args": {"a": 1}}}
RESULT = {"functionResponse": {"name": "look_up", "response": {"sky": "blue"}}}
SCHEMA = {"type": "OBJECT", "properties": {"a": {"anyOf": [{"type": "INTEGER"}, {"type": "STRING"}]}}}
TOOLS = [{"functionDeclarations": [{"name": "look_up", "description": "d", "parameters": SCHEMA}]}]


def asking(*contents: Any, **fields: Any) -> dict[str, Any]:
    """A row whose request has these contents."""
    given = contents or ({"role": "user", "parts": [{"text": "Why?"}]},)
    return vertex_row(1) | {"full_request": {"contents": list(given), **fields}}


def test_tools_calls_and_results_are_the_chat_s() -> None:
    row = asking(
        {"role": "user", "parts": [{"text": "Why?"}, {"text": "Say."}]},
        {"role": "model", "parts": [{"text": "I look.", "thought": True}, CALLED, CALLED]},
        {"role": "user", "parts": [RESULT, RESULT]},
        tools=TOOLS,
        toolConfig={"functionCallingConfig": {"mode": "AUTO"}},
    )
    record = record_of(row)
    first, second = ({"id": f"call_{number}", "type": "function", "function": {
        "name": "look_up", "arguments": '{"a": 1}'}} for number in (0, 1))  # fmt: skip
    assert record.request["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Why?"}, {"type": "text", "text": "Say."}]},
        {"role": "assistant", "content": None, "tool_calls": [first, second], "reasoning_content": "I look."},
        {"role": "tool", "tool_call_id": "call_0", "content": '{"sky": "blue"}'},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "blue"}'},
    ]
    read = parse_request(record)
    assert read.tools is not None
    assert read.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
    }


def test_names_may_be_protobuf_s() -> None:
    row = asking(
        {"role": "model", "parts": [{"function_call": {"name": "f", "args": {}}}]},
        system_instruction={"parts": [{"text": "Be brief."}]},
        generation_config={"max_output_tokens": 7, "top_k": 3.0, "stop_sequences": ["x"]},
    )
    request = record_of(row).request
    assert [each["role"] for each in request["messages"]] == ["system", "assistant"]
    assert (request["max_tokens"], request["top_k"], request["stop"]) == (7, 3, ["x"])
    assert isinstance(request["top_k"], int)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cachedContent": "projects/x/cachedContents/1"}, "conversation"),
        ({"tools": [{"googleSearch": {}}, {"codeExecution": {"x": 1}}]}, "built_in_tools"),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}, "rendering_parameter:thinking"),
        ({"contents": "Why?"}, "invalid:contents"),
        ({"contents": [{"role": "user"}]}, "invalid:contents"),
        ({"contents": [{"parts": [CALLED | {"thoughtSignature": "eA=="}]}]}, "hidden_reasoning"),
    ],
)
def test_what_no_chat_can_say_is_refused_by_name(fields: dict[str, Any], reason: str) -> None:
    assert refusal(vertex_row(1) | {"full_request": asking()["full_request"] | fields})[1] == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"generationConfig": {"responseMimeType": "application/json"}}, "grammar"),
        ({"generationConfig": {"responseMimeType": "application/json", "responseSchema": SCHEMA}}, "grammar"),
        ({"generationConfig": {"speechConfig": {}}}, "unknown_parameter"),
        ({"generationConfig": {"candidateCount": 2}}, "several_choices"),
        ({"modelArmorConfig": {"x": 1}}, "unknown_parameter"),
        ({"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "forced_tool_choice"),
        (
            {"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["x"]}}},
            "forced_tool_choice",
        ),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "eA=="}}]}]}, "image_content"),
        ({"contents": [{"parts": [{"fileData": {"mimeType": "application/pdf"}}]}]}, "file_content"),
        ({"contents": [{"parts": [{"executableCode": {"code": "x"}}]}]}, "unknown_content"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_the_parser(fields: dict[str, Any], reason: str) -> None:
    record = record_of(vertex_row(1) | {"full_request": asking()["full_request"] | fields})
    with pytest.raises(RecordError, match=reason):
        parse_request(record)


def test_a_schema_of_openapi_s_is_refused_through_servers_too() -> None:
    config = {"responseMimeType": "application/json", "responseSchema": SCHEMA}
    with pytest.raises(RecordError, match="response_format"):
        parse_request(record_of(asking(generationConfig=config)), takes_constraints=True)
    parse_request(record_of(asking(generationConfig={"responseMimeType": "application/json"})), takes_constraints=True)


def test_an_answer_may_be_a_stream_s_chunks() -> None:
    def chunk(text: str, **more: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, **more}]}

    usage = {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2}}
    row = vertex_row(1) | {"full_response": [chunk("Ray"), chunk("leigh.", finishReason="MAX_TOKENS") | usage]}
    record = record_of(row)
    logged = parse_response(record).logged
    assert logged is not None
    assert (response_text(response_of(record)), logged.finish_reason) == ("Rayleigh.", "length")
    assert logged.num_output_tokens == 2
    blocked = record_of(vertex_row(1) | {"full_response": {"promptFeedback": {"blockReason": "SAFETY"}}})
    assert parse_response(blocked).logged is None


def test_bodies_of_other_apis_are_read_as_they_are() -> None:
    claude = {"anthropic_version": "vertex-2023-10-16", "messages": [{"role": "user", "content": "Why?"}]}
    row = vertex_row(1) | {"model": "publishers/anthropic/models/claude-x", "full_request": claude | {"max_tokens": 9}}
    record = record_of(row | {"full_response": None, "api_method": "rawPredict"})
    assert (record.model, parse_request(record).max_tokens) == ("claude-x", 9)
    record = record_of(vertex_row(1) | {"full_request": body(2), "full_response": answer(2)})
    assert (record.request, record.model) == (body(2), "model-a")


def test_rows_without_a_body_or_with_several() -> None:
    assert refused_later(record_of(vertex_own_row(1) | {"request_payload": []})) == ("unsupported", "no_payload")
    several = vertex_own_row(1) | {"request_payload": [json.dumps(body(1))] * 2}
    assert refusal(several) == ("unsupported", "several_prompts")
    assert refusal(vertex_row(1) | {"full_request": "{"}) == ("malformed", "invalid:full_request")
    unnamed = body(1)
    del unnamed["model"]
    assert record_of(vertex_own_row(1) | {"request_payload": [json.dumps(unnamed)]}).model == "987"


VALUES = st.recursive(
    st.sampled_from([None, "", "xsecretx", 3, 2.5, True, "ANY", "user"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["text", "parts", "role", "functionCall", "function_response", "name", "args", "inlineData", "mimeType",
             "content", "functionDeclarations", "parameters", "type", "mode", "allowedFunctionNames", "finishReason",
             "functionCallingConfig", "topK", "stopSequences", "responseMimeType", "thought", "candidates", "id"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(["contents", "systemInstruction", "generationConfig", "tools", "toolConfig", "model"]), VALUES
    ),
    st.dictionaries(st.sampled_from(["candidates", "usageMetadata", "responseId"]), VALUES)
    | st.lists(VALUES, max_size=3),
)
def test_bodies_of_any_value_end_as_one_record_or_refusal(request: dict[str, Any], response: Any) -> None:
    row = vertex_row(1) | {"full_request": {"contents": []} | request, "full_response": response}
    (opened,) = open_message(message(row), MessageFormat.VERTEX)
    assert "xsecretx" not in str(opened.error)
    assert opened.record is None or isinstance(opened.record, MirroredRecord)
