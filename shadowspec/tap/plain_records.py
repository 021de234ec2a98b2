"""Messages as nearly all are: one record in our own envelope with a plain answer, read into what is used of it.

Bytes are turned into the values that are measured, and what nobody reads into none; a document of everything that the
message holds, and then values of it, would take half as long again.  Of every other message, and of one that is
refused, `plain_record` says None: `documents` and `records` then say what it holds, or why it is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import UNSET, MsgspecError, UnsetType
from msgspec.json import Decoder

from shadowspec.tap.plain import PlainAnswer
from shadowspec.tap.records import Envelope, MirroredRecord

MAX_BRACKETS = 200  # the depth to which documents are read: with fewer brackets than that, none is deeper


class _PlainEnvelope(Envelope[PlainAnswer], gc=False, kw_only=True):
    """Ours alone: a message with one of these, whatever it is, may be in another format."""

    call_type: UnsetType = UNSET
    specversion: UnsetType = UNSET
    started_at: UnsetType = UNSET


_DECODER: Final = Decoder(_PlainEnvelope)


def plain_record(value: bytes, headers: Mapping[str, str]) -> MirroredRecord | None:
    """The record that a message holds.

    Args:
        value: the message.
        headers: what the transport's headers say, as `decoded_headers` gives them.
    """
    if not _is_sound(value):
        return None
    try:
        envelope = _DECODER.decode(value)
    except MsgspecError:
        return None
    answer = envelope.response
    if answer is None:
        return MirroredRecord(envelope, headers, None)
    return MirroredRecord(envelope, headers, {"id": answer.id, "created": answer.created}, answer.parsed())


def _is_sound(value: bytes) -> bool:
    """Whether what the decoder steps over is surely text, not nested too deeply; it looks at what it reads alone."""
    if b"\\ud" in value or b"\\uD" in value or value.count(b"[") + value.count(b"{") > MAX_BRACKETS:
        return False
    try:
        return value.isascii() or bool(value.decode())
    except UnicodeDecodeError:
        return False
