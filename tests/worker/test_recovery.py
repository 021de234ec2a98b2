"""Who fills the places of poisoned requests, and who is suspected once an engine has failed at a block."""

from __future__ import annotations

from msgspec.structs import replace

from shadowspec.worker.recovery import Case, MeasuredPrompts
from tests.fakes import FakeEngine, fake_config
from tests.worker.blocks import block, prompt


def test_a_poisoned_filler_is_exchanged_and_the_load_stays() -> None:
    prompts, poison = [prompt(offset) for offset in range(3)], prompt(9)
    queue = replace(block(*prompts, fillers=[poison, prompts[0], poison]), concurrency=2, requests_per_slot=3)
    found = MeasuredPrompts().without(queue, {poison.key: "engine_died"})
    assert found.requests == queue.requests
    assert found.fillers == (prompts[0], prompts[0], prompts[1])
    assert (found.concurrency, found.requests_per_slot) == (2, 3)
    assert MeasuredPrompts().without(queue, {}) == queue


def test_who_is_suspected_is_asked_once_each() -> None:
    good, unknown = prompt(1), prompt(2)
    measured = MeasuredPrompts()
    measured.remember(FakeEngine((fake_config("one"),)).measure(block(good)))
    bad = block(prompt(5), prompt(6), fillers=[good, unknown, unknown])
    case = Case(bad)
    case.suspect(measured.suspects(bad), "engine_died")
    assert case.suspects is not None
    assert [each.key.offset for each in case.suspects] == [5, 6, 2]
