"""Verdicts: ENABLE only if every required test passes at this look, DISABLE only on proof, HOLD with its reason."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.decision import decide
from shadowspec.types import CachedPrompts, Memory, Parity, Trial, Verdict
from tests.builders.hypothesis_evidence import (
    HYPOTHESIS,
    POLICY,
    Seen,
    correlated,
    costly_tail,
    draw_runs,
    evidence_of,
    look,
    result,
    sampled,
)
from tests.gate.worlds import CONFIG, GRAPH, START, run_of


def test_a_clearly_faster_hypothesis_is_enabled_and_names_every_test() -> None:
    decision = look(evidence_of(draw_runs(400)))
    assert decision.verdict is Verdict.ENABLE
    assert decision.reason_code == "all_tests_pass"
    assert {test.name for test in decision.tests} == {
        "speedup",
        "total_time",
        "acceptance",
        "tail",
        "parity_near_ties",
        "parity_faults",
        "memory",
    }
    speedup = result(decision, "speedup")
    assert speedup.threshold == pytest.approx(1.05)
    assert speedup.lower is not None
    assert speedup.upper is not None
    assert 1.05 < speedup.lower <= 1.3 <= speedup.upper
    assert decision.clusters_needed is None
    assert decision.engine == CONFIG.engine


@pytest.mark.all
def test_the_size_of_an_enable() -> None:
    """Speedup 1.3, nothing slowed, level .0125: 47 blocks in the median, 70 for nine of ten, measured over 100 runs."""
    looks, first = (45, 46, 47, 51, 56, 62, 68, 74), []
    for seed in range(30):
        runs = draw_runs(320, seed)
        enabled = [n for n in looks if look(evidence_of(runs[: 4 * n])).verdict is Verdict.ENABLE]
        first.append(enabled[0] if enabled else 999)
    assert 46 <= np.median(first) <= 51
    assert sum(size <= 74 for size in first) >= 0.8 * len(first)


def test_nothing_passes_on_empty_data() -> None:
    decision = look(evidence_of([]))
    assert decision.verdict is Verdict.HOLD
    assert all(test.outcome == "open" for test in decision.tests)


@pytest.mark.all
def test_false_verdicts_at_the_boundary_under_peeking() -> None:
    """ENABLE at a speedup that is not above the margin happens at most at the level, whenever one looks."""
    num_worlds, false = 40, 0
    for seed in range(num_worlds):
        runs = draw_runs(480, 1_000 + seed, speedup=1.05, noise=0.1)
        looks = range(240, 481, 80)
        false += any(look(evidence_of(runs[:size])).verdict is Verdict.ENABLE for size in looks)
    assert false / num_worlds <= 0.0125 + 3 * math.sqrt(0.0125 / num_worlds)


def test_a_slower_hypothesis_is_disabled() -> None:
    decision = look(evidence_of(draw_runs(400, speedup=0.9)))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "slowdown")


def test_disable_needs_its_part_of_the_level() -> None:
    """Any of four bounds may disable: speedup, tail and both of z."""
    num_bounds = 4
    runs = [run_of(index, f"b{index // 4:05d}", log_speedup=-0.05 - 0.01 * (index % 3)) for index in range(400)]
    looks = [result(look(evidence_of(runs[:size])), "speedup") for size in range(80, 240, 4)]
    logs = [float(test.betting.log10_capital_fail or 0.0) for test in looks]
    assert any(math.log10(1 / 0.0125) <= log < math.log10(num_bounds / 0.0125) for log in logs)
    for test, log in zip(looks, logs, strict=True):
        assert test.outcome == ("fail" if log >= math.log10(num_bounds / 0.0125) else "open")


def test_many_slowed_requests_disable_even_if_the_mean_is_fast() -> None:
    decision = look(evidence_of(draw_runs(800, speedup=1.8, slowed_share=0.25)))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "tail_slowed")
    assert result(decision, "speedup").outcome == "pass"


def test_low_acceptance_alone_holds_and_never_disables() -> None:
    decision = look(evidence_of(draw_runs(400, acceptance=0.25)))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "low_acceptance")
    slow = look(evidence_of(draw_runs(400, acceptance=0.25, speedup=0.9)))
    assert (slow.verdict, slow.reason_code) == (Verdict.DISABLE, "slowdown")
    assert "share of first tokens accepted is 24.8%" in slow.reason


def test_one_greedy_fault_disables_and_a_near_tie_does_not() -> None:
    runs = draw_runs(400)
    near = Parity(first_divergence=5, divergence_gap=0.0009, rerun_differs=False)
    fault = replace(near, divergence_gap=0.0011)
    runs[7] = replace(runs[7], parity=near)
    assert look(evidence_of(runs)).verdict is Verdict.ENABLE
    runs[7] = replace(runs[7], parity=fault)
    decision = look(evidence_of(runs))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "parity_fault")
    bf16 = replace(HYPOTHESIS, config=replace(CONFIG, dtype="bfloat16"))
    assert look(evidence_of(runs), hypothesis=bf16).verdict is Verdict.ENABLE


@pytest.mark.parametrize(("max_hypotheses", "smallest"), [(1, 72), (2, 86), (4, 99), (8, 113), (32, 140)])
def test_requests_that_exclude_faults_are_the_designs(max_hypotheses: int, smallest: int) -> None:
    level = 0.05 / max_hypotheses / 2
    policy = replace(POLICY, max_hypotheses=max_hypotheses)
    assert result(look(evidence_of(draw_runs(smallest)), policy, level=level), "parity_faults").outcome == "pass"
    short = result(look(evidence_of(draw_runs(smallest - 1)), policy, level=level), "parity_faults")
    assert (short.outcome, short.min_units, short.units_needed) == ("open", smallest, 1)


def test_many_near_ties_hold() -> None:
    near = Parity(first_divergence=5, divergence_gap=0.0, rerun_differs=False)
    runs = [replace(run, parity=near) if index % 4 == 0 else run for index, run in enumerate(draw_runs(400))]
    decision = look(evidence_of(runs))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "near_ties")
    same = replace(near, rerun_differs=True)
    runs = [replace(run, parity=same) if index % 4 == 0 else run for index, run in enumerate(draw_runs(400))]
    assert look(evidence_of(runs)).verdict is Verdict.ENABLE, "the baseline differs from itself as often"


def test_sampled_parity_passes_within_its_bound_and_disables_outside() -> None:
    good = look(evidence_of(sampled(1_200, 0.0), is_greedy=False))
    assert (good.verdict, result(good, "parity_sampled").outcome) == (Verdict.ENABLE, "pass")
    for shift in (-0.06, 0.06):
        bad = look(evidence_of(sampled(1_200, shift), is_greedy=False))
        assert (bad.verdict, bad.reason_code) == (Verdict.DISABLE, "parity_biased")


def test_both_sampling_regimes_must_pass() -> None:
    greedy, few = draw_runs(400), sampled(8, 0.0)
    few = [replace(run, key=run.key._replace(partition=1)) for run in few]
    one, other = evidence_of(greedy), evidence_of(few, is_greedy=False)
    both = replace(one, clusters=one.clusters + other.clusters, blocks=one.blocks + other.blocks)
    decision = look(both)
    assert result(decision, "parity_faults").outcome == "pass"
    assert result(decision, "parity_sampled").outcome == "open"
    assert decision.verdict is Verdict.HOLD


def test_unknown_parity_holds() -> None:
    decision = look(evidence_of([replace(run, parity=None) for run in draw_runs(400)]))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "unknown_parity")


@pytest.mark.parametrize(
    ("shift", "error", "reason"),
    [
        (0.0, 0.002, "all_tests_pass"),
        (0.0, 0.011, "unknown_parity"),
        (0.15, 0.05, "parity_biased"),
        (-0.15, 0.05, "parity_biased"),
    ],
)
def test_sampled_parity_that_is_known_too_loosely_holds_but_a_larger_fault_disables(
    shift: float, error: float, reason: str
) -> None:
    runs = [
        replace(run, parity=replace(run.parity, z_error=error * (run.parity.z_tokens or 0)))
        for run in sampled(1_200, shift)
        if run.parity is not None
    ]
    decision = look(evidence_of(runs, is_greedy=False))
    assert decision.reason_code == reason


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (replace(POLICY, memory_budget_share=0.10), "pass"),
        (replace(POLICY, memory_budget_share=0.0999), "fail"),
        (replace(POLICY, memory_budget_share=None, memory_budget_tokens=100), "pass"),
        (replace(POLICY, memory_budget_tokens=99), "fail"),
    ],
)
def test_memory_over_budget_disables(policy: GatePolicy, outcome: str) -> None:
    decision = look(evidence_of(draw_runs(400)), policy)  # 1.0 MB and 1.1 MB peak, 1,000 bytes a token
    assert result(decision, "memory").outcome == outcome
    assert decision.verdict is (Verdict.ENABLE if outcome == "pass" else Verdict.DISABLE)


def test_one_block_over_budget_is_enough() -> None:
    evidence = evidence_of(draw_runs(400))
    heavy = replace(evidence.blocks[3].block, memory={CONFIG.fingerprint: Memory(100, 200, 1, 0, 0)})
    blocks = (*evidence.blocks[:3], replace(evidence.blocks[3], block=heavy), *evidence.blocks[4:])
    assert look(replace(evidence, blocks=blocks)).reason_code == "memory_over_budget"


def test_missing_requests_are_folded_at_the_worst_and_too_many_of_them_hold() -> None:
    runs = draw_runs(400)
    some = [run_of(i, run.block_id, failure="timeout") if i % 25 == 0 else run for i, run in enumerate(runs)]
    folded = look(evidence_of(some))
    assert folded.evidence.missing_share == pytest.approx(0.04)
    for name, bound in (
        ("speedup", "lower"),
        ("acceptance", "lower"),
        ("tail", "upper"),
        ("parity_near_ties", "upper"),
    ):
        whole, less = getattr(result(look(evidence_of(runs)), name), bound), getattr(result(folded, name), bound)
        assert less < whole if bound == "lower" else less > whole
    many = [run_of(i, run.block_id, failure="timeout") if i % 19 == 0 else run for i, run in enumerate(runs)]
    assert look(evidence_of(many)).reason_code == "missing_data"
    assert look(evidence_of(runs, num_lost=30)).reason_code == "missing_data", "shed requests count"


def test_requests_that_their_clusters_missed_hold_beyond_the_same_share() -> None:
    """Clusters without what came out of order are not those of the traffic; what is late by the rules holds nothing."""
    seen = evidence_of(draw_runs(380))
    within = look(replace(seen, num_left_out=20))
    assert (within.verdict, within.evidence.late_share) == (Verdict.ENABLE, 0.05)
    beyond = look(replace(seen, num_left_out=21))
    assert (beyond.verdict, beyond.reason_code) == (Verdict.HOLD, "late_data")
    assert (beyond.evidence.counts.num_left_out, beyond.evidence.late_share) == (21, pytest.approx(21 / 401))
    assert look(replace(seen, num_left_out=21), replace(POLICY, max_missing=0.06)).verdict is Verdict.ENABLE
    on_time = seen.folded(POLICY)
    late = replace(on_time, counts=replace(on_time.counts, num_late=1_000))
    assert decide(
        HYPOTHESIS, late, POLICY, trial=Trial(0.025, 0.0125, GRAPH), has_entered=True, previous=None, now=START
    ).verdict is (Verdict.ENABLE)


@pytest.mark.parametrize(
    ("cached", "said"),
    [
        (CachedPrompts(), None),
        (CachedPrompts(100, 1_000, 700, 500, 0), None),
        (CachedPrompts(99, 1_000, 700, 0, 0), None),
        (
            CachedPrompts(100, 1_000, 701, 500, 0),
            "Production's cache held 70.1% of the prompt tokens of 100 requests, and the baseline's 50.0%. "
            'The limit of the difference is 20.0%. Measure with `prefix_cache = "as_served"`.',
        ),
        (CachedPrompts(100, 1_000, 299, 500, 500), 'Measure with `prefix_cache = "evicted"` or `"on"`.'),
    ],
)
def test_caches_that_held_other_shares_than_productions_hold(cached: CachedPrompts, said: str | None) -> None:
    """The time of a prompt that is found is another one, in both arms."""
    seen = replace(evidence_of(draw_runs(380)), cached=cached)
    decision = look(seen)
    assert decision.reason_code == ("all_tests_pass" if said is None else "cache_mismatch")
    assert decision.evidence.counts.cached == cached
    assert (said or "") in decision.reason
    assert look(seen, replace(POLICY, max_cache_gap=1.0)).verdict is Verdict.ENABLE


def test_the_remedy_of_fewer_hits_is_more_sessions_where_caches_are_as_served() -> None:
    config = replace(HYPOTHESIS.config, details={**HYPOTHESIS.config.details, "prefix_cache": "as_served"})
    seen = replace(evidence_of(draw_runs(380)), cached=CachedPrompts(100, 1_000, 701, 500, 0)).folded(POLICY)
    trial = Trial(0.025, 0.0125, GRAPH)
    hypothesis = replace(HYPOTHESIS, config=config)
    decision = decide(hypothesis, seen, POLICY, trial=trial, has_entered=True, previous=None, now=START)
    assert "Raise `sample_rate`." in decision.reason


@pytest.mark.parametrize(
    ("num_other", "verdict"), [(0, "all_tests_pass"), (8, "all_tests_pass"), (9, "prompt_mismatch")]
)
def test_prompts_that_production_counts_otherwise_hold_beyond_their_share(num_other: int, verdict: str) -> None:
    """They were not the prompts that production served."""
    seen = replace(evidence_of(draw_runs(380)), num_compared_prompts=400, num_other_prompts=num_other)
    decision = look(seen)
    assert (decision.reason_code, decision.evidence.counts.num_other_prompts) == (verdict, num_other)
    assert look(seen, replace(POLICY, max_prompt_mismatch=1.0)).verdict is Verdict.ENABLE
    if num_other > 8:
        assert "in 2.2% of 400 prompts, and the limit is 2.0%." in decision.reason


@pytest.mark.parametrize(("num_beyond", "verdict"), [(0, "all_tests_pass"), (100, "all_tests_pass"), (101, "untimed")])
def test_enable_does_not_speak_for_turns_that_are_never_timed(num_beyond: int, verdict: str) -> None:
    seen = replace(evidence_of(draw_runs(380)), num_arrived=400, num_beyond=num_beyond)
    decision = look(seen)
    assert decision.reason_code == verdict
    assert look(seen, replace(POLICY, max_untimed_share=0.3)).verdict is Verdict.ENABLE
    if num_beyond > 100:
        assert decision.reason == (
            "25.2% of 400 requests come after the first 4 of their session and are never timed; the limit is 25.0%. "
            "Raise `timed_positions` for the worker."
        )


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((0.5,), "all_tests_pass"),
        ((0.5, 0.5 + 1e-12), "all_tests_pass"),
        ((0.5, 0.02), "changed_rate"),
        ((0.1, 0.02), "changed_rate"),  # `min_rate` is no smallest rate here: an operator's
        ((0.5, 0.1), "all_tests_pass"),  # the worker's, while the slice was decided
        ((0.5, 0.3, 0.1), "changed_rate"),
    ],
)
def test_a_trial_whose_sample_rate_changed_holds(rates: tuple[float, ...], verdict: str) -> None:
    seen, trial = evidence_of(draw_runs(380)), replace(POLICY, recording_only=True, window_s=0.0)
    each = itertools.cycle(rates)
    blocks = tuple(
        replace(unit, runs=tuple(replace(run, sampling_rate=rate) for run in unit.runs))
        for unit, rate in zip(seen.blocks, each, strict=False)
    )
    decision = look(replace(seen, blocks=blocks), trial)
    assert (decision.reason_code, trial.min_rate) == (verdict, 0.1)
    if verdict == "changed_rate":
        assert f"from {min(rate for rate in rates if rate != 0.1 or rate > min(rates)):.3g} to" in decision.reason


def test_late_turns_hold_before_the_tests_pass_and_do_not_keep_a_slowdown_enabled() -> None:
    seen = replace(evidence_of(draw_runs(40)), num_arrived=400, num_beyond=300)
    assert look(seen).reason_code == "untimed", "no further evidence of the first turns ends it"
    slow = replace(evidence_of(draw_runs(400, speedup=0.7)), num_arrived=400, num_beyond=300)
    assert look(slow).verdict is Verdict.DISABLE


def test_enable_needs_the_traffic_of_a_whole_span() -> None:
    decision = look(evidence_of(draw_runs(400)), replace(POLICY, min_span_s=400.0))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "min_span")
    assert look(evidence_of(draw_runs(400)), replace(POLICY, min_span_s=399.0)).verdict is Verdict.ENABLE


def test_proven_costlier_blocks_enable_and_objective_both_needs_proof_of_less() -> None:
    costly = look(evidence_of(costly_tail(1_600)))
    assert result(costly, "total_time").outcome == "fail"
    assert (costly.verdict, costly.reason_code) == (Verdict.HOLD, "costlier")
    short = evidence_of(draw_runs(300))
    assert result(look(short), "total_time").outcome == "open"
    assert look(short).verdict is Verdict.ENABLE
    assert look(short, replace(POLICY, objective="both")).verdict is Verdict.HOLD


def test_too_few_units_say_how_many_more() -> None:
    decision = look(evidence_of(draw_runs(60)))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "too_few_units")
    assert decision.clusters_needed is not None
    assert decision.clusters_needed > 0
    full = look(evidence_of(draw_runs(60 + decision.clusters_needed)))
    assert full.verdict is Verdict.ENABLE or full.reason_code == "dependent"


@pytest.mark.all
def test_an_interval_about_the_threshold_is_undecidable() -> None:
    decision = look(evidence_of(draw_runs(24_000, speedup=1.05, noise=0.05)))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "undecidable")
    at_end = look(evidence_of(draw_runs(100, speedup=1.05)), replace(POLICY, max_clusters=100))
    assert at_end.reason_code == "undecidable"


def test_no_level_left_and_not_entered_hold() -> None:
    assert look(evidence_of(draw_runs(400)), level=None).reason_code == "no_level_left"
    evidence = evidence_of(draw_runs(12))
    decision = look(evidence, level=None, has_entered=False)
    assert (decision.reason_code, decision.clusters_needed) == ("too_few_clusters", 8)


@pytest.mark.parametrize("verdict", [Verdict.ENABLE, Verdict.DISABLE])
def test_verdicts_stand_and_later_looks_only_refresh_the_figures(verdict: Verdict) -> None:
    first = look(evidence_of(draw_runs(400, speedup=1.3 if verdict is Verdict.ENABLE else 0.9)))
    assert first.verdict is verdict
    opposite = evidence_of(draw_runs(800, speedup=0.9 if verdict is Verdict.ENABLE else 1.3))
    later = look(opposite, previous=first, now=START + timedelta(days=1))
    assert (later.verdict, later.reason) == (first.verdict, first.reason)
    assert later.verdict_since == START
    assert result(later, "speedup").num_units == 200


# Dependence.


def test_strongly_dependent_units_restart_with_four_then_eight_merged() -> None:
    evidence = evidence_of(correlated(480, 0.9))
    first = look(evidence)
    assert (first.verdict, first.reason_code) == (Verdict.HOLD, "dependent")
    speedup = result(first, "speedup")
    assert (speedup.num_units, speedup.outcome) == (0, "open")
    assert (speedup.state.start_unit, speedup.state.merged_units) == (120, 4)

    later = look(evidence_of(correlated(480 + 16 * 150, 0.9)), previous=first)
    speedup = result(later, "speedup")
    assert later.reason_code == "dependent"
    assert (speedup.state.start_unit, speedup.state.merged_units) == (720, 8)
    assert look(evidence, previous=first).verdict is Verdict.HOLD, "the earlier capital is dropped for good"


def test_few_units_wait_until_their_independence_shows() -> None:
    runs = correlated(400, 0.5, seed=1)[:240]  # 60 blocks: too few to restart, r1 too high to count
    decision = look(evidence_of(runs))
    assert result(decision, "speedup").outcome == "pass"
    assert (decision.reason_code, decision.reason) == (
        "too_few_units",
        "The speedup meets its limit, but 60 blocks are too few to judge whether they are independent. "
        "Send traffic for about 40 more blocks. The same is true of 1 more test.",
    )


def test_a_disabling_bound_waits_for_independence_too_but_a_fault_does_not() -> None:
    runs = [replace(run, baseline=run.speculative, speculative=run.baseline) for run in correlated(480, 0.9)]
    decision = look(evidence_of(runs))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "dependent")
    runs[0] = replace(runs[0], parity=Parity(first_divergence=0, divergence_gap=9.0, rerun_differs=False))
    assert look(evidence_of(runs)).reason_code == "parity_fault"


CLASHING = replace(POLICY, log_speedup_clip=1.5, margin=1.5).with_frozen_parameters(POLICY.frozen_parameters())


@pytest.mark.parametrize("speedup", [3.0, 1.3, 0.7])
def test_a_limit_beyond_the_clip_that_was_fixed_at_entry_holds_with_its_own_reason(speedup: float) -> None:
    decision = look(evidence_of(draw_runs(400, speedup=speedup)), CLASHING)
    assert decision.verdict is Verdict.HOLD or decision.reason_code == "tail_slowed"
    if speedup > 1.0:
        assert decision.reason_code == "unprovable"
        assert decision.reason == (
            "No evidence can prove a limit of 1.5 with the value 0.693 that was fixed when the tests began. "
            "Change `margin` in the policy, or rename the candidate to fix `log_speedup_clip` again."
        )
    test_result = result(decision, "speedup")
    assert (test_result.outcome, test_result.units_needed) == ("open", None)
    assert test_result.threshold == pytest.approx(2.5)
    assert test_result.lower is not None
    assert test_result.lower > 0.5


def test_a_fault_disables_whatever_cannot_be_proven() -> None:
    runs = draw_runs(400)
    runs[7] = replace(runs[7], parity=Parity(first_divergence=3, divergence_gap=5.0, rerun_differs=True))
    assert look(evidence_of(runs), CLASHING).reason_code == "parity_fault"


@pytest.mark.parametrize(
    ("fixed", "today", "is_greedy"),
    [({"z_clip": 0.1}, {"z_bound": 0.15}, False), ({"log_speedup_clip": 0.3}, {"ttft_margin": 0.5}, True)],
)
def test_every_clash_holds(fixed: dict[str, float], today: dict[str, float], is_greedy: bool) -> None:
    entered = replace(POLICY, **fixed).frozen_parameters()  # type: ignore[arg-type]
    policy = replace(POLICY, **today).with_frozen_parameters(entered)  # type: ignore[arg-type]
    parity = Parity() if is_greedy else Parity(z_sum=0.0, z_tokens=64, baseline_z_sum=0.0, baseline_z_tokens=64)
    runs = [replace(run, parity=parity) for run in draw_runs(400)]
    decision = look(evidence_of(runs, is_greedy=is_greedy), policy)
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "unprovable"), decision.reason
    without = replace(POLICY, **(today if is_greedy else {}))  # type: ignore[arg-type]
    assert look(evidence_of(runs, is_greedy=is_greedy), without).reason_code != "unprovable"


@pytest.mark.parametrize("speedup", [1.3, 0.7])
def test_no_verdict_begins_on_stale_evidence_and_one_that_stands_stays(speedup: float) -> None:
    seen = evidence_of(draw_runs(400, speedup=speedup))
    newest = START + timedelta(seconds=399)
    limited = replace(POLICY, max_evidence_age_s=3_600.0)
    fresh = look(seen, limited, now=newest + timedelta(seconds=3_600))
    assert fresh.verdict is (Verdict.ENABLE if speedup > 1.0 else Verdict.DISABLE)
    later = newest + timedelta(seconds=3_601)
    stale = look(seen, limited, now=later)
    assert (stale.verdict, stale.reason_code) == (Verdict.HOLD, "stale_data")
    assert f"of {newest:%Y-%m-%d %H:%M} UTC, and may be at most 60 minutes old" in stale.reason
    early = look(seen, limited, now=newest - timedelta(days=1))
    assert (early.reason_code, "still to come" in early.reason) == ("stale_data", True)
    assert look(seen, limited, now=later, previous=fresh).verdict is fresh.verdict
    assert look(seen, POLICY, now=later).verdict is fresh.verdict, "off by default"
    assert look(Seen((), ()), limited, now=later).reason_code != "stale_data", "there is none"
