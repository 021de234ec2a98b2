"""OpenAI's Responses and Anthropic's Messages: read as the chat that they amount to, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import RecordError
from shadowspec.tap import anthropic_messages, openai_responses
from shadowspec.tap.bodies import ResponseBody, convert_or_refuse
from shadowspec.tap.chat_messages import NO_PARTS, served_messages
from shadowspec.tap.documents import assemble_answer
from shadowspec.tap.openai import parse_request
from shadowspec.tap.records import read_record
from shadowspec.tap.responses import response_text
from shadowspec.types import FunnelCounter, LoggedResponse, ShadowPrompt
from shadowspec.types.prompt_rules import UNNAMED
from tests.builders.admitted import admitted
from tests.builders.sse import stream
from tests.tap.mirror import START, chat, fate, messages, responses

PEER = json.loads((Path(__file__).parents[1] / "data/peers/vllm_anthropic.json").read_text(encoding="utf-8"))
MEASURED = (FunnelCounter.MEASURED, None)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALL = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Berlin"}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "rain"}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Let me look."}]}
USE = {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Berlin"}}
USED = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "rain"}]}


def unsupported(reason: str) -> tuple[FunnelCounter, str]:
    return FunnelCounter.UNSUPPORTED, reason


def same(one: ShadowPrompt, other: ShadowPrompt) -> bool:
    """Whether both ask the same of the target."""
    return (one.prompt_token_ids, one.sampling, one.labels) == (other.prompt_token_ids, other.sampling, other.labels)


def said(record: dict[str, Any]) -> Any:
    """The messages that a record's prompt is made of, for a template that takes texts."""
    return served_messages(parse_request(read_record(record, {})).messages, UNNAMED, NO_PARTS)


@pytest.mark.parametrize("other", [responses, messages])
@pytest.mark.parametrize("path", [True, False])
def test_a_plain_turn_is_the_chat_s(other: Any, path: bool) -> None:
    record = other()
    if not path:
        del record["path"]
    prompt = admitted(record)
    assert same(prompt, admitted(chat()))
    assert prompt.event_time.timestamp() == START
    assert prompt.response == LoggedResponse(None, None, "stop", 3)


def test_a_responses_body_is_recognised_without_path_and_answer() -> None:
    for request in (
        {"model": "model-a", "input": "Why?"},
        {"model": "model-a", "input": [{"role": "user", "content": "Why?"}]},
        {"model": "model-a", "instructions": "Be brief.", "input": "Why?", "store": False},
    ):
        assert fate({"timestamp": START, "request": request}) == MEASURED, request
    with_answer = {"timestamp": START, "request": {"model": "model-a", "input": ["a"]}}
    assert fate(with_answer) == unsupported("embeddings")
    with_answer["response"] = responses()["response"]
    assert fate(with_answer) != unsupported("embeddings"), "its answer says which call it was"
    continued = {"timestamp": START, "request": {"model": "model-a", "previous_response_id": "r"}}
    assert fate(continued) == unsupported("previous_response")
    assert fate({"timestamp": START, "request": {"model": "model-a", "prompt": {"id": "p"}}}) == unsupported(
        "prompt_template"
    )


def test_a_time_that_only_the_answer_has() -> None:
    record = responses()
    del record["timestamp"]
    assert admitted(record).event_time.timestamp() == START


def test_the_items_of_a_conversation_become_messages() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "Weather?"},
        REASONING,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        CALL,
        RESULT,
    ]
    assert said(responses(input=items, instructions="Answer in German.")) == [
        {"role": "system", "content": "Answer in German.\n\nBe brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "reasoning": "Let me look.",
            "reasoning_content": "Let me look.",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"city": "Berlin"}}}
            ],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "c"},
    ]


