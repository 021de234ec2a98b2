"""Which call of an API a record is of: by its path where it has one, else by fields that only that call's bodies have.

Without a path, `messages` may be OpenAI's or Anthropic's, and `input` may be a Responses body or an embeddings request.
A list of texts or of token ids is embedded, and so is a body with a parameter of embeddings; any other `input` to a
model that an endpoint serves is a request for a response.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from shadowspec.tap import anthropic_messages, openai_responses
from shadowspec.tap.parameters import malformed_error, unsupported_error
from shadowspec.tap.records import MirroredRecord

_OTHER_CALLS: Final[Mapping[str, str]] = {"embeddings": "embeddings"}  # by the last part of the path
_EMBEDDING_FIELDS: Final = frozenset({"encoding_format", "dimensions", "input_type", "embedding_types", "task"})


class Call(StrEnum):
    """A call that can be measured, by how its path ends."""

    CHAT = "/chat/completions"
    COMPLETION = "/completions"  # after chat's, which ends so too
    RESPONSES = "/responses"
    MESSAGES = "/messages"


def call_of(record: MirroredRecord) -> Call:
    """The call that a record is of.

    Raises:
        RecordError: unsupported, another call ("embeddings", "other_call"); malformed, none that can be recognised.
    """
    path = record.request_path
    if path is None:
        return _call_of_bodies(record)
    for call in Call:
        if path.endswith(call) and "/threads/" not in path:  # of the Assistants API, whose messages are not these
            return call
    raise unsupported_error(_OTHER_CALLS.get(path.rsplit("/", 1)[-1], "other_call"))


def _call_of_bodies(record: MirroredRecord) -> Call:
    request = record.request
    if "messages" in request:
        return Call.MESSAGES if anthropic_messages.is_body(request, record.in_response("type")) else Call.CHAT
    if "input" in request:
        if record.in_response("output") is None and _is_embedded(request):
            raise unsupported_error("embeddings")
        return Call.RESPONSES
    if openai_responses.is_body(request):
        return Call.RESPONSES
    if "prompt" in request or "prompt_token_ids" in request:
        return Call.COMPLETION
    raise malformed_error("invalid:request.messages")


def _is_embedded(request: Mapping[str, Any]) -> bool:
    given = request["input"]
    if not _EMBEDDING_FIELDS.isdisjoint(request):
        return True
    return isinstance(given, list) and bool(given) and not any(isinstance(element, Mapping) for element in given)
