"""ASGI middleware: append each call of a model to a file that ShadowSpec reads.  Needs Python's standard library only.

    vllm serve MODEL --middleware asgi_mirror.Mirror
    uvicorn --factory asgi_mirror:receiver      # a target for copies that a proxy sends; it answers 204

MIRROR_FILE names the file; `{pid}` in it becomes the process id, because each process writes its own file.
MIRROR_ANSWERS=0 leaves out the answers.  A thread writes; when it falls behind, calls are left out and counted.
"""

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

CALLS = ("/chat/completions", "/completions", "/responses", "/messages")  # how the paths of mirrored calls end
HEADERS = ("x-session-id", "x-user-id", "x-tenant-id", "x-request-id")  # no other header is written
MAX_BODY_BYTES = 8 * 1024 * 1024  # of a request, and of an answer; a longer one is left out
MAX_WAITING = 1_000  # calls between the server and the thread that writes

log = logging.getLogger("asgi_mirror")


class Mirror:
    """Passes every message on as it is, and writes what a call was once it has ended."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.keeps_answers = os.environ.get("MIRROR_ANSWERS", "1") != "0"
        self.num_left_out = 0
        self.waiting: queue.Queue[dict[str, Any]] = queue.Queue(MAX_WAITING)
        path = os.environ.get("MIRROR_FILE", "traffic-{pid}.jsonl").format(pid=os.getpid())
        threading.Thread(target=self._write, args=(path,), name="asgi-mirror", daemon=True).start()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(CALLS):
            await self.app(scope, receive, send)
            return
        started, request, answer, status = time.time(), Body(), Body(), None
        is_whole = False

        async def receive_and_keep() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                request.add(message.get("body", b""))
            return message

        async def keep_and_send(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                if self.keeps_answers:
                    answer.add(message.get("body", b""))
                is_whole = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive_and_keep, keep_and_send)
        finally:
            given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            self._pass_on(
                {
                    "timestamp": started,
                    "path": scope["path"],
                    "status": status,
                    "request_body": request.chunks,
                    "response_body": answer.chunks if is_whole else None,
                    "headers": {name: given[name] for name in HEADERS if name in given},
                }
            )

    def _pass_on(self, call: dict[str, Any]) -> None:
        if call["request_body"] is not None:
            try:
                self.waiting.put_nowait(call)
                return
            except queue.Full:
                pass
        self.num_left_out += 1
        if self.num_left_out.bit_count() == 1:  # at 1, 2, 4, 8, ...
            log.warning("%d calls left out of the mirror: too long, or the disk is too slow", self.num_left_out)

    def _write(self, path: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            while True:
                call = self.waiting.get()
                for name in ("request_body", "response_body"):
                    if call[name] is not None:
                        call[name] = b"".join(call[name]).decode(errors="replace")
                try:
                    file.write(json.dumps(call).encode() + b"\n")
                except OSError as error:
                    log.warning("a call was not mirrored: %s", error.strerror)


class Body:
    """The chunks of a body, None once it is too long."""

    def __init__(self) -> None:
        self.chunks: list[bytes] | None = []
        self.num_bytes = 0

    def add(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        if self.num_bytes > MAX_BODY_BYTES:
            self.chunks = None
        elif self.chunks is not None:
            self.chunks.append(chunk)


def receiver() -> Mirror:
    """A server that takes copies of requests: it writes them and answers 204."""
    return Mirror(_take)


async def _take(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})
