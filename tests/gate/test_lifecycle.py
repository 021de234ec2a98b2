"""From look to look: ENABLE is watched, an alarm or a new fingerprint ends it, and each run starts afresh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, watch_detectors, watch_start
from shadowspec.gate.verdict.decision import Hypothesis
from shadowspec.gate.verdict.figure_texts import limit_text
from shadowspec.gate.verdict.lifecycle import decide_in_run, next_evidence
from shadowspec.gate.verdict.trial_levels import name_of, restart_level
from shadowspec.types import Decision, Parity, Run, SliceCounts, Verdict
from tests.builders.watched_gate import POLICY, SHARE, Gate, draw_runs, enabled
from tests.gate.worlds import CONFIG, ENDPOINT, START, block_unit, cluster_unit


def with_z(runs: Sequence[Run], mean: float) -> list[Run]:
    """The runs as those of sampled requests, of 128 tokens each."""
    return [replace(run, parity=Parity(z_sum=128 * mean, z_tokens=128, z_error=0.0)) for run in runs]


def test_enable_starts_the_detectors_after_the_units_that_proved_it() -> None:
    gate = enabled()
    first = gate.rows[-1]
    assert watch_start(first) == (100, 400)
    advisory = {"advisory_speedup", "advisory_acceptance"}
    assert set(watch_detectors(first)) == {"drift_speedup", "drift_acceptance", "drift_tail"} | advisory
    assert not first.ends_run
    second = gate.look(draw_runs(10, 1))
    assert second.verdict is Verdict.ENABLE
    assert (second.drift.detectors["speedup"].num_units, second.drift.detectors["acceptance"].num_units) == (10, 40)
    assert second.watch == first.watch, "the promise stays as it was"
    assert gate.look(draw_runs(10, 2)).drift.detectors["speedup"].num_units == 20


def test_the_detectors_start_at_enable_however_often_it_was_held_before() -> None:
    gate = Gate()
    for seed in range(12):
        decision = gate.look(draw_runs(10, seed))
        if decision.verdict is Verdict.ENABLE:
            break
    assert [row.verdict for row in gate.rows[:2]] == [Verdict.HOLD, Verdict.HOLD]
    assert decision.verdict is Verdict.ENABLE
    assert watch_start(decision) == (decision.num_blocks, decision.num_clusters)
    assert gate.look(draw_runs(10, 7)).drift.detectors["speedup"].num_units == 10


def test_a_hypothesis_that_holds_its_promise_stays_enabled() -> None:
    gate = enabled()
    for seed in range(1, 11):
        decision = gate.look(draw_runs(20, seed))
    assert (decision.verdict, decision.drift.advice) == (Verdict.ENABLE, None)
    assert decision.verdict_since == gate.rows[0].verdict_since


@pytest.mark.parametrize(("on_alarm", "verdict"), [("disable", Verdict.DISABLE), ("hold", Verdict.HOLD)])
def test_a_slowdown_after_enable_is_found_and_ends_it_by_policy(on_alarm: str, verdict: Verdict) -> None:
    gate = enabled(replace(POLICY, on_alarm=on_alarm))
    delays = []
    for seed in range(1, 40):
        decision = gate.look(draw_runs(10, seed, speedup=1.0))
        delays.append(10)
        if decision.reason_code == "drift":
            break
    assert decision.verdict is verdict
    assert "speedup no longer stays above 1.05" in decision.reason
    assert 70 <= sum(delays) <= 150
    assert decision.ends_run
    assert decision.verdict_since == decision.decided_at
    assert decision.num_blocks == 100 + sum(delays), "the row keeps the evidence it rested on"


def test_a_fall_of_acceptance_is_found() -> None:
    gate = enabled()
    decision = gate.look(draw_runs(80, 1, acceptance=0.2))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "drift")
    assert "the share of first tokens accepted no longer stays above 40.0%" in decision.reason


def test_a_rise_of_the_slowed_share_is_found() -> None:
    gate = enabled()
    decision = gate.look(draw_runs(40, 1, speedup=1.5, slowed_share=0.3))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "drift")
    assert decision.reason.startswith(
        "Since ENABLE, 40 units show that the share of slowed requests no longer stays below 10.0%."
    )
    assert set(decision.drift.detectors) == {"speedup", "acceptance", "tail"}


@pytest.mark.parametrize(("mean", "words"), [(-0.1, "above \u22120.0200"), (0.1, "below +0.0200")])
def test_a_bias_of_sampled_output_is_found_on_either_side(mean: float, words: str) -> None:
    gate = Gate(is_greedy=False)
    assert gate.look(with_z(draw_runs(100, 0), 0.0)).verdict is Verdict.ENABLE
    assert {"drift_z_low", "drift_z_high"} < set(watch_detectors(gate.rows[-1]))
    decision = gate.look(with_z(draw_runs(10, 1), mean))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "drift")
    assert f"40 units show that the bias of sampled outputs no longer stays {words}." in decision.reason


def test_a_greedy_fault_after_enable_revokes_it_at_once_and_for_good() -> None:
    gate = enabled()
    runs = draw_runs(1, 1)
    faulty = replace(runs[0], parity=Parity(first_divergence=3, divergence_gap=1.0, rerun_differs=False))
    decision = gate.look([faulty, *runs[1:]])
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "parity_fault")
    assert decision.reason.startswith("ENABLE is revoked. 1 greedy output differs from the target's")
    assert (decision.ends_run, decision.watch, decision.verdict_since) == (False, None, decision.decided_at)
    later = gate.look(draw_runs(100, 2))
    assert (later.verdict, later.reason, later.level) == (Verdict.DISABLE, decision.reason, decision.level)
    assert gate.look(draw_runs(10, 3), "other").verdict is Verdict.HOLD, "a new fingerprint begins a new run"


def test_memory_over_budget_revokes_enable() -> None:
    gate = enabled()
    gate.policy = replace(POLICY, memory_budget_share=0.05)
    decision = gate.look(draw_runs(1, 1))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "memory_over_budget")
    assert decision.reason.startswith("ENABLE is revoked. Speculation takes 10.0% more memory, and the budget is 5.0%.")


def test_advice_comes_before_the_alarm_and_changes_nothing() -> None:
    gate = enabled()
    decision = gate.look(draw_runs(60, 1, speedup=1.07))
    assert (decision.verdict, decision.drift.advice) == (Verdict.ENABLE, "speedup")


def test_after_an_alarm_a_run_at_a_lower_level_decides_on_new_evidence_alone() -> None:
    gate = enabled()
    alarmed = gate.look(draw_runs(150, 1, speedup=1.0))
    assert alarmed.reason_code == "drift"
    next_ = gate.look(draw_runs(10, 2))
    assert (next_.verdict, next_.reason_code) == (Verdict.DISABLE, "drift"), "off until the new run has proved itself"
    assert (next_.level, alarmed.level) == pytest.approx((restart_level(SHARE, 1), 0.9 * SHARE))
    assert (next_.num_blocks, next_.num_clusters) == (10, 40)
    assert next_.run.start_blocks == 250
    assert next_.verdict_since == alarmed.verdict_since
    assert "A drift alarm ended run 1" in next_.reason
    recovered = gate.look(draw_runs(120, 3))
    assert (recovered.verdict, recovered.level) == (Verdict.ENABLE, next_.level)
    assert watch_start(recovered) == (130, 520), "counted within its run"
    again = gate.look(draw_runs(150, 4, speedup=1.0))
    assert again.reason_code == "drift"
    assert gate.look(draw_runs(10, 5)).level == pytest.approx(restart_level(SHARE, 2))


def test_a_run_after_an_alarm_may_disable() -> None:
    gate = enabled()
    gate.look(draw_runs(150, 1, speedup=1.0))
    slow = gate.look(draw_runs(200, 2, speedup=0.85))
    assert (slow.verdict, slow.reason_code) == (Verdict.DISABLE, "slowdown")
    assert gate.look(draw_runs(20, 3, speedup=1.6)).reason_code == "slowdown", "a verdict of the tests stands"


def test_a_new_fingerprint_holds_until_it_has_proved_itself() -> None:
    gate = enabled()
    decision = gate.look(draw_runs(10, 1), "other")
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "changed_fingerprint")
    assert (decision.level, decision.num_blocks) == (pytest.approx(restart_level(SHARE, 1)), 10)
    assert f"the fingerprint was {CONFIG.fingerprint[:12]} before" in decision.reason
    old = gate.rows[-2]
    assert (old.fingerprint, old.verdict) == (CONFIG.fingerprint, Verdict.HOLD)
    assert old.supersession.verdict == "ENABLE"
    proved = gate.look(draw_runs(120, 2), "other")
    assert (proved.verdict, proved.reason_code) == (Verdict.ENABLE, "all_tests_pass")


def test_other_reasons_to_hold_say_more_than_the_new_fingerprint() -> None:
    gate = enabled()
    decision = gate.look(draw_runs(120, 1, acceptance=0.2), "other")
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "low_acceptance")


def test_a_disable_does_not_outlive_its_fingerprint() -> None:
    gate = Gate()
    assert gate.look(draw_runs(200, 0, speedup=0.85)).reason_code == "slowdown"
    assert gate.look(draw_runs(10, 1), "other").verdict is Verdict.HOLD


def test_a_fingerprint_that_returns_begins_anew() -> None:
    gate = enabled()
    gate.look(draw_runs(10, 1), "other")
    back = gate.look(draw_runs(10, 2))
    assert (back.verdict, back.reason_code, back.num_blocks) == (Verdict.HOLD, "changed_fingerprint", 10)
    assert (back.level, back.run.start_blocks) == (pytest.approx(restart_level(SHARE, 2)), 100)
    assert [name_of(row) for row in gate.rows] == [("prompt_class=code", 4, CONFIG.config.name)] * len(gate.rows)


def test_without_a_level_there_is_no_run() -> None:
    hypothesis = Hypothesis(ENDPOINT, "prompt_class=code", 4, CONFIG)
    decision = decide_in_run(
        hypothesis, HypothesisEvidence(), POLICY, trial=None, has_entered=True, previous=None, now=START
    )
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "no_level_left")
    assert decision.run is None
    assert next_evidence(HypothesisEvidence(counts=SliceCounts(num_late=3)), decision) == HypothesisEvidence(
        counts=SliceCounts(num_late=3)
    )


def with_policy(gate: Gate, seed: int, **limits: Any) -> Decision:
    """The decision after ten more blocks of the same world, under the policy with these limits."""
    gate.policy = replace(POLICY, **limits)
    return gate.look(draw_runs(10, seed))


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("speedup", {"margin": 0.5}),
        ("acceptance", {"floor": 0.9}),
        ("tail", {"tail_share": 0.001}),
        ("parity_near_ties", {"parity_margin": 0.001}),
        ("parity_faults", {"max_fault_share": 0.001}),
        ("p95", {"p95_margin": 0.0}),
        ("ttft", {"ttft_margin": 0.0}),
    ],
)
def test_an_enable_whose_bound_no_longer_meets_the_policy_holds_until_it_does(
    name: str, limits: dict[str, object]
) -> None:
    gate = enabled()
    before = gate.rows[-1]
    held = with_policy(gate, 1, **limits)
    assert (held.verdict, held.reason_code) == (Verdict.HOLD, "policy_changed")
    test = next(test for test in held.tests if test.name == name)
    assert f"it must be {limit_text(test)}." in held.reason
    assert (held.watch, held.level, held.ends_run) == (before.watch, before.level, False)
    again = with_policy(gate, 2)
    assert (again.verdict, again.reason, again.level) == (Verdict.ENABLE, before.reason, before.level)
    assert again.verdict_since == again.decided_at
    assert again.drift is not None
    assert again.drift.detectors["speedup"].num_units == 20, "they watched while the policy held it"


def test_a_loosened_look_leaves_no_enable_behind() -> None:
    """Truth 1.03x: proven against a margin of 0, and shown as HOLD once the margin of 5% is back."""
    gate = Gate(replace(POLICY, margin=0.0))
    seed = 0
    while (decision := gate.look(draw_runs(40, seed, speedup=1.03))).verdict is not Verdict.ENABLE:
        seed += 1
    gate.policy = POLICY
    decision = gate.look(draw_runs(10, seed + 1, speedup=1.03))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "policy_changed")
    gate.policy = replace(POLICY, margin=0.0)
    assert gate.look(draw_runs(10, seed + 2, speedup=1.03)).verdict is Verdict.ENABLE


def test_a_capital_that_has_fallen_since_enable_changes_nothing_while_the_limits_stay() -> None:
    gate = enabled(replace(POLICY, drift_run_length=10**40))
    decision = gate.look(draw_runs(300, 1, speedup=0.98))
    speedup = decision.find_test("speedup")
    assert decision.verdict is Verdict.ENABLE
    assert speedup is not None
    assert speedup.outcome != "pass", "its capital is below what ENABLE needs"
    gate.policy = replace(gate.policy, margin=0.06)
    assert gate.look(draw_runs(1, 2)).verdict is Verdict.ENABLE, "the bound at ENABLE proves it still"


def test_a_test_that_the_policy_newly_asks_for_must_pass_now() -> None:
    gate = enabled()
    assert with_policy(gate, 1, objective="both").verdict is Verdict.ENABLE
    held = with_policy(gate, 2, ttft_margin=0.5)
    assert (
        "The speedup of the first token is 1.00\u00d7 [0.81\u00d7, 1.23\u00d7] and was not required at ENABLE; "
        "it must be above 0.67\u00d7." in held.reason
    )


def test_the_detectors_follow_the_limits_under_which_enable_is_in_force() -> None:
    gate = enabled()
    moved = with_policy(gate, 1, margin=0.02)
    assert moved.verdict is Verdict.ENABLE
    assert moved.watch is not None
    assert moved.watch.promises["drift_speedup"].promise == math.log1p(0.02)
    assert watch_start(moved) == (110, 440)
    assert set(gate.evidence[CONFIG.fingerprint].detectors.values()) == set(watch_detectors(moved).values())
    later = with_policy(gate, 2, margin=0.02)
    assert later.drift is not None
    assert (later.watch, later.drift.detectors["speedup"].num_units) == (moved.watch, 10)


def test_a_detector_fires_while_the_policy_holds_an_enable() -> None:
    gate = enabled()
    gate.policy = replace(POLICY, margin=0.5)
    assert gate.look(draw_runs(10, 1)).reason_code == "policy_changed"
    alarmed = gate.look(draw_runs(150, 2, speedup=1.0))
    assert (alarmed.reason_code, alarmed.ends_run) == ("drift", True)


def test_a_longer_span_holds_an_enable_that_covers_less() -> None:
    gate = enabled()
    held = with_policy(gate, 1, min_span_s=7 * 86_400.0)
    assert (held.verdict, held.reason_code) == (Verdict.HOLD, "policy_changed")
    assert "1 of the 7 days needed" in held.reason


def disabled(num_runs: int = 40, **world: float) -> Gate:
    gate = Gate()
    assert gate.look(draw_runs(num_runs, 0, **world)).verdict is Verdict.DISABLE
    return gate


@pytest.mark.parametrize(
    ("world", "code", "promise"),
    [
        ({"speedup": 0.9}, "slowdown", {"reopen_speedup": (math.log1p(0.05), -math.log(2.0))}),
        ({"num_runs": 400, "speedup": 1.5, "slowed_share": 0.3}, "tail_slowed", {"reopen_tail": (0.1, 1.0)}),
    ],
)
def test_a_disable_that_new_evidence_refutes_begins_a_run_and_stays_until_it_decides(
    world: dict[str, Any], code: str, promise: dict[str, tuple[float, float]]
) -> None:
    gate = disabled(**world)
    first = gate.rows[-1]
    assert first.reason_code == code
    assert {name: (each.promise, each.best) for name, each in watch_detectors(first).items()} == promise
    reopened = gate.look(draw_runs(200, 1))
    assert (reopened.verdict, reopened.reason_code, reopened.ends_run) == (Verdict.DISABLE, "reopened", True)
    assert "stays in force until the next run decides" in reopened.reason
    undecided = gate.look(draw_runs(10, 2))
    assert (undecided.verdict, undecided.reason_code) == (Verdict.DISABLE, "reopened")
    assert (undecided.level, undecided.num_blocks) == (pytest.approx(restart_level(SHARE, 1)), 10)
    assert undecided.verdict_since == first.verdict_since
    assert undecided.reason.startswith("New evidence refuted the DISABLE of run 1, which stays in force until")
    assert gate.look(draw_runs(150, 3)).verdict is Verdict.ENABLE


@pytest.mark.parametrize("mean", [-0.1, 0.1])
def test_a_bias_of_either_side_that_ended_is_refuted(mean: float) -> None:
    gate = Gate(is_greedy=False)
    decision = gate.look(with_z(draw_runs(100, 0), mean))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "parity_biased")
    (detector,) = watch_detectors(decision).values()
    assert detector.promise == math.copysign(0.02, mean)
    assert gate.look(with_z(draw_runs(50, 1), mean)).reason_code == "parity_biased"
    assert gate.look(with_z(draw_runs(200, 2), 0.0)).reason_code == "reopened"


def test_a_run_that_reopened_may_disable_again_and_reopen_again() -> None:
    gate = disabled(speedup=0.8)
    gate.look(draw_runs(200, 1))
    assert gate.look(draw_runs(100, 2, speedup=0.8)).reason_code in {"slowdown", "tail_slowed"}
    assert gate.look(draw_runs(200, 3)).reason_code == "reopened"
    assert gate.look(draw_runs(10, 4)).level == pytest.approx(restart_level(SHARE, 2))


def test_an_arm_that_fails_refutes_no_disable() -> None:
    gate = disabled(speedup=0.9)
    failed = [replace(run, failure="timeout", speculative=None) for run in draw_runs(300, 1)]
    assert gate.look(failed).reason_code == "slowdown"


def test_a_fault_makes_a_disable_final() -> None:
    gate = disabled(speedup=0.9)
    runs = draw_runs(1, 1)
    faulty = replace(runs[0], parity=Parity(first_divergence=3, divergence_gap=1.0, rerun_differs=False))
    decision = gate.look([faulty, *runs[1:]])
    assert (decision.verdict, decision.reason_code, decision.watch) == (Verdict.DISABLE, "parity_fault", None)
    assert gate.look(draw_runs(300, 2)).reason_code == "parity_fault"
    assert not gate.evidence[CONFIG.fingerprint].detectors


def test_a_new_fingerprint_ends_a_reopened_run_without_its_verdict() -> None:
    gate = disabled(speedup=0.9)
    gate.look(draw_runs(200, 1))
    assert gate.look(draw_runs(10, 2), "other").reason_code == "changed_fingerprint"


def without_level(runs: Sequence[Run], before: Decision | None = None) -> Decision:
    """The decision on a hypothesis for which no level is left, after these runs."""
    blocks = [block_unit(at // 4, list(runs[at : at + 4])) for at in range(0, len(runs), 4)]
    clusters = [cluster_unit(at, [run]) for at, run in enumerate(runs)]
    evidence = HypothesisEvidence(counts=SliceCounts(num_closed_clusters=100)).fold(clusters, blocks, POLICY)
    place = Hypothesis(ENDPOINT, "prompt_class=code", 4, CONFIG)
    return decide_in_run(place, evidence, POLICY, trial=None, has_entered=True, previous=before, now=START)


def test_levels_guard_enable_only() -> None:
    slow = without_level(draw_runs(40, 0, speedup=0.87))
    assert (slow.verdict, slow.reason_code, slow.level, slow.watch) == (Verdict.DISABLE, "slowdown", None, None)
    fast = without_level(draw_runs(400, 0, speedup=1.5))
    assert (fast.verdict, fast.reason_code) == (Verdict.HOLD, "no_level_left")
    again = without_level(draw_runs(400, 0, speedup=1.5), before=slow)
    assert again.reason_code == "no_level_left", "without a level DISABLE stands while its bound crosses"
