"""Tool calls are found in the ways in which models write them, and a broken one is told from none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.quality.tool_calls import ToolCall, find_calls

ARGUMENTS = {"city": "K\u00f6ln", "days": 3, "units": None}
JSON = json.dumps(ARGUMENTS)
CALL = ToolCall("weather.get", ARGUMENTS)
BEGIN, SEPARATOR, END = (f"<\uff5ctool\u2581{name}\uff5c>" for name in ("call\u2581begin", "sep", "call\u2581end"))
NAMED = f'{{"name": "weather.get", "arguments": {JSON}}}'
LLAMA = f'{{"name": "weather.get", "parameters": {JSON}}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{NAMED}\n</tool_call>",
        f"I will look it up.\n<tool_call>{NAMED}</tool_call>",
        f"[TOOL_CALLS][{NAMED}]",
        f"[TOOL_CALLS] weather.get[ARGS]{JSON}",
        f"<|python_tag|>{LLAMA}",
        f"<|tool_call|>[{NAMED}]",
        f"{BEGIN}weather.get{SEPARATOR}{JSON}{END}",
        f"{BEGIN}function{SEPARATOR}weather.get\n```json\n{JSON}\n```{END}",
        f"  {LLAMA}\n",
        f"[{NAMED}]",
        json.dumps({"type": "function", "function": {"name": "weather.get", "arguments": JSON}}),
        '[weather.get(city="K\u00f6ln", days=3, units=None)]',
    ],
)
def test_one_call_in_every_way_of_writing_it(text: str) -> None:
    assert find_calls(text) == [CALL]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{NAMED}</tool_call>\n<tool_call>{NAMED}</tool_call>",
        f"[TOOL_CALLS][{NAMED}, {NAMED}]",
        f"[TOOL_CALLS]weather.get[ARGS]{JSON}[TOOL_CALLS]weather.get[ARGS]{JSON}",
        f"<|python_tag|>{LLAMA}; {LLAMA}",
        f"{LLAMA};{LLAMA}",
        f"[{NAMED}, {NAMED}]",
        f"{BEGIN}weather.get{SEPARATOR}{JSON}{END}\n{BEGIN}weather.get{SEPARATOR}{JSON}{END}",
        '[weather.get(city="K\u00f6ln", days=3, units=None), weather.get(city="K\u00f6ln", days=3, units=None)]',
    ],
)
def test_several_calls(text: str) -> None:
    assert find_calls(text) == [CALL, CALL]


def test_elements_of_qwen_coder_are_text() -> None:
    text = (
        "<tool_call>\n<function=weather.get>\n<parameter=city>\nK\u00f6ln\n</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</tool_call>"
    )
    assert find_calls(text) == [ToolCall("weather.get", {"city": "\nK\u00f6ln\n", "days": "3"}, is_typed=False)]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{NAMED}",
        f"<tool_call>{NAMED[:-1]}</tool_call>",
        "<tool_call>weather</tool_call>",
        "<tool_call><function=weather.get><parameter=city>K\u00f6ln",
        "<tool_call></tool_call>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]weather.get[ARGS]",
        f"[TOOL_CALLS]weather get[ARGS]{JSON}",
        f"{BEGIN}weather.get{SEPARATOR}{JSON}",
        "<|python_tag|>import os",
        '{"name": "weather.get", "arguments": [1]}',
        '{"name": "weather.get", "arguments": "3"}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "parameters": {}}',
        '{"name": "weather.get", "arguments": {}, "parameters": {}}',
        NAMED[:-1],
        f"{LLAMA}; {LLAMA[:-2]}",
        "[weather.get(3)]",
        "[weather.get(city=open('x'))]",
        "[weather.get(**given)]",
        "[weather.get(city=float('nan'))]",
        "[weather.get(city={1, 2})]",
        "[weather.get(",
    ],
)
def test_a_broken_call_is_one_that_is_malformed(text: str) -> None:
    calls = find_calls(text)
    assert calls is not None
    assert None in calls


@pytest.mark.parametrize(
    "text",
    ["", "The weather is fine.", "3", "[1, 2]", '{"city": "K\u00f6ln"}', '{"name": "K\u00f6ln"}', '{"city": ', "[]",
     "[[1]", "[note](https://example.com) says so", "{}; {}"],
)  # fmt: skip
def test_words_and_other_json_are_no_calls(text: str) -> None:
    assert find_calls(text) is None


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def test_a_mark_in_an_argument_decides_no_form() -> None:
    call = json.dumps({"name": "f", "arguments": {"<tool_call>": None}})
    assert find_calls(f"[TOOL_CALLS][{call}]") == [ToolCall("f", {"<tool_call>": None})]


@given(NAMES, st.dictionaries(st.text(), VALUES, max_size=3))
def test_whatever_arguments_a_call_has_it_is_read_back(name: str, arguments: dict[str, object]) -> None:
    call = json.dumps({"name": name, "arguments": arguments})
    expected = [ToolCall(name, arguments)]
    assert find_calls(f"[TOOL_CALLS][{call}]") == expected
    assert find_calls(call) == expected or "<tool_call>" in call
    if "</tool_call>" not in call and "<tool_call>" not in call:
        assert find_calls(f"<tool_call>\n{call}\n</tool_call>") == expected


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call|>", BEGIN, SEPARATOR, END,
     "<function=f>", "</function>", "<parameter=p>", "</parameter>", "[f(", ")]", NAMED, LLAMA, "{", "}", "[", "]", ";",
     '"name"', "```json", "```", "\x00", "\ud800"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=4), max_size=8))
def test_no_text_raises(pieces: list[str]) -> None:
    calls = find_calls("".join(pieces))
    assert calls is None or all(call is None or call.name for call in calls)
    assert calls != []


@pytest.mark.parametrize("mark", ["", "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[f(x="])
def test_depth_is_no_crash(mark: str) -> None:
    calls = find_calls(mark + "[" * 100_000)
    assert calls is None or None in calls
