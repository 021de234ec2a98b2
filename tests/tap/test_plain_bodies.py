"""Bodies that are read without a model of them give what the models give, down to the first fault that is told."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from shadowspec.errors import RecordError
from shadowspec.tap import asked, openai
from shadowspec.tap.bodies import are_token_ids
from shadowspec.tap.records import read_envelope
from tests.tap.mirror import chat

NUMBERS = st.sampled_from([None, 0, 1, 2, 7, -1, 0.0, 0.5, 1.0, 1.5, 2**31 - 1, 2**31, 2**32, True, False, "1"])
IDS = st.lists(st.integers(0, 300) | st.sampled_from([-1, 1.0, 2**31 - 1, 2**31, True, None, "1"]), max_size=4)
TEXT = st.sampled_from(["", "Why?", "litellm_truncated", "Write a poem", None, 3])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", 1]), "content": TEXT | st.just([{"type": "text"}])},
        optional={"name": TEXT, "tool_calls": st.just([{"id": "a"}]), "extra": NUMBERS},
    )
    | st.just("message"),
    max_size=3,
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "model": TEXT,
        "messages": MESSAGES | TEXT,
        "prompt": TEXT | IDS,
        "prompt_token_ids": st.none() | IDS,
        "max_tokens": NUMBERS,
        "max_completion_tokens": NUMBERS,
        "temperature": NUMBERS,
        "top_k": NUMBERS,
        "stop": TEXT | st.lists(TEXT, max_size=2),
        "stop_token_ids": IDS,
        "seed": NUMBERS,
        "n": NUMBERS,
        "user": TEXT,
        "tools": st.sampled_from([None, [], [{"function": {"strict": True}}], "tools"]),
        "tool_choice": st.sampled_from([None, "auto", "none", "required"]),
        "response_format": st.sampled_from([None, {"type": "json_object"}, {"type": "json_schema"}, "json"]),
        "add_generation_prompt": st.booleans(),
        "unknown": NUMBERS,
    },
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "token_ids": st.none() | IDS,
        "prompt_token_ids": st.none() | IDS,
        "finish_reason": TEXT,
        "logprobs": st.sampled_from([None, {}, {"token_logprobs": [-0.5, None]}, {"token_logprobs": "x"}]),
    },
)
RESPONSES = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "model": TEXT,
        "prompt_token_ids": st.none() | IDS,
        "choices": st.lists(CHOICES | st.just("choice"), max_size=2) | TEXT,
        "usage": st.none() | st.fixed_dictionaries({}, optional={"completion_tokens": NUMBERS}) | TEXT,
    },
)


def read(request: dict[str, Any], response: dict[str, Any] | None, path: str | None, *, enforced: bool) -> Any:
    """What both bodies say, or why nothing."""
    document = {"request": request, "response": response, "path": path}
    if not enforced:
        document["metadata"] = {"response_format_enforced": False}
    record = read_envelope(document, {})
    try:
        answered = openai.parse_response(record)
        ids = answered.prompt_token_ids
        request_read = openai.parse_request(record, served_prompt_token_ids=ids, default_sampling={"top_p": 0.5})
    except RecordError as error:
        return error.counter, error.reason
    return repr((astuple(answered), astuple(request_read)))  # True is not 1, nor is 1.0


@settings(max_examples=1_500, deadline=None)
@given(
    REQUESTS,
    RESPONSES,
    st.sampled_from([None, "/v1/chat/completions", "/v1/completions", "/v1/embeddings"]),
    st.booleans(),
)
@example(chat()["request"], chat()["response"], None, True)
@example({"prompt": "Why?", "messages": ["message"]}, None, "/v1/completions", True)
@example(chat(request_prompt=[None])["request"], None, "/v1/chat/completions", True)
def test_without_a_model_as_with_one(
    request: dict[str, Any], response: dict[str, Any] | None, path: str | None, enforced: bool
) -> None:
    found = read(request, response, path, enforced=enforced)
    with mock.patch.multiple(openai, plain_request=lambda *_: None, plain_response=lambda *_: None):
        assert found == read(request, response, path, enforced=enforced)


def test_the_parameters_of_many_requests_are_looked_at_once() -> None:
    asked._asked.cache_clear()
    for number in range(50):
        request = chat(request_user=f"user {number}", request_messages=[{"role": "user", "content": f"Why {number}?"}])
        openai.parse_request(read_envelope(request, {}))
    assert asked._asked.cache_info().misses == 1
    assert asked._asked.cache_info().hits == 49


@given(IDS | st.sampled_from([None, "ids", (1, 2), {1: 2}]))
def test_lists_of_token_ids_are_told_from_others(ids: Any) -> None:
    holds = type(ids) is list and all(type(each) is int and 0 <= each < 2**31 for each in ids)
    assert are_token_ids(ids) == (holds and len(ids) > 0)
