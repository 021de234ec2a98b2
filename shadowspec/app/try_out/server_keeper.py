"""A process that keeps one server: it starts it, and ends it with everything that the server started.

It ends the server when it is asked to, when the server's first process ends, and when its parent is gone, however that
ended.  It deletes the folder of the logs in the last case, because nobody else will: they may hold prompts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from shadowspec.child_processes import STOPPING, end_with_parent

GRACE_S: Final = 15.0  # that a server has to end by itself: a driver takes seconds to let go of a device
LOOK_S: Final = 0.1
SIGNALLED: Final = 128  # and the signal's number: the exit code of a server that a signal ended


def keep(command: Sequence[str], variables: Mapping[str, str], log: Path, parent: int) -> None:
    """Run a server until it ends or must; exits with its exit code."""
    asked: list[int] = []
    os.setsid()  # Ctrl-C at the terminal is the parent's to answer
    for number in STOPPING:
        signal.signal(number, lambda received, _: asked.append(received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    with log.open("wb") as printed:
        server = subprocess.Popen(  # noqa: S603 - what the user named
            command,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(_begin, os.getpid()),
        )
    while server.poll() is None and not asked and os.getppid() == parent:
        time.sleep(LOOK_S)
    code = _end(server)
    if os.getppid() != parent:
        shutil.rmtree(log.parent, ignore_errors=True)
    sys.exit(code if code >= 0 else SIGNALLED - code)


def _begin(keeper: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end_with_parent(keeper)


def _end(server: subprocess.Popen[bytes]) -> int:
    """End the server's process group: by SIGTERM, after a grace time by SIGKILL; its exit code."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)  # and what outlived it
    return server.wait()
