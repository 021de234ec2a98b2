"""A plan of an endpoint agrees with what then happens, and writes nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.planning.block_costs import CostSource, SessionCost, SessionCosts
from shadowspec.planning.plans import EndpointPlan, SlicePlan, plan_endpoint
from shadowspec.types import Decision, Verdict
from tests.gate.oracle import EndpointEvidence, decide_endpoint, endpoint_looks
from tests.gate.worlds import CONFIG, START, World, noisy_run
from tests.test_gating import cut

POLICY = GatePolicy(max_hypotheses=3, min_span_s=0.0)
CONFIGS = {CONFIG.fingerprint: CONFIG}
SLICES = ("prompt_class=code", "prompt_class=sql")


def decided(evidence: EndpointEvidence, policy: GatePolicy = POLICY) -> list[Decision]:
    return decide_endpoint(evidence, policy, CONFIGS, [4], [], input_ended=True, now=START)


def planned(
    evidence: EndpointEvidence,
    policy: GatePolicy = POLICY,
    *,
    capacity_per_s: float | None = None,
    sample_rate: float = 0.5,
) -> EndpointPlan:
    standing = decided(evidence, policy)
    looks = endpoint_looks(evidence, policy, CONFIGS, [4], standing, input_ended=True)
    return plan_endpoint("sql", looks, policy, sample_rate=sample_rate, capacity_per_s=capacity_per_s)


def by_slice(plan: EndpointPlan) -> dict[str, SlicePlan]:
    return {own.slice_key: own for own in plan.slices}


def test_a_plan_agrees_with_what_then_happens() -> None:
    """The blocks after which the endpoint is really enabled lie within what the plan said at a sixth of them."""
    world = World(160, make_run=noisy_run()).evidence()
    own = planned(cut(world, 12)).hypotheses[0]
    assert own.is_open
    assert own.enable_share > 0.9
    really = next(n for n in range(16, 161, 4) if decided(cut(world, n))[0].verdict is Verdict.ENABLE)
    wanted = decided(cut(world, really))[0].num_clusters - decided(cut(world, 12))[0].num_clusters
    assert own.clusters_median is not None
    assert own.clusters_late is not None
    assert own.clusters_median / 2 <= wanted <= own.clusters_late * 1.5
    assert own.clusters_per_s is not None
    assert own.seconds_median == pytest.approx(own.clusters_median / own.clusters_per_s, rel=0.01)


def test_what_is_decided_wants_nothing() -> None:
    plan = planned(World(160, slices=SLICES, make_run=noisy_run()).evidence())
    assert [own.verdict for own in plan.hypotheses] == [Verdict.ENABLE] * 3
    assert {(own.is_open, own.clusters_median, own.seconds_late) for own in plan.hypotheses} == {(False, 0.0, 0.0)}
    assert {(own.clusters_late, own.seconds_late) for own in plan.slices} == {(0.0, 0.0)}


def test_after_a_drift_alarm_the_next_run_is_planned_whatever_stands_meanwhile() -> None:
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 12)
    looks = endpoint_looks(evidence, POLICY, CONFIGS, [4], [], input_ended=True)
    standing = decided(evidence)
    alarmed = [
        replace(look, previous=replace(standing[0], verdict=Verdict.DISABLE, reason_code="drift")) for look in looks
    ]
    plan = plan_endpoint("sql", alarmed, POLICY, sample_rate=1.0, capacity_per_s=None)
    assert plan.hypotheses[0].is_open
    assert plan.hypotheses[0].verdict is Verdict.DISABLE
    stands = [
        replace(look, previous=replace(standing[0], verdict=Verdict.DISABLE, reason_code="slowdown")) for look in looks
    ]
    assert not plan_endpoint("sql", stands, POLICY, sample_rate=1.0, capacity_per_s=None).hypotheses[0].is_open


def test_what_nothing_will_decide_is_said() -> None:
    evidence = World(60, slices=SLICES, make_run=noisy_run()).evidence()
    plan = planned(evidence, replace(POLICY, max_hypotheses=2))
    last = plan.hypotheses[-1]
    assert "no level left" in last.note
    assert last.clusters_median is None
    assert by_slice(plan)[SLICES[1]].seconds_median is None
    full = planned(evidence, replace(POLICY, max_clusters=20)).hypotheses[0]
    assert "max_clusters" in full.note


def test_min_span_is_waited_for_by_enable() -> None:
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 20)
    patient = planned(evidence, replace(POLICY, min_span_s=1e6))
    own = patient.hypotheses[0]
    assert own.span_missing_s > 9e5
    assert own.seconds_median == pytest.approx(own.span_missing_s)
    assert by_slice(patient)[""].seconds_median == pytest.approx(own.span_missing_s)


def test_less_capacity_takes_longer_and_starts_at_lower_rates() -> None:
    evidence = cut(World(160, slices=SLICES, make_run=noisy_run()).evidence(), 30)
    free = planned(evidence)
    total = sum(own.clusters_per_s for own in free.slices if own.slice_key)
    tight = planned(evidence, capacity_per_s=total / 4)
    assert free.recommended_sample_rate == 1.0
    assert {own.starting_rate for own in free.slices if own.slice_key} == {1.0}
    assert tight.recommended_sample_rate == pytest.approx(0.5 / 4)
    for name in SLICES:
        slow, fast = by_slice(tight)[name], by_slice(free)[name]
        assert slow.seconds_late is not None
        assert fast.seconds_late is not None
        assert slow.seconds_late > 2 * fast.seconds_late
        assert slow.starting_rate is not None
        assert 0.0 < slow.starting_rate < 0.5
    used = sum((own.starting_rate or 0.0) * own.clusters_per_s / 0.5 for own in tight.slices if own.slice_key)
    assert used == pytest.approx(total / 4)


def test_a_hypothesis_that_has_not_entered_waits_for_its_entry() -> None:
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 2)
    own = planned(evidence).hypotheses[0]
    assert own.note.startswith("enters with ")
    assert own.clusters_median is not None
    assert own.clusters_median >= 20 - 2 * 4
    assert all(math.isfinite(test.passes_share) for test in own.tests)


def test_the_device_time_of_a_plan_is_that_of_its_sessions() -> None:
    costs = SessionCosts(
        {
            (SLICES[0], 4): SessionCost(0.5, 9, CostSource.BLOCKS),
            (SLICES[1], 4): SessionCost(2.0, 9, CostSource.BLOCKS),
        },
        {4: SessionCost(1.0, 18, CostSource.BLOCKS)},
        SessionCost(1.0, 18, CostSource.BLOCKS),
    )
    evidence = cut(World(160, slices=SLICES, make_run=noisy_run()).evidence(), 24)
    looks = endpoint_looks(evidence, POLICY, CONFIGS, [4], decided(evidence), input_ended=True)
    plan = plan_endpoint("sql", looks, POLICY, sample_rate=0.5, capacity_per_s=None, costs=costs)
    for own, each_s in zip(plan.slices, (1.0, 0.5, 2.0), strict=True):
        assert own.shadow_time is not None
        assert own.clusters_median is not None
        assert own.shadow_time.median_s == pytest.approx(own.clusters_median * each_s)
        assert own.shadow_time.so_far_s == pytest.approx((96 if own.slice_key == "" else 48) * each_s)
    assert plan.shadow_time is not None
    assert plan.shadow_time.so_far_s == pytest.approx(96.0)
    # As both slices come alike, everything takes at least what the slower one does.
    assert plan.shadow_time.median_s is not None
    assert plan.shadow_time.median_s >= max(own.shadow_time.median_s or 0.0 for own in plan.slices if own.shadow_time)
    assert planned(evidence).shadow_time is None


def test_an_endpoint_of_which_no_open_question_can_be_decided_has_no_time_to_come() -> None:
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 24)
    looks = endpoint_looks(evidence, POLICY, CONFIGS, [4], decided(evidence), input_ended=True)
    each = SessionCost(1.0, 24, CostSource.ARMS)
    costs = SessionCosts({}, {}, each)
    policy = replace(POLICY, max_clusters=97)
    hopeless = [replace(look, policy=policy) for look in looks]
    plan = plan_endpoint("sql", hopeless, policy, sample_rate=0.5, capacity_per_s=None, costs=costs)
    assert plan.shadow_time is not None
    assert (plan.shadow_time.median_s, plan.shadow_time.late_s) == (None, None)
    assert plan.slices[0].shadow_time is not None
    assert plan.slices[0].shadow_time.median_s is None
