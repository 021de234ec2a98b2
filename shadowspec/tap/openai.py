"""The adapter for OpenAI's chat and completions bodies, with vLLM's additions to them.

`parse_request` and `parse_response` give what is measured; a body that asks for what the loop does not do (see
`parameters`) is refused.  Given prompt token ids win over rendering.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from shadowspec.tap.bodies import MAX_SEED, LogprobsBody, RequestBody, ResponseBody, TokenIds, convert_or_refuse
from shadowspec.tap.parameters import NEUTRAL, PASSED, RENDERING, malformed_error, unsupported_error
from shadowspec.tap.records import MirroredRecord
from shadowspec.types import Intervention, LoggedResponse, SamplingParameters

GREEDY_BELOW: Final = 1e-5  # vLLM's _SAMPLING_EPS: a lower temperature is served greedily
DEFAULT_COMPLETION_TOKENS: Final = 16  # OpenAI's and vLLM's max_tokens of a completion that does not say
NEUTRAL_SAMPLING: Final = SamplingParameters()
TRUNCATION_MARKER: Final = "litellm_truncated"  # LiteLLM writes it in place of what it cut out of a logged prompt
READ_ROLES: Final = frozenset({"system", "developer", "user"})  # whose messages say what is asked
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")  # of an unknown parameter
OTHER_CALLS: Final[Mapping[str, str]] = {"embeddings": "embeddings", "input": "embeddings"}

# OpenAI's and Azure's, then Bedrock's, Anthropic's, Cohere's, Zhipu's and Gemini's, in lower case.
FILTERING_REASONS: Final = frozenset(
    {
        "content_filter", "content_filtered", "guardrail_intervened", "refusal", "error_toxic", "sensitive", "safety",
        "recitation", "blocklist", "prohibited_content", "spii",
    }
)  # fmt: skip
INTERVENTION: Final = "intervention"  # the annotation by which a mirror, or an adapter, says what was done
_INTERVENTIONS: Final = {each.value: each for each in Intervention}


class ParsedResponse(Struct, frozen=True, gc=False):
    """What production answered; `prompt_token_ids` and `model` as the server saw them."""

    logged: LoggedResponse | None
    prompt_token_ids: TokenIds | None = None
    model: str | None = None

    def __repr__(self) -> str:
        return f"ParsedResponse(logged={self.logged!r}, model={self.model!r})"


class ParsedRequest(Struct, frozen=True, gc=False):
    """One request ready for a tokenizer.

    Exactly one of `prompt_token_ids`, `messages` and `text` is what the prompt is made from; `texts` holds
    the instructions and user turns in order, for the classifier alone.  `sampling.max_tokens` is the
    request's own, or `None` in `max_tokens` where it leaves the length to the context.
    """

    is_chat: bool
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    text: str | None
    prompt_token_ids: TokenIds | None
    texts: tuple[str, ...]
    sampling: SamplingParameters
    max_tokens: int | None
    offers_tools: bool
    asks_for_json: bool

    def __repr__(self) -> str:
        return f"ParsedRequest(is_chat={self.is_chat!r}, max_tokens={self.max_tokens!r})"


def parse_response(record: MirroredRecord) -> ParsedResponse:
    """What the record holds of the answer, whose document it reads if nobody has.

    Raises:
        RecordError: malformed, or unsupported ("several_choices").
    """
    response = record.response
    if response is None:
        return ParsedResponse(None)
    if not isinstance(response, ResponseBody):
        record.response = response = convert_or_refuse(response, ResponseBody, "response")
    if not response.choices:
        return ParsedResponse(None, response.prompt_token_ids, response.model)
    if len(response.choices) > 1:
        raise unsupported_error("several_choices")
    choice = response.choices[0]
    token_ids = choice.token_ids
    counted = None if response.usage is None else response.usage.completion_tokens
    if counted is None and token_ids is not None:
        counted = len(token_ids)
    logged = LoggedResponse(token_ids, _token_logprobs(choice.logprobs, token_ids), choice.finish_reason, counted)
    prompt_token_ids = choice.prompt_token_ids if response.prompt_token_ids is None else response.prompt_token_ids
    return ParsedResponse(logged, prompt_token_ids, response.model)


def parse_request(
    record: MirroredRecord,
    *,
    served_prompt_token_ids: TokenIds | None = None,
    default_sampling: Mapping[str, float] | None = None,
) -> ParsedRequest:
    """The request of a record, if the loop can measure it as it was served.

    Args:
        record: the mirrored record.
        served_prompt_token_ids: the prompt as the response reports it; used where the request has none.
        default_sampling: the server's defaults for parameters that the request leaves open.

    Raises:
        RecordError: malformed, or unsupported with the feature that is missing.
    """
    body = record.request
    is_chat = _is_chat(record)
    _check_parameters(
        body,
        has_prompt_token_ids=body.get("prompt_token_ids") is not None or served_prompt_token_ids is not None,
        is_format_enforced=record.annotation("response_format_enforced") not in (False, "false", "False"),
    )
    request = convert_or_refuse(body, RequestBody, "request")
    if request.seed is not None and request.seed >= MAX_SEED:
        raise malformed_error("invalid:request.seed")
    messages: list[dict[str, Any]] = []
    text, prompt_ids = None, None
    if is_chat:
        messages = [message.plain() for message in request.messages or ()]
        everything = [message["content"] for message in messages if message["content"]]
        texts = tuple(m["content"] for m in messages if m["role"] in READ_ROLES and m["content"])
    else:
        text, prompt_ids = _completion_prompt(request.prompt)
        texts = (text,) if text else ()
        everything = list(texts)
    for piece in everything:
        if TRUNCATION_MARKER in piece:
            raise unsupported_error("truncated")
    if is_chat and not messages and request.prompt_token_ids is None:
        raise malformed_error("invalid:request.messages")
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if max_tokens is None and not is_chat:
        max_tokens = DEFAULT_COMPLETION_TOKENS
    if max_tokens == 0:
        raise unsupported_error("no_output")
    return ParsedRequest(
        is_chat=is_chat,
        messages=messages,
        tools=request.tools or None,
        text=text,
        prompt_token_ids=request.prompt_token_ids
        or (prompt_ids if served_prompt_token_ids is None else served_prompt_token_ids),
        texts=texts,
        sampling=_sampling_of(request, max_tokens, default_sampling or {}),
        max_tokens=max_tokens,
        offers_tools=bool(request.tools) and body.get("tool_choice") != "none",
        asks_for_json=(body.get("response_format") or {}).get("type") == "json_object",
    )


def _check_parameters(body: Mapping[str, Any], *, has_prompt_token_ids: bool, is_format_enforced: bool) -> None:
    """Refuse a request that asks for what the loop does not do.

    Args:
        body: the request as it was sent.
        has_prompt_token_ids: the record holds the rendered prompt, so that rendering parameters do not matter.
        is_format_enforced: production enforced `response_format` by a mask on the grammar.

    Raises:
        RecordError: unsupported, with the feature or "unknown_parameter:NAME" as the reason.
    """
    for name, value in body.items():
        if name in PASSED:
            continue
        if name in NEUTRAL:
            neutral, reason = NEUTRAL[name]
            if not _is_one_of(value, neutral):
                raise unsupported_error(reason)
        elif name in RENDERING:
            if not has_prompt_token_ids and not _is_one_of(value, RENDERING[name]):
                raise unsupported_error(f"rendering_parameter:{name}")
        elif value is not None:
            raise unsupported_error(f"unknown_parameter:{name}" if _SAFE_NAME.fullmatch(name) else "unknown_parameter")
    _check_response_format(body.get("response_format"), is_format_enforced)
    _check_tools(body)


def _check_response_format(response_format: Any, is_enforced: bool) -> None:
    if response_format is None:
        return
    if not isinstance(response_format, Mapping):
        raise malformed_error("invalid:request.response_format")
    kind = response_format.get("type")
    if kind == "text" or (kind == "json_object" and not is_enforced):
        return
    raise unsupported_error("grammar")


def _check_tools(body: Mapping[str, Any]) -> None:
    """A forced or strict tool call is decoded under a grammar; a free one is ordinary text."""
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise unsupported_error("forced_tool_choice")
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():  # what is no list is refused with the body
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("strict") is True:
            raise unsupported_error("grammar")


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Equality that does not take True for 1."""
    return any(value == candidate and isinstance(value, bool) == isinstance(candidate, bool) for candidate in allowed)


