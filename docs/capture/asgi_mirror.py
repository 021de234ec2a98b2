"""ASGI middleware: append each call of a model to a file that ShadowSpec reads.  Needs only the standard library.

    vllm serve MODEL --middleware asgi_mirror.Mirror
    uvicorn --factory asgi_mirror:receiver      # a target for copies that a proxy sends; it answers 204

MIRROR_FILE names the file; `{pid}` in it becomes the process id, because each process writes its own file.
A thread writes.  Where it falls behind, calls are left out and counted.
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
MAX_WAITING = 1_000  # calls between the server and the thread that writes

log = logging.getLogger("asgi_mirror")


class Mirror:
    """Passes every message on unchanged, and writes each call after its end."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.num_left_out = 0
        self.waiting: queue.Queue[dict[str, Any]] = queue.Queue(MAX_WAITING)
        path = os.environ.get("MIRROR_FILE", "traffic-{pid}.jsonl").format(pid=os.getpid())
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0)
        threading.Thread(target=self._write, args=(file,), name="asgi-mirror", daemon=True).start()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(CALLS):
            await self.app(scope, receive, send)
            return
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        headers = {name: given[name] for name in HEADERS if name in given}
        call: dict[str, Any] = {"timestamp": time.time(), "path": scope["path"], "headers": headers}
        request, answer = bytearray(), bytearray()

        async def receive_and_keep() -> Message:
            message = await receive()
            request.extend(message.get("body", b""))
            return message

        async def keep_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                call["status"] = message["status"]
            elif message["type"] == "http.response.body":
                answer.extend(message.get("body", b""))
                if not message.get("more_body", False):  # an answer that breaks off is not written
                    call["response_body"] = answer
            await send(message)

        try:
            await self.app(scope, receive_and_keep, keep_and_send)
        finally:
            self._pass_on({**call, "request_body": request})

    def _pass_on(self, call: dict[str, Any]) -> None:
        try:
            self.waiting.put_nowait(call)
        except queue.Full:
            self.num_left_out += 1
            if self.num_left_out.bit_count() == 1:  # at 1, 2, 4, 8, ...
                log.warning("calls left out of the mirror: %d; the disk is too slow", self.num_left_out)

    def _write(self, file: Any) -> None:
        while True:
            line = json.dumps(self.waiting.get(), default=lambda body: body.decode(errors="replace"))
            try:
                file.write(line.encode() + b"\n")
            except OSError as error:
                log.warning("a call is missing in the mirror: %s", error.strerror)


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
