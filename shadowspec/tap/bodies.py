"""The fields of OpenAI's bodies that are read, as vLLM extends them; everything else in a body is left alone."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, WrapValidator

MAX_COUNT: Final = 2**31

MARSHAL_VERSION = 2  # without references to what came before
_LIST_HEADER_BYTES, _INT_BYTES = 5, 5  # a letter and four bytes, both

TokenId = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


def are_token_ids(ids: Any) -> bool:
    """Whether a value surely is a list of token ids; of what is doubtful it says no.

    By how the list marshals, ten times as fast as looking at one id after the other: an int of 32 bits, and nothing
    else, is an "i" and four bytes, the highest last.
    """
    if type(ids) is not list or not ids:
        return False
    packed = marshal.dumps(ids, MARSHAL_VERSION)
    types = packed[_LIST_HEADER_BYTES::_INT_BYTES]
    return (
        len(packed) == _LIST_HEADER_BYTES + len(ids) * _INT_BYTES
        and types.count(b"i") == len(ids)
        and packed[_LIST_HEADER_BYTES + _INT_BYTES - 1 :: _INT_BYTES].isascii()  # none is negative
    )


def _all_at_once(ids: Any, one_by_one: Callable[[Any], list[int]]) -> list[int]:
    return ids if are_token_ids(ids) else one_by_one(ids)


TokenIds = Annotated[list[TokenId], WrapValidator(_all_at_once)]
Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


class Body(BaseModel):
    """Strict about the fields it names, indifferent to the rest."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class MessageBody(Body):
    """One chat message."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class RequestBody(Body):
    """What is read of a request, chat or completion."""

    messages: list[MessageBody] | None = None
    prompt: str | list[Any] | None = None
    prompt_token_ids: TokenIds | None = None
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
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None


class LogprobBody(Body):
    """One token of a chat answer."""

    logprob: float


class LogprobsBody(Body):
    """Log probabilities of an answer, in either call's form."""

    content: list[LogprobBody] | None = None  # chat
    token_logprobs: list[float | None] | None = None  # completions


class ChoiceBody(Body):
    """One answer."""

    token_ids: TokenIds | None = None
    prompt_token_ids: TokenIds | None = None
    finish_reason: str | None = None
    logprobs: LogprobsBody | None = None


class UsageBody(Body):
    """The server's own count."""

    completion_tokens: Count | None = None


class ResponseBody(Body):
    """What is read of a response, chat or completion."""

    model: str | None = None
    prompt_token_ids: TokenIds | None = None
    choices: list[ChoiceBody] | None = None
    usage: UsageBody | None = None
