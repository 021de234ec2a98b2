"""The adapter for OpenAI's chat and completions bodies, with vLLM's additions to them.

`parse_request` and `parse_response` read the measured fields; a body with a parameter that the engine does not
implement (see `parameters`) is refused.  Given prompt token ids win over rendering.  Bodies of OpenAI's Responses API
and of Anthropic's Messages API are read as the equivalent chat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from shadowspec.tap import anthropic_messages, openai_responses
from shadowspec.tap.asked_output import AskedOutput, ToolCallFormat, asked_output, refuse_constraints
from shadowspec.tap.bodies import (
    MAX_SEED,
    LogprobsBody,
    RequestBody,
    ResponseBody,
    TokenIds,
    UsageBody,
    convert_or_refuse,
)
from shadowspec.tap.calls import Call, call_of
from shadowspec.tap.chat_messages import text_of
from shadowspec.tap.parameters import (
    CONSTRAINING,
    NEUTRAL,
    PASSED,
    RENDERING,
    THINKING,
    malformed_error,
    unknown_parameter_error,
    unsupported_error,
)
from shadowspec.tap.records import MirroredRecord
from shadowspec.types import UNSEEDED, Intervention, LoggedResponse, SamplingParameters

GREEDY_BELOW: Final = 1e-5  # vLLM's _SAMPLING_EPS: a lower temperature is served greedily
DEFAULT_COMPLETION_TOKENS: Final = 16  # OpenAI's and vLLM's max_tokens of a completion that does not say
NEUTRAL_SAMPLING: Final = SamplingParameters()
TRUNCATION_MARKER: Final = "litellm_truncated"  # LiteLLM writes it in place of text that it cut out of a logged prompt
READ_ROLES: Final = frozenset({"system", "developer", "user"})  # whose messages state the task

# OpenAI's and Azure's, then Bedrock's, Anthropic's, Cohere's, Zhipu's and Gemini's, in lower case.
FILTERING_REASONS: Final = frozenset(
    {
        "content_filter", "content_filtered", "guardrail_intervened", "refusal", "error_toxic", "sensitive", "safety",
        "recitation", "blocklist", "prohibited_content", "spii",
    }
)  # fmt: skip
INTERVENTION: Final = "intervention"  # the annotation by which a mirror, or an adapter, reports the action
_INTERVENTIONS: Final = {intervention.value: intervention for intervention in Intervention}


class ParsedResponse(Struct, frozen=True, gc=False):
    """Production's answer; `prompt_token_ids` and `model` as the server saw them, and its count of the prompt."""

    logged: LoggedResponse | None
    prompt_token_ids: TokenIds | None = None
    model: str | None = None
    num_prompt_tokens: int | None = None

    def __repr__(self) -> str:
        return f"ParsedResponse(logged={self.logged!r}, model={self.model!r})"