def test_the_blocks_of_a_conversation_become_messages() -> None:
    turns = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Let me look.", "signature": "s"},
            {"type": "text", "text": "Looking."}, USE,
        ]},
        {"role": "user", "content": [USED, {"type": "text", "text": "And tomorrow?"}]},
        {"role": "user", "content": [USED | {"content": "snow"}]},
    ]  # fmt: skip
    system = [{"type": "text", "text": "x-anthropic-billing-header: 7"}, {"type": "text", "text": "Be "},
              {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}}]  # fmt: skip
    assert said(messages(messages=turns, system=system)) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "reasoning": "Let me look.",
            "reasoning_content": "Let me look.",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"city": "Berlin"}}}
            ],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "c"},
        {"role": "user", "content": "And tomorrow?"},
        {"role": "tool", "content": "snow", "tool_call_id": "c"},
    ]


def test_parameters_and_tools_are_those_of_the_chat() -> None:
    function = {"name": "weather", "description": "d", "parameters": SCHEMA}
    by_chat = admitted(
        chat(
            request_tools=[{"type": "function", "function": function}],
            request_top_p=0.9, request_top_k=7, request_stop=["END"], request_max_tokens=9,
        )
    )  # fmt: skip
    by_responses = responses(
        tools=[{"type": "function", "strict": False} | function], tool_choice="auto", top_p=0.9, top_k=7, stop=["END"],
        max_output_tokens=9, store=True, include=["reasoning.encrypted_content"], truncation="auto", reasoning={},
        parallel_tool_calls=True, previous_response_id=None,
    )  # fmt: skip
    by_messages = messages(
        tools=[{"name": "weather", "description": "d", "input_schema": SCHEMA, "type": "custom"}], max_tokens=9,
        tool_choice={"type": "auto"}, top_p=0.9, top_k=7, stop_sequences=["END"], thinking={"type": "disabled"},
        metadata={"user_id": "u"}, stream=True,
    )  # fmt: skip
    strict = {"type": "function", "function": function | {"strict": False}}
    assert same(admitted(by_responses), admitted(chat(
        request_tools=[strict], request_top_p=0.9, request_top_k=7, request_stop=["END"], request_max_tokens=9,
    )))  # fmt: skip
    assert same(admitted(by_messages), by_chat)
    assert admitted(by_messages).user_hash is not None
    assert admitted(by_messages).labels["prompt_class"] == "tool_calling"


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """A chat's body in one way of writing, without what vLLM ignores."""
    for message in body["messages"]:
        if "reasoning_content" in message:
            message["reasoning"] = message.pop("reasoning_content")
        content = message.get("content")
        if isinstance(content, list) and len(content) == 1:
            message["content"] = content[0]["text"]
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
    unread = {"model": body.pop("model", None), "reasoning": body.pop("reasoning", None)}
    assert unread["reasoning"] in (None, {"enabled": True})
    return body


@pytest.mark.parametrize("case", PEER["cases"])
def test_vllm_makes_the_same_chat_of_a_messages_body(case: dict[str, Any]) -> None:
    assert plain(anthropic_messages.chat_body(case["body"], takes_chats=True)) == plain(case["chat"])


