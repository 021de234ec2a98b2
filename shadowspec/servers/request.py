"""One request as a server is sent it: token ids in, token ids out, every sampling parameter spelled out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shadowspec.types import OutputConstraint, SamplingParameters

ANY_OBJECT: Final = '{"type": "object"}'  # the schema of any JSON object


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request to both servers.

    `keeps_special_tokens`: the text includes them, as some models mark tool calls by them.
    """

    prompt_token_ids: tuple[int, ...] = field(repr=False)
    sampling: SamplingParameters
    seed: int  # int64: as vLLM requires
    keeps_special_tokens: bool = False
    num_logprobs: int = 0  # of the likeliest tokens at each place; 0: none are asked for
    constraint: OutputConstraint | None = None
    uses_cache: bool = False  # whether it may be answered from a prefix cache that knows no salts

    @property
    def is_adjusted(self) -> bool:
        """Whether tokens are drawn from another distribution than that of which servers report log probabilities.

        Those of a prompt's places are taken before penalties, and no grammar restricts a prompt.
        """
        return self.sampling.is_penalised or self.constraint is not None


def body_of(request: ServerRequest, model: str, salt: str) -> dict[str, Any]:
    """The body of /v1/completions, streamed.

    A parameter that is left out would be the server's to choose (its generation_config), so that none is.  `salt` keeps
    a prompt apart from every other one in the server's prefix cache; servers that know no `cache_salt` ignore it.
    A constraint is not among them: engines differ in it.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "min_tokens": sampling.min_tokens,
        "ignore_eos": sampling.ignore_eos,
        "seed": request.seed,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "skip_special_tokens": not request.keeps_special_tokens,
        "cache_salt": salt,
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if request.num_logprobs:
        body |= {"logprobs": request.num_logprobs, "return_tokens_as_token_ids": True}
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    return body


def scoring_body_of(token_ids: Sequence[int], num_logprobs: int, model: str, salt: str) -> dict[str, Any]:
    """The body of /v1/completions, not streamed, that asks for the likeliest tokens at each place of a prompt.

    A server generates one token at least, which nobody reads.
    """
    return {
        "model": model,
        "cache_salt": salt,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "ignore_eos": True,
        "prompt_logprobs": num_logprobs,
        "n": 1,
        "stream": False,
    }


def choice_rule(constraint: OutputConstraint) -> str:
    """The rule of a grammar: one of these texts, quoted as JSON quotes them."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in json.loads(constraint.text))
