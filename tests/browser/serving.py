"""`shadowspec dashboard` as its own process: started on a free port, waited for, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from tests.services import PATIENCE_S, free_port

STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Served:
    """A dashboard that answers."""

    url: str
    config: Path
    log: Path

    def address(self, page: str = "", **parameters: str) -> str:
        """The address of a page ("" for the root) with these query parameters."""
        return f"{self.url}/{page}{'?' + urlencode(parameters) if parameters else ''}"

    @property
    def said(self) -> str:
        """What the process wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def served(config: Path, environment: Mapping[str, str] | None = None, port: int | None = None) -> Iterator[Served]:
    """Serve the store that `config` names until the block is left, at this port or any free one."""
    port, log = port or free_port(), config.with_suffix(".log")
    command = [sys.executable, "-m", "shadowspec", "dashboard", "--config", str(config), "--port", str(port)]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environment or {}),
            cwd=config.parent,
        )
    try:
        wait_until_up(child, port, log)
        yield Served(f"http://127.0.0.1:{port}", config, log)
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_until_up(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until a dashboard answers; raises RuntimeError, with what it wrote, where it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"the dashboard ended with {child.returncode}: {log.read_text(errors='replace')}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2.0) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"the dashboard did not answer: {log.read_text(errors='replace')}")