IMAGE = {"type": "input_image", "image_url": "https://host/x.png"}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (responses(previous_response_id="resp_0"), "previous_response"),
        (responses(conversation="conv_0"), "conversation"),
        (responses(prompt={"id": "p"}), "prompt_template"),
        (responses(tools=[{"type": "web_search"}]), "built_in_tools"),
        (responses(tools=[{"type": "mcp", "server_label": "x"}]), "built_in_tools"),
        (responses(tools=[{"type": "custom", "name": "x"}]), "built_in_tools"),
        (responses(tool_choice={"type": "web_search_preview"}), "forced_tool_choice"),
        (responses(input=[{"role": "user", "content": [IMAGE]}]), "image_content"),
        (responses(input=[{"role": "user", "content": [{"type": "input_file"}]}]), "file_content"),
        (responses(input=[{"type": "item_reference", "id": "x"}]), "item_reference"),
        (responses(input=[{"type": "web_search_call"}]), "built_in_tools"),
        (responses(input=[{"type": "hologram"}]), "unknown_item"),
        (responses(input=[{"type": ["message"], "role": "user"}]), "unknown_item"),
        (responses(input=[{"type": "reasoning", "encrypted_content": "x"}]), "hidden_reasoning"),
        (responses(input=[{"type": "reasoning", "summary": [{"text": "x"}]}]), "hidden_reasoning"),
        (responses(reasoning={"effort": "high"}), "rendering_parameter:reasoning_effort"),
        (responses(max_tokens=5), "unknown_parameter:max_tokens"),
        (responses(frobnicate=5), "unknown_parameter"),
        (messages(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "built_in_tools"),
        (messages(mcp_servers=[{"name": "x"}]), "built_in_tools"),
        (messages(container="c"), "container"),
        (messages(context_management={"edits": []}), "context_management"),
        (messages(thinking={"type": "enabled", "budget_tokens": 99}), "rendering_parameter:thinking"),
        (messages(thinking={"type": "adaptive"}), "rendering_parameter:thinking"),
        (messages(output_config={"effort": "low"}), "rendering_parameter:reasoning_effort"),
        (messages(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]), "image_content"),
        (messages(messages=[{"role": "user", "content": [{"type": "document"}]}]), "file_content"),
        (messages(messages=[{"role": "user", "content": [USED | {"content": [{"type": "image"}]}]}]), "image_content"),
        (messages(messages=[{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]), "hidden_reasoning"),
        (messages(messages=[{"role": "assistant", "content": [{"type": "server_tool_use"}]}]), "built_in_tools"),
        (messages(messages=[{"role": "user", "content": [{"type": "hologram"}]}]), "unknown_content"),
        (messages(n=2), "unknown_parameter:n"),
    ],
)  # fmt: skip
def test_what_no_chat_holds_is_refused_by_name(record: dict[str, Any], reason: str) -> None:
    assert fate(record) == unsupported(reason)


@pytest.mark.parametrize(
    ("record", "place"),
    [
        (responses(input=None), "request.input"),
        (responses(input=[]), "request.input"),
        (responses(input=["a"]), "request.input.0"),
        (responses(input=[{"role": 3}]), "request.input.0.role"),
        (responses(input=[{"type": "reasoning", "content": 3}]), "request.input.0.content"),
        (responses(instructions=[1]), "request.instructions"),
        (responses(reasoning="high"), "request.reasoning"),
        (responses(tools={"a": 1}), "request.tools"),
        (responses(max_output_tokens="9"), "request.max_tokens"),
        (messages(messages="x"), "request.messages"),
        (messages(messages=[{"content": "x"}]), "request.messages.0.role"),
        (messages(messages=[{"role": "user", "content": 3}]), "request.messages.0.content"),
        (messages(messages=[{"role": "user", "content": [{"type": "text"}]}]), "request.messages.0.content.text"),
        (messages(system=3), "request.system"),
        (messages(tool_choice="auto"), "request.tool_choice"),
        (messages(thinking="on"), "request.thinking"),
        (messages(output_config=[]), None),
        (messages(output_config=[1]), "request.output_config"),
    ],
)
def test_what_cannot_be_read_is_malformed(record: dict[str, Any], place: str | None) -> None:
    assert fate(record) == (MEASURED if place is None else (FunnelCounter.MALFORMED, f"invalid:{place}"))


def test_a_block_s_type_may_be_anything() -> None:
    record = messages(messages=[{"role": "user", "content": [{"type": {"text": 1}, "text": "x"}]}])
    del record["response"], record["path"]
    assert fate(record) == unsupported("unknown_content")


def answer(record: dict[str, Any], **changes: Any) -> ResponseBody:
    return convert_or_refuse(record["response"] | changes, ResponseBody)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (answer(responses()), "stop"),
        (answer(responses(), output=[CALL]), "tool_calls"),
        (answer(responses(), status="incomplete", incomplete_details={"reason": "max_output_tokens"}), "length"),
        (answer(responses(), status="incomplete", incomplete_details={"reason": "content_filter"}), "content_filter"),
        (answer(responses(), status="in_progress"), None),
        (answer(messages()), "stop"),
        (answer(messages(), stop_reason="max_tokens"), "length"),
        (answer(messages(), stop_reason="tool_use"), "tool_calls"),
        (answer(messages(), stop_reason="refusal"), "refusal"),
        (answer(messages(), stop_reason=7), None),
    ],
)
def test_why_an_answer_ended(body: ResponseBody, reason: str | None) -> None:
    adapter = openai_responses if openai_responses.is_answer(body) else anthropic_messages
    assert adapter.is_answer(body)
    assert adapter.logged_answer(body) == LoggedResponse(None, None, reason, 3)


