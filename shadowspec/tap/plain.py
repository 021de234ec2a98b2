"""Bodies as nearly all are, read without a model of them, which takes four times as long.

Of every other body these functions say None, and of one that is refused as well: the models, and the order in which
`openai` looks at things, then say why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, TypeVar, cast

from msgspec import Meta, Struct, ValidationError, convert

from shadowspec.errors import RecordError
from shadowspec.tap.asked import asked_beside_content
from shadowspec.tap.bodies import MAX_COUNT
from shadowspec.tap.parsed import ParsedRequest, ParsedResponse
from shadowspec.types import LoggedResponse, quickly

TRUNCATION_MARKER: Final = "litellm_truncated"  # LiteLLM writes it in place of what it cut out of a logged prompt
READ_ROLES: Final = frozenset({"system", "developer", "user"})  # whose messages say what is asked
_MESSAGE_FIELDS: Final = frozenset({"role", "content"})
_logged = quickly(LoggedResponse)

_Count = Annotated[int, Meta(ge=0, lt=MAX_COUNT)]
_TokenIds = tuple[_Count, ...]
PromptId = TypeVar("PromptId")


class _PlainChoice(Struct, Generic[PromptId], gc=False):
    token_ids: _TokenIds | None = None
    prompt_token_ids: tuple[PromptId, ...] | None = None
    finish_reason: str | None = None
    logprobs: None = None


class _PlainUsage(Struct, gc=False):
    completion_tokens: _Count | None = None


class PlainAnswer(Struct, Generic[PromptId], gc=False):
    """An answer of one choice whose token ids, if it has any, are such, and those of the prompt `PromptId`s."""

    choices: tuple[_PlainChoice[PromptId]]
    usage: _PlainUsage | None = None
    model: str | None = None
    id: str | int | None = None
    created: str | int | float | None = None
    error: None = None
    prompt_token_ids: None = None

    def parsed(self, id_bound: int) -> ParsedResponse:
        """What is measured of it, read so that the prompt's token ids are below `id_bound`."""
        choice = self.choices[0]
        token_ids = choice.token_ids
        counted = None if self.usage is None else self.usage.completion_tokens
        num_output_tokens = len(token_ids) if counted is None and token_ids is not None else counted
        logged = _logged(token_ids, None, choice.finish_reason, num_output_tokens)
        return ParsedResponse(logged, choice.prompt_token_ids, self.model, id_bound)  # type: ignore[arg-type] # ints


def prompt_id(bound: int) -> Any:
    """The type of a prompt's token ids below a bound."""
    return Annotated[int, Meta(ge=0, lt=bound)]


_ANSWER: Final[Any] = PlainAnswer[prompt_id(MAX_COUNT)]  # type: ignore[misc]


def plain_response(body: Mapping[str, Any]) -> ParsedResponse | None:
    """What a plain answer says."""
    try:
        return cast(PlainAnswer[int], convert(body, _ANSWER)).parsed(MAX_COUNT)
    except ValidationError:
        return None


def plain_request(
    body: Mapping[str, Any],
    is_chat: bool,
    is_format_enforced: bool,
    served_ids: tuple[int, ...] | None,
    defaults: Mapping[str, float],
) -> ParsedRequest | None:
    """A request whose content is text alone, without tools.

    Args:
        body: the request as it was sent.
        is_chat: which call it was.
        is_format_enforced: see `check_parameters`.
        served_ids: the prompt as the response reports it, if it does.
        defaults: the server's, of parameters that the request leaves open.
    """
    if body.get("tools") is not None or body.get("prompt_token_ids") is not None:
        return None
    if body.get("prompt" if is_chat else "messages") is not None:
        return None  # what the other call asks in is not read, but has to be right
    messages: list[dict[str, Any]] = []
    text = None
    if is_chat:
        given = body.get("messages")
        if type(given) is not list or not given:
            return None
        for message in given:
            if type(message) is not dict or not message.keys() <= _MESSAGE_FIELDS:
                return None
            role, content = message.get("role"), message.get("content")
            if type(role) is not str or type(content) is not str or TRUNCATION_MARKER in content:
                return None
            messages.append({"role": role, "content": content})
        texts = tuple(m["content"] for m in messages if m["role"] in READ_ROLES and m["content"])
    else:
        text = body.get("prompt")
        if type(text) is not str or TRUNCATION_MARKER in text:
            return None
        texts = (text,) if text else ()
    has_ids = served_ids is not None
    try:
        asked = asked_beside_content(
            body, is_chat=is_chat, is_format_enforced=is_format_enforced, has_ids=has_ids, defaults=defaults
        )
    except RecordError:
        return None  # of several faults the first is to be told, so that all are looked for in their order
    if asked.max_tokens == 0:
        return None
    return ParsedRequest(
        is_chat, messages, None, text, served_ids, texts, asked.sampling, asked.max_tokens, False, asked.asks_for_json
    )
