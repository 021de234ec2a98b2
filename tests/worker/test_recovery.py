"""What is measured of a block in which a request kills the engine: as many requests as a full one, without it."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from shadowspec.worker.recovery import Case, MeasuredPrompts
from tests.worker.blocks import block, prompt


def test_a_queue_is_measured_whole_without_its_poisoned_request() -> None:
    prompts = [prompt(offset) for offset in range(5)]
    queue = replace(block(*prompts, fillers=[prompts[0]]), concurrency=2, requests_per_slot=3)
    case = Case(queue, suspects=deque(), poisoned={prompts[1].key: "engine_died"})
    again = MeasuredPrompts().whole(case, case.poisoned)
    assert again.requests == (prompts[0], *prompts[2:])
    assert len(again.requests) + len(again.fillers) == queue.n_max == 6
    assert prompts[1] not in again.fillers
    assert (again.concurrency, again.requests_per_slot) == (2, 3)
