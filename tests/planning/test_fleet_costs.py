"""What a fleet costs, from blocks whose rates and seconds are known, and what it assumes where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from shadowspec.planning.fleet_costs import BlockBudget, EndpointCost, GroupCost, endpoint_costs, slowdown
from shadowspec.types import BlockSeconds

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
BUDGET = BlockBudget(HOUR, 1, 2)


def blocks(hours: Sequence[float], *seconds: float | None, slices: int = 1) -> list[BlockSeconds]:
    """One at each of these hours, the seconds and slices taken in turn."""
    return [
        BlockSeconds(f"s{place % slices}", 4, START + hour * HOUR, seconds[place % len(seconds)])
        for place, hour in enumerate(hours)
    ]


def test_rates_are_of_event_time_after_the_first_window_and_seconds_of_all_blocks() -> None:
    # Four blocks in the window in which the worker starts, then one every half hour.
    starting = [0.0, 0.1, 0.2, 0.5]
    chat = blocks([*starting, *(1.25 + 0.5 * place for place in range(20))], 10.0, 30.0, slices=2)
    costs = endpoint_costs({"chat": chat, "code": blocks([0.0, 11.0], None)}, dict.fromkeys(("chat", "code"), BUDGET))
    assert costs["chat"].blocks_per_hour == pytest.approx(20 / 10.0, rel=0.03)
    assert (costs["chat"].is_rate_assumed, costs["chat"].is_time_assumed) == (False, False)
    assert costs["chat"].seconds_per_block == pytest.approx(20.0)
    assert costs["chat"].mean_square_s == pytest.approx((100.0 + 900.0) / 2)
    assert costs["chat"].busy_devices == pytest.approx(2.0 * 20.0 / 3_600.0, rel=0.03)
    assert costs["chat"].device_hours_per_week == pytest.approx(168.0 * 2.0 * 20.0 / 3_600.0, rel=0.03)
    # The blocks of the other say not what they took: it is assumed to be what others' take.
    assert costs["code"].blocks_per_hour == pytest.approx(1 / 10.0)
    assert (costs["code"].seconds_per_block, costs["code"].is_time_assumed) == (20.0, True)


def test_without_evidence_the_budget_of_as_many_slices_as_others_have_is_assumed() -> None:
    known = {"chat": blocks(range(30), 10.0, slices=3), "code": blocks(range(30), 40.0, slices=1), "new": []}
    budgets = {**dict.fromkeys(known, BUDGET), "new": replace(BUDGET, num_blocks=2)}
    costs = endpoint_costs(known, budgets)
    assert (costs["new"].blocks_per_hour, costs["new"].is_rate_assumed) == (2 * 2 * 2, True)
    assert (costs["new"].seconds_per_block, costs["new"].is_time_assumed) == (25.0, True)
    only = endpoint_costs({"new": []}, {"new": replace(BUDGET, window=None)})["new"]
    assert (only.blocks_per_hour, only.seconds_per_block, only.busy_devices) == (None, None, None)


def cost(name: str, busy: float, seconds: float = 36.0) -> EndpointCost:
    return EndpointCost(name, 3_600.0 * busy / seconds, False, seconds, False, seconds**2)


def test_a_group_busier_than_may_be_waits_and_wants_more_engines() -> None:
    calm, busy = GroupCost(1, (cost("a", 0.2), cost("b", 0.3))), GroupCost(1, (cost("c", 0.9),))
    assert calm.busy_share == pytest.approx(0.5)
    assert (calm.is_too_busy, calm.engines_needed) == (False, 1)
    assert busy.is_too_busy
    assert busy.engines_needed == 2
    # Pollaczek and Khinchine, of equal blocks: half of what would be served in the wait at double the work.
    assert calm.block_wait_s == pytest.approx(36.0 * 0.5 / (2 * 0.5))
    assert busy.block_wait_s == pytest.approx(36.0 * 0.9 / (2 * 0.1))
    assert GroupCost(2, (cost("c", 0.9),)).is_too_busy is False
    unknown = GroupCost(1, (EndpointCost("new", None, True, None, True, 0.0),))
    assert (unknown.engines_needed, unknown.is_too_busy) == (None, False)


def test_a_group_that_cannot_keep_up_delays_the_others_unless_it_sheds() -> None:
    calm, behind = GroupCost(1, (cost("a", 0.2),)), GroupCost(1, (cost("b", 1.5),))
    assert behind.block_wait_s is None
    assert slowdown(calm, [calm, behind], is_shed=False) == slowdown(behind, [calm, behind], is_shed=True) == 1.5
    assert slowdown(calm, [calm, behind], is_shed=True) == 1.0
