"""Whether the worker lives and is ready, and its metrics, over HTTP only on the configured address.

    /livez    200 while the poll loop runs; 503: an orchestrator should restart the worker
    /readyz   200 while every service that it needs is there, else 503 and the missing ones; and the waiting endpoints
    /metrics  Prometheus

A dead engine, broker or database is no reason to restart the worker: it waits for them and loses nothing.
The answers name conditions and endpoints, never addresses, errors or secrets.
"""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from shadowspec.errors import ConfigError
from shadowspec.worker.telemetry import Telemetry

log = logging.getLogger(__name__)

MAX_BEAT_AGE_S = 60.0  # the loop comes round many times a second; only a hung one misses a minute
REQUEST_TIMEOUT_S = 5.0  # for a client that connects and says nothing
JSON_TYPE = "application/json"


class HealthServer:
    """Answers in separate threads, from `start` to `stop`."""

    def __init__(
        self,
        host: str,
        port: int,
        telemetry: Telemetry,
        conditions: Mapping[str, Callable[[], bool]],
        waiting: Callable[[], Sequence[str]] = tuple,
        *,
        max_beat_age_s: float = MAX_BEAT_AGE_S,
    ) -> None:
        """
        Args:
            port: 0 takes a free one (see `port`).
            conditions: the conditions of readiness, by name; evaluated at each request, from another thread.
            waiting: the endpoints that cannot be measured now; others are.
        """
        self._host, self._wanted_port = host, port
        self._telemetry, self._conditions, self._waiting = telemetry, conditions, waiting
        self._max_beat_age_s = max_beat_age_s
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._wanted_port if self._server is None else int(self._server.server_address[1])

    def start(self) -> None:
        """Listen and answer.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        handler = type("Handler", (_Handler,), {"answer": staticmethod(self._answer)})
        try:
            self._server = _Server(self._host, self._wanted_port, handler)
        except OSError as error:
            where = f"{self._host}:{self._wanted_port}"
            raise ConfigError(f"health_address {where}: cannot be listened on: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body."""
        if path == "/livez":
            is_alive = self._telemetry.seconds_since_beat <= self._max_beat_age_s
            return _status(is_alive), JSON_TYPE, _json({"is_alive": is_alive})
        if path == "/readyz":
            missing = sorted(name for name, holds in self._conditions.items() if not holds())
            body = {"is_ready": not missing, "missing": missing, "waiting": list(self._waiting())}
            return _status(not missing), JSON_TYPE, _json(body)
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, self._telemetry.exposition()
        return HTTPStatus.NOT_FOUND, JSON_TYPE, _json({"paths": ["/livez", "/metrics", "/readyz"]})


class _Server(ThreadingHTTPServer):
    """Listens on one address, without asking a name service who it is (as the base class does)."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the health server went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server_version = "shadowspec"
    sys_version = ""
    answer: Callable[[str], tuple[HTTPStatus, str, bytes]]

    def do_GET(self) -> None:
        status, content_type, body = self.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  (the base class asks for it by this name)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("health server: %s", format % args)


def _status(is_well: bool) -> HTTPStatus:
    return HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE


def _json(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value) + "\n").encode()
