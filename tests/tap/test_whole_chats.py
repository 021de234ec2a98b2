"""Chats that travel whole to servers: the client's body, what is read of it here, and the label of reasoning."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from shadowspec.tap.admission import Admitted
from shadowspec.tap.endpoints import EndpointRule
from tests.tap.mirror import RULE, chat, fates, first_only, messages

WHOLE = replace(first_only(RULE), takes_constraints=True, takes_chats=True)


def let_in(record: dict[str, Any], rule: EndpointRule = WHOLE) -> Admitted:
    decided = fates([record], rule)[0]
    assert isinstance(decided, Admitted), decided.record
    return decided


def sent(decided: Admitted) -> dict[str, Any]:
    assert decided.prompt.chat is not None
    body: dict[str, Any] = json.loads(decided.prompt.chat)
    return body


def test_the_body_travels_as_the_client_wrote_it() -> None:
    body = {
        "request_chat_template_kwargs": {"enable_thinking": True},
        "request_reasoning_effort": "high",
        "request_thinking_token_budget": 99,
        "request_documents": [{"text": "a"}],
        "request_tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}],
    }
    record = chat(**body)
    decided = let_in(record)
    assert sent(decided) == record["request"]
    assert "sky" not in repr(decided)


@pytest.mark.parametrize("name", ["chat_template", "chat_template_kwargs", "thinking_token_budget"])
def test_elsewhere_such_a_chat_is_refused_as_before(name: str) -> None:
    rule = replace(WHOLE, takes_chats=False)
    value: Any = {"a": 1} if name.endswith("kwargs") else 5 if name.endswith("budget") else "x"
    decided = fates([chat(**{f"request_{name}": value})], rule)[0]
    assert not isinstance(decided, Admitted)
    assert decided.record.reason == f"{'unknown' if name.endswith('budget') else 'rendering'}_parameter:{name}"


ON: dict[str, Any] = {"reasoning": {"enabled": True}}


@pytest.mark.parametrize(
    ("thinking", "added", "label"),
    [
        (None, {}, None),
        ({"type": "disabled"}, {"reasoning_effort": "none"}, "off"),
        ({"type": "enabled", "budget_tokens": 2048}, ON | {"thinking_token_budget": 2048}, "on"),
        ({"type": "adaptive", "display": "omitted"}, ON, "on"),
    ],
)
def test_thinking_of_a_messages_body_is_the_chat_s(thinking: Any, added: dict[str, Any], label: str | None) -> None:
    turns = [
        {"role": "user", "content": "Why?"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "So."}],
        },
        {"role": "user", "content": "And?"},
    ]
    plain, asked = let_in(messages(messages=turns)), let_in(messages(messages=turns, thinking=thinking))
    assert sent(asked) == sent(plain) | added
    assert sent(plain)["messages"][1]["reasoning_content"] == "Hm."
    assert asked.record.labels.get("reasoning") == label


def test_an_answer_of_the_messages_api_shows_its_thinking() -> None:
    record = messages()
    record["response"]["content"].insert(0, {"type": "thinking", "thinking": "Hm.", "signature": "s"})
    assert let_in(record).record.labels["reasoning"] == "on"


def test_an_effort_yields_to_thinking_that_is_switched_off() -> None:
    asked = let_in(messages(thinking={"type": "disabled"}, output_config={"effort": "high"}))
    assert sent(asked)["reasoning_effort"] == "none"


@pytest.mark.parametrize(
    "thinking", [{"type": "enabled"}, {"type": "enabled", "budget_tokens": "9"}, {"type": "off"}, {}]
)
def test_thinking_of_no_known_kind_is_malformed(thinking: dict[str, Any]) -> None:
    decided = fates([messages(thinking=thinking)], WHOLE)[0]
    assert not isinstance(decided, Admitted)
    assert decided.record.reason == "invalid:request.thinking"


def test_prompts_that_are_no_chats_are_token_ids() -> None:
    record = chat(request_messages=None, request_prompt="Why?", path="/v1/completions")
    assert let_in(record).prompt.chat is None
    assert let_in(chat(), replace(WHOLE, takes_chats=False)).prompt.chat is None


def test_production_s_count_stands_for_a_prompt_that_cannot_be_rendered_here() -> None:
    counted = {"completion_tokens": 3, "prompt_tokens": 77}
    plain = let_in(chat(response_usage=counted))
    assert plain.record.num_prompt_tokens != plain.record.num_served_tokens == 77
    templated = let_in(chat(response_usage=counted, request_chat_template_kwargs={"a": 1}))
    assert templated.record.num_prompt_tokens == templated.record.num_served_tokens == 77


def test_one_id_with_other_template_arguments_is_another_call() -> None:
    records = [
        chat(request_id="one", request_chat_template_kwargs={"level": level}, session_id=f"s-{place}")
        for place, level in enumerate((1, 2, 1))
    ]
    assert [decided.record.reason for decided in fates(records, WHOLE)] == [None, None, "seen_before"]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, None),
        ({"request_reasoning_effort": "low"}, "on"),
        ({"request_reasoning_effort": "none"}, "off"),
        ({"request_chat_template_kwargs": {"enable_thinking": False}}, "off"),
        ({"request_chat_template_kwargs": {"thinking": True}}, "on"),
        ({"request_chat_template_kwargs": {"other": True}}, None),
        ({"request_enable_thinking": True}, "on"),
        ({"request_thinking_token_budget": 0}, "off"),
        ({"request_thinking_token_budget": 50}, "on"),
        ({"request_reasoning": {"effort": "high"}}, "on"),
        ({"request_reasoning": {"enabled": False}}, "off"),
        ({"response_usage": {"completion_tokens_details": {"reasoning_tokens": 9}}}, "on"),
        ({"response_choices": [{"message": {"content": "b", "reasoning_content": "a"}}]}, "on"),
        ({"response_choices": [{"message": {"content": "b", "reasoning": ""}}]}, None),
    ],
)
def test_requests_with_reasoning_and_without_are_slices_of_their_own(
    changes: dict[str, Any], label: str | None
) -> None:
    record = let_in(chat(**changes)).record
    assert (record.labels or {}).get("reasoning") == label
    assert record.slice_key is not None
    assert record.slice_key.endswith(f",reasoning={label}") == (label is not None)
    named = let_in(chat(**changes), replace(WHOLE, slice_by=("reasoning",))).record
    assert named.slice_key == f"reasoning={label or 'none'}"
    assert "reasoning" not in (let_in(chat(), replace(WHOLE, takes_chats=False)).record.labels or {})
