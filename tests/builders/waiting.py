"""Waiting for a condition, bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.services import PATIENCE_S


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
