"""Where an engine serves, latency that another one measured decides nothing; what reads no clock carries over."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shadowspec.gate.evidence.hypothesis import watch_detectors
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.endpoint_look import Look
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.recompute import explain
from shadowspec.gate.verdict.current_verdict import for_what_serves
from shadowspec.gate.verdict.decision import Hypothesis
from shadowspec.planning.forecasts import HypothesisPlan, plan_hypothesis
from shadowspec.store import Store
from shadowspec.types import Decision, Memory, Parity, Trial, Verdict
from tests.builders.hypothesis_evidence import HYPOTHESIS, POLICY, draw_runs, evidence_of, look, result, sampled
from tests.builders.watched_gate import Gate, enabled
from tests.builders.watched_gate import draw_runs as drawn_blocks
from tests.gate.feeding import Feed
from tests.gate.worlds import CONFIG, ENDPOINT, GRAPH, START, World, noisy_run

ON_VLLM = Hypothesis(ENDPOINT, "prompt_class=code", 4, replace(CONFIG, engine="vllm/0.32.0"))
SERVED_BY_VLLM = replace(POLICY, serving_engine="vllm 0.32")
HELD = (Verdict.HOLD, "other_engine")


def word(decision: Decision) -> tuple[Verdict, str]:
    return decision.verdict, decision.reason_code


@pytest.mark.parametrize(
    ("policy", "hypothesis", "code"),
    [
        (SERVED_BY_VLLM, HYPOTHESIS, "other_engine"),
        (SERVED_BY_VLLM, ON_VLLM, "all_tests_pass"),
        (replace(SERVED_BY_VLLM, serving_engine="vllm 0.31"), ON_VLLM, "other_engine"),
        (replace(SERVED_BY_VLLM, require_serving_engine=False), HYPOTHESIS, "all_tests_pass"),
        (POLICY, HYPOTHESIS, "all_tests_pass"),
    ],
)
def test_enable_needs_evidence_from_the_engine_that_serves(
    policy: GatePolicy, hypothesis: Hypothesis, code: str
) -> None:
    decision = look(evidence_of(draw_runs(400)), policy, hypothesis=hypothesis)
    assert decision.reason_code == code
    assert decision.verdict is (Verdict.HOLD if code == "other_engine" else Verdict.ENABLE)
    assert decision.serving_engine == policy.serving_engine
    assert result(decision, "speedup").outcome == "pass", "the figures are shown as they are"


def test_the_reason_names_both_engines_and_no_amount_of_evidence() -> None:
    decision = look(evidence_of(draw_runs(400)), SERVED_BY_VLLM)
    assert (
        decision.reason
        == f"Latency was measured on {CONFIG.engine}, and vllm 0.32 serves. Measure through two servers of vllm 0.32."
    )
    assert decision.clusters_needed is None


@pytest.mark.parametrize(("has_entered", "level"), [(False, None), (True, None)])
def test_it_is_told_before_anything_that_more_evidence_would_mend(has_entered: bool, level: float | None) -> None:
    decision = look(evidence_of(draw_runs(12)), SERVED_BY_VLLM, has_entered=has_entered, level=level)
    assert (word(decision), decision.clusters_needed) == (HELD, None)
    assert word(look(evidence_of(draw_runs(40)), SERVED_BY_VLLM)) == HELD, "too few units"


def test_data_that_cannot_be_judged_is_told_first() -> None:
    assert look(evidence_of(draw_runs(400), num_lost=30), SERVED_BY_VLLM).reason_code == "missing_data"


@pytest.mark.parametrize("changes", [{"speedup": 0.9}, {"speedup": 1.8, "slowed_share": 0.25}])
def test_no_slowdown_of_another_engine_disables(changes: dict[str, float]) -> None:
    evidence = evidence_of(draw_runs(800, **changes))
    assert look(evidence).verdict is Verdict.DISABLE
    assert word(look(evidence, SERVED_BY_VLLM)) == HELD
    assert look(evidence, SERVED_BY_VLLM, hypothesis=ON_VLLM).verdict is Verdict.DISABLE


def test_a_fault_disables_on_whatever_engine_it_was_seen() -> None:
    runs = draw_runs(400)
    runs[7] = replace(runs[7], parity=Parity(first_divergence=5, divergence_gap=0.5, rerun_differs=False))
    assert word(look(evidence_of(runs), SERVED_BY_VLLM)) == (Verdict.DISABLE, "parity_fault")


def test_memory_over_its_budget_disables_on_whatever_engine_it_was_taken() -> None:
    evidence = evidence_of(draw_runs(400))
    heavy = [
        replace(u, block=replace(u.block, memory={CONFIG.fingerprint: Memory(1, 9, 1, 0, 0)})) for u in evidence.blocks
    ]
    decision = look(replace(evidence, blocks=tuple(heavy)), SERVED_BY_VLLM)
    assert word(decision) == (Verdict.DISABLE, "memory_over_budget")


def test_biased_outputs_disable_though_a_slowdown_crosses_before_them() -> None:
    slow = {run.key: run for run in draw_runs(1_200, speedup=0.9)}
    runs = [replace(slow[run.key], parity=run.parity) for run in sampled(1_200, 0.06)]
    evidence = evidence_of(runs, is_greedy=False)
    assert word(look(evidence)) == (Verdict.DISABLE, "slowdown")
    assert word(look(evidence, SERVED_BY_VLLM)) == (Verdict.DISABLE, "parity_biased")


@pytest.mark.parametrize(("speedup", "verdict"), [(1.3, Verdict.ENABLE), (0.9, Verdict.DISABLE)])
def test_what_stood_on_latency_stands_no_longer_once_the_engine_is_named(speedup: float, verdict: Verdict) -> None:
    evidence = evidence_of(draw_runs(400, speedup=speedup))
    first = look(evidence)
    assert first.verdict is verdict
    second = look(evidence, SERVED_BY_VLLM, previous=first, now=START + timedelta(days=1))
    assert word(second) == HELD
    assert second.verdict_since == START + timedelta(days=1)
    third = look(evidence, POLICY, previous=second)
    assert third.verdict is verdict, "and is judged anew when the requirement is lifted"


def test_a_disable_that_carries_over_stands() -> None:
    runs = draw_runs(400)
    runs[7] = replace(runs[7], parity=Parity(first_divergence=5, divergence_gap=0.5, rerun_differs=False))
    first = look(evidence_of(runs))
    later = look(evidence_of(draw_runs(400)), SERVED_BY_VLLM, previous=first)
    assert word(later) == (Verdict.DISABLE, "parity_fault")


@pytest.mark.parametrize(
    ("verdict", "code", "is_held"),
    [
        (Verdict.ENABLE, "all_tests_pass", True),
        (Verdict.DISABLE, "slowdown", True),
        (Verdict.DISABLE, "tail_slowed", True),
        (Verdict.DISABLE, "drift", True),
        (Verdict.DISABLE, "parity_fault", False),
        (Verdict.DISABLE, "parity_biased", False),
        (Verdict.DISABLE, "memory_over_budget", False),
        (Verdict.HOLD, "too_few_units", False),
    ],
)
def test_who_acts_on_a_decision_made_before_the_naming_sees_what_stands(
    verdict: Verdict, code: str, is_held: bool
) -> None:
    decision = replace(look(evidence_of(draw_runs(400))), verdict=verdict, reason_code=code)
    (found,) = for_what_serves([decision], SERVED_BY_VLLM)
    assert (word(found) == HELD) is is_held
    assert found.tests == decision.tests
    for policy in (POLICY, replace(SERVED_BY_VLLM, require_serving_engine=False)):
        named = replace(decision, serving_engine=policy.serving_engine)
        assert for_what_serves([decision], policy) == [named], "for the engine that the policy names now"


def test_a_plan_promises_nothing_of_evidence_that_decides_nothing() -> None:
    folded = evidence_of(draw_runs(200)).folded(SERVED_BY_VLLM)

    def planned(hypothesis: Hypothesis, previous: Decision | None = None) -> HypothesisPlan:
        asked = Look(
            hypothesis, folded, SERVED_BY_VLLM, Trial(0.025, 0.0125, GRAPH), has_entered=True, previous=previous
        )
        return plan_hypothesis(asked, asked.decide(START), num_paths=20)

    held = planned(HYPOTHESIS)
    assert (held.verdict, held.clusters_median, held.enable_share) == (Verdict.HOLD, None, 0.0)
    assert (
        held.note == f"held: Latency was measured on {CONFIG.engine}, and vllm 0.32 serves. "
        "Measure through two servers of vllm 0.32."
    )
    assert planned(ON_VLLM).enable_share > 0.5
    enabled_before = replace(look(evidence_of(draw_runs(400))), verdict=Verdict.ENABLE)
    assert planned(HYPOTHESIS, enabled_before).note == held.note
    assert planned(ON_VLLM, enabled_before).note == "decided"
    fault = replace(enabled_before, verdict=Verdict.DISABLE, reason_code="parity_fault")
    assert planned(HYPOTHESIS, fault).note == "decided"


# From look to look.


def test_naming_the_engine_ends_an_enable_and_its_detectors_and_keeps_its_evidence() -> None:
    gate = enabled()
    gate.look(drawn_blocks(10, 1))
    free, gate.policy = gate.policy, replace(gate.policy, serving_engine="vllm")
    held = gate.look(drawn_blocks(10, 2))
    assert (word(held), held.ends_run) == (HELD, False)
    assert watch_detectors(held) == {}
    kept = gate.evidence[CONFIG.fingerprint]
    assert (kept.detectors, kept.runs.num_blocks) == ({}, 120)
    gate.policy = free
    again = gate.look(drawn_blocks(10, 3))
    assert (again.verdict, again.num_blocks) == (Verdict.ENABLE, 130)
    assert again.level == held.level, "no level was spent on it"
    assert gate.look(drawn_blocks(10, 4)).drift.detectors["speedup"].num_units == 10


def test_an_alarm_before_it_does_not_disable_what_serves() -> None:
    gate = enabled()
    for seed in range(1, 40):
        if gate.look(drawn_blocks(10, seed, speedup=1.0)).reason_code == "drift":
            break
    assert word(gate.rows[-1]) == (Verdict.DISABLE, "drift")
    assert word(gate.look(drawn_blocks(4, 50))) == (Verdict.DISABLE, "drift"), "meanwhile"
    gate.policy = replace(gate.policy, serving_engine="vllm")
    assert word(gate.look(drawn_blocks(4, 51))) == HELD


def test_an_alarm_and_the_naming_in_one_look_hold() -> None:
    gate = Gate()
    assert gate.look(drawn_blocks(100, 0)).verdict is Verdict.ENABLE
    gate.policy = replace(gate.policy, serving_engine="vllm")
    assert word(gate.look(drawn_blocks(200, 1, speedup=1.0))) == HELD


# Over a database.


@pytest.mark.representative("sqlite")
@pytest.mark.slow
def test_it_is_kept_with_the_decision_and_explained_to_the_last_figure(store: Store) -> None:
    """A policy changed between looks: each decision is recomputed under the one that it was made by."""
    policies = [
        GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0, serving_engine=None),
        GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0, serving_engine="vllm"),
        GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0, serving_engine="vllm", require_serving_engine=False),
        GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0, serving_engine="shadowspec-torch 0.1"),
    ]
    feed = Feed(store, World(160, make_run=noisy_run(speedup=1.4)).evidence())
    decided = []
    for number, policy in enumerate(policies):
        feed.write_blocks(100 + 20 * (number - 1) if number else 0, 100 + 20 * number)
        decided += run_endpoint_gate(
            store, ENDPOINT, policy, input_ended=None, now=START + timedelta(hours=number)
        ).decisions
    whole = [decision for decision in decided if not decision.slice_key]
    assert [word(decision) for decision in whole] == [
        (Verdict.ENABLE, "all_tests_pass"),
        HELD,
        (Verdict.ENABLE, "all_tests_pass"),
        (Verdict.ENABLE, "all_tests_pass"),
    ]
    for decision in decided:
        explanation = explain(store, decision.decision_id or 0)
        assert explanation.differences == ()
        assert explanation.recomputed.serving_engine == decision.serving_engine
