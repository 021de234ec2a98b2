"""When Python looks for garbage, and what the process gives back of its memory."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_VALUES = 500_000  # that are new when they are searched for cycles: most are gone long before


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the search for cycles.

    For loops that make very many values and no cycle, as reading messages or folding runs does: each value goes when
    the last name for it does, and searching them all again and again takes a quarter to a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def gc_relaxed() -> Iterator[None]:
    """Leave what exists by now out of the search for cycles, and search what is new a seven-hundredth as often.

    For a loop without end whose values live for a moment: a search looks at every token id of those that are alive,
    and after every poll that takes a tenth of the time.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_VALUES, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def give_back() -> None:
    """Hand the system what the allocator keeps free; where there is no glibc nothing.

    Tensors of ever other sizes leave gaps between them: a process that scores responses of all lengths grows
    without it, and stays as it is with it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
