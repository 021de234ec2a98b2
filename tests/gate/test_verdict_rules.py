"""Sentences of the gate's rules on tests, levels and verdicts that no other test would miss, each quoted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.speedup import speedup_test, total_time_test
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats import betting
from shadowspec.gate.verdict.decision import Hypothesis, decide
from shadowspec.gate.verdict.required_tests import after_dependence
from shadowspec.reports.content.definitions import test_notes as shown_notes
from shadowspec.types import (
    ArmTiming,
    Dependence,
    Memory,
    Parity,
    Run,
    ServedMemory,
    SliceCounts,
    TestResult,
    TestState,
    Trial,
    Verdict,
)
from tests.builders.hypothesis_evidence import (
    HYPOTHESIS,
    POLICY,
    correlated,
    costly_tail,
    draw_runs,
    evidence_of,
    look,
    result,
)
from tests.gate.worlds import CONFIG, GRAPH, START, block_unit, cluster_unit, run_of

BOTH = replace(POLICY, objective="both")


def passed(
    r1: float | None, num_units: int, merged_units: int = 1, start_unit: int = 0, agreement: float | None = None
) -> TestResult:
    """A result of a test that crosses, of so many units."""
    dependence = Dependence(r1, TestState(start_unit, merged_units), agreement)
    return TestResult("speedup", "pass", 1.3, 1.1, 1.5, 1.05, 0.0125, "block", num_units, 10, 0, dependence=dependence)


# "ENABLE iff every required test rejects its null at the same look, from current capitals, not from each test's
# best moment."


def test_a_test_passes_by_its_current_capital_and_not_by_its_best() -> None:
    rose = draw_runs(240, 3)
    fell = [run_of(240 + i, f"b{60 + i // 4:05d}", log_speedup=-0.3 + 0.01 * (i % 5)) for i in range(80)]
    assert result(look(evidence_of(rose)), "speedup").outcome == "pass"
    later = result(look(evidence_of(rose + fell)), "speedup")
    assert later.outcome == "open"
    series = speedup_test(evidence_of(rose + fell).blocks, POLICY).series
    path = betting.log_capital_path(series.ratios("lower", math.log1p(POLICY.margin)))
    assert path.max() >= -math.log(0.0125) > path[-1], "at its best moment it had passed"


@pytest.mark.parametrize("name", ["speedup", "acceptance", "tail", "parity_near_ties", "parity_faults", "memory"])
def test_every_required_test_must_pass_at_the_same_look(name: str) -> None:
    """One that is open holds all the others back; what would pass it is put out of reach."""
    out_of_reach = {
        "speedup": {"margin": 0.29},
        "acceptance": {"floor": 0.66},
        "tail": {"tail_share": 0.011},
        "parity_near_ties": {"parity_margin": 0.005},
        "parity_faults": {"max_fault_share": 0.005},
        "memory": {"memory_budget_tokens": 99},
    }[name]
    decision = look(evidence_of(draw_runs(400)), replace(POLICY, **out_of_reach))
    outcomes = {test.name: test.outcome for test in decision.tests if test.is_required}
    assert outcomes.pop(name) != "pass"
    assert set(outcomes.values()) == {"pass"}
    assert decision.verdict is not Verdict.ENABLE


# "Beside it the ratio of total times ...; `objective`: `latency` (default: proven costlier blocks ENABLE) or `both`
# (ratio > 1 must be proven)."


def test_objective_both_enables_once_the_total_is_proven_lower() -> None:
    evidence = evidence_of(draw_runs(800))
    decision = look(evidence, BOTH)
    assert (result(decision, "total_time").outcome, decision.verdict) == ("pass", Verdict.ENABLE)
    assert result(decision, "total_time").is_required
    assert not result(look(evidence), "total_time").is_required


def test_objective_both_holds_while_it_is_open_and_where_it_is_costlier() -> None:
    short = look(evidence_of(draw_runs(300)), BOTH)
    assert (result(short, "total_time").outcome, short.verdict) == ("open", Verdict.HOLD)
    costly = look(evidence_of(costly_tail(1_600)), BOTH)
    assert (costly.verdict, costly.reason_code) == (Verdict.HOLD, "costlier")


def totals(baseline_ms: float, speculative_ms: float, sequence: int) -> object:
    arms = [ArmTiming(0.0, ms / 2, ms / 2) for ms in (baseline_ms, speculative_ms)]
    return block_unit(sequence, [replace(run_of(sequence, "b"), baseline=arms[0], speculative=arms[1])], n_max=1)


def test_the_value_of_a_total_is_the_designs() -> None:
    """y = (min(T_base, T_cap) - min(T_spec, T_cap)) / T_cap, T_cap 4x the mean T_base of the first ten blocks."""
    first = [totals(100.0, 50.0, i) for i in range(10)]
    blocks = [*first, totals(100.0, 80.0, 10), totals(100.0, 9_000.0, 11), totals(900.0, 80.0, 12)]
    ratios = total_time_test(blocks, POLICY).series.ratios("lower", 1.0)  # type: ignore[arg-type]
    assert ratios.tolist() == pytest.approx([20.0 / 400.0, (100.0 - 400.0) / 400.0, (400.0 - 80.0) / 400.0])


# "`dependent`, judged per test and only at a look where every test rejects (or where a DISABLE bound crosses; faults,
# memory and alarms do not wait)"


@pytest.mark.parametrize(
    ("r1", "num_units", "merged_units", "action"),
    [
        (0.31, 100, 1, "restart"),  # .31 - .1 is above .2
        (0.31, 100, 4, "restart"),
        (0.30, 100, 1, "wait"),  # .3 - .1 is not
        (0.26, 400, 1, "restart"),  # .26 - .05
        (0.25, 400, 1, "count"),  # .25 - .05 is not above .2, and .25 + .0823 is below .45
        (0.31, 100, 8, "wait"),  # merged as far as it goes
        (0.21, 400, 8, "count"),
        (0.90, 99, 1, "wait"),  # r1 is not known well enough to restart
        (0.21, 100, 1, "count"),  # .21 + .1645
        (0.29, 100, 1, "wait"),  # .29 + .1645 is above .45
        (0.20, 44, 1, "count"),  # .2 + .2480
        (0.20, 43, 1, "wait"),  # .2 + .2509
        (0.0, 14, 1, "count"),  # .4396
        (0.0, 13, 1, "wait"),  # .4562
        (-0.5, 5, 1, "count"),
        (0.0, 0, 1, "wait"),
        (None, 100, 1, "count"),
    ],
)
def test_when_dependent_units_wait_and_when_they_are_merged(
    r1: float | None, num_units: int, merged_units: int, action: str
) -> None:
    """ "r1 > .2 at n >= 100 restarts ... with 4, then 8, consecutive units merged; otherwise r1 + 1.645/sqrt(n) >= .45
    makes it wait": .3 in the design, which cost a fifth of the power at the minimum effect.  "A restart for dependence
    needs an estimate above its threshold by more than its own error" of 1/sqrt(n)."""
    assert after_dependence(passed(r1, num_units, merged_units))[0] == action


