"""Streamed answers put together."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import RecordError
from shadowspec.tap.documents import assemble_answer
from tests.builders.sse import stream


def test_a_chat_stream_of_vllm() -> None:
    entry = {"token": "a", "logprob": -0.5}
    answer = assemble_answer(
        stream(
            {"id": "r", "created": 1, "model": "m", "prompt_token_ids": [7, 8], "choices": [{"index": 0, "delta": {}}]},
            {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}, "token_ids": [1]}]},
            {"choices": [{"index": 0, "delta": {"content": None}, "logprobs": None, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [entry]}, "token_ids": [2]}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": None},
            {"choices": [], "usage": {"completion_tokens": 2}},
        )
    )
    assert answer == {
        "id": "r",
        "created": 1,
        "model": "m",
        "prompt_token_ids": [7, 8],
        "usage": {"completion_tokens": 2},
        "choices": [
            {
                "index": 0,
                "text": "ab",
                "logprobs": {"content": [entry, entry]},
                "token_ids": [1, 2],
                "finish_reason": "length",
            }
        ],
    }


def test_a_completions_stream_with_two_choices() -> None:
    answer = assemble_answer(
        stream({"choices": [{"index": 1, "text": "y"}]}, {"choices": [{"index": 0, "text": "x"}]}, {"choices": "odd"})
    )
    assert answer == {"choices": [{"index": 0, "text": "x"}, {"index": 1, "text": "y"}]}


def test_comments_events_and_carriage_returns_are_passed_over() -> None:
    text = ': keep-alive\r\n\r\nevent: message\r\ndata: {"id": "r"}\r\n\r\ndata: [DONE]\r\n'
    assert assemble_answer(text) == {"id": "r", "choices": []}


@pytest.mark.parametrize("text", ["", "{}", '{"data": "data:"}', "date: x"])
def test_what_is_no_stream(text: str) -> None:
    assert assemble_answer(text) is None


@pytest.mark.parametrize(
    "text",
    ["data: 3\n", "data: {cut\n", "data: [1]\n", ": nothing\n", *(
        f"data: {json.dumps({'choices': [part]})}\n" for part in (3, {"index": -1}, {"index": "0"}, {"index": 10**9})
    )],
)  # fmt: skip
def test_a_broken_stream_is_malformed(text: str) -> None:
    with pytest.raises(RecordError, match="invalid:stream"):
        assemble_answer(text)


@given(st.text(max_size=60).map(lambda text: "data:" + text))
def test_nothing_but_our_own_error(text: str) -> None:
    try:
        answer = assemble_answer(text)
    except RecordError:
        return
    assert answer is not None
    assert isinstance(answer["choices"], list)
