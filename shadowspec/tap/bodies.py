"""The fields of OpenAI's bodies that are read, as vLLM extends them; everything else in a body is ignored.

The types are exact: neither True nor 1.0 is an int.  `convert_or_refuse` turns a parsed document into one of them, and
says which field is wrong where that is impossible.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields

from shadowspec.errors import RecordError
from shadowspec.tap.parameters import malformed_error, unsupported_error

MAX_COUNT: Final = 2**31
MAX_SEED: Final = 2**64  # exclusive
MAX_REASON_CHARACTERS: Final = 80
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
_TEXT_FIELDS: Final = dict.fromkeys(("text", "input_text", "output_text"), "text") | {"refusal": "refusal"}

_MAX = sys.float_info.max
Count = Annotated[int, Meta(ge=0, lt=MAX_COUNT)]
Finite = Annotated[float, Meta(ge=-_MAX, le=_MAX)]
NotNegative = Annotated[float, Meta(ge=0, le=_MAX)]
Positive = Annotated[float, Meta(gt=0, le=_MAX)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenIds = tuple[Count, ...]

Kind = TypeVar("Kind", bound=Struct)


class Body(Struct, gc=False):
    """A part of a body.  How it looks in a traceback says nothing of its content."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MessageBody(Body, gc=False):
    """One chat message."""

    role: str
    content: str | list[dict[str, Any] | str] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None  # the same, under its later name; other APIs have objects there

    def plain(self) -> dict[str, Any]:
        """The message with nothing in it but text: its content is a text, a list of texts, or None.

        Raises:
            RecordError: malformed, or unsupported: it has parts that are not text.
        """
        plain: dict[str, Any] = {"role": self.role, "content": _texts(self.content)}
        for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
            if isinstance(value := getattr(self, name), str):
                plain[name] = value
        if self.tool_calls:
            if not all(isinstance(call.get("function"), dict) for call in self.tool_calls):
                raise malformed_error("invalid:request.messages.tool_calls")
            plain["tool_calls"] = self.tool_calls
        return plain


class RequestBody(Body, gc=False):
    """The fields read of a request, chat or completion.  `seed` must be below `MAX_SEED`, unchecked by msgspec."""

    messages: list[MessageBody] | None = None
    prompt: str | list[Any] | None = None
    prompt_token_ids: TokenIds | None = None
    tools: list[dict[str, Any]] | None = None
    temperature: NotNegative | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=MAX_COUNT)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Positive | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Count | None = None
    stop: str | list[str] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Meta(ge=-(2**63))] | None = None


class LogprobBody(Body, gc=False):
    """One token of a chat answer."""

    logprob: Finite


class LogprobsBody(Body, gc=False):
    """Log probabilities of an answer, in either call's form."""

    content: list[LogprobBody] | None = None  # chat
    token_logprobs: list[Finite | None] | None = None  # completions


class ChoiceBody(Body, gc=False):
    """One answer.  `message` (chat) and `text` (completions) may be anything: only replay reads them."""

    token_ids: TokenIds | None = None
    prompt_token_ids: TokenIds | None = None
    finish_reason: str | None = None
    logprobs: LogprobsBody | None = None
    message: Any = None
    text: Any = None


class UsageBody(Body, gc=False):
    """The server's count of tokens; `output_tokens` in Responses and Messages.

    An odd figure about the prompt is no reason to refuse the record.
    """

    completion_tokens: Count | None = None
    output_tokens: Count | None = None
    prompt_tokens: Any = None
    input_tokens: Any = None  # in Responses and Messages
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None
    input_tokens_details: Any = None  # in Responses
    cache_read_input_tokens: Any = None  # in Messages, as is the next
    cache_creation_input_tokens: Any = None

    @property
    def num_prompt_tokens(self) -> int | None:
        """Tokens of the prompt; None where the server does not say.  Messages count those of a cache apart."""
        given = [number for number in (self.prompt_tokens, self.input_tokens) if _is_count(number)]
        cached = (self.cache_read_input_tokens, self.cache_creation_input_tokens)
        return given[0] + sum(number for number in cached if _is_count(number)) if given else None

    @property
    def num_cached_tokens(self) -> int | None:
        """Tokens of the prompt that production found in its prefix cache; None where it does not say."""
        details = (self.prompt_tokens_details, self.input_tokens_details)
        said = [detail.get("cached_tokens") for detail in details if isinstance(detail, dict)]
        numbers = [number for number in (*said, self.cache_read_input_tokens) if _is_count(number)]
        return numbers[0] if numbers else None


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < MAX_COUNT


class ResponseBody(Body, gc=False):
    """The fields read of an answer to any call.  `id`, `created`, `error` and the fields that only Responses or
    Messages have may be anything: their adapters check them."""

    model: str | None = None
    prompt_token_ids: TokenIds | None = None
    choices: list[ChoiceBody] | None = None
    usage: UsageBody | None = None
    id: Any = None
    created: Any = None
    error: Any = None
    created_at: Any = None  # Responses, as are the next three
    output: Any = None
    status: Any = None
    incomplete_details: Any = None
    type: Any = None  # Messages, as are the next two
    content: Any = None
    stop_reason: Any = None


def convert_or_refuse(document: Mapping[str, Any], kind: type[Kind], prefix: str = "") -> Kind:
    """The fields of `kind` that a document holds.

    Raises:
        RecordError: malformed; "invalid:PLACE" of the first field, in declared order, that has the wrong type.
    """
    try:
        return convert(document, kind)
    except ValidationError:
        raise _wrong_field(document, kind, prefix) from None  # the decoder's message would quote the document's keys


def invalid_place(value: Any, kind: Any) -> tuple[str | int, ...] | None:
    """Where a value first fails to be of a type: fields in declared order, items in theirs; None if it is of it.

    For a union type, the first member's name is the last part of the place.
    """
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        kinds = [member for member in get_args(kind) if member is not NoneType]
        places = [invalid_place(value, member) for member in kinds]
        if None in places or (value is None and len(kinds) < len(get_args(kind))):
            return None
        first = places[0] or ()
        return first if len(kinds) == 1 else (kinds[0].__name__, *first)
    if origin in (list, tuple):
        if not isinstance(value, list):
            return ()
        items = ((index, invalid_place(element, get_args(kind)[0])) for index, element in enumerate(value))
        return next(((index, *place) for index, place in items if place is not None), None)
    if isinstance(kind, type) and issubclass(kind, Struct):
        if not isinstance(value, dict):
            return ()
        for field in _fields(kind):
            name = field.encode_name
            place = invalid_place(value[name], field.type) if name in value else () if field.required else None
            if place is not None:
                return (name, *place)
        return None
    try:
        convert(value, kind)
    except ValidationError:
        return ()
    return None


_fields = cache(fields)


def _wrong_field(document: Mapping[str, Any], kind: type[Struct], prefix: str) -> RecordError:
    place = invalid_place(document, kind)
    assert place is not None, "no field is wrong"
    parts = (prefix, *place) if prefix else place
    return malformed_error(("invalid:" + ".".join(map(str, parts)))[:MAX_REASON_CHARACTERS])


def _texts(content: str | list[dict[str, Any] | str] | None) -> str | list[str] | None:
    """A content without the parts that hold nothing."""
    if content is None or isinstance(content, str):
        return content
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = str(part.get("type"))
        text = part.get(_TEXT_FIELDS.get(kind, "text"))
        if kind not in _TEXT_FIELDS or not (text is None or isinstance(text, str)):
            raise unsupported_error(UNSUPPORTED_PARTS.get(kind, "unknown_content"))
        if text is not None:
            texts.append(text)
    return texts