@pytest.mark.parametrize(
    ("agreement", "action"), [(None, "count"), (1.0, "count"), (0.99, "wait"), (-math.inf, "wait")]
)
def test_a_verdict_waits_until_the_means_of_batches_show_it(agreement: float | None, action: str) -> None:
    assert after_dependence(passed(0.0, 100, agreement=agreement))[0] == action
    restarts = after_dependence(passed(0.5, 120, agreement=agreement))
    assert restarts == ("restart", TestState(120, 4)), "what lag 1 shows is mended by merging"


def test_a_slow_component_under_noise_waits_though_lag_1_shows_nothing() -> None:
    """A fifth of the requests' variance drifts slowly from block to block: r1 of .15, where .2 makes units restart."""
    rng, slow, shock = np.random.default_rng(1), [], 0.0
    for _ in range(240):
        shock = 0.98 * shock + math.sqrt(1.0 - 0.98**2) * float(rng.standard_normal())
        slow.append(shock)
    runs = [
        run_of(i, f"b{i // 4:05d}", log_speedup=0.13 + 0.06 * slow[i // 4] + 0.12 * float(rng.standard_normal()))
        for i in range(960)
    ]
    new = look(evidence_of(runs))
    assert new.reason_code == "dependent"
    dependence = result(new, "speedup").dependence
    assert dependence is not None
    assert dependence.r1 == pytest.approx(0.15, abs=0.01)
    assert dependence.batch_agreement == pytest.approx(0.72, abs=0.01)


def test_a_restart_begins_at_the_next_unit() -> None:
    assert after_dependence(passed(0.5, 120))[1] == TestState(120, 4)
    later = passed(0.5, 110, merged_units=4, start_unit=120)
    assert after_dependence(later)[1] == TestState(120 + 440, 8)


def test_dependence_is_not_judged_while_a_test_is_open() -> None:
    """An open test leaves the strongly dependent ones as they are: nothing restarts at that look."""
    decision = look(evidence_of(correlated(480, 0.9)), replace(POLICY, floor=0.66))
    assert float(result(decision, "speedup").dependence.r1 or 0.0) > 0.5
    assert result(decision, "speedup").state.merged_units == 1
    assert decision.reason_code != "dependent"


def test_memory_does_not_wait_for_independence() -> None:
    decision = look(evidence_of(correlated(480, 0.9)), replace(POLICY, memory_budget_share=0.05))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "memory_over_budget")


def test_the_tails_dependence_is_that_of_each_blocks_slowest_request() -> None:
    """ "for the tail test that of the block's smallest clipped log speedup": slowed or not says too little."""
    slow = [run_of(i, "b", log_speedup=0.3 if (i // 4) // 10 % 2 else 0.1) for i in range(480)]
    tail = result(look(evidence_of(slow), replace(POLICY, floor=0.66)), "tail")  # open, so that nothing restarts
    assert tail.estimate == 0.0
    assert float(tail.dependence.r1 or 0.0) > 0.7, "nothing is slowed, so its own values do not vary at all"


# "An arm that fails after sampling is folded at each test's own worst value (acceptance A=0, D=S; z at both +-clip);
# failures and sheds are counted, and a share above `max_missing` means HOLD."


def test_a_share_of_missing_at_the_limit_is_judged_and_above_it_holds() -> None:
    runs = draw_runs(400)
    failed = [run_of(i, run.block_id, failure="timeout") if i < 20 else run for i, run in enumerate(runs)]
    assert look(evidence_of(failed)).evidence.missing_share == pytest.approx(0.05)
    assert look(evidence_of(failed)).reason_code != "missing_data"
    assert look(evidence_of(failed), replace(POLICY, max_missing=0.0499)).reason_code == "missing_data"
    assert look(evidence_of(runs, num_lost=22)).reason_code == "missing_data"


def test_missing_data_hold_even_what_would_be_disabled_by_its_latency() -> None:
    """What failed is folded at the worst of either bound, but too much of it is judged not at all."""
    slow = draw_runs(400, speedup=0.8)
    assert look(evidence_of(slow)).verdict is Verdict.DISABLE
    assert look(evidence_of(slow, num_lost=40)).reason_code == "missing_data"


def test_a_fault_disables_whatever_is_missing() -> None:
    runs = draw_runs(400)
    runs[3] = replace(runs[3], parity=Parity(first_divergence=0, divergence_gap=5.0, rerun_differs=False))
    assert look(evidence_of(runs, num_lost=200)).reason_code == "parity_fault"


def test_a_missing_z_widens_both_bounds() -> None:
    def folded(runs: list[Run]) -> TestResult:
        return result(look(evidence_of(runs, is_greedy=False)), "parity_sampled")

    runs = [replace(run, parity=Parity(z_sum=0.0, z_tokens=64)) for run in draw_runs(400)]
    whole = folded(runs)
    some = folded([run_of(i, run.block_id, failure="oom") if i % 25 == 0 else run for i, run in enumerate(runs)])
    assert some.lower is not None
    assert whole.lower is not None
    assert some.upper is not None
    assert whole.upper is not None
    assert some.lower < whole.lower <= 0.0 <= whole.upper < some.upper


# "DISABLE iff an opposite bound crosses (...), a parity fault, or memory is over budget": nothing else does.


@pytest.mark.parametrize("changes", [{"acceptance": 0.1}, {"speedup": 1.05, "noise": 0.02}, {"slowed_share": 0.09}])
def test_nothing_short_of_proof_disables(changes: dict[str, float]) -> None:
    assert look(evidence_of(draw_runs(800, **changes))).verdict is not Verdict.DISABLE


def test_memory_at_its_budget_is_within_it_and_unknown_memory_holds() -> None:
    evidence = evidence_of(draw_runs(400))
    bare = [replace(unit, block=replace(unit.block, memory={})) for unit in evidence.blocks]
    decision = look(replace(evidence, blocks=tuple(bare)))
    assert (result(decision, "memory").outcome, decision.verdict) == ("open", Verdict.HOLD)
    assert (decision.reason_code, decision.clusters_needed) == ("unknown_memory", None)
    unjudged = look(replace(evidence, blocks=tuple(bare)), replace(POLICY, memory_budget_share=None))
    assert (result(unjudged, "memory").outcome, unjudged.verdict) == ("open", Verdict.ENABLE)
    heavy = [replace(u, block=replace(u.block, memory={CONFIG.fingerprint: Memory(1, 9, 1, 0, 0)})) for u in bare]
    shown = look(replace(evidence, blocks=tuple(heavy)), replace(POLICY, memory_budget_share=None))
    assert (result(shown, "memory").estimate, shown.verdict) == (8.0, Verdict.ENABLE)
    exact = Memory(100, 125, 1, 0, 0)
    level = [replace(unit, block=replace(unit.block, memory={CONFIG.fingerprint: exact})) for unit in evidence.blocks]
    assert look(replace(evidence, blocks=tuple(level))).verdict is Verdict.ENABLE


@pytest.mark.parametrize(
    ("speculative", "outcome", "verdict", "note"),
    [
        (41_000, "pass", Verdict.ENABLE, "batch 48.0 becomes 41.0 (requests of full length)"),
        (36_000, "pass", Verdict.ENABLE, "batch 48.0 becomes 36.0 (requests of full length)"),  # at the budget
        (35_000, "fail", Verdict.DISABLE, "batch 48.0 becomes 35.0 (requests of full length)"),
        (50_000, "pass", Verdict.ENABLE, "batch 48.0 becomes 48.0 (requests of full length)"),
    ],
)
def test_memory_of_servers_is_judged_by_what_the_speculative_ones_cache_lacks(
    speculative: int, outcome: str, verdict: Verdict, note: str
) -> None:
    evidence = evidence_of(draw_runs(400))
    held = ServedMemory(48_000, speculative, 48.0, speculative / 1_000, "vllm")
    full = ServedMemory(48_000, 48_000, 48.0, 48.0, "vllm")  # the worst of all blocks counts
    memories = [held if index == 3 else full for index in range(len(evidence.blocks))]
    units = [
        replace(unit, block=replace(unit.block, memory={CONFIG.fingerprint: memory}))
        for unit, memory in zip(evidence.blocks, memories, strict=True)
    ]
    decision = look(replace(evidence, blocks=tuple(units)))
    memory = result(decision, "memory")
    assert (memory.outcome, decision.verdict) == (outcome, verdict)
    assert memory.figures["displaced_kv_tokens"] == max(0, 48_000 - speculative)
    assert any(note in each for each in shown_notes(memory))


def test_displaced_requests_of_blocks_in_process_are_shown_beside_the_tokens() -> None:
    evidence = evidence_of(draw_runs(400))
    memory = Memory(1_000_000, 1_100_000, 100, 0, 0, kv_tokens_per_request=400.0)
    units = [replace(u, block=replace(u.block, memory={CONFIG.fingerprint: memory})) for u in evidence.blocks]
    found = result(look(replace(evidence, blocks=tuple(units))), "memory")
    assert (found.figures["displaced_kv_tokens"], found.figures["displaced_requests"]) == (1_000, 2.5)
    assert "1,000 KV tokens displaced, the cache of 2.50 requests" in shown_notes(found)
    before = result(look(evidence), "memory")
    assert not {"displaced_requests", "baseline_requests"} & before.figures.keys(), "old decisions have no such figure"


# "θ grid, caps and clips are frozen at entry."; thresholds are not: bounds hold for all of them at once.


def test_a_threshold_changed_after_entry_is_judged_at_the_next_null_outward() -> None:
    runs = draw_runs(400)
    before = look(evidence_of(runs))
    moved = replace(POLICY, margin=0.0513)
    blocks, clusters = evidence_of(runs).blocks, evidence_of(runs).clusters
    folded = HypothesisEvidence().fold(clusters, blocks, POLICY)
    folded = replace(folded, counts=SliceCounts(num_closed_clusters=400))

    def judged(policy: GatePolicy) -> TestResult:
        decision = decide(
            Hypothesis("sql", "", 4, CONFIG),
            folded,
            policy,
            trial=Trial(0.025, 0.0125, GRAPH),
            has_entered=True,
            previous=None,
            now=START,
        )
        return result(decision, "speedup")

    strict = judged(moved)
    assert strict.threshold == pytest.approx(1.0513)
    assert float(strict.betting.log10_capital_pass or 0.0) <= float(judged(POLICY).betting.log10_capital_pass or 0.0)
    assert strict.lower == pytest.approx(result(before, "speedup").lower), "the bound does not depend on the threshold"


# "Its first `max_requests_per_cluster` requests count": a cluster's requests are one unit however many they are.


def test_requests_of_a_cluster_are_one_unit() -> None:
    together = [cluster_unit(0, [run_of(i, "b") for i in range(4)])]
    folded = HypothesisEvidence().fold(together, (), POLICY)
    acceptance = folded.tests["acceptance"]
    assert (acceptance.num_units, folded.num_clusters) == (1, 1)
    assert acceptance.observed_weight == pytest.approx(1.0), "120 steps, its weight capped at 64"
    assert acceptance.observed_value == pytest.approx(20 / 30)


# "`undecidable` (at `max_clusters`, or the interval lies within ±`indifference` of the threshold)"; "Argo and Kayenta
# pass on empty data; we never do."


def test_units_beyond_max_clusters_never_count() -> None:
    policy = replace(POLICY, max_clusters=40)
    decision = look(evidence_of(draw_runs(400)), policy)
    assert decision.num_clusters == 40
    assert result(decision, "acceptance").num_units == 40


@pytest.mark.parametrize("missing", ["clusters", "blocks"])
def test_half_of_the_data_never_passes(missing: str) -> None:
    evidence = replace(evidence_of(draw_runs(400)), **{missing: ()})
    decision = look(evidence)
    assert decision.verdict is Verdict.HOLD
    assert any(test.outcome == "open" and test.num_units == 0 for test in decision.tests)


@pytest.mark.all
def test_the_false_enable_of_a_whole_verdict_stays_below_the_level() -> None:
    """All but the speedup far on the good side, the speedup exactly at its margin: looks every 20 blocks."""
    rng, false = np.random.default_rng(12), 0
    for _ in range(40):
        logs = math.log(1.05) + np.clip(rng.normal(0.0, 0.1, 480), -0.5, 0.5)
        runs = [run_of(i, f"b{i // 4:05d}", log_speedup=float(log)) for i, log in enumerate(logs)]
        false += any(look(evidence_of(runs[:size])).verdict is Verdict.ENABLE for size in range(160, 481, 80))
    assert false <= 2, "at level .0125 two of 40 would already be rare"


def test_hypotheses_are_named_by_endpoint_slice_load_and_config() -> None:
    """ "endpoint x slice x load x speculation config, tested on its own evidence"."""
    decision = look(evidence_of(draw_runs(40)))
    assert (decision.endpoint, decision.slice_key, decision.concurrency) == ("sql", "prompt_class=code", 4)
    assert decision.fingerprint == HYPOTHESIS.config.fingerprint
