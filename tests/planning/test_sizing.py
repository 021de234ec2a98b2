"""What a shadow must be like to decide in time, from a plan whose rates and costs are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.planning.block_costs import CostSource, SessionCost, SessionCosts
from shadowspec.planning.plans import EndpointPlan, SlicePlan, plan_endpoint
from shadowspec.planning.sizing import MAX_BUSY, Sizing, devices_needed, size_endpoint, stored_costs, stored_traffic
from shadowspec.types import ArrivedRequest, BlockTime, RecordKey, Verdict
from tests.builders.cut_runs import cut
from tests.builders.production_gate import gated, looks_after
from tests.gate.oracle import EndpointEvidence
from tests.gate.worlds import World, noisy_run

DAY_S = 86_400.0
COSTS = SessionCosts(
    {("a", 4): SessionCost(0.5, 9, CostSource.BLOCKS), ("b", 4): SessionCost(2.0, 9, CostSource.BLOCKS)},
    {4: SessionCost(1.0, 18, CostSource.BLOCKS)},
    SessionCost(1.0, 18, CostSource.BLOCKS),
)
POLICY = GatePolicy(window_s=0.0, max_hypotheses=2, min_span_s=0.0)


def part(name: str, median: float | None, late: float | None, per_s: float = 0.0, span_s: float = 0.0) -> SlicePlan:
    return SlicePlan(name, 4, median, late, per_s, None, None, None, span_s, None)


def plan(*slices: SlicePlan, sample_rate: float = 0.5) -> EndpointPlan:
    return EndpointPlan("chat", (), slices, None, sample_rate, None, COSTS, None)


# A twentieth of a session per second comes for measuring at rate 0.5, a tenth at rate 1.
OWN = plan(part("", 2_000.0, 4_000.0), part("a", 900.0, 1_800.0, 0.04), part("b", 500.0, None, 0.01))


def test_the_rate_is_the_least_that_decides_the_last_question_in_time() -> None:
    sizing = size_endpoint(OWN, DAY_S, mirrored_per_s=3.0, is_late=False)
    # By slice b: 500 sessions a day of which 0.02 come per second.  The endpoint: 2,000 of 0.1; slice a: 900 of 0.08.
    assert sizing.sample_rate == pytest.approx(max(500 / (DAY_S * 0.02), 2_000 / (DAY_S * 0.1), 900 / (DAY_S * 0.08)))
    assert sizing.busy_devices == pytest.approx(sizing.sample_rate * (0.08 * 0.5 + 0.02 * 2.0))  # type: ignore[operator]
    assert sizing.too_slow == ()
    late = size_endpoint(OWN, DAY_S, mirrored_per_s=3.0, is_late=True)
    assert [plan.slice_key for plan in late.too_slow] == ["b"]
    assert late.sample_rate == pytest.approx(4_000 / (DAY_S * 0.1))


def test_more_traffic_wants_a_lower_rate_and_the_same_devices() -> None:
    base, more = (
        size_endpoint(OWN, DAY_S, mirrored_per_s=3.0, requests_per_s=per_s, is_late=False) for per_s in (3.0, 300.0)
    )
    assert base.sample_rate == pytest.approx(100 * (more.sample_rate or 0.0))
    assert base.busy_devices == pytest.approx(more.busy_devices)


def test_what_cannot_be_decided_in_time_is_named() -> None:
    hurried = size_endpoint(OWN, 60.0, mirrored_per_s=3.0, is_late=False)
    assert (hurried.sample_rate, hurried.busy_devices, len(hurried.too_slow)) == (None, None, 3)
    patient = plan(part("", 100.0, 100.0, span_s=7 * DAY_S), part("a", 50.0, 50.0, 1.0))
    sizing = size_endpoint(patient, DAY_S, mirrored_per_s=3.0, is_late=False)
    assert [slice_plan.slice_key for slice_plan in sizing.too_slow] == [""]
    done = plan(part("", 0.0, 0.0), part("a", 0.0, 0.0, 1.0))
    assert size_endpoint(done, DAY_S, mirrored_per_s=3.0, is_late=True) == Sizing("chat", 3.0, 0.0, 0.0, ())
    for unknown, traffic in ((OWN, None), (replace(OWN, costs=None), 3.0)):
        with pytest.raises(NoDataError, match="endpoint chat"):
            size_endpoint(unknown, DAY_S, mirrored_per_s=traffic, is_late=False)


def test_devices_are_shared_and_none_is_busier_than_may_be() -> None:
    assert devices_needed([1.5 * MAX_BUSY, 0.4 * MAX_BUSY]) == 2
    assert devices_needed([1.5 * MAX_BUSY, 0.4 * MAX_BUSY, 0.2 * MAX_BUSY, None]) == 3
    assert devices_needed([None]) is None


class Arrivals:
    """A store of so many requests, so many seconds apart."""

    def __init__(self, number: int, gap_s: float, weight: float) -> None:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        self._found = [
            ArrivedRequest(RecordKey("file", 0, line), "a", at + timedelta(seconds=line * gap_s), weight)
            for line in range(number)
        ]

    def arrivals(self, endpoint: str, *, limit: int) -> list[ArrivedRequest]:
        return self._found[-limit:]

    def block_times(self, endpoints: Sequence[str], *, limit: int) -> dict[str, list[BlockTime]]:
        return {name: [] for name in endpoints}


def test_an_endpoint_without_blocks_has_no_cost() -> None:
    assert stored_costs(Arrivals(1, 1.0, 1.0), ["chat"]) == {"chat": None}


@pytest.mark.parametrize(("number", "traffic"), [(101, 8.0), (1, None), (0, None)])
def test_traffic_is_that_of_the_mirror_whatever_is_sampled_of_it(number: int, traffic: float | None) -> None:
    assert stored_traffic(Arrivals(number, gap_s=0.5, weight=4.0), "chat") == traffic


@pytest.mark.all
@pytest.mark.slow
def test_what_deciding_was_said_to_cost_is_what_it_cost() -> None:
    """From a third of the blocks on, in worlds of a known speedup: most within a quarter, the median far closer.

    No clock is read: a block costs 0.9 to 1.7 s, drawn, and the plan knows those that it has seen.
    """
    errors = []
    for seed in range(12):
        world = World(200, make_run=noisy_run(noise=0.15)).evidence(seed)
        lengths = np.random.default_rng(seed).uniform(0.9, 1.7, 200)

        def decided(number: int, world: EndpointEvidence = world) -> Verdict:
            return gated(cut(world, number), POLICY)[0].verdict

        low, high = 4, 200  # verdicts stand once they are there: the first by halving
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if decided(middle) is Verdict.HOLD else (low, middle)
        early = high // 3
        seconds = SessionCost(float(lengths[:early].mean()) / 4, early, CostSource.BLOCKS)
        evidence = cut(world, early)
        looks = looks_after(evidence, POLICY)
        found = plan_endpoint("sql", looks, POLICY, sample_rate=1.0, capacity_per_s=None,
                              costs=SessionCosts({}, {}, seconds)).slices[0].shadow_time  # fmt: skip
        assert found is not None
        assert found.median_s is not None
        errors.append((found.so_far_s + found.median_s) / float(lengths[:high].sum()) - 1.0)
    assert np.median(np.abs(errors)) < 0.25
    assert abs(np.median(errors)) < 0.15
