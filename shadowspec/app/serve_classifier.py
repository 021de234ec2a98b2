"""The classifier over HTTP, for gateways that ask a service before they route (Envoy's `ext_authz`, forward auth).

A call to any path carries the request: its body, its path and its headers.  The answer is always 200 and names the
slice in headers, so that a request that cannot be classified is served too: without speculation.

    x-shadowspec-endpoint  the endpoint, or "none"
    x-shadowspec-slice     the tag of the slice, or "none"
    x-litellm-tags         both, for LiteLLM's routing by tags; absent without a slice
    x-shadowspec-reason    why there is no slice; absent with one

No caller holds up another: bodies and their time are limited, and large bodies are classified beside the small ones.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from shadowspec.errors import ConfigError
from shadowspec.tap.classifier import Classified, Classifier
from shadowspec.types import ENDPOINT_HEADER, NO_SLICE, SLICE_HEADER

LITELLM_HEADER: Final = "x-litellm-tags"
REASON_HEADER: Final = "x-shadowspec-reason"
DEFAULT_MAX_BODY_BYTES: Final = 2 * 1024 * 1024
LARGE_BODY_BYTES: Final = 64 * 1024  # longer bodies are classified on a thread of their own, one after the other
MAX_LARGE_BODIES: Final = 16  # in hand; a further one is answered at once
TOO_LARGE: Final = Classified(reason="too_large")
BUSY: Final = Classified(reason="busy")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def slice_headers(classified: Classified) -> list[tuple[str, str]]:
    """The headers that a gateway adds to a request."""
    if classified.endpoint is None or classified.tag is None:
        return [(ENDPOINT_HEADER, NO_SLICE), (SLICE_HEADER, NO_SLICE), (REASON_HEADER, classified.reason or NO_SLICE)]
    return [
        (ENDPOINT_HEADER, classified.endpoint),
        (SLICE_HEADER, classified.tag),
        (LITELLM_HEADER, f"{classified.tag},{classified.endpoint}"),
    ]


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on the address; port 0 takes a free one.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"--listen {host}:{port}: cannot be listened on: {error.strerror or error}") from error


class ClassifierApp:
    """An ASGI application around a classifier; any ASGI server runs it."""

    def __init__(self, classifier: Classifier, *, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> None:
        self._classifier, self._max_body_bytes = classifier, max_body_bytes
        self._large_bodies = ThreadPoolExecutor(1, "shadowspec-large-bodies")
        self._num_large = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        body = await _body(scope, receive, self._max_body_bytes)
        classified = TOO_LARGE if body is None else await self._classify(body, scope)
        answer = [(b"content-length", b"0")]
        if body is None:  # what is left of it is not read
            answer.append((b"connection", b"close"))
        answer += [(name.encode(), value.encode("latin-1", "replace")) for name, value in slice_headers(classified)]
        await send({"type": "http.response.start", "status": 200, "headers": answer})
        await send({"type": "http.response.body", "body": b""})

    async def _classify(self, body: bytes, scope: Message) -> Classified:
        headers = [(name.decode("latin-1"), value) for name, value in scope["headers"]]
        if len(body) <= LARGE_BODY_BYTES:
            return self._classifier.classify(body, path=scope["path"], headers=headers)
        if self._num_large >= MAX_LARGE_BODIES:
            return BUSY
        self._num_large += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._large_bodies, lambda: self._classifier.classify(body, path=scope["path"], headers=headers)
            )
        finally:
            self._num_large -= 1


async def _body(scope: Message, receive: Receive, max_bytes: int) -> bytes | None:
    """The whole body; None where it is too large, as soon as that is known, or where the caller has gone."""
    said = dict(scope["headers"]).get(b"content-length", b"0")
    if said.isdigit() and int(said[:20]) > max_bytes:
        return None
    parts, size = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes or message["type"] == "http.disconnect":
            return None
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