def response_of(record: MirroredRecord) -> ResponseBody | None:
    """The answer of a record that `parse_response` has read."""
    assert not isinstance(record.response, dict), "not read yet"
    return record.response


def intervention_of(record: MirroredRecord, logged: LoggedResponse | None) -> Intervention | None:
    """What a layer behind the model did with production's output, as far as the record says."""
    said = record.annotation(INTERVENTION)
    if isinstance(said, str) and said in _INTERVENTIONS:
        return _INTERVENTIONS[said]
    reason = logged.finish_reason if logged is not None else None
    return Intervention.FILTERED if reason is not None and reason.lower() in FILTERING_REASONS else None


def _is_chat(record: MirroredRecord) -> bool:
    """Which call it was: by its path where the record has one, else by the body."""
    path = record.request_path
    if path is not None:
        if path.endswith("/chat/completions"):
            return True
        if path.endswith("/completions"):
            return False
        raise unsupported_error(OTHER_CALLS.get(path.rsplit("/", 1)[-1], "other_call"))
    if "messages" in record.request:
        return True
    if "prompt" in record.request or "prompt_token_ids" in record.request:
        return False
    if "input" in record.request:
        raise unsupported_error("embeddings")
    raise malformed_error("invalid:request.messages")


def _completion_prompt(prompt: str | list[Any] | None) -> tuple[str | None, tuple[int, ...] | None]:
    """Text, or token ids; a list of one prompt is that prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, None
    if prompt and all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in prompt):
        return None, tuple(prompt)
    if prompt and all(isinstance(item, (str, list)) for item in prompt):
        raise unsupported_error("several_prompts")
    if prompt is None or prompt == []:
        return None, None
    raise malformed_error("invalid:request.prompt")


def _token_logprobs(logprobs: LogprobsBody | None, token_ids: TokenIds | None) -> tuple[float, ...] | None:
    """One logprob per response token; None unless the record has all of them."""
    if logprobs is None or token_ids is None:
        return None
    given = [entry.logprob for entry in logprobs.content] if logprobs.content else logprobs.token_logprobs
    values = [value for value in given or () if value is not None]
    return tuple(values) if len(values) == len(token_ids) == len(given or ()) else None


def _sampling_of(request: RequestBody, max_tokens: int | None, defaults: Mapping[str, float]) -> SamplingParameters:
    """How the server sampled: as the request says, else by its defaults."""
    temperature = _value(request, "temperature", defaults)
    return SamplingParameters(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=_value(request, "top_p", defaults),
        top_k=max(0, int(_value(request, "top_k", defaults))),
        min_p=_value(request, "min_p", defaults),
        repetition_penalty=_value(request, "repetition_penalty", defaults),
        presence_penalty=_value(request, "presence_penalty", defaults),
        frequency_penalty=_value(request, "frequency_penalty", defaults),
        max_tokens=NEUTRAL_SAMPLING.max_tokens if max_tokens is None else max_tokens,
        min_tokens=request.min_tokens or 0,
        stop=tuple(text for text in _stops(request.stop) if text),
        stop_token_ids=request.stop_token_ids or (),
        ignore_eos=bool(request.ignore_eos),
        seed=request.seed,
    )


def _value(request: RequestBody, name: str, defaults: Mapping[str, float]) -> float:
    """What the request says, else what the server does, else nothing special."""
    given = getattr(request, name)
    if given is None:
        given = defaults[name] if name in defaults else getattr(NEUTRAL_SAMPLING, name)
    return float(given)


def _stops(stop: str | list[str] | None) -> Sequence[str]:
    return (stop,) if isinstance(stop, str) else stop or ()
