"""Taking turns with others on the same machine, by a file's lock: alone while something is timed, else beside."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BREATH_S = 3.0  # between two holds, for whoever waits


class MachineLock:
    """A lock on a file (flock), or none: then nobody is waited for."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.alone_s = 0.0  # held exclusively, all in all

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        """Shared: work that is not timed."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclusive: something is timed."""
        with self._held(fcntl.LOCK_EX):
            began = time.monotonic()
            try:
                yield
            finally:
                self.alone_s += time.monotonic() - began

    @contextmanager
    def _held(self, kind: int) -> Iterator[None]:
        if self._path is None:
            yield
            return
        with self._path.open("a") as file:
            fcntl.flock(file, kind)
            yield
        time.sleep(BREATH_S)
