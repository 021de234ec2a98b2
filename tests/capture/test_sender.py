"""The process that writes copies: what ends or steers it, and that it ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shadowspec.capture.outlet import Outlet
from shadowspec.capture.sender import Sender
from tests.capture.outlets import outlet_to, put, settings, until
from tests.kafka_topics import Topics, read_topic
from tests.services import free_port, is_running

ROOT = Path(__file__).parents[2]


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[Sender]:
    """Every sender that an outlet starts."""
    started: list[Sender] = []

    def start(outlet: Outlet) -> Sender:
        started.append(Sender(outlet.settings))
        return started[-1]

    monkeypatch.setattr(Outlet, "_started", start)
    return started


@pytest.mark.integration
def test_a_sender_that_is_killed_is_replaced_and_nothing_is_lost(topics: Topics, senders: list[Sender]) -> None:
    topic = topics.create()
    with outlet_to(topics.bootstrap, topic) as outlet:
        for number in range(3):
            put(outlet, b"%d" % number)
            until(lambda: outlet.counts.sent == number + 1)  # noqa: B023
            os.kill(senders[-1].pid, signal.SIGKILL)
    assert len(senders) == 3
    assert outlet.counts.dropped == 0
    assert read_topic(topics.bootstrap, topic) == ["0", "1", "2"]


@pytest.mark.integration
def test_signals_of_the_group_leave_the_sender_its_last_copies(topics: Topics, senders: list[Sender]) -> None:
    topic = topics.create()
    with outlet_to(topics.bootstrap, topic) as outlet:
        put(outlet, b"0")
        until(lambda: outlet.counts.sent == 1)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(senders[0].pid, number)
        put(outlet, b"1")
    assert (len(senders), outlet.counts.sent) == (1, 2)


@pytest.mark.integration
def test_what_the_producer_cannot_write_is_counted_and_ends_nothing(
    topics: Topics, senders: list[Sender], caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create()
    with outlet_to(topics.bootstrap, topic) as outlet:
        put(outlet, b"a client's text", key="no bytes")
        until(lambda: outlet.counts.dropped_refused == 1)
        put(outlet, b"1")
    assert (len(senders), outlet.counts.sent) == (1, 1)
    assert "an internal error (" in caplog.text
    assert "a client's text" not in caplog.text


PARENT = """
import sys, time
from shadowspec.capture.capture_settings import CaptureSettings
from shadowspec.capture.sender import Sender
from shadowspec.tap.kafka.producer import OutgoingMessage
sender = Sender(CaptureSettings((sys.argv[1],), "shadow.prompts"))
sender.send([OutgoingMessage(None, b"x")])
print(sender.pid, flush=True)
time.sleep(3600)
"""


def test_a_sender_without_brokers_ends_with_its_parent() -> None:
    bootstrap = f"localhost:{free_port()}"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, bootstrap], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert parent.stdout is not None
    number = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not is_running(number))


def test_a_sender_that_cannot_start_costs_copies_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError

    monkeypatch.setattr(subprocess, "Popen", refuse)
    outlet = Outlet(settings(), 0.0)
    put(outlet, b"0")
    until(lambda: "cannot be started (BlockingIOError)" in caplog.text)
    outlet.close()
    assert outlet.counts.dropped_at_end == 1
