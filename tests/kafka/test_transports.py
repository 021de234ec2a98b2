"""What a broker says right before it hangs up is heard, and no socket outlives its client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport

from shadowspec.tap.kafka.broker_clients import Client, EncryptedTransport, PlainTransport


class _Protocol:
    """What a transport tells."""

    _sensors = None

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


def run_protocol(kind: Any) -> _Protocol:
    """What comes of data and the end of the connection that lie there together."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.sendall(b"no such user")
    theirs.close()
    net, protocol = NetworkSelector(), _Protocol()
    transport = kind(net, ours)
    transport.set_protocol(protocol)
    transport.resume_reading()
    until = time.monotonic() + 30.0
    while not protocol.lost and time.monotonic() < until:
        net.poll(timeout_ms=10)
    net.close()
    return protocol


def test_the_last_words_come_before_the_end() -> None:
    protocol = run_protocol(PlainTransport)
    assert protocol.heard == [b"no such user"]
    assert len(protocol.lost) == 1
    assert "disconnected" in str(protocol.lost[0])


def test_the_library_alone_does_not_hear_them() -> None:
    """Else there is nothing left to set right, and the classes of ours go."""
    assert run_protocol(KafkaTCPTransport).heard == []


def test_connections_under_tls_keep_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[bytes, Exception | None]] = [(b"words", OSError("end")), (b"", OSError("end"))]
    monkeypatch.setattr(EncryptedTransport.__mro__[2], "_sock_recv", lambda self: said.pop(0))
    transport = EncryptedTransport.__new__(EncryptedTransport)
    assert transport._sock_recv() == (b"words", None)
    assert isinstance(transport._sock_recv()[1], OSError)


def close_while_connecting(make: Callable[..., Any], kind: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The transport of a client that closes while its thread still makes the connection."""
    made: list[Any] = []
    has_begun = threading.Event()

    async def never_done(transport: Any) -> None:
        made.append(transport)
        has_begun.set()
        await transport._net.sleep(3_600.0)

    monkeypatch.setattr(kind, "handshake", never_done)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = make(bootstrap_servers=[f"127.0.0.1:{server.getsockname()[1]}"])
        client._net.start()
        client._manager.bootstrap_async()
        assert has_begun.wait(30.0)
        client.close()
    return made[0]


def test_a_connection_that_is_being_made_closes_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert close_while_connecting(Client(), PlainTransport, monkeypatch)._sock is None


def test_the_library_alone_leaves_its_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = close_while_connecting(KafkaNetClient, KafkaTCPTransport, monkeypatch)
    assert transport._sock is not None
    transport._sock.close()
