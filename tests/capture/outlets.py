"""Outlets of the tests: to a real broker, to one that is away, and to none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shadowspec.capture.capture_settings import CaptureSettings
from shadowspec.capture.outlet import Outlet
from shadowspec.capture.sender import Written
from shadowspec.tap.kafka.producer import OutgoingMessage
from tests.services import PATIENCE_S, free_port

CLOSE_S = 3.0  # for an outlet without a broker to give up


def settings(bootstrap: str = "", topic: str = "shadow.prompts", **limits: Any) -> CaptureSettings:
    return CaptureSettings((bootstrap or f"localhost:{free_port()}",), topic, **limits)


class KeptOutlet(Outlet):
    """Hands messages to the test in place of a broker; nothing is taken while `gate` is closed."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(settings(**limits))
        self.messages: list[OutgoingMessage] = []
        self.gate = threading.Event()
        self.gate.set()

    def _started(self) -> Any:
        return KeepingSender(self)


class KeepingSender:
    """In place of a process and a broker."""

    def __init__(self, outlet: KeptOutlet) -> None:
        self.outlet = outlet

    def send(self, messages: list[OutgoingMessage]) -> None:
        self.outlet.gate.wait(PATIENCE_S)
        self.outlet.messages += messages
        self.num_messages = len(messages)

    def reply(self, timeout_s: float) -> Written:
        return Written(sent=self.num_messages, refused=0)

    def close(self) -> None:
        pass


def put(outlet: Outlet, value: bytes, key: Any = b"s") -> None:
    """Offer a message."""
    outlet.offer(len(value), lambda: OutgoingMessage(key, value))


@contextmanager
def outlet_to(bootstrap: str = "", topic: str = "shadow.prompts", **limits: Any) -> Iterator[Outlet]:
    outlet = Outlet(settings(bootstrap, topic, **limits), PATIENCE_S if bootstrap else CLOSE_S)
    try:
        yield outlet
    finally:
        outlet.close()


def until(is_done: Callable[[], bool]) -> None:
    """Wait until something is so."""
    ends = time.monotonic() + PATIENCE_S
    while not is_done():
        if time.monotonic() > ends:
            pytest.fail("it did not come to be")
        time.sleep(0.01)
