"""llama.cpp's servers (`llama-server`): started, waited for, and ended."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kernels.benchmarks.engines.servers import SERVED_MODEL, SLOTS, EngineServer, answering, free_port

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


def add_llama_options(parser: argparse.ArgumentParser) -> None:
    """What a benchmark's command line says of llama.cpp, where it may be left out."""
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server")
    parser.add_argument("--llama-source", type=Path, help="llama.cpp's sources, with its converter")
    parser.add_argument("--llama-python", default=sys.executable, help="that runs the converter")


def check_llama_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Refuse a server without the sources."""
    if given.llama_server is not None and given.llama_source is None:
        parser.error("--llama-server needs --llama-source, which has the converter")


def running(binary: Binary, arguments: Sequence[str], log: Path) -> AbstractContextManager[EngineServer]:
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
    return answering(EngineServer(command, port, log))
