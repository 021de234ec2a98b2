"""What a session costs the shadow: by the time that its blocks took, of older blocks by their arms."""

from __future__ import annotations

import pytest

from shadowspec.planning.block_costs import CostSource, session_costs
from shadowspec.types import BlockTime


def blocks(
    *seconds: float | None, arms_s: float = 1.0, number: int = 4, slice_key: str = "a", load: int = 4
) -> list[BlockTime]:
    """Blocks that took so long, each of whose arms took `arms_s`."""
    return [BlockTime(slice_key, load, number, arms_s, took_s) for took_s in seconds]


def test_a_session_costs_its_share_of_what_blocks_took() -> None:
    costs = session_costs(blocks(1.2, 1.4, 1.3))
    assert costs is not None
    assert costs.overall.seconds == pytest.approx(1.3 / 4)
    assert (costs.overall.num_blocks, costs.overall.source) == (3, CostSource.BLOCKS)


def test_blocks_whose_time_is_not_stored_count_only_where_none_is() -> None:
    costs = session_costs(blocks(1.2, None, 1.4))
    assert costs is not None
    assert costs.overall.seconds == pytest.approx(1.3 / 4)
    assert costs.overall.num_blocks == 2
    costs = session_costs(blocks(None, None))
    assert costs is not None
    assert costs.overall.seconds == pytest.approx(1.0 / 4)
    assert (costs.overall.num_blocks, costs.overall.source) == (2, CostSource.ARMS)


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
