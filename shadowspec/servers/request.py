"""One request as a server is sent it: token ids or a client's chat, with every sampling parameter spelled out."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shadowspec.types import OutputConstraint, SamplingParameters

ANY_OBJECT: Final = '{"type": "object"}'  # the schema of any JSON object
# Of a client's body: replaced by our own, or of one delivery (an id that a server refuses twice, its time-out).
_REPLACED: Final = frozenset(
    {
        "model", "prompt_token_ids", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n", "seed",
        "return_token_ids", "cache_salt", "request_id", "timeout", "extra_headers", "metadata", "user", "store",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "priority", "service_tier",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request to both servers.

    `keeps_special_tokens`: the text includes them, as some models mark tool calls by them.  `chat` is the client's
    body, which is sent in place of the token ids; these are then the prompt as it is rendered here.  `only_token` is
    the one of which an answer consists, where the engine can be asked for that.
    """

    prompt_token_ids: tuple[int, ...] = field(repr=False)
    sampling: SamplingParameters
    seed: int  # int64: as vLLM requires
    keeps_special_tokens: bool = False
    num_logprobs: int = 0  # of the likeliest tokens at each place; 0: none are asked for
    constraint: OutputConstraint | None = None
    uses_cache: bool = False  # whether it may be answered from a prefix cache that knows no salts
    chat: bytes | None = field(default=None, repr=False)
    only_token: int | None = None

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


def chat_body_of(request: ServerRequest, models: Collection[str], model: str, salt: str) -> dict[str, Any]:
    """The body of /v1/chat/completions, streamed: the client's, with sampling, seed and limit made explicit.

    Template arguments, tools, formats, efforts and budgets stay as the client wrote them.

    Args:
        models: the names that the server serves: one of them, as that of an adapter, stays as well.
        model: the name in place of any other.
    """
    asked = json.loads(request.chat or b"{}")
    body = {name: value for name, value in asked.items() if name not in _REPLACED}
    own = body_of(
        replace(request, prompt_token_ids=()), asked["model"] if asked.get("model") in models else model, salt
    )
    own["max_completion_tokens"] = own.pop("max_tokens")
    for name in ("prompt", "logprobs", "return_tokens_as_token_ids", "skip_special_tokens"):
        own.pop(name, None)
    if request.num_logprobs:
        own |= {"logprobs": True, "top_logprobs": request.num_logprobs}
    return body | own


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
