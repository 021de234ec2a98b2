"""The classifier's HTTP server, whose connections close where a request does not come whole in time.

In:      an ASGI application.
Out:     uvicorn's server of it.
Imports: uvicorn, which only `classify --listen` needs.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 512  # a further one is answered 503
REQUEST_TIMEOUT_S: Final = 5.0  # from the first byte of a request to its last
PATIENCE_S: Final = 5  # that open connections have when the server stops
UNFINISHED: Final = (h11.IDLE, h11.SEND_BODY)  # states of a caller who has more to send


class TimedProtocol(H11Protocol):
    """uvicorn limits the time between two requests; this class limits that of the first and of every request itself."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_TIMEOUT_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in UNFINISHED:
            self._end_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(REQUEST_TIMEOUT_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def make_server(app: Any) -> uvicorn.Server:
    """The server of an application: no WebSockets, and no log, as the mistakes of callers are theirs to log."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=TimedProtocol,
            ws="none",
            log_level="critical",
            access_log=False,
            lifespan="off",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=PATIENCE_S,
        )
    )
