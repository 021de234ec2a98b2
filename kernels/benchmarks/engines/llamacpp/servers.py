"""llama.cpp's servers (`llama-server`): started, waited for, and ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from kernels.benchmarks.engines.servers import free_port

READY_S = 120.0
LOOK_S = 0.2
SERVED_MODEL = "bundled"
SLOTS = 8
CONTEXT = 1_024  # of a slot
# float32 throughout: attention without its fast twin, and keys and values of both models as they are computed.
EXACT = (
    "--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32",
    "--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Binary:
    """`llama-server` with the target and the draft as GGUF files."""

    path: Path
    target: Path
    draft: Path
    threads: int

    def version(self) -> str:
        """As the server says."""
        said = subprocess.run([self.path, "--version"], check=True, capture_output=True, text=True)  # noqa: S603
        return next(line for line in (said.stderr + said.stdout).splitlines() if line.startswith("version:"))


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A server that answers."""

    url: str


@contextmanager
def running(binary: Binary, arguments: Sequence[str], log: Path) -> Iterator[LlamaServer]:
    """A server with these arguments about speculation, which ends with the block; what it prints goes to `log`.

    Raises:
        SystemExit: it has ended, or does not answer in time.
    """
    port = free_port()
    command = [
        str(binary.path), "--model", str(binary.target), "--alias", SERVED_MODEL, "--host", "127.0.0.1",
        "--port", str(port), "--parallel", str(SLOTS), "--ctx-size", str(SLOTS * CONTEXT), "--metrics",
        "--threads", str(binary.threads), "--offline", "--no-ui", "--cache-ram", "0", *EXACT, *arguments,
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)  # noqa: S603
    try:
        _await_ready(process, url, log)
        yield LlamaServer(url)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"llama-server has ended; what it said is in {log}")
        try:
            with urlopen(f"{url}/health", timeout=LOOK_S):  # noqa: S310 (our own server)
                return
        except (URLError, OSError):
            time.sleep(LOOK_S)
    raise SystemExit(f"llama-server does not answer; what it said is in {log}")
