"""When Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the search for cycles meanwhile.

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
