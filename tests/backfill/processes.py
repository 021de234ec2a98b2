"""Processes that a command starts on this machine, told by a temporary folder that they alone have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from shadowspec.backfill.cluster import _JudgingActor
from tests.services import PATIENCE_S

CHECKOUT = Path(__file__).resolve().parents[2]

Process: TypeAlias = subprocess.Popen[str]

# What Ray calls an actor that judges, and while it is made ".__init__" after it.
ACTOR = f"MapWorker(MapBatches({_JudgingActor.__name__}))"


def environment(**variables: str) -> dict[str, str]:
    """That of a process which finds the checkout, and computes as an actor does."""
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"} | variables


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for TMPDIR; its path is short, as those of Ray's sockets must be."""
    folder = Path(tempfile.mkdtemp(prefix="ss-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def processes_of(folder: Path) -> dict[int, str]:
    """The command lines of the living processes whose TMPDIR this is, by their ids."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            line = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone by now, or another user's
            continue
        if line and f"TMPDIR={folder}".encode() in variables:
            found[int(process.name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def wait_for_actors(process: Process, folder: Path) -> list[int]:
    """The actors that have their models, as soon as the process has any.

    Their work takes milliseconds, so that they may be between two blocks.
    """
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and process.poll() is None:
        lines = processes_of(folder)
        if actors := [number for number, line in lines.items() if ACTOR in line and "__init__" not in line]:
            return actors
        time.sleep(0.01)
    process.terminate()
    raise AssertionError(f"no actor was seen; {processes_of(folder)}\n{process.communicate(timeout=PATIENCE_S)[1]}")


def wait_until_ended(folder: Path) -> dict[int, str]:
    """The processes that are left when all had time to end."""
    until = time.monotonic() + PATIENCE_S
    while (left := processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


@contextmanager
def python(
    arguments: Sequence[str], temporary: Path, folder: Path | None = None, **variables: str
) -> Iterator[Process]:
    """Python in this folder with its files in `temporary`, which does not outlive a test that fails."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(TMPDIR=str(temporary), **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
