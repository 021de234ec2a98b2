"""Liveness, readiness and metrics as a probe sees them."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable

import pytest

from shadowspec.errors import ConfigError
from shadowspec.worker.health import HealthServer
from shadowspec.worker.telemetry import Telemetry
from tests.services import PATIENCE_S


def ask(server: HealthServer, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(host, server.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def test_liveness_follows_the_poll_loop() -> None:
    telemetry = Telemetry()
    with HealthServer("127.0.0.1", 0, telemetry, {}, max_beat_age_s=0.5) as server:
        assert ask(server, "/livez")[0] == 200
        time.sleep(0.6)
        status, kind, body = ask(server, "/livez")
        assert (status, kind, json.loads(body)) == (503, "application/json", {"is_alive": False})
        telemetry.beat()
        assert ask(server, "/livez")[0] == 200


def test_readiness_names_what_is_missing() -> None:
    state = {"engine": False, "broker": True, "database": False}

    def holds(name: str) -> Callable[[], bool]:
        return lambda: state[name]

    waiting = ["chat"]
    with HealthServer("127.0.0.1", 0, Telemetry(), {name: holds(name) for name in state}, lambda: waiting) as server:
        status, _, body = ask(server, "/readyz")
        assert status == 503
        assert json.loads(body) == {"is_ready": False, "missing": ["database", "engine"], "waiting": ["chat"]}
        assert ask(server, "/livez")[0] == 200, "what is missing is no reason to start anew"
        state.update(engine=True, database=True)
        status, _, body = ask(server, "/readyz")
        assert (status, json.loads(body)) == (200, {"is_ready": True, "missing": [], "waiting": ["chat"]})


def test_metrics_and_unknown_paths() -> None:
    telemetry = Telemetry()
    telemetry.commit_failed()
    with HealthServer("127.0.0.1", 0, telemetry, {}) as server:
        status, kind, body = ask(server, "/metrics?name[]=x")
        assert status == 200
        assert kind.startswith("text/plain; version=")
        assert b"\nshadowspec_commit_failures_total 1.0\n" in body
        assert ask(server, "/")[0] == 404
        assert ask(server, "/metrics", "HEAD")[::2] == (200, b"")
        assert ask(server, "/livez", "POST")[0] == 501


def test_it_listens_on_its_address_alone() -> None:
    with HealthServer("127.0.0.1", 0, Telemetry(), {}) as server:
        with pytest.raises(ConnectionRefusedError):
            ask(server, "/livez", host="127.0.0.2")
        with pytest.raises(ConfigError, match=rf"health_address 127.0.0.1:{server.port}: cannot be listened on"):
            HealthServer("127.0.0.1", server.port, Telemetry(), {}).start()
        port = server.port
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=10).request("GET", "/livez")


def test_an_address_of_version_six() -> None:
    with HealthServer("::1", 0, Telemetry(), {}) as server:
        assert ask(server, "/livez", host="::1")[0] == 200


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    with HealthServer("127.0.0.1", 0, Telemetry(), {}) as server, socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, "/livez")[0] == 200
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < PATIENCE_S