@pytest.mark.parametrize(
    ("record", "details", "cached"),
    [
        (responses(), {"input_tokens_details": {"cached_tokens": 5}}, 5),
        (responses(), {"input_tokens_details": None}, None),
        (messages(), {"cache_read_input_tokens": 5}, 5),
        (messages(), {"cache_read_input_tokens": -5}, None),
    ],
)
def test_the_prompt_tokens_that_production_had_cached_are_read(
    record: dict[str, Any], details: dict[str, Any], cached: int | None
) -> None:
    body = answer(record, usage={"input_tokens": 7, "output_tokens": 3, **details})
    adapter = openai_responses if openai_responses.is_answer(body) else anthropic_messages
    assert adapter.logged_answer(body).num_cached_tokens == cached


def test_the_text_of_an_answer_is_read_if_all_that_was_generated_is_in_it() -> None:
    assert response_text(answer(responses())) == response_text(answer(messages())) == "It scatters."
    message = responses()["response"]["output"][0]
    block = messages()["response"]["content"][0]
    for output in (
        [REASONING, message],
        [CALL],
        [],
        [message | {"content": [{"type": "refusal", "refusal": "x"}]}],
        [3],
    ):
        assert response_text(answer(responses(), output=output)) is None
    for content in ([{"type": "thinking", "thinking": "x"}, block], [USE], [], [3], [block | {"text": 3}]):
        assert response_text(answer(messages(), content=content)) is None


def test_a_failed_answer_is_no_ordinary_one() -> None:
    for record in (responses(), messages()):
        record["response"]["error"] = {"type": "server_error"}
        assert fate(record) == unsupported("failed_request")


def test_a_stream_of_responses_is_its_last_event() -> None:
    whole = responses()["response"]
    begun = whole | {"status": "in_progress", "output": []}
    item = {"type": "response.output_item.done", "output_index": 0, "item": whole["output"][0]}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_text.delta", "delta": "It "},
        item,
        {"type": "response.completed", "response": whole},
    ]
    assert assemble_answer(stream(*events)) == whole
    assert assemble_answer(stream(*events[:-1])) == begun | {"output": whole["output"]}
    with pytest.raises(RecordError, match="invalid:stream"):
        assemble_answer(stream({"type": "response.created"}))


def test_a_stream_of_messages_is_put_together() -> None:
    whole = messages()["response"]
    begun = whole | {"content": [], "stop_reason": None, "usage": {"input_tokens": 7, "output_tokens": 1}}
    events = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "scatters."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    assert assemble_answer(stream(*events)) == whole
    failed = assemble_answer(stream(events[0], {"type": "error", "error": {"type": "overloaded_error"}}))
    assert failed is not None
    assert failed["error"] == {"type": "overloaded_error"}
    for broken in ({"type": "message_start"}, {"type": "content_block_delta", "index": -1}):
        with pytest.raises(RecordError, match="invalid:stream"):
            assemble_answer(stream(events[0], broken))


EVENTS = st.dictionaries(
    st.sampled_from(["type", "index", "delta", "message", "response", "item", "content_block", "usage"]),
    st.sampled_from(
        [None, 0, "text", [], {}, {"text": "x"}, {"usage": 3, "content": 3}, "message_start", "content_block_start",
         "content_block_delta", "message_delta", "error", "response.completed", "response.output_item.done"]
    ),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=5), st.sampled_from(["message_start", "response.created"]))
def test_no_stream_raises_anything_else(events: list[dict[str, Any]], first: str) -> None:
    begin = {"type": first, "message": {}, "response": {}}
    try:
        found = assemble_answer(stream(begin, *events))
    except RecordError:
        return
    record = {"timestamp": START, "request": {"model": "model-a", "input": "x"}, "response": found}
    assert fate(json.loads(json.dumps(record)))[0] in FunnelCounter
