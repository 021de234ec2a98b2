"""The scheduler's HTTP address: the verdicts as metrics, and the exports of targets that are served.

Every scheduler answers, whether it leads or not.  An export is made at the request, at most once in a second whoever
asks: a caller can neither fill the database with questions nor read an export that is older.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.registry import Collector

from shadowspec.errors import ConfigError, ShadowSpecError
from shadowspec.scheduler.targets import Renderer

REQUEST_TIMEOUT_S: Final = 5.0
EXPORTS: Final = "/exports/"
KEEP_S: Final = 1.0  # that an export answers further requests
_JSON: Final = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]

_log = logging.getLogger(__name__)

Application = Callable[[Mapping[str, Any], Callable[..., Any]], Iterable[bytes]]


class ServedExport:
    """One export, made anew when it is older than a second.  For several threads; one makes it, the others wait."""

    def __init__(self, render: Renderer) -> None:
        self._render, self._lock = render, threading.Lock()
        self._made_at, self._text = -KEEP_S, b""

    def text(self) -> bytes:
        """The export of now.

        Raises:
            ShadowSpecError: it cannot be made.
        """
        with self._lock:
            if time.monotonic() - self._made_at >= KEEP_S:
                self._text = self._render().text.encode()
                self._made_at = time.monotonic()
            return self._text


def application(metrics: Application, exports: Mapping[str, ServedExport]) -> Application:
    """Answers for exports by their paths, else the metrics.

    An export that cannot be made is 503, so that its reader keeps the last one: flags then expire with their evidence.
    """

    def answer(request: Mapping[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = str(request.get("PATH_INFO", ""))
        if not path.startswith(EXPORTS):
            return metrics(request, start)
        if request.get("REQUEST_METHOD") != "GET" or (name := path.removeprefix(EXPORTS)) not in exports:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there is no such export\n"]
        try:
            text = exports[name].text()
        except ShadowSpecError as error:
            _log.warning("export %s: %s", name, error)
            start("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the export cannot be made now\n"]
        start("200 OK", [*_JSON, ("Content-Length", str(len(text)))])
        return [text]

    return answer


@contextmanager
def serving(metrics: Collector, exports: Mapping[str, Renderer], address: str | None) -> Iterator[None]:
    """Answer requests at HOST:PORT meanwhile (None: not at all).

    Raises:
        ConfigError: the address cannot be listened on.
    """
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server: Any
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise ConfigError(
            f"schedule.metrics_address {address}: cannot be listened on ({error.strerror}); choose another port"
        ) from error
    server.set_app(application(make_wsgi_app(registry), {name: ServedExport(make) for name, make in exports.items()}))
    # A client that connects and says nothing is let go, without a word.
    server.RequestHandlerClass = type("Handler", (server.RequestHandlerClass,), {"timeout": REQUEST_TIMEOUT_S})
    server.handle_error = lambda *_: _log.debug("a scrape failed or its client went away", exc_info=True)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
