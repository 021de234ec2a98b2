"""What a broker says right before it hangs up is heard."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport

from shadowspec.tap.kafka.broker_clients import EncryptedTransport, PlainTransport


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
