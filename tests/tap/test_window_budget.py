"""The budget of blocks in a window: how many are measured, who has a chance, and what a block represents."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule, Load
from shadowspec.types import Block, PartitionId
from tests.builders.block_prompts import prompt

HOUR = timedelta(hours=1)
RULE = EndpointRule(
    "one",
    ("m",),
    slice_by=("prompt_class",),
    loads=(Load(4),),
    min_rate=0.1,
    timed_positions=1,
    block_max_wait=timedelta(minutes=10),
    time_block=timedelta(minutes=10),
    forget_unit_after=timedelta(days=2),
    window=HOUR,
)
SLICE = "prompt_class=code"


def measured(minutes: list[float], rule: EndpointRule = RULE, *, first: int = 0) -> tuple[list[Block], int]:
    """The blocks of requests that come at these minutes, and how many requests were passed over."""
    former, blocks, passed = BlockFormer([rule]), [], 0
    for place, minute in enumerate(minutes):
        request = prompt(first + place, minute)
        if former.passes_over(request, 4, SLICE):
            passed += 1
            blocks += former.advance("one", request.event_time)
        else:
            blocks += former.add(request, 4, SLICE)
    return blocks + former.drain(), passed


@pytest.mark.parametrize("per_hour", [400, 4_000])
def test_heavy_traffic_has_its_budget_of_blocks_and_they_represent_all_of_it(per_hour: int) -> None:
    hours = 60
    minutes = [60.0 * place / per_hour for place in range(hours * per_hour)]
    blocks, passed = measured(minutes)
    in_hours = Counter(int(block.requests[0].event_time.timestamp() // 3600) for block in blocks)
    later = [number for hour, number in sorted(in_hours.items())[2:]]
    assert 0.7 <= sum(later) / (hours - 2) <= 1.3
    represented = sum(block.stands_for * len(block.requests) for block in blocks)
    assert represented == pytest.approx(len(minutes), rel=0.3)
    assert passed + sum(len(block.requests) for block in blocks) == len(minutes)
    assert all(len(block.requests) == 4 for block in blocks[:-1])


def test_each_request_of_an_hour_has_the_same_chance() -> None:
    """Requests of a busy quarter of an hour are drawn as often, for their number, as those of the others."""
    minutes = [
        60.0 * hour + minute
        for hour in range(400)
        for minute in sorted(
            [
                *(quarter * 15.0 + 0.75 * k for quarter in range(4) for k in range(20)),
                *(30.0 + 0.15 * k for k in range(80)),
            ]
        )
    ]
    blocks, _ = measured(minutes)
    weights: Counter[bool] = Counter()
    for block in blocks:
        for request in block.requests:
            weights[30 <= request.event_time.minute < 45] += block.stands_for
    assert weights[True] / weights.total() == pytest.approx(100 / 160, abs=0.05)


def test_quiet_traffic_is_measured_whole_and_waits_a_window_for_its_company() -> None:
    blocks, passed = measured([20.0 * place for place in range(40)])
    assert passed == 0
    assert {len(block.requests) for block in blocks} == {3, 1}
    assert all(block.stands_for == 1.0 for block in blocks)


def test_a_second_pass_from_an_unfinished_block_measures_it_again() -> None:
    """A worker that restarts reads from its oldest unfinished request on, and has forgotten the traffic so far."""
    minutes = [0.1 * place for place in range(2_000)]
    blocks, _ = measured(minutes)
    for block in blocks[5:20:5]:
        start = block.requests[0].key.offset
        again, _ = measured(minutes[start:], first=start)
        assert structs.replace(again[0], sequence=0, stands_for=1.0, fillers=()) == structs.replace(
            block, sequence=0, stands_for=1.0, fillers=()
        )


def test_conversations_are_drawn_whole() -> None:
    rule = replace(RULE, measures_conversations=True, timed_positions=2)
    former, blocks, turns = BlockFormer([rule]), [], Counter[str]()
    for place in range(40_000):
        session = f"s{place // 2}"
        request = structs.replace(prompt(place, 0.1 * place), session_hash=session, unit_key=session)
        if not former.is_over(request, 1 + place % 2) and not former.passes_over(request, 4, SLICE):
            turns[session] += 1
            blocks += former.add(request, 4, SLICE)
    blocks += former.drain()
    assert set(turns.values()) == {2}
    assert len(turns) < 1_000
    represented = sum(block.stands_for * len({r.session_hash for r in block.requests}) for block in blocks)
    assert represented == pytest.approx(20_000, rel=0.2)


def test_a_block_for_which_the_ledger_waits_runs_short() -> None:
    former = BlockFormer([RULE])
    first = prompt(0, 0.0)
    assert not former.passes_over(first, 4, SLICE)
    assert former.add(first, 4, SLICE) == []
    partition = PartitionId(first.key.source, first.key.partition)
    assert former.start_with({(partition, 7)}) == []
    (block,) = former.start_with({(partition, 0)})
    assert (block.requests, len(block.fillers)) == ((first,), 3)
    assert former.drain() == []


def test_without_a_window_everything_is_measured() -> None:
    blocks, passed = measured([0.1 * place for place in range(400)], replace(RULE, window=None))
    assert (len(blocks), passed) == (100, 0)
