"""OpenTelemetry's GenAI events and spans: what a collector wrote, and what else OTLP allows."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from shadowspec.errors import RecordError
from shadowspec.tap.documents import MAX_RECORDS_PER_MESSAGE
from shadowspec.tap.formats import MessageFormat, Opened, open_message
from shadowspec.tap.openai import parse_request, parse_response
from tests.builders.otlp import EVENT, GIVEN, QUESTION, attributes, event, logs, span, traces
from tests.tap.formats.samples import message, record_of, refusal, refused_later

RECORDED = Path(__file__).parents[2] / "capture" / "recorded"
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "Because."}], "finish_reason": "stop"}
CALL = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "look_up", "arguments": {"a": 1}}]}
TOOL = {"type": "function", "name": "look_up", "description": "d", "parameters": {"type": "object"}}


def all_of(document: Any, format: MessageFormat = MessageFormat.AUTO) -> list[Opened]:
    return open_message(message(document), format)


@pytest.mark.parametrize("name", ["otlp-events", "otlp-spans"])
def test_what_a_collector_wrote(name: str) -> None:
    opened = [each for line in (RECORDED / f"{name}.jsonl").read_bytes().splitlines() for each in all_of(line)]
    assert [each.key.item for each in opened] == [0, 1, 2, 3]
    first, streamed, called, constrained = (each.record for each in opened)
    assert first is not None
    assert streamed is not None
    assert called is not None
    assert constrained is not None
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why is the sky blue?"},
    ]
    parameters = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 20, "stop": ["\n\n"], "seed": 3}
    assert first.request == {"model": "chat", "messages": messages, **parameters}
    assert (first.tenant_id(), first.session(), first.request_path) == ("my-app", "s-1", "/v1/chat/completions")
    assert "/" in (first.request_identity() or "")
    assert first.event_time(0).year >= 2026
    logged = parse_response(streamed).logged
    assert logged is not None
    assert (logged.finish_reason, logged.num_output_tokens) == ("stop", 6)
    parsed = parse_request(called)
    assert parsed.tools is not None
    assert parsed.tools[0]["function"]["name"] == "look_up"
    assert [each["role"] for each in parsed.messages] == ["user", "assistant", "tool"]
    assert parsed.messages[1]["tool_calls"][0]["function"]["arguments"] == {"place": "Paris"}
    with pytest.raises(RecordError, match="grammar"):
        parse_request(constrained)
    with pytest.raises(RecordError, match="response_format"):
        parse_request(constrained, takes_constraints=True)


def test_session_user_and_tenant() -> None:
    record = event(conversation__id="s-1")
    record["attributes"] += attributes({"session.id": "s-2", "user.id": "u-1"})
    found = record_of(logs(record, resource={"attributes": attributes({"service.name": "app"})}))
    assert (found.session(), found.user_id(), found.tenant_id()) == ("s-1", "u-1", "app")
    unnamed = {"attributes": attributes({"service.name": "unknown_service:python"})}
    assert record_of(logs(event(), resource=unnamed)).tenant_id() is None


def test_an_event_s_name_may_be_an_attribute_and_its_time_the_observer_s() -> None:
    record = {**event(), "eventName": None, "timeUnixNano": "0", "observedTimeUnixNano": 1_700_000_400_000_000_000}
    record["attributes"] += attributes({"event.name": EVENT})
    assert record_of(logs(record)).event_time(0).timestamp() == 1_700_000_400


def test_instructions_precede_the_messages() -> None:
    parts = [{"type": "text", "content": "Be brief."}, {"type": "text", "content": "Be kind."}]
    found = parse_request(record_of(logs(event(system_instructions=parts))))
    assert found.messages[0] == {"role": "system", "content": ["Be brief.", "Be kind."]}
    assert found.messages[1]["role"] == "user"


def test_parts_of_a_message() -> None:
    thought = {"type": "reasoning", "content": "Light scatters."}
    answer = {"role": "assistant", "parts": [thought, {"type": "text", "content": "Blue."}]}
    result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "result": {"sky": "blue"}}]}
    record = event(input__messages=[QUESTION, answer, CALL, result], tool__definitions=[TOOL])
    messages = parse_request(record_of(logs(record))).messages
    assert messages[1] == {"role": "assistant", "content": "Blue.", "reasoning_content": "Light scatters."}
    assert messages[3] == {"role": "tool", "tool_call_id": "c", "content": '{"sky": "blue"}'}


def test_a_text_completion() -> None:
    found = parse_request(record_of(logs(event(operation__name="text_completion"))))
    assert (found.is_chat, found.text) == (False, "Why is the sky blue?")


def test_whole_numbers_may_be_doubles() -> None:
    record = record_of(logs(event(request__top_k=5.0, request__max_tokens=7, request__choice__count=1)))
    assert (record.request["top_k"], record.request["max_tokens"], record.request["n"]) == (5, 7, 1)
    assert parse_request(record).sampling.top_k == 5


def test_the_answer() -> None:
    called = {**CALL, "finish_reason": "tool_call"}
    record = record_of(
        logs(
            event(
                output__messages=[called],
                response__model="model-a",
                usage__output_tokens=4,
                usage__cache_read__input_tokens=2,
            )
        )
    )
    logged = parse_response(record).logged
    assert logged is not None
    assert (logged.finish_reason, logged.num_output_tokens, logged.num_cached_tokens) == ("tool_calls", 4, 2)
    without_content = record_of(logs(event(response__finish_reasons=["length"])))
    logged = parse_response(without_content).logged
    assert logged is not None
    assert logged.finish_reason == "length"
    assert record_of(logs(event())).response is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"input__messages": None}, "no_payload"),
        ({"input__messages": [QUESTION, CALL]}, "no_tool_definitions"),
        ({"tool__definitions": [{"type": "function", "name": "look_up"}]}, "no_tool_definitions"),
    ],
)
def test_what_the_telemetry_lacks_is_named(changes: dict[str, Any], reason: str) -> None:
    assert refused_later(record_of(logs(event(**changes)))) == ("unsupported", reason)


def test_failed_calls() -> None:
    failed = event()
    failed["attributes"] += attributes({"error.type": "timeout"})
    assert refused_later(record_of(logs(failed))) == ("unsupported", "failed_request")
    assert refused_later(record_of(traces(span(status={"code": 2})))) == ("unsupported", "failed_request")
    record_of(traces(span(status={"code": 1}))).check_served()


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "uri", "modality": "image", "uri": "x"}, "image_content"),
        ({"type": "blob", "modality": "audio", "content": "x"}, "audio_content"),
        ({"type": "file", "modality": "video", "file_id": "x"}, "video_content"),
        ({"type": "file", "modality": ["document"], "file_id": "x"}, "file_content"),
        ({"type": "server_tool_call", "name": "search"}, "unknown_content"),
        ({"type": "compaction"}, "unknown_content"),
        ("text", "unknown_content"),
    ],
)
def test_content_that_is_not_text(part: Any, reason: str) -> None:
    messages = [{"role": "user", "parts": [part, {"type": "text", "content": "What is this?"}]}]
    record = record_of(logs(event(input__messages=messages)))
    with pytest.raises(RecordError, match=reason):
        parse_request(record)


def test_other_telemetry_is_skipped() -> None:
    other = {"timeUnixNano": "1", "body": {"stringValue": "started"}}
    assert len(all_of(logs(other, event(), other))) == 1
    agent = span(attributes=attributes({**GIVEN, "gen_ai.operation.name": "invoke_agent"}))
    web = span(attributes=attributes({"http.request.method": "POST"}))
    assert len(all_of(traces(agent, web, span(), span()))) == 2
    assert refusal(logs(other)) == ("unsupported", "no_genai")
    assert refusal(traces(agent, web)) == ("unsupported", "no_genai")
    assert refusal({"resourceLogs": []}) == ("unsupported", "no_genai")


def test_event_and_span_of_a_call_are_one_request() -> None:
    ids = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}
    identities = {
        record_of(document).request_identity() for document in (logs({**event(), **ids}), traces(span(**ids)))
    }
    assert len(identities) == 1
    assert record_of(logs(event())).request_identity() is None


def test_one_broken_record_spoils_no_other() -> None:
    broken = {**event(), "attributes": [{"key": "gen_ai.request.model", "value": {"arrayValue": 3}}]}
    opened = all_of(logs(event(), broken, event()))
    assert [each.error is None for each in opened] == [True, False, True]
    assert opened[1].error is not None
    assert opened[1].error.reason == "invalid:attributes"
    assert [each.key.item for each in opened] == [0, 1, 2]
    cut = span(attributes=attributes({**GIVEN, "gen_ai.input.messages": json.dumps([QUESTION])[:-9]}))
    assert refusal(traces(cut)) == ("malformed", "invalid:gen_ai.input.messages")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"resourceLogs": [3]}, "invalid:resourceLogs"),
        ({"resourceSpans": [{"scopeSpans": {}}]}, "invalid:scopeSpans"),
        (logs(3), "invalid:logRecords"),
    ],
)
def test_broken_documents(document: dict[str, Any], reason: str) -> None:
    assert refusal(document) == ("malformed", reason)


def test_documents_in_one_message_are_numbered_on() -> None:
    lines = b"\n".join(json.dumps(each).encode() for each in (logs(event(), event()), traces(span())))
    assert [each.key.item for each in all_of(lines)] == [0, 1, 2]
    many = logs(*[event()] * 10)
    too_many = b"\n".join([json.dumps(many).encode()] * (MAX_RECORDS_PER_MESSAGE // 10 + 1))
    (only,) = all_of(too_many)
    assert only.error is not None
    assert only.error.reason == "too_many_records"


def test_recognition() -> None:
    document = logs(event())
    assert all_of(document, MessageFormat.OTLP)[0].record is not None
    assert refusal({"request": {"model": "m"}}, format=MessageFormat.OTLP) == ("malformed", "not_otlp")
    assert refusal({**document, "request": {"model": "m"}}) == ("malformed", "ambiguous_format")
    assert refusal(document, format=MessageFormat.KONG) == ("malformed", "not_kong")


def test_values_of_attributes() -> None:
    encoded = base64.b64encode(b"x").decode()
    record = event(request__seed=None)
    record["attributes"] += [
        {"key": "gen_ai.request.seed", "value": {"intValue": 2**40}},
        {"key": "gen_ai.request.stop_sequences", "value": {"arrayValue": {}}},
        {"key": "gen_ai.request.frequency_penalty", "value": {"doubleValue": "NaN"}},
        {"key": "gen_ai.response.id", "value": {"bytesValue": encoded}},
        {"key": 7, "value": {}},
    ]
    found = record_of(logs(record))
    assert (found.request["seed"], found.request["stop"]) == (2**40, [])
    with pytest.raises(RecordError, match=r"invalid:request\.frequency_penalty"):
        parse_request(found)
