"""What is searched for cycles, and how often."""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path

import pytest

from shadowspec.gc_control import YOUNG_VALUES, gc_paused, gc_relaxed, give_back
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.routing import NO_HINTS
from tests.tap.mirror import RULE, admission, chat, raw


def test_a_loop_is_searched_seldom_and_leaves_things_as_they_were() -> None:
    gc.unfreeze()  # what the tests had loaded
    before = gc.get_threshold()
    with gc_relaxed():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == (YOUNG_VALUES, *before[1:])
        assert gc.isenabled()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_batch_is_not_searched_and_what_was_off_stays_off() -> None:
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.representative("no JSON")
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"{", id="no JSON"),
        pytest.param(b'{"a": 1}\n{\n', id="a line that is none"),
        pytest.param(chat(timestamp="soon"), id="no time"),
        pytest.param(chat(status=500), id="a failed call"),
        pytest.param(chat(request_temperature="warm"), id="a wrong parameter"),
        pytest.param(chat(request_n=2), id="two answers"),
        pytest.param(chat(request_messages=[{"role": "refused", "content": "x"}]), id="not in the template"),
    ],
)
def test_a_refused_message_is_let_go_at_once(message: object) -> None:
    """Nothing of it waits, whole as it is, for a search that comes seldom."""
    reader = admission(RULE).reader
    reader.read([])

    def refuse() -> None:
        opened = open_message(raw(message), MessageFormat.AUTO)
        readings = reader.read([(each, NO_HINTS) for each in opened])
        assert all(each.error is not None for each in readings)

    refuse()  # what is made once, for good, is made
    gc.collect()
    with gc_paused():
        refuse()
        assert gc.collect() == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def test_what_the_allocator_keeps_free_is_given_back() -> None:
    """Many small pieces, too small for a mapping of their own, and one that lives above them."""
    size, number = 64 * 1024, 1_500
    allocate, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
    allocate.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [allocate(size) for _ in range(number)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces[:-1]:
        free(piece)
    held = resident_bytes()
    give_back()
    assert held - resident_bytes() > 0.8 * size * number
    free(pieces[-1])
