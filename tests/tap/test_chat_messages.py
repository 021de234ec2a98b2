"""The messages that a chat template gets are those of the engine that serves; vLLM's by its own code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from shadowspec.errors import RecordError
from shadowspec.servers.engines import ENGINES, prompt_rules_of
from shadowspec.tap.bodies import MessageBody
from shadowspec.tap.chat_messages import NO_PARTS, served_messages, served_tools
from shadowspec.types.prompt_rules import UNNAMED, PromptRules, TemplateTraits
from tests.tap.mirror import RULE, chat, fate, fates, first_only

PEER = json.loads((Path(__file__).parents[1] / "data/peers/vllm_messages.json").read_text())
TEXTS = TemplateTraits("{{ content }}", shows_any_role=False)
PARTS = TemplateTraits("{% for part in message.content %}", loops_over_parts=True, shows_any_role=False)
VISION = TemplateTraits("{# vision #}", shows_any_role=False)
TWO = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


def said(messages: list[dict[str, Any]], rules: PromptRules, traits: TemplateTraits = TEXTS) -> list[dict[str, Any]]:
    return served_messages([convert(message, MessageBody).plain() for message in messages], rules, traits)


def content(given: Any, engine: str | None, traits: TemplateTraits = TEXTS, role: str = "user") -> Any:
    (message,) = said([{"role": role, "content": given}], prompt_rules_of(engine), traits)
    return message["content"]


def arguments(given: dict[str, Any], engine: str | None) -> Any:
    call = {"id": "c", "type": "function", "function": {"name": "f", **given}}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": "a"}]
    message, _ = said(turns, prompt_rules_of(engine))
    return message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("case", PEER["cases"])
def test_vllm_s_conversations_are_its_own(case: dict[str, Any]) -> None:
    source = "'developer'" if case["names_developer"] else ""
    traits = TemplateTraits(source, loops_over_parts=case["loops_over_parts"])
    assert said(case["messages"], prompt_rules_of("vllm 0.32.0"), traits) == case["conversation"]


def test_every_engine_states_its_rules_and_another_name_has_the_usual_ones() -> None:
    assert {name: prompt_rules_of(f"{name}/1.0") for name in ENGINES} == {
        name: engine.prompt_rules for name, engine in ENGINES.items()
    }
    assert prompt_rules_of(None) is prompt_rules_of("other") is prompt_rules_of("vllm sglang") is UNNAMED


@pytest.mark.parametrize(
    ("engine", "joined"),
    [
        (None, "one\ntwo"),
        ("vllm", "one\ntwo"),
        ("sglang", "one two"),
        ("llama.cpp", "one\ntwo"),
        ("TensorRT-LLM", "one\ntwo"),
    ],
)
def test_text_parts(engine: str | None, joined: str) -> None:
    """Plain strings are parts too, and a part without a text is none."""
    for given in (
        TWO,
        ["one", "two"],
        [*TWO, {"type": "text", "text": None}],
        [{"type": "input_text", "text": "one"}, "two"],
    ):
        assert content(given, engine) == joined
        assert content(given, engine, PARTS) == TWO, "a template that loops over parts gets them"
        assert content(given, engine, PARTS, role="tool") == joined


def test_whether_a_text_becomes_a_part_is_the_engine_s() -> None:
    assert content("one", "vllm", PARTS) == TWO[:1]
    assert content("one", "sglang", PARTS) == "one"
    assert content(TWO, "sglang", VISION) == TWO, "it takes every template that names a medium for one with parts"
    assert content(TWO, "vllm", VISION) == "one\ntwo"
    assert (content(["", "a"], "vllm"), content(["", "a"], "sglang")) == ("a", " a")


@pytest.mark.parametrize("engine", [None, *ENGINES])
def test_no_content_is_an_empty_one(engine: str | None) -> None:
    assert content(None, engine) == content([], engine) == ""
    for bare in ({"role": "assistant"}, {"role": "assistant", "content": None, "tool_calls": []}):
        assert said(
            [{"role": "user", "content": "a"}, bare, {"role": "user", "content": "b"}], prompt_rules_of(engine)
        )[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("engine", [None, "vllm"])
def test_arguments_that_say_nothing_are_an_empty_object(engine: str | None) -> None:
    for given in ({}, *({"arguments": value} for value in (None, "", " ", "null", '{"a": "2', "[]", "3", [], 0))):
        assert arguments(given, engine) == {}, given
    assert arguments({"arguments": '{"a": 1}'}, engine) == arguments({"arguments": {"a": 1}}, engine) == {"a": 1}


def test_other_engines_take_broken_arguments_otherwise() -> None:
    assert arguments({"arguments": '{"a"'}, "tensorrt-llm") == '{"a"'
    assert arguments({}, "sglang") is None
    for engine in ("sglang", "llamacpp"):
        with pytest.raises(RecordError, match="tool_arguments"):
            arguments({"arguments": '{"a"'}, engine)


@pytest.mark.parametrize("engine", [None, *ENGINES])
def test_reasoning_under_either_name(engine: str | None) -> None:
    rules = prompt_rules_of(engine)
    shown = dict.fromkeys(rules.reasoning_shown, "why")
    for name in ("reasoning", "reasoning_content"):
        (message,) = said([{"role": "assistant", "content": "a", name: "why"}], rules)[:1]
        (other,) = said([{"role": "user", "content": "a", name: "why"}], rules)
        assert other == {"role": "user", "content": "a"}
        if engine == "sglang":
            continue  # the last message
        assert message == {"role": "assistant", "content": "a", **(shown if name in rules.reasoning_read else {})}
    (message,) = said([{"role": "assistant", "content": "a", "reasoning": {"effort": "low"}}], prompt_rules_of("vllm"))
    assert set(message) == {"role", "content"}, "it is no text"


def test_a_developer_is_the_system_where_the_template_does_not_name_it() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "developer", "content": "b"}, {"role": "system", "content": "c"}]
    system = {"role": "system", "content": "b\n\nc"}
    for engine in (None, "vllm"):
        assert said(chat, prompt_rules_of(engine)) == [system, chat[0]]
    assert [message["role"] for message in said(chat, prompt_rules_of("llamacpp"))] == ["user", "system", "system"]
    for engine in ("sglang", "tensorrt-llm"):
        assert said(chat, prompt_rules_of(engine)) == chat
    known = TemplateTraits("{% if role == 'developer' %}", shows_any_role=False)
    for engine in (None, *ENGINES):
        assert said(chat, prompt_rules_of(engine), known) == chat


def test_a_role_that_would_vanish_is_refused_unless_an_engine_says_what_becomes_of_it() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "critic", "content": "b"}]
    with pytest.raises(RecordError, match="unknown_role"):
        said(chat, UNNAMED)
    for traits in (NO_PARTS, TemplateTraits('"critic"', shows_any_role=False)):
        assert said(chat, UNNAMED, traits) == chat
    assert said(chat, prompt_rules_of("vllm")) == chat


def test_sglang_s_last_message_is_the_user_s() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "c"}]
    assert said(chat, prompt_rules_of("sglang"))[-1] == {"role": "user", "content": "b"}
    assert said(chat, prompt_rules_of("vllm"))[-1]["role"] == "assistant"


def test_tools_have_the_fields_and_their_order_of_the_engine() -> None:
    tools = [{"type": "function", "function": {"parameters": {}, "name": "f", "cache_control": {}}, "extra": 1}]
    assert served_tools(tools, UNNAMED) is tools
    assert served_tools(None, prompt_rules_of("vllm")) is None
    functions = {
        engine: json.dumps(tool["function"])
        for engine in ("vllm", "sglang")
        for tool in served_tools(tools, prompt_rules_of(engine)) or ()
    }
    assert functions == {
        "vllm": '{"name": "f", "description": null, "parameters": {}}',
        "sglang": '{"description": null, "name": "f", "parameters": {}, "strict": false}',
    }


def test_an_endpoint_s_prompts_are_those_of_its_engine() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    record = chat(request_messages=[{"role": "user", "content": TWO}], request_tools=[tool], request_tool_choice="none")
    prompts = {}
    for engine in (None, "vllm", "sglang"):
        rule = first_only(RULE)
        (admitted,) = fates([record], rule if engine is None else _with_engine(rule, engine))
        prompts[engine] = bytes(admitted.prompt.prompt_token_ids).decode()  # type: ignore[union-attr]
    assert prompts["sglang"] == 'user:one two""', "tools that may not be called are not shown"
    assert prompts["vllm"].startswith("user:one\ntwo[{")
    assert '"description": null' in prompts["vllm"]
    assert '"description"' not in prompts[None]


def test_contents_that_are_no_text_are_refused() -> None:
    for part, reason in (
        (3, None),
        ({"type": "image_url"}, "image_content"),
        ({"type": "text", "text": 3}, "unknown_content"),
    ):
        counter, said_reason = fate(chat(request_messages=[{"role": "user", "content": ["a", part]}]))
        assert said_reason == (reason or "invalid:request.messages.0.content.str"), counter


def _with_engine(rule: Any, engine: str) -> Any:
    return replace(rule, prompt_rules=prompt_rules_of(engine))
