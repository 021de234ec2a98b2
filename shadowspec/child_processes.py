"""Processes that this one starts: they end with it, and it does not wait for one that has ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGINT, signal.SIGTERM)  # by which a process is asked to stop
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


@dataclass(slots=True)
class Watch:
    """Whether something that was waited for is gone."""

    is_gone: bool = False


@contextmanager
def watched(is_gone: Callable[[], bool], every_s: float) -> Iterator[Watch]:
    """Look every few seconds, and interrupt the main thread, as Ctrl-C does, where something is gone.

    SIGTERM, too, interrupts as Ctrl-C does meanwhile, so that what was opened is closed.
    """
    watch = Watch()
    if threading.current_thread() is not threading.main_thread():
        yield watch  # signals are the main thread's
        return
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(every_s):
            if is_gone():
                watch.is_gone = True
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    looker = threading.Thread(target=look, name="watch", daemon=True)
    looker.start()
    try:
        yield watch
    finally:
        is_over.set()
        looker.join(every_s)  # it may be asking something that does not answer
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def stopping_blocked() -> Iterator[None]:
    """Signals wait meanwhile, and a process started here begins with them waiting: none kills it too early."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent: int) -> None:
    """Be killed when the parent ends, which only Linux does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # the parent went before it could be tied to