class ParsedRequest(Struct, frozen=True, gc=False):
    """One request ready for a tokenizer.

    Exactly one of `prompt_token_ids`, `messages` (as `MessageBody.plain` gives them) and `text` is the source of the
    prompt; `texts` holds the instructions and user turns in order, only for the classifier.  `chat` is the whole body
    of a chat that travels to servers as it is; `is_rendered_otherwise`: it has parameters that its tokens here lack.
    `sampling.max_tokens` is the request's, or `None` in `max_tokens` where it leaves the length to the context.
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
    asked: AskedOutput
    chat: Mapping[str, Any] | None = None
    is_rendered_otherwise: bool = False

    def __repr__(self) -> str:
        return f"ParsedRequest(is_chat={self.is_chat!r}, max_tokens={self.max_tokens!r})"


def parse_response(record: MirroredRecord) -> ParsedResponse:
    """The record's part of the answer; reads the answer's document if it is still unread.

    Raises:
        RecordError: malformed, or unsupported ("several_choices").
    """
    response = record.response
    if response is None:
        return ParsedResponse(None)
    if not isinstance(response, ResponseBody):
        record.response = response = convert_or_refuse(response, ResponseBody, "response")
    usage = response.usage or UsageBody()
    counted_prompt = usage.num_prompt_tokens or None  # 0: who writes it has not counted
    if openai_responses.is_answer(response):
        return ParsedResponse(openai_responses.logged_answer(response), None, response.model, counted_prompt)
    if anthropic_messages.is_answer(response):
        return ParsedResponse(anthropic_messages.logged_answer(response), None, response.model, counted_prompt)
    if not response.choices:
        return ParsedResponse(None, response.prompt_token_ids, response.model, counted_prompt)
    if len(response.choices) > 1:
        raise unsupported_error("several_choices")
    choice = response.choices[0]
    token_ids = choice.token_ids
    counted = usage.completion_tokens
    if counted is None and token_ids is not None:
        counted = len(token_ids)
    logged = LoggedResponse(
        token_ids, _token_logprobs(choice.logprobs, token_ids), choice.finish_reason, counted, usage.num_cached_tokens
    )
    prompt_token_ids = choice.prompt_token_ids if response.prompt_token_ids is None else response.prompt_token_ids
    return ParsedResponse(logged, prompt_token_ids, response.model, counted_prompt)


def parse_request(
    record: MirroredRecord,
    *,
    served_prompt_token_ids: TokenIds | None = None,
    default_sampling: Mapping[str, float] | None = None,
    unseeded: Collection[int] = UNSEEDED,
    takes_constraints: bool = False,
    takes_chats: bool = False,
    tool_call_format: ToolCallFormat | None = None,
) -> ParsedRequest:
    """The request of a record, if the engine can measure it as it was served.

    Args:
        record: the mirrored record.
        served_prompt_token_ids: the prompt as the response reports it; used where the request has none.
        default_sampling: the server's defaults for parameters that the request leaves open.
        unseeded: seeds by which a request asks the server for none.
        takes_constraints: the engine can constrain an output, as servers do.
        takes_chats: the engine is a server, which renders chats with all of their parameters.
        tool_call_format: how the target writes tool calls, where that is known.

    Raises:
        RecordError: malformed, or unsupported with the feature that is missing.
    """
    body, call = record.request, call_of(record)
    is_chat = call is not Call.COMPLETION
    if call is Call.RESPONSES:
        body = openai_responses.chat_body(body)
    elif call is Call.MESSAGES:
        body = anthropic_messages.chat_body(body, takes_chats=takes_chats)
    is_format_enforced = record.annotation("response_format_enforced") not in (False, "false", "False")
    has_prompt_token_ids = body.get("prompt_token_ids") is not None or served_prompt_token_ids is not None
    is_sent_whole = takes_chats and is_chat and "messages" in body
    is_plain = _check_parameters(body, has_prompt_token_ids=has_prompt_token_ids, is_sent_whole=is_sent_whole)
    if not takes_constraints:
        refuse_constraints(body, is_enforced=is_format_enforced)
    request = convert_or_refuse(body, RequestBody, "request")
    if request.seed is not None and request.seed >= MAX_SEED:
        raise malformed_error("invalid:request.seed")
    messages: list[dict[str, Any]] = []
    text, prompt_ids = None, None
    if is_chat:
        messages = [message.plain() for message in request.messages or ()]
        contents = [(message["role"], text_of(message["content"])) for message in messages]
        everything = [text for _, text in contents]
        texts = tuple(text for role, text in contents if role in READ_ROLES and text)
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
        sampling=_sampling_of(request, max_tokens, default_sampling or {}, unseeded),
        max_tokens=max_tokens,
        offers_tools=bool(request.tools) and body.get("tool_choice") != "none",
        asked=asked_output(
            body,
            request.tools or (),
            is_enforced=is_format_enforced,
            tool_call_format=tool_call_format,
            is_sent_whole=is_sent_whole,
        ),
        chat=body if is_sent_whole else None,
        is_rendered_otherwise=not is_plain,
    )


def _check_parameters(body: Mapping[str, Any], *, has_prompt_token_ids: bool, is_sent_whole: bool) -> bool:
    """Refuse a request with a parameter that no engine implements; whether its prompt can be rendered here.

    Args:
        body: the request as it was sent.
        has_prompt_token_ids: the record holds the rendered prompt, so that rendering parameters do not matter.
        is_sent_whole: a server gets the body, and renders it.

    Raises:
        RecordError: unsupported, with the feature or "unknown_parameter:NAME" as the reason.
    """
    is_plain = True
    for name, value in body.items():
        if name in PASSED or name in CONSTRAINING:
            continue
        if name in NEUTRAL:
            neutral, reason = NEUTRAL[name]
            if not _is_one_of(value, neutral):
                raise unsupported_error(reason)
        elif name in RENDERING:
            if not has_prompt_token_ids and not _is_one_of(value, RENDERING[name]):
                if not is_sent_whole:
                    raise unsupported_error(f"rendering_parameter:{name}")
                is_plain = False
        elif name in THINKING and is_sent_whole:
            is_plain = is_plain and (has_prompt_token_ids or value is None)
        elif value is not None:
            raise unknown_parameter_error(name)
    return is_plain


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Equality that does not take True for 1."""
    return any(value == candidate and isinstance(value, bool) == isinstance(candidate, bool) for candidate in allowed)


