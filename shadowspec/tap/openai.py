"""The adapter for OpenAI's chat and completions bodies, with vLLM's additions to them.

`parse_request` and `parse_response` give what is measured; a body that asks for what the loop does not do
is refused by `parameters`.  Given prompt token ids win over rendering.  The parts of a message's text are
joined by line breaks, as vLLM joins them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from shadowspec.tap.asked import asks_for_json, output_limit, sampling_of
from shadowspec.tap.bodies import LogprobsBody, MessageBody, RequestBody, ResponseBody
from shadowspec.tap.parameters import check_parameters, malformed, unsupported
from shadowspec.tap.parsed import ParsedRequest, ParsedResponse
from shadowspec.tap.plain import READ_ROLES, TRUNCATION_MARKER, plain_request, plain_response
from shadowspec.tap.records import MirroredRecord, invalid_field
from shadowspec.types import LoggedResponse

UNSUPPORTED_PARTS: Final[Mapping[str, str]] = {
    "image_url": "image_content",
    "input_image": "image_content",
    "image_pil": "image_content",
    "image_embeds": "image_content",
    "input_audio": "audio_content",
    "audio_url": "audio_content",
    "video_url": "video_content",
    "file": "file_content",
    "input_file": "file_content",
}
OTHER_CALLS: Final[Mapping[str, str]] = {"embeddings": "embeddings", "input": "embeddings"}


def parse_response(record: MirroredRecord) -> ParsedResponse:
    """What the record holds of the answer.

    Raises:
        RecordError: malformed, or unsupported ("several_choices").
    """
    if record.answer is not None:
        return record.answer
    if record.response is None:
        return ParsedResponse(None)
    if (plain := plain_response(record.response)) is not None:
        return plain
    try:
        response = ResponseBody.model_validate(record.response)
    except ValidationError as error:
        raise invalid_field(error, "response") from None
    if not response.choices:
        return ParsedResponse(None, _tuple(response.prompt_token_ids), response.model)
    if len(response.choices) > 1:
        raise unsupported("several_choices")
    choice = response.choices[0]
    token_ids = _tuple(choice.token_ids)
    counted = response.usage.completion_tokens if response.usage else None
    logged = LoggedResponse(
        token_ids=token_ids,
        token_logprobs=_token_logprobs(choice.logprobs, token_ids),
        finish_reason=choice.finish_reason,
        num_output_tokens=len(token_ids) if counted is None and token_ids is not None else counted,
    )
    prompt_token_ids = response.prompt_token_ids if response.prompt_token_ids is not None else choice.prompt_token_ids
    return ParsedResponse(logged, _tuple(prompt_token_ids), response.model)


def parse_request(
    record: MirroredRecord,
    *,
    served_prompt_token_ids: tuple[int, ...] | None = None,
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
    given_ids = body.get("prompt_token_ids")
    enforced = record.annotations.get("response_format_enforced") not in (False, "false", "False")
    plain = plain_request(body, is_chat, enforced, served_prompt_token_ids, default_sampling or {})
    if plain is not None:
        return plain
    check_parameters(
        body,
        has_prompt_token_ids=given_ids is not None or served_prompt_token_ids is not None,
        is_format_enforced=enforced,
    )
    try:
        request = RequestBody.model_validate(body)
    except ValidationError as error:
        raise invalid_field(error, "request") from None
    messages: list[dict[str, Any]] = []
    text, prompt_ids = None, None
    if is_chat:
        messages = [_plain_message(message) for message in request.messages or ()]
        everything = [str(message["content"]) for message in messages if message["content"]]
        texts = tuple(str(m["content"]) for m in messages if m["role"] in READ_ROLES and m["content"])
    else:
        text, prompt_ids = _completion_prompt(request.prompt)
        texts = (text,) if text else ()
        everything = list(texts)
    for piece in everything:
        if TRUNCATION_MARKER in piece:
            raise unsupported("truncated")
    if is_chat and not messages and request.prompt_token_ids is None:
        raise malformed("invalid:request.messages")
    max_tokens = output_limit(request, is_chat)
    if max_tokens == 0:
        raise unsupported("no_output")
    return ParsedRequest(
        is_chat=is_chat,
        messages=messages,
        tools=request.tools or None,
        text=text,
        prompt_token_ids=_tuple(request.prompt_token_ids) or served_prompt_token_ids or prompt_ids,
        texts=texts,
        sampling=sampling_of(request, max_tokens, default_sampling or {}),
        max_tokens=max_tokens,
        offers_tools=bool(request.tools) and body.get("tool_choice") != "none",
        asks_for_json=asks_for_json(body),
    )


def _is_chat(record: MirroredRecord) -> bool:
    """Which call it was: by its path where the record has one, else by the body."""
    path = record.request_path
    if path is not None:
        if path.endswith("/chat/completions"):
            return True
        if path.endswith("/completions"):
            return False
        raise unsupported(OTHER_CALLS.get(path.rsplit("/", 1)[-1], "other_call"))
    if "messages" in record.request:
        return True
    if "prompt" in record.request or "prompt_token_ids" in record.request:
        return False
    if "input" in record.request:
        raise unsupported("embeddings")
    raise malformed("invalid:request.messages")


def _plain_message(message: MessageBody) -> dict[str, Any]:
    """A message as a chat template takes it: text content, tool arguments as values."""
    plain: dict[str, Any] = {"role": message.role, "content": _joined(message.content)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.tool_calls:
        plain["tool_calls"] = [_plain_tool_call(call) for call in message.tool_calls]
    return plain


def _joined(content: str | list[dict[str, Any]] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    pieces = []
    for part in content:
        kind = str(part.get("type"))
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind in {"text", "input_text", "output_text", "refusal"} and isinstance(text, str):
            pieces.append(text)
        else:
            raise unsupported(UNSUPPORTED_PARTS.get(kind, "unknown_content"))
    return "\n".join(pieces)


def _plain_tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise malformed("invalid:request.messages.tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise malformed("invalid:request.messages.tool_calls") from error
    return {**call, "function": {**function, "arguments": arguments}}


def _completion_prompt(prompt: str | list[Any] | None) -> tuple[str | None, tuple[int, ...] | None]:
    """Text, or token ids; a list of one prompt is that prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, None
    if prompt and all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in prompt):
        return None, tuple(prompt)
    if prompt and all(isinstance(item, (str, list)) for item in prompt):
        raise unsupported("several_prompts")
    if prompt is None or prompt == []:
        return None, None
    raise malformed("invalid:request.prompt")


def _token_logprobs(logprobs: LogprobsBody | None, token_ids: tuple[int, ...] | None) -> tuple[float, ...] | None:
    """One logprob per response token; None unless the record has all of them."""
    if logprobs is None or token_ids is None:
        return None
    given = [entry.logprob for entry in logprobs.content] if logprobs.content else logprobs.token_logprobs
    values = [value for value in given or () if value is not None]
    return tuple(values) if len(values) == len(token_ids) == len(given or ()) else None


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
