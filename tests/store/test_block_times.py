"""Blocks with what their arms took, read back as they were written, on both dialects."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from shadowspec.store import Store
from shadowspec.types import ArmTiming, BlockSeconds, BlockTime
from tests.store import examples
from tests.store.saving import save_block

FINGERPRINTS = ("fp", "other")
TIMES_MS = ((100.0, 50.0), (300.0, 200.0))  # plain and fast, of a block's first and second request


def save(store: Store, number: int, *, endpoint: str = "chat", start_s: float, failure: str | None = None) -> None:
    """A block of two requests of four, at load 4, measured with two configs."""
    lines = range(10 * number, 10 * number + 2)
    block = examples.block(f"b{number}", lines)
    runs = []
    for fingerprint in FINGERPRINTS:
        for run, (plain_ms, fast_ms) in zip(block.runs, TIMES_MS, strict=True):
            plain, fast = (ArmTiming(5.0, 10.0, ms - 10.0, num_output_tokens=8) for ms in (plain_ms, fast_ms))
            timed = replace(run, fingerprint=fingerprint, baseline=plain, speculative=fast)
            runs.append(
                replace(timed, counts=None, baseline=None, speculative=None, failure=failure) if failure else timed
            )
    shape = structs.replace(block.block, endpoint=endpoint, sequence=number)
    started_at = examples.NOON + timedelta(seconds=start_s)
    records = [structs.replace(examples.record(line), endpoint=endpoint, event_time=started_at) for line in lines]
    seconds = 2.5 if number > 1 else None  # the first is of an older version
    result = replace(block, block=shape, runs=tuple(runs), started_at=started_at, seconds=seconds)
    save_block(store, result, records)


@pytest.fixture
def filled(store: Store) -> Store:
    store.save_fingerprints([examples.config(name) for name in FINGERPRINTS])
    save(store, 1, start_s=0.0)
    save(store, 2, start_s=2.0, endpoint="code")
    save(store, 3, start_s=5.0)
    save(store, 4, start_s=9.0, failure="out_of_memory")
    return store


def test_arms_add_up_and_blocks_say_what_they_took(filled: Store) -> None:
    first, second = filled.block_times(["chat"], limit=100)["chat"]
    assert isinstance(first, BlockTime)
    assert (first.concurrency, first.num_requests) == (4, 2)
    # The baseline once, and each config's arm: the longest request of each, and no queue.
    # Two requests and two fillers, which are their copies, on four slots: the longest request is the longer.
    assert first.arms_s == pytest.approx(0.3 + 2 * 0.2)
    assert (first.seconds, second.seconds) == (None, 2.5)
    both = filled.block_times(["chat", "code"], limit=100)
    assert (both["chat"], len(both["code"])) == ([first, second], 1)


def test_a_queue_takes_as_long_as_its_slots_are_busy(filled: Store) -> None:
    result = replace(examples.block("b5", range(50, 52)), started_at=examples.NOON + timedelta(seconds=20))
    plain, fast = (ArmTiming(0.0, 10.0, ms - 10.0, num_output_tokens=8) for ms in (400.0, 200.0))
    shape = structs.replace(
        result.block, sequence=5, requests_per_slot=4
    )  # 16 requests, fillers with them, on four slots
    runs = tuple(replace(run, baseline=plain, speculative=fast) for run in result.runs)
    save_block(filled, replace(result, block=shape, runs=runs), [examples.record(line) for line in (50, 51)])
    newest = filled.block_times(["chat"], limit=100)["chat"][-1]
    assert newest.arms_s == pytest.approx(4 * 0.6)


def test_blocks_that_are_cut_by_the_limit_or_failed_are_left_out(filled: Store) -> None:
    assert len(filled.block_times(["chat"], limit=100)["chat"]) == 2  # the fourth failed
    assert filled.block_times(["chat"], limit=2) == {"chat": []}
    assert filled.block_times(["nobody"], limit=100) == {"nobody": []}


def test_blocks_of_a_time_count_by_their_newest_request_failed_ones_too(filled: Store) -> None:
    blocks = filled.block_seconds(["chat", "code", "nobody"], within=timedelta(days=7))
    times = {name: [(block.at - examples.NOON).total_seconds() for block in found] for name, found in blocks.items()}
    assert times == {"chat": [0.0, 5.0, 9.0], "code": [2.0], "nobody": []}
    assert [block.seconds for block in blocks["chat"]] == [None, 2.5, 2.5]
    assert blocks["code"] == [BlockSeconds("", 4, examples.NOON + timedelta(seconds=2), 2.5)]
    newer = filled.block_seconds(["chat", "code"], within=timedelta(seconds=5))
    assert [len(of_endpoint) for of_endpoint in newer.values()] == [2, 0]
    assert filled.block_seconds(["nobody"], within=timedelta(days=7)) == {"nobody": []}
