"""A plan of an endpoint agrees with what then happens, and writes nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.trial_levels import with_level
from shadowspec.planning.block_costs import CostSource, SessionCost, SessionCosts
from shadowspec.planning.plans import EndpointPlan, SlicePlan, plan_endpoint
from shadowspec.types import Decision, Trial, Verdict
from tests.builders.cut_runs import cut
from tests.builders.production_gate import gated, looks_after
from tests.gate.oracle import EndpointEvidence
from tests.gate.worlds import CONFIG, GRAPH, START, World, noisy_run

POLICY = GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0)
CONFIGS = {CONFIG.fingerprint: CONFIG}
NAME = ("", 4, CONFIG.config.name)
SLICES = ("prompt_class=code", "prompt_class=sql")


def decided(evidence: EndpointEvidence, policy: GatePolicy = POLICY) -> list[Decision]:
    return gated(evidence, policy)


def planned(
    evidence: EndpointEvidence,
    policy: GatePolicy = POLICY,
    *,
    capacity_per_s: float | None = None,
    sample_rate: float = 0.5,
) -> EndpointPlan:
    looks = looks_after(evidence, policy)
    return plan_endpoint("sql", looks, policy, sample_rate=sample_rate, capacity_per_s=capacity_per_s)


def by_slice(plan: EndpointPlan) -> dict[str, SlicePlan]:
    return {part.slice_key: part for part in plan.slices}


def test_a_plan_agrees_with_what_then_happens() -> None:
    """The blocks after which the endpoint is really enabled lie within what the plan said at a sixth of them."""
    world = World(160, make_run=noisy_run()).evidence()
    hypothesis = planned(cut(world, 12)).hypotheses[0]
    assert hypothesis.is_open
    assert hypothesis.enable_share > 0.9
    really = next(n for n in range(16, 161, 4) if decided(cut(world, n))[0].verdict is Verdict.ENABLE)
    wanted = decided(cut(world, really))[0].num_clusters - decided(cut(world, 12))[0].num_clusters
    assert hypothesis.clusters_median is not None
    assert hypothesis.clusters_late is not None
    assert hypothesis.clusters_median / 2 <= wanted <= hypothesis.clusters_late * 1.5
    assert hypothesis.clusters_per_s is not None
    assert hypothesis.seconds_median == pytest.approx(hypothesis.clusters_median / hypothesis.clusters_per_s, rel=0.01)


def test_what_is_decided_wants_nothing() -> None:
    plan = planned(World(160, slices=SLICES, make_run=noisy_run()).evidence())
    assert [hypothesis.verdict for hypothesis in plan.hypotheses] == [Verdict.ENABLE] * 3
    assert {
        (hypothesis.is_open, hypothesis.clusters_median, hypothesis.seconds_late) for hypothesis in plan.hypotheses
    } == {(False, 0.0, 0.0)}
    assert {(part.clusters_late, part.seconds_late) for part in plan.slices} == {(0.0, 0.0)}


def test_after_a_drift_alarm_the_next_run_is_planned_whatever_stands_meanwhile() -> None:
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 12)
    looks = looks_after(evidence, POLICY)
    decisions = decided(evidence)
    alarmed = [
        replace(
            look,
            trial=with_level(replace(look.trial or Trial(1.0, None, GRAPH), num_restarts=1), NAME, {}),
            previous=replace(decisions[0], verdict=Verdict.DISABLE, reason_code="drift"),
        )
        for look in looks
    ]
    plan = plan_endpoint("sql", alarmed, POLICY, sample_rate=1.0, capacity_per_s=None)
    assert plan.hypotheses[0].is_open
    assert plan.hypotheses[0].verdict is Verdict.DISABLE
    in_force = [
        replace(look, previous=replace(decisions[0], verdict=Verdict.DISABLE, reason_code="slowdown")) for look in looks
    ]
    assert not plan_endpoint("sql", in_force, POLICY, sample_rate=1.0, capacity_per_s=None).hypotheses[0].is_open


def test_what_nothing_will_decide_is_said() -> None:
    evidence = World(60, slices=SLICES, make_run=noisy_run()).evidence()
    plan = planned(evidence, replace(POLICY, max_hypotheses=2))
    last = plan.hypotheses[-1]
    assert "all are taken" in last.note
    assert last.clusters_median is None
    assert by_slice(plan)[SLICES[1]].seconds_median is None
    full = planned(evidence, replace(POLICY, max_clusters=10)).hypotheses[0]
    assert full.note == (
        "held: 10 sessions did not decide the share of first tokens accepted, and no more count. "
        "Try another candidate, or change that limit in the policy."
    )


@pytest.mark.parametrize(
    ("policy", "counts", "run_counts", "words"),
    [
        ({}, {"num_lost": 400}, {}, "failed or were shed"),
        ({}, {"num_left_out": 400}, {}, "came after their session"),
        ({"max_evidence_age_s": 60.0}, {}, {}, "The newest evidence is of"),
        ({}, {}, {"num_unknown_parity": 40}, "outputs agree is unknown"),
        ({"memory_budget_share": 0.1}, {}, {"num_memory_blocks": 0}, "reports no memory"),
    ],
    ids=["missing", "late", "stale", "parity", "memory"],
)
def test_nothing_is_foreseen_of_what_the_gate_holds(
    policy: dict[str, float], counts: dict[str, int], run_counts: dict[str, int], words: str
) -> None:
    tried = replace(POLICY, **policy)  # type: ignore[arg-type]
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 12)
    looks = looks_after(evidence, tried)
    whole = [look for look in looks if not look.hypothesis.slice_key]
    runs = [replace(look.evidence.runs, **run_counts) for look in whole]  # type: ignore[arg-type]
    counted = [replace(look.evidence.counts, **counts) for look in whole]
    held = [
        replace(look, evidence=replace(look.evidence, runs=total, counts=count))
        for look, total, count in zip(whole, runs, counted, strict=True)
    ]
    later = START + timedelta(days=30)
    found = plan_endpoint("sql", held, tried, sample_rate=1.0, capacity_per_s=None, now=later).hypotheses
    assert all(not plan.is_open and plan.clusters_median is None and words in plan.note for plan in found)


def test_min_span_is_waited_for_by_enable() -> None:
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 20)
    patient = planned(evidence, replace(POLICY, min_span_s=1e6))
    hypothesis = patient.hypotheses[0]
    assert hypothesis.span_missing_s > 9e5
    assert hypothesis.seconds_median == pytest.approx(hypothesis.span_missing_s)
    assert by_slice(patient)[""].seconds_median == pytest.approx(hypothesis.span_missing_s)


def test_less_capacity_takes_longer_and_starts_at_lower_rates() -> None:
    evidence = cut(World(160, slices=SLICES, make_run=noisy_run()).evidence(), 30)
    free = planned(evidence)
    total = sum(plan.clusters_per_s for plan in free.slices if plan.slice_key)
    tight = planned(evidence, capacity_per_s=total / 4)
    assert free.recommended_sample_rate == 1.0
    assert {plan.starting_rate for plan in free.slices if plan.slice_key} == {1.0}
    assert tight.recommended_sample_rate == pytest.approx(0.5 / 4)
    for name in SLICES:
        slow, fast = by_slice(tight)[name], by_slice(free)[name]
        assert slow.seconds_late is not None
        assert fast.seconds_late is not None
        assert slow.seconds_late > 2 * fast.seconds_late
        assert slow.starting_rate is not None
        assert 0.0 < slow.starting_rate < 0.5
    used = sum((plan.starting_rate or 0.0) * plan.clusters_per_s / 0.5 for plan in tight.slices if plan.slice_key)
    assert used == pytest.approx(total / 4)


def test_a_hypothesis_that_has_not_entered_waits_for_its_entry() -> None:
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 2)
    hypothesis = planned(evidence).hypotheses[0]
    assert hypothesis.note.startswith("testing starts after ")
    assert hypothesis.clusters_median is not None
    assert hypothesis.clusters_median >= 20 - 2 * 4
    assert all(math.isfinite(test.passes_share) for test in hypothesis.tests)


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
    looks = looks_after(evidence, POLICY)
    plan = plan_endpoint("sql", looks, POLICY, sample_rate=0.5, capacity_per_s=None, costs=costs)
    for part, each_s in zip(plan.slices, (1.0, 0.5, 2.0), strict=True):
        assert part.shadow_time is not None
        assert part.clusters_median is not None
        assert part.shadow_time.median_s == pytest.approx(part.clusters_median * each_s)
        assert part.shadow_time.so_far_s == pytest.approx((96 if part.slice_key == "" else 48) * each_s)
    assert plan.shadow_time is not None
    assert plan.shadow_time.so_far_s == pytest.approx(96.0)
    # As both slices come alike, everything takes at least what the slower one does.
    assert plan.shadow_time.median_s is not None
    assert plan.shadow_time.median_s >= max(
        part.shadow_time.median_s or 0.0 for part in plan.slices if part.shadow_time
    )
    assert planned(evidence).shadow_time is None


def test_an_endpoint_of_which_no_open_question_can_be_decided_has_no_time_to_come() -> None:
    evidence = cut(World(160, make_run=noisy_run()).evidence(), 24)
    looks = looks_after(evidence, POLICY)
    each = SessionCost(1.0, 24, CostSource.ARMS)
    costs = SessionCosts({}, {}, each)
    policy = replace(POLICY, max_clusters=97)
    hopeless = [replace(look, policy=policy) for look in looks]
    plan = plan_endpoint("sql", hopeless, policy, sample_rate=0.5, capacity_per_s=None, costs=costs)
    assert plan.shadow_time is not None
    assert (plan.shadow_time.median_s, plan.shadow_time.late_s) == (None, None)
    assert plan.slices[0].shadow_time is not None
    assert plan.slices[0].shadow_time.median_s is None
