"""What a session costs the shadow: by the time to the next block where that is work, else by the arms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shadowspec.planning.block_costs import CostSource, session_costs
from shadowspec.types import BlockTime

START = datetime(2026, 1, 1, tzinfo=UTC)


def blocks(
    *lengths_s: float, arms_s: float = 1.0, number: int = 4, slice_key: str = "a", load: int = 4
) -> list[BlockTime]:
    """Blocks that began so many seconds after each other, each of whose arms took `arms_s`; the last is the newest."""
    found, at = [], START
    for length in (*lengths_s, None):
        after = None if length is None else at + timedelta(seconds=length)
        found.append(BlockTime(slice_key, load, number, 0.8 * arms_s, arms_s, at, after))
        at = after or at
    return found


def test_a_block_takes_until_the_next_one() -> None:
    costs = session_costs(blocks(1.2, 1.4, 1.3))
    assert costs is not None
    assert costs.overall.seconds == pytest.approx(1.3 / 4)
    assert (costs.overall.num_blocks, costs.overall.source) == (3, CostSource.BLOCKS)


def test_waiting_for_traffic_is_no_cost() -> None:
    costs = session_costs(blocks(1.2, 3.1, 600.0, 1.4, 86_400.0))
    assert costs is not None
    assert costs.overall.seconds == pytest.approx(1.3 / 4)
    assert costs.overall.num_blocks == 2


@pytest.mark.parametrize("lengths", [(0.4, 0.6, 1.4, 1.2), (600.0, 700.0), ()])
def test_where_blocks_overlap_or_all_wait_the_arms_are_what_is_known(lengths: tuple[float, ...]) -> None:
    costs = session_costs(blocks(*lengths))
    assert costs is not None
    assert costs.overall.seconds == pytest.approx(1.0 / 4)
    assert (costs.overall.num_blocks, costs.overall.source) == (len(lengths) + 1, CostSource.ARMS)


def test_short_blocks_cost_their_sessions_more_and_slices_what_they_take() -> None:
    block_times = blocks(1.2, 1.2) + blocks(1.2, number=1) + blocks(2.4, arms_s=2.0, slice_key="b", load=8)
    costs = session_costs(block_times)
    assert costs is not None
    assert costs.at("a", 4).seconds == pytest.approx(3 * 1.2 / (2 * 4 + 1))
    assert costs.at("b", 8).seconds == costs.at("", 8).seconds == pytest.approx(2.4 / 4)
    assert costs.at("", 4) == costs.by_load[4]
    assert costs.at("c", 16) == costs.overall


def test_no_blocks_have_no_cost() -> None:
    assert session_costs([]) is None
    assert session_costs(blocks(1.0, number=0)) is None