def response_of(record: MirroredRecord) -> ResponseBody | None:
    """The answer of a record that `parse_response` has read."""
    assert not isinstance(record.response, dict), "not read yet"
    return record.response


def reasoning_of(request: ParsedRequest, response: Any) -> str | None:
    """ "on" or "off", by what a chat asks for, else by production's answer; None where neither says."""
    body = request.chat or {}
    given = [body.get("chat_template_kwargs"), body.get("thinking"), body.get("reasoning")]
    options = [option for option in given if isinstance(option, Mapping)]
    switches = [
        *(body.get(name) for name in ("enable_thinking", "thinking")),
        *(option.get(name) for option in options for name in ("enable_thinking", "thinking", "enabled")),
    ]
    efforts = [body.get("reasoning_effort"), *(option.get("effort") for option in options)]
    budgets = [body.get(name) for name in ("thinking_token_budget", "thinking_budget", "max_thinking_tokens")]
    said = [
        *(value for value in switches if isinstance(value, bool)),
        *(value != "none" for value in efforts if isinstance(value, str)),
        *(value != 0 for value in budgets if type(value) is int),
    ]
    if said:
        return "on" if all(said) else "off"
    return "on" if isinstance(response, ResponseBody) and _has_reasoning(response) else None


def _has_reasoning(response: ResponseBody) -> bool:
    if anthropic_messages.is_answer(response):
        return anthropic_messages.has_thinking(response)
    details = response.usage.completion_tokens_details if response.usage is not None else None
    if isinstance(details, Mapping) and details.get("reasoning_tokens"):
        return True
    messages = [choice.message for choice in response.choices or ()]
    names = ("reasoning_content", "reasoning")
    return any(isinstance(message, Mapping) and any(message.get(name) for name in names) for message in messages)


def intervention_of(record: MirroredRecord, logged: LoggedResponse | None) -> Intervention | None:
    """The action of a layer behind the model on production's output, if the record reports one."""
    said = record.annotation(INTERVENTION)
    if isinstance(said, str) and said in _INTERVENTIONS:
        return _INTERVENTIONS[said]
    reason = logged.finish_reason if logged is not None else None
    return Intervention.FILTERED if reason is not None and reason.lower() in FILTERING_REASONS else None


def _completion_prompt(prompt: str | list[Any] | None) -> tuple[str | None, tuple[int, ...] | None]:
    """Text, or token ids; a list of one prompt is that prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, None
    if prompt and all(
        isinstance(token_id, int) and not isinstance(token_id, bool) and 0 <= token_id < 2**31 for token_id in prompt
    ):
        return None, tuple(prompt)
    if prompt and all(isinstance(element, (str, list)) for element in prompt):
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


def _sampling_of(
    request: RequestBody, max_tokens: int | None, defaults: Mapping[str, float], unseeded: Collection[int]
) -> SamplingParameters:
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
        seed=None if request.seed in unseeded else request.seed,
    )


def _value(request: RequestBody, name: str, defaults: Mapping[str, float]) -> float:
    """The request's value, else the server's default, else the neutral one."""
    given = getattr(request, name)
    if given is None:
        given = defaults[name] if name in defaults else getattr(NEUTRAL_SAMPLING, name)
    return float(given)


def _stops(stop: str | list[str] | None) -> Sequence[str]:
    return (stop,) if isinstance(stop, str) else stop or ()
