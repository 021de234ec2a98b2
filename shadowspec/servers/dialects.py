"""The request and answer formats of servers: OpenAI's API with vLLM's fields, SGLang's and llama.cpp's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from shadowspec.servers import llamacpp, sglang
from shadowspec.servers.grammars import STRUCTURED_SINCE
from shadowspec.servers.request import ServerRequest, body_of, scoring_body_of
from shadowspec.servers.stream import StreamedAnswer

VLLM: Final = "vllm"  # as its /v1/models says


class Dialect(StrEnum):
    """The API that a server speaks."""

    OPENAI = "openai"
    GUIDED = "guided"  # OpenAI's, with the fields of an older vLLM for constraints on outputs
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"

    @classmethod
    def of(cls, engine: str, version: str = "") -> Dialect:
        """That of an engine, by the name of its identity and, where constraints may be asked for, its version."""
        if engine == sglang.ENGINE:
            return cls.SGLANG
        if engine == llamacpp.ENGINE:
            return cls.LLAMACPP
        numbers = re.match(r"(\d+)\.(\d+)", version)
        is_old = numbers is not None and (int(numbers[1]), int(numbers[2])) < STRUCTURED_SINCE
        return cls.GUIDED if engine == VLLM and is_old else cls.OPENAI

    @property
    def path(self) -> str:
        """Where completions are asked for."""
        return {Dialect.SGLANG: "generate", Dialect.LLAMACPP: "completion"}.get(self, "v1/completions")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every completion.

        llama.cpp sometimes closes a connection silently after a streamed answer, so no connection is used twice: the
        next request on it would be lost, and its retry counted as waiting.
        """
        return {"Connection": "close"} if self is Dialect.LLAMACPP else {}

    def lacking(self, request: ServerRequest) -> str | None:
        """The name of a parameter that cannot be asked for; None where all can."""
        return llamacpp.lacking(request) if self is Dialect.LLAMACPP else None

    def body_of(self, request: ServerRequest, model: str, salt: str) -> dict[str, Any]:
        """The body of a request for a streamed answer."""
        match self:
            case Dialect.SGLANG:
                return sglang.body_of(request, salt)
            case Dialect.LLAMACPP:
                return llamacpp.body_of(request, model)
        return body_of(request, model, salt, is_guided=self is Dialect.GUIDED)

    def answer(self, server: str, model: str, request: ServerRequest, sent_s: float) -> StreamedAnswer:
        """The reader of that answer's events."""
        kinds = {Dialect.SGLANG: sglang.SglangAnswer, Dialect.LLAMACPP: llamacpp.LlamaCppAnswer}
        return kinds.get(self, StreamedAnswer)(server, model, request, sent_s)

    def scored_together(self, length: int, start: int) -> list[range]:
        """The places of a prompt from `start` on, by the requests that ask for them."""
        if self is Dialect.LLAMACPP:
            return [range(place, place + 1) for place in range(start, length)]
        return [range(start, length)]

    def scoring_body_of(
        self, token_ids: Sequence[int], start: int, num_logprobs: int, model: str, salt: str
    ) -> dict[str, Any]:
        """The request for the likeliest tokens at each place of a prompt from `start` on."""
        if self is Dialect.SGLANG:
            return sglang.scoring_body_of(token_ids, start, num_logprobs, salt)
        if self is Dialect.LLAMACPP:
            return llamacpp.scoring_body_of(token_ids, num_logprobs, model)
        return scoring_body_of(token_ids, num_logprobs, model, salt)

    def prompt_logprobs_of(self, answer: Mapping[str, Any], token_ids: Sequence[int], start: int) -> list[Any]:
        """Each place of that answer from `start` on: log probabilities by token, or None where it has none."""
        if self is Dialect.SGLANG:
            return list(sglang.prompt_logprobs_of(answer, token_ids[start:]))
        if self is Dialect.LLAMACPP:
            return [llamacpp.last_logprobs_of(answer, token_ids[-1])]
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        logprobs = choice.get("prompt_logprobs") if isinstance(choice, dict) else None
        if not isinstance(logprobs, list) or len(logprobs) != len(token_ids):
            return [None] * (len(token_ids) - start)
        return [_logprobs_of(each) for each in logprobs[start:]]


def _logprobs_of(logprobs: Any) -> dict[int, Any] | None:
    """Log probabilities by token, from vLLM's entry of a place."""
    if not isinstance(logprobs, dict) or not all(isinstance(each, dict) for each in logprobs.values()):
        return None
    if not all(name.isdigit() for name in logprobs):
        return None
    return {int(name): each.get("logprob") for name, each in logprobs.items()}
