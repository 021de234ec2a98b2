"""ASGI middleware that copies each call of a model, and a receiver for copies that a proxy sends.

    vllm serve MODEL --middleware shadowspec.capture.asgi.Mirror
    uvicorn --factory shadowspec.capture.asgi:receiver      # it answers 204

Every message passes unchanged, and each chunk as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from shadowspec.capture.captured_call import PATHS, CapturedCall
from shadowspec.capture.outlet import Outlet

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Mirror:
    """The middleware.

    Raises:
        ConfigError: a variable of the environment is missing or wrong, when the server starts.
    """

    def __init__(self, app: App, outlet: Outlet | None = None) -> None:
        self.app = app
        self.outlet = outlet or Outlet.from_environment()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # a server that ends may end its process at once: exit handlers do not run
            try:
                await self.app(scope, receive, send)
            finally:
                await asyncio.to_thread(self.outlet.close)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(PATHS):
            await self.app(scope, receive, send)
            return
        call = CapturedCall(self.outlet, scope["path"], scope["headers"])

        async def receive_and_keep() -> Message:
            message = await receive()
            call.add_request(message.get("body", b""))
            return message

        def keep_and_send(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                call.begin_response(message["status"], message.get("headers", ()))
            elif message["type"] == "http.response.body":
                call.add_response(message.get("body", b""))
                call.is_complete = not message.get("more_body", False)
            return send(message)

        try:
            await self.app(scope, receive_and_keep, keep_and_send)
        finally:
            call.end()


def receiver() -> Mirror:
    """A server that takes copies of requests."""
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
