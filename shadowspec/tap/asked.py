"""What a request asks for beside its content: parameters that are those of many other requests.

So they are looked at once for all of them, by what they are marshalled to, which tells True from 1 and 1 from 1.0.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from shadowspec.tap.bodies import MARSHAL_VERSION, RequestBody
from shadowspec.tap.parameters import check_parameters
from shadowspec.tap.records import invalid_field
from shadowspec.types import SamplingParameters

GREEDY_BELOW = 1e-5  # vLLM's _SAMPLING_EPS: a lower temperature is served greedily
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's and vLLM's max_tokens of a completion that does not say
NEUTRAL_SAMPLING: Final = SamplingParameters()
MAX_REMEMBERED: Final = 1_000  # sets of parameters; an application sends a few, but for seeds
# What a request is about, and what says nothing of how it is served but differs from one to the next.
SAID_ONCE: Final = frozenset({"messages", "prompt", "user", "metadata", "request_id"})


class Asked(NamedTuple):
    """The parameters; `max_tokens` is None where the request leaves the length to the context."""

    sampling: SamplingParameters
    max_tokens: int | None
    asks_for_json: bool


def asked_beside_content(
    body: Mapping[str, Any], *, is_chat: bool, is_format_enforced: bool, has_ids: bool, defaults: Mapping[str, float]
) -> Asked:
    """The parameters of a request that has no tools and no token ids of its own.

    Raises:
        RecordError: as `check_parameters`, or malformed.
    """
    parameters = {name: value for name, value in body.items() if name not in SAID_ONCE}
    said = (parameters, is_chat, is_format_enforced, has_ids, dict(defaults) if defaults else {})
    return _asked(marshal.dumps(said, MARSHAL_VERSION))


@lru_cache(maxsize=MAX_REMEMBERED)
def _asked(parameters: bytes) -> Asked:
    body, is_chat, is_enforced, has_ids, defaults = marshal.loads(parameters)  # noqa: S302 - marshalled there
    check_parameters(body, has_prompt_token_ids=has_ids, is_format_enforced=is_enforced)
    try:
        request = RequestBody.model_validate(body)
    except ValidationError as error:
        raise invalid_field(error, "request") from None
    max_tokens = output_limit(request, is_chat)
    return Asked(sampling_of(request, max_tokens, defaults), max_tokens, asks_for_json(body))


def output_limit(request: RequestBody, is_chat: bool) -> int | None:
    """How many tokens it asks for at most; None: what the context leaves."""
    max_tokens = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    return DEFAULT_COMPLETION_TOKENS if max_tokens is None and not is_chat else max_tokens


def asks_for_json(body: Mapping[str, Any]) -> bool:
    """Whether a format is asked for by parameter."""
    return (body.get("response_format") or {}).get("type") == "json_object"


def sampling_of(request: RequestBody, max_tokens: int | None, defaults: Mapping[str, float]) -> SamplingParameters:
    """How the server sampled: as the request says, else by its defaults."""
    temperature = _value(request.temperature, "temperature", defaults)
    return SamplingParameters(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=_value(request.top_p, "top_p", defaults),
        top_k=max(0, int(_value(request.top_k, "top_k", defaults))),
        min_p=_value(request.min_p, "min_p", defaults),
        repetition_penalty=_value(request.repetition_penalty, "repetition_penalty", defaults),
        presence_penalty=_value(request.presence_penalty, "presence_penalty", defaults),
        frequency_penalty=_value(request.frequency_penalty, "frequency_penalty", defaults),
        max_tokens=NEUTRAL_SAMPLING.max_tokens if max_tokens is None else max_tokens,
        min_tokens=request.min_tokens or 0,
        stop=_stops(request.stop) if request.stop else (),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        seed=request.seed,
    )


def _value(given: float | None, name: str, defaults: Mapping[str, float]) -> float:
    """What the request says, else what the server does, else nothing special."""
    if given is not None:
        return float(given)
    return float(defaults[name] if name in defaults else getattr(NEUTRAL_SAMPLING, name))


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return tuple(text for text in ((stop,) if isinstance(stop, str) else stop or ()) if text)
