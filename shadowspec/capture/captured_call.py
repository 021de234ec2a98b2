"""The copy of one call while it goes on: bounded, and made a message of our format afterwards, on the outlet's thread.

The bodies are kept as the chunks that passed, so that a chunk costs the call an addition.  A request that is too long,
or that is compressed, becomes a record without a body that the tap counts as `truncated`; such an answer is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.json import encode

from shadowspec.capture.outlet import CALL_BYTES, CHUNK_BYTES, Outlet
from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_document
from shadowspec.tap.kafka.arrivals import key_of
from shadowspec.tap.kafka.producer import OutgoingMessage
from shadowspec.tap.records import MirroredRecord

PATHS: Final = ("/chat/completions", "/completions", "/responses", "/messages")  # how those of copied calls end
ROOM_STEP: Final = 4_096  # bytes of room that a call takes at once: most chunks then take no lock
HEADERS: Final = ("x-session-id", "x-user-id", "x-tenant-id", "x-request-id")  # no other header is copied
PLAIN: Final = ("", "identity")  # encodings of a body that is not compressed
ENCODING: Final = "content-encoding"


class Body:
    """The chunks of one body, or None where they are not kept."""

    __slots__ = ("chunks", "num_bytes")

    def __init__(self) -> None:
        self.chunks: list[bytes] | None = []
        self.num_bytes = 0

    def text(self) -> str | None:
        """The whole body; bytes that are not UTF-8 are replaced."""
        return None if self.chunks is None else b"".join(self.chunks).decode(errors="replace")


class CapturedCall:
    """One call's copy.  Its methods cost a few microseconds and never raise for what a client or a server sends."""

    def __init__(self, outlet: Outlet, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """`headers` by lower-case name."""
        given = dict(headers)
        self.status: int | None = None
        self.is_complete = False  # the answer has come to its end
        self._outlet = outlet
        self._path, self._began = path, time.time()
        self._headers = {name: given[key].decode("latin-1") for name in HEADERS if (key := name.encode()) in given}
        self._request, self._response = Body(), Body()
        self._is_kept = outlet.take_room(CALL_BYTES)
        self._room = 0  # that was taken and is not used
        if given.get(ENCODING.encode(), b"").decode("latin-1").lower() not in PLAIN:
            self._request.chunks = None

    def add_request(self, chunk: bytes) -> None:
        """Keep a chunk of the request."""
        self._add(self._request, chunk)

    def begin_response(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note how the answer begins."""
        self.status = status
        for name, value in headers:
            if name.lower() == ENCODING.encode() and value.decode("latin-1").lower() not in PLAIN:
                self._response.chunks = None

    def add_response(self, chunk: bytes) -> None:
        """Keep a chunk of the answer."""
        self._add(self._response, chunk)

    def end(self) -> None:
        """Hand the copy to the outlet, or count it as dropped."""
        if not self._is_kept:
            self._outlet.count_dropped()
            return
        if not self.is_complete:
            self._drop(self._response)
        self._outlet.give_room(self._room)
        self._outlet.put(CALL_BYTES + self._request.num_bytes + self._response.num_bytes, self.message)

    def message(self) -> OutgoingMessage:
        """The copy as a message."""
        response = self._response.text() if self.is_complete else None
        return call_message(
            self._began, self._path, self._headers, self.status, request=self._request.text(), response=response
        )

    def _add(self, body: Body, chunk: bytes) -> None:
        if not chunk or not self._is_kept or body.chunks is None:
            return
        size = len(chunk) + CHUNK_BYTES
        if body.num_bytes + size > self._outlet.settings.max_body_bytes:
            self._drop(body)
        elif size <= self._room or self._has_taken_room(size):
            body.chunks.append(bytes(chunk))
            body.num_bytes += size
            self._room -= size
        else:
            self._is_kept = False
            for part in (self._request, self._response):
                self._drop(part)
            self._outlet.give_room(CALL_BYTES + self._room)

    def _has_taken_room(self, size: int) -> bool:
        """Take room for a chunk of this size, and for later ones where there is room for a step."""
        for more in (max(size, ROOM_STEP), size - self._room):
            if self._outlet.take_room(more):
                self._room += more
                return True
        return False

    def _drop(self, body: Body) -> None:
        self._outlet.give_room(body.num_bytes)
        body.chunks, body.num_bytes = None, 0


def call_message(
    began: float,
    path: str,
    headers: Mapping[str, str],
    status: int | None,
    *,
    request: str | None,
    response: str | None,
) -> OutgoingMessage:
    """A call as a message, keyed as `produce` keys its record.

    Args:
        began: when the call was made, in seconds since 1970.
        path: as the client named it.
        headers: those of `HEADERS`, by lower-case name.
        status: HTTP's, of the answer; None without one.
        request: the body; None where it was not kept.
        response: the body; None where it was not kept.
    """
    record: dict[str, Any] = {"timestamp": began, "path": path, "headers": headers, "status": status}
    record["request_body"] = request or ""
    if request is None:
        record["metadata"] = {"truncated": True}
    if response:
        record["response_body"] = response
    try:
        body = parse_document(request) if request else {}
    except RecordError:
        body = {}
    known = MirroredRecord(request=body if isinstance(body, dict) else {}, headers=dict(headers))
    return OutgoingMessage(key_of(known), encode(record))
