"""Messages as nearly all are: one record in our own envelope with a plain answer, read into what is used of it.

Bytes are turned into the values that are measured, and what nobody reads into none; a document of everything that the
message holds, and then values of it, would take half as long again.  Of every other message, and of one that is
refused, `plain_record` says None: `documents` and `records` then say what it holds, or why it is none.  Only fields
that nobody reads may hold what they refuse: deeper nesting, and numbers of thousands of digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Generic

from msgspec import UNSET, MsgspecError, UnsetType
from msgspec.json import Decoder

from shadowspec.tap.bodies import MAX_COUNT
from shadowspec.tap.plain import PlainAnswer, PromptId, prompt_id
from shadowspec.tap.records import Envelope, MirroredRecord

MAX_BRACKETS = 200  # the depth to which documents are read: with fewer brackets than that, none is deeper


class _PlainEnvelope(Envelope[PlainAnswer[PromptId]], Generic[PromptId], gc=False, kw_only=True):
    """Ours alone: a message with one of these, whatever it is, may be in another format."""

    call_type: UnsetType = UNSET
    specversion: UnsetType = UNSET
    started_at: UnsetType = UNSET


_CONTAINERS: Final = frozenset({list, dict})


@lru_cache
def _decoder(id_bound: int) -> Decoder[_PlainEnvelope[int]]:
    return Decoder(_PlainEnvelope[prompt_id(id_bound)])  # type: ignore[misc]


def plain_record(value: bytes, headers: Mapping[str, str], id_bound: int = MAX_COUNT) -> MirroredRecord | None:
    """The record that a message holds.

    Args:
        value: the message.
        headers: what the transport's headers say, as `decoded_headers` gives them.
        id_bound: a message whose prompt has a token id that is not below it is left to others.
    """
    try:
        envelope = _decoder(id_bound).decode(value)
        if not value.isascii():
            value.decode()  # the decoder takes any bytes in what it steps over
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not _is_surely_shallow(envelope.request, value):
        return None
    answer = envelope.response
    if answer is None:
        return MirroredRecord(envelope, headers, None)
    return MirroredRecord(envelope, headers, {"id": answer.id, "created": answer.created}, answer.parsed(id_bound))


def _is_surely_shallow(request: Mapping[str, Any], value: bytes) -> bool:
    """Whether nothing in the request is nested too deeply; where it holds text and numbers alone, nothing is."""
    if _CONTAINERS.isdisjoint(map(type, request.values())):
        return True
    return value.count(b"[") + value.count(b"{") <= MAX_BRACKETS
