"""The types of bodies against an independent model: what is read, and which field is the first that is wrong."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shadowspec.errors import RecordError
from shadowspec.tap.bodies import MAX_COUNT, MAX_SEED, RequestBody, ResponseBody, convert_or_refuse
from shadowspec.tap.parameters import malformed_error
from tests.tap.mirror import chat, fate

Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


class Model(BaseModel):
    """Strict about the fields that it names, indifferent to the others."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class MessageModel(Model):
    """One chat message."""

    role: str
    content: str | list[dict[str, Any] | str] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None


class RequestModel(Model):
    """What is read of a request, chat or completion."""

    messages: list[MessageModel] | None = None
    prompt: str | list[Any] | None = None
    prompt_token_ids: list[Count] | None = None
    tools: list[dict[str, Any]] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Count | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None


class LogprobModel(Model):
    """One token of a chat answer."""

    logprob: float


class LogprobsModel(Model):
    """Log probabilities of an answer, in either call's form."""

    content: list[LogprobModel] | None = None  # chat
    token_logprobs: list[float | None] | None = None  # completions


class ChoiceModel(Model):
    """One answer."""

    token_ids: list[Count] | None = None
    prompt_token_ids: list[Count] | None = None
    finish_reason: str | None = None
    logprobs: LogprobsModel | None = None


class UsageModel(Model):
    """The server's own count."""

    completion_tokens: Count | None = None
    output_tokens: Count | None = None
    prompt_tokens: Any = None
    input_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None
    input_tokens_details: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None


class ResponseModel(Model):
    """What is read of a response, chat or completion."""

    model: str | None = None
    prompt_token_ids: list[Count] | None = None
    choices: list[ChoiceModel] | None = None
    usage: UsageModel | None = None


NUMBERS = st.sampled_from([None, 0, 1, 2, 7, -1, 0.0, 0.5, 1.0, 1.5, 2**31 - 1, 2**31, 2**32, True, False, "1"])
IDS = st.lists(st.integers(0, 300) | st.sampled_from([-1, 1.0, 2**31 - 1, 2**31, True, None, "1"]), max_size=4)
TEXT = st.sampled_from(["", "Why?", "litellm_truncated", "Write a poem", None, 3])
LISTS = st.sampled_from([[{"type": "text"}], ["a"], [3]])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant", 1]),
            "content": TEXT | st.sampled_from([[{"type": "text"}], ["a"], [3]]),
        },
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
        "usage": st.none()
        | st.fixed_dictionaries({}, optional={"completion_tokens": NUMBERS, "output_tokens": NUMBERS})
        | TEXT,
    },
)


def expected(document: dict[str, Any], model: type[Model]) -> Any:
    """What the model reads, or the place of its first error by the names that it declares."""
    try:
        return model.model_validate(document).model_dump()
    except ValidationError as error:
        location = error.errors(include_url=False)[0]["loc"]
        return ".".join(str(part) for part in location if isinstance(part, int) or part.isidentifier())


ANYTHING = frozenset(
    {"id", "created", "error", "created_at", "output", "status", "incomplete_details", "type", "content", "stop_reason"}
)  # fields of answers that may hold anything, as their adapters check them


def find_body(document: dict[str, Any], kind: Any) -> Any:
    """The same of the product's types; what only replay reads, and what may be anything, left out."""
    try:
        read = listed(convert_or_refuse(document, kind))
    except RecordError as error:
        return error.reason.removeprefix("invalid:")
    for choice in read.get("choices") or ():
        del choice["message"], choice["text"]
    return {name: value for name, value in read.items() if name not in ANYTHING}


def listed(value: Any) -> Any:
    """Structs as dicts and tuples as lists, as pydantic gives them."""
    if hasattr(value, "__struct_fields__"):
        return {name: listed(inner) for name, inner in asdict(value).items()}
    return [listed(inner) for inner in value] if isinstance(value, (list, tuple)) else value


@settings(max_examples=1_500, deadline=None)
@given(REQUESTS)
def test_requests_are_read_as_the_model_reads_them(request: dict[str, Any]) -> None:
    assert repr(find_body(request, RequestBody)) == repr(expected(request, RequestModel))  # True is not 1, nor is 1.0


@settings(max_examples=1_500, deadline=None)
@given(RESPONSES.filter(bool))
def test_responses_are_read_as_the_model_reads_them(response: dict[str, Any]) -> None:
    assert repr(find_body(response, ResponseBody)) == repr(expected(response, ResponseModel))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"request_messages": [{"content": "x"}]}, "request.messages.0.role"),
        ({"request_messages": [{"role": "user", "content": 3}]}, "request.messages.0.content.str"),
        ({"request_messages": [{"content": 3, "role": 3}]}, "request.messages.0.role"),  # in declared order
        ({"request_stop": ["a", 1]}, "request.stop.str"),
        ({"request_seed": MAX_SEED}, "request.seed"),
        ({"request_stop_token_ids": [1, True]}, "request.stop_token_ids.1"),
        ({"request_max_tokens": 1.0}, "request.max_tokens"),
        ({"response_choices": [{"logprobs": {"content": [{}]}}]}, "response.choices.0.logprobs.content.0.logprob"),
        ({"timestamp": [1]}, "timestamp.str"),
        ({"status": 1.5}, "status.int"),
        ({"cache_hit": 1}, "cache_hit.bool"),
        ({"metadata": []}, "metadata"),
    ],
)
def test_reasons_name_the_first_wrong_field(changes: dict[str, Any], place: str) -> None:
    refused = malformed_error(f"invalid:{place}")
    assert fate(chat(**changes)) == (refused.counter, refused.reason)


def test_a_number_beyond_all_floats_is_wrong_where_it_is_read_alone() -> None:
    for name, reason in (("temperature", "invalid:request.temperature"), ("user", None)):
        message = json.dumps(chat(**{f"request_{name}": 0.125})).replace("0.125", "1e999")
        assert fate(message.encode())[1] == reason


def test_tracebacks_show_no_content() -> None:
    for kind, document in ((RequestBody, chat()["request"]), (ResponseBody, chat()["response"])):
        assert repr(convert_or_refuse(document, kind)) == f"{kind.__name__}()"


def test_a_seed_may_take_64_bits() -> None:
    assert fate(chat(request_seed=MAX_SEED - 1))[1] is None
