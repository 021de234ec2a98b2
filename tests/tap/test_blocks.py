"""Blocks: full for their slice and load, short ones filled and never dissolved, the same on every pass."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from scipy import stats

from shadowspec.tap.blocks import REMEMBERED_PROMPTS, BlockFormer
from shadowspec.types import REPEAT_EVERY, Arm, Block, RecordKey, ShadowPrompt, format_slice_key
from tests.builders.block_prompts import NOON, prompt
from tests.fakes import endpoint_rule

RULES = [
    endpoint_rule(name=name, served_models=("m",), slice_by=("prompt_class",), block_max_wait=timedelta(minutes=10))
    for name in ("one", "two")
]


def formed(prompts: list[tuple[ShadowPrompt, int]]) -> list[Block]:
    former = BlockFormer(RULES)
    blocks = [block for one, concurrency in prompts for block in former.add(one, concurrency)]
    return blocks + former.drain()


def test_a_block_starts_when_it_is_full() -> None:
    former = BlockFormer(RULES)
    assert [len(former.add(prompt(line), 4)) for line in range(8)] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert former.drain() == []


def test_a_queue_takes_several_requests_for_each_slot_and_fillers_for_the_missing() -> None:
    former = BlockFormer([replace(RULES[0], requests_per_slot=3)])
    started = [block for line in range(8) for block in former.add(prompt(line), 2)] + former.drain()
    assert [[p.key.offset for p in block.requests] for block in started] == [[0, 1, 2, 3, 4, 5], [6, 7]]
    assert [[p.key.offset for p in block.fillers] for block in started] == [[], [0, 1, 2, 3]]
    assert [(block.concurrency, block.n_max) for block in started] == [(2, 6), (2, 6)]


def test_a_short_block_is_filled_with_copies_of_timed_prompts_of_its_slice() -> None:
    blocks = formed([(prompt(line), 4) for line in range(6)] + [(prompt(9, prompt_class="chat"), 4)])
    assert [[p.key.offset for p in block.requests] for block in blocks] == [[0, 1, 2, 3], [4, 5], [9]]
    assert [[p.key.offset for p in block.fillers] for block in blocks] == [[], [0, 1], [9, 9, 9]]
    assert [block.sequence for block in blocks] == [0, 1, 2]


def test_blocks_wait_in_event_time_from_their_first_request() -> None:
    former = BlockFormer(RULES)
    assert former.add(prompt(0, 0), 4) == []
    assert former.add(prompt(1, 9.9), 4) == []
    (short,) = former.add(prompt(2, 10.0), 4)
    assert [p.key.offset for p in short.requests] == [0, 1]  # the late one opened the next block
    assert former.advance("one", NOON + timedelta(minutes=19)) == []
    (second,) = former.advance("one", NOON + timedelta(minutes=20))
    assert [p.key.offset for p in second.requests] == [2]
    assert former.drain() == []


def test_one_endpoints_time_is_not_anothers_and_late_records_do_not_turn_it_back() -> None:
    former = BlockFormer(RULES)
    former.add(prompt(0, 0), 4)
    assert former.add(prompt(1, 60, endpoint="two"), 4) == []
    assert former.add(prompt(2, -60), 4) == []
    # A second file with earlier times fills its blocks: the wait runs from the watermark, not from its own time.
    assert former.add(prompt(3, -59, prompt_class="chat"), 4) == []
    assert former.add(prompt(4, -40, prompt_class="chat"), 4) == []
    assert [len(block.requests) for block in former.drain()] == [2, 2, 1]


def test_fillers_are_remembered_within_bounds() -> None:
    former = BlockFormer(RULES)
    for line in range(3 * REMEMBERED_PROMPTS):
        former.add(prompt(line), 1)
    former.add(prompt(10_000), 2 * REMEMBERED_PROMPTS)
    (short,) = former.drain()
    newest = range(2 * REMEMBERED_PROMPTS, 3 * REMEMBERED_PROMPTS)
    assert {p.key.offset for p in short.fillers} == set(newest)


def test_the_first_arm_is_a_fair_coin() -> None:
    blocks = formed([(prompt(line), 1) for line in range(2_000)])
    arms = Counter(block.first_arm for block in blocks)
    assert stats.binomtest(arms[Arm.BASELINE], len(blocks), 0.5).pvalue > 1e-3


@pytest.mark.parametrize("num_candidates", [1, 2, 3])
def test_every_order_of_the_arms_is_as_likely(num_candidates: int) -> None:
    formed_blocks = formed([(prompt(line), 1) for line in range(4_000)])
    blocks = [structs.replace(block, repeats_baseline=False) for block in formed_blocks]
    orders = Counter(tuple(block.arm_order(num_candidates)) for block in blocks)
    permutations = set(itertools.permutations([None, *range(num_candidates)]))
    assert orders.keys() == permutations
    assert stats.chisquare([orders[each] for each in permutations]).pvalue > 1e-3
    assert all(block.arm_order(num_candidates) == block.arm_order(num_candidates) for block in blocks[:10])
    for block in blocks[:100]:  # a further candidate changes nothing in the order of the others
        assert [each for each in block.arm_order(4) if each is None or each < num_candidates] == block.arm_order(
            num_candidates
        )


def test_one_block_in_ten_repeats_its_baseline_at_once_whichever_arm_is_first() -> None:
    blocks = formed([(prompt(line), 1) for line in range(4_000)])
    for arm in Arm:
        drawn = [block.repeats_baseline for block in blocks if block.first_arm is arm]
        assert stats.binomtest(sum(drawn), len(drawn), 1.0 / REPEAT_EVERY).pvalue > 1e-3
    for block in blocks[:200]:
        plain = structs.replace(block, repeats_baseline=False).arm_order(3)
        place = plain.index(None)
        repeated = [*plain[:place], None, *plain[place:]]
        assert block.arm_order(3) == (repeated if block.repeats_baseline else plain)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 60))
def test_every_prompt_runs_once_at_its_load_and_a_second_pass_is_the_same(seed: int, count: int) -> None:
    rng = random.Random(seed)
    prompts = [
        (
            prompt(line, rng.uniform(0, 60), rng.choice(["one", "two"]), rng.choice(["code", "chat"])),
            rng.choice([1, 2, 4]),
        )
        for line in range(count)
    ]
    blocks = formed(prompts)
    assert blocks == formed(prompts)
    assert len({block.block_id for block in blocks}) == len(blocks)
    for name in ("one", "two"):
        assert [block.sequence for block in blocks if block.endpoint == name] == list(
            range(sum(block.endpoint == name for block in blocks))
        )
    placed = {p.key: block for block in blocks for p in block.requests}
    assert len(placed) == sum(len(block.requests) for block in blocks) == count
    seen: set[RecordKey] = set()
    for block in blocks:
        assert len(block.requests) + len(block.fillers) == block.n_max
        request_keys = {p.key for p in block.requests}
        assert {p.key for p in block.fillers} <= seen | request_keys
        for one in block.requests + block.fillers:
            assert (one.endpoint, format_slice_key(one.labels, ("prompt_class",))) == (block.endpoint, block.slice_key)
        seen |= request_keys
    for one, concurrency in prompts:
        assert placed[one.key].concurrency == concurrency
