"""Guardrails: none by default, each required where the policy sets it, what is missing at its worst."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shadowspec.errors import ConfigError
from shadowspec.gate.evidence.guardrails import (
    COST_CLIP,
    first_scores,
    guardrail_tests,
    min_quantile_units,
    quantile_results,
)
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.quantiles import LatencyHistogram, bin_of
from shadowspec.gate.evidence.series import BettingTest
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.figure_texts import shown_as, title_of_test
from shadowspec.text import format_signed, percent, times
from shadowspec.types import ArmTiming, Evaluation, PairedScore, Run, Verdict
from tests.builders.hypothesis_evidence import POLICY as OPEN
from tests.builders.hypothesis_evidence import evidence_of, look, result
from tests.gate.coverage import lag_one_autocorrelation
from tests.gate.worlds import START, block_unit, noisy_run, run_of

CLIP = math.log(2.0)
POLICY = GatePolicy(
    ttft_margin=0.1,
    tpot_margin=0.05,
    max_cost_per_million_tokens=2.0,
    device_price_per_hour=3.6,
    validity_margin=0.02,
    score_margin=0.03,
)


def timed(index: int, baseline: tuple[float, float, int], speculative: tuple[float, float, int]) -> Run:
    """(prefill ms, decode ms, output tokens) of each arm."""
    arms = [ArmTiming(99.0, prefill, decode, num_output_tokens=n) for prefill, decode, n in (baseline, speculative)]
    return replace(run_of(index, "b"), baseline=arms[0], speculative=arms[1])


def scored(index: int, **scores: PairedScore | None) -> Run:
    return replace(run_of(index, "b"), scores=scores)


def failed(index: int) -> Run:
    return run_of(index, "b", failure="timeout")


def guardrail(name: str, runs: list[Run], n_max: int = 4, policy: GatePolicy = POLICY) -> BettingTest:
    return next(test for test in guardrail_tests([block_unit(0, runs, n_max=n_max)], policy) if test.name == name)


def test_none_is_required_by_default_and_each_only_if_it_is_set() -> None:
    assert guardrail_tests([], GatePolicy(window_s=0.0)) == []
    tests = guardrail_tests([], POLICY)
    assert [test.name for test in tests] == ["ttft", "tpot", "cost", "structured_validity", "score"]
    assert all(test.is_required and not test.disables for test in tests)
    assert [test.name for test in guardrail_tests([], GatePolicy(window_s=0.0, ttft_margin=0.0))] == ["ttft"], (
        "0 is a margin"
    )


def test_time_to_first_token_is_prefill_alone_and_may_grow_by_the_margin() -> None:
    test = guardrail("ttft", [timed(0, (50.0, 1_000.0, 10), (55.0, 1.0, 10)), timed(1, (10.0, 1.0, 9), (90.0, 1.0, 9))])
    assert test.series.lower.values[0] == pytest.approx((-math.log(1.1) - CLIP) / 4)
    assert test.series.lower.weights[0] == pytest.approx(2 / 4), "a short block weighs what its own requests weigh"
    assert test.above == pytest.approx(-math.log(1.1))
    only = guardrail("ttft", [timed(0, (50.0, 1.0, 9), (55.0, 1.0, 9))], n_max=1)
    assert only.series.ratios("lower", only.above or 0.0)[0] == pytest.approx(0.0), "exactly at the margin: no evidence"


def test_time_per_output_token_leaves_out_the_first_token_and_requests_of_one() -> None:
    runs = [timed(0, (50.0, 90.0, 10), (500.0, 60.0, 11)), timed(1, (50.0, 0.0, 1), (50.0, 0.0, 1))]
    test = guardrail("tpot", runs)
    assert test.series.lower.values[0] == pytest.approx(math.log(10.0 / 6.0) / 4)
    assert test.series.lower.weights[0] == pytest.approx(1 / 4)
    assert guardrail("tpot", runs[1:]).series.num_units == 0, "a block to which it does not apply is no unit"


def test_cost_is_device_seconds_per_output_token_times_the_price() -> None:
    """At load 4 a request that takes 2 s holds half a device-second; at 3.6 an hour that costs .0005."""
    run = timed(0, (400.0, 3_600.0, 512), (400.0, 1_600.0, 512))
    test = guardrail("cost", [run])
    per_million = 0.0005 / 512 * 1e6
    figures = test.describe(test.totals)
    assert figures["speculative_cost_per_million_tokens"] == pytest.approx(per_million)
    assert figures["baseline_cost_per_million_tokens"] == pytest.approx(2 * per_million)
    assert test.series.upper.values[0] == pytest.approx(per_million / 2.0 / 4)
    assert test.series.upper.weights[0] == pytest.approx(1 / 4), "weight capped at 256 tokens"
    light = guardrail("cost", [timed(0, (1.0, 1.0, 64), (400.0, 1_600.0, 64))])
    assert light.series.upper.weights[0] == pytest.approx(64 / 256 / 4)
    assert light.series.upper.values[0] == pytest.approx(8 * per_million / 2.0 * 64 / 256 / 4)
    dear = guardrail("cost", [run], policy=replace(POLICY, device_price_per_hour=36_000.0))
    assert dear.series.upper.values[0] == pytest.approx(COST_CLIP / 4), "clipped"


def test_scores_are_paired_differences() -> None:
    runs = [scored(0, score=PairedScore(0.5, 0.75)), scored(1, score=PairedScore(1.0, 0.0))]
    test = guardrail("score", runs)
    assert test.series.lower.values[0] == pytest.approx((0.25 - 1.0) / 4)
    assert (test.above, test.series.lowest, test.series.highest) == (-0.03, -1.0, 1.0)


def evaluated(fingerprint: str, documents: dict[str, PairedScore], task: str = "sums") -> Evaluation:
    return Evaluation("chat", fingerprint, task, "exact_match,none", START, documents)


def test_a_document_of_a_task_set_is_a_unit_and_counts_once() -> None:
    same, worse, missing = PairedScore(1.0, 1.0), PairedScore(1.0, 0.0), PairedScore(1.0, None)
    found = first_scores(
        [
            evaluated("one", {"b": worse, "a": same}),
            evaluated("other", {"d": worse}),
            evaluated("one", {"a": worse, "c": missing}),
            evaluated("one", {"a": worse}, task="differences"),
        ],
        "one",
    )
    assert found == [same, worse, missing, worse], "in the order of hashes within an evaluation"
    (test,) = guardrail_tests([], GatePolicy(window_s=0.0, task_margin=0.02), found)
    assert (test.name, test.unit, test.above, test.num_missing) == ("task_score", "document", -0.02, 1)
    assert test.series.lower.values.tolist() == [0.0, -1.0, -1.0, -1.0], "a missing score counts at its worst"
    assert test.series.upper.values.tolist() == [0.0, -1.0, 1.0, -1.0]
    assert test.series.lower.weights.tolist() == [1.0] * 4
    assert guardrail_tests([], GatePolicy(window_s=0.0), found) == []


def test_validity_weighs_only_where_structured_output_was_asked_for() -> None:
    runs = [scored(0, structured_validity=None), scored(1, structured_validity=PairedScore(1.0, 0.0)), run_of(2, "b")]
    test = guardrail("structured_validity", runs)
    assert test.series.observed.weights[0] == pytest.approx(1 / 4)
    assert test.series.lower.weights[0] == pytest.approx(2 / 4), "not measured is not the same as does not apply"
    assert test.num_missing == 1
    assert guardrail("structured_validity", runs[:1]).series.num_units == 0


@pytest.mark.parametrize(
    ("name", "worst", "best"),
    [
        ("ttft", -CLIP, CLIP),
        ("tpot", -CLIP, CLIP),
        ("structured_validity", -1.0, 1.0),
        ("score", -1.0, 1.0),
        ("cost", 0.0, COST_CLIP),
    ],
)
def test_what_is_missing_counts_as_the_worst_of_each_bound(name: str, worst: float, best: float) -> None:
    series = guardrail(name, [failed(0)], n_max=2).series
    assert series.lower.values[0] == pytest.approx(worst / 2)
    assert series.upper.values[0] == pytest.approx(best / 2)
    assert series.lower.weights[0] == series.upper.weights[0] == pytest.approx(1 / 2)
    assert series.observed.weights[0] == 0.0
    half = guardrail("score", [scored(0, score=PairedScore(0.5, None))])
    assert half.num_missing == 1


def test_a_cost_limit_needs_a_price() -> None:
    with pytest.raises(ConfigError, match="device_price_per_hour"):
        GatePolicy(window_s=0.0, max_cost_per_million_tokens=1.0)
    with pytest.raises(ConfigError, match="max_cost_per_million_tokens"):
        GatePolicy(window_s=0.0, max_cost_per_million_tokens=0.0, device_price_per_hour=1.0)
    with pytest.raises(ConfigError, match="ttft_margin"):
        GatePolicy(window_s=0.0, ttft_margin=-0.1)


# In the decision.


def scored_runs(num_runs: int, change: float, ttft: float = 1.0) -> list[Run]:
    """Runs about 1.3 times as fast, the score changed by `change`, the time to first token by a factor."""
    rng, draw = np.random.default_rng(0), noisy_run()
    runs = [draw(rng, index, f"b{index // 4:05d}") for index in range(num_runs)]
    return [
        replace(
            run,
            scores={"score": PairedScore(0.8, 0.8 + change + 0.01 * (index % 5 - 2))},
            speculative=replace(
                run.speculative, prefill_ms=ttft * run.baseline.prefill_ms * (0.98 + 0.01 * (index % 5))
            ),
        )
        for index, run in enumerate(runs)
        if run.speculative and run.baseline
    ]


def test_an_unset_guardrail_decides_nothing_and_a_failed_one_holds() -> None:
    worse = evidence_of(scored_runs(400, -0.2))
    assert look(worse).verdict is Verdict.ENABLE
    decision = look(worse, replace(OPEN, score_margin=0.05))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "guardrail")
    assert "score" in decision.reason
    policy = replace(OPEN, score_margin=0.3)
    assert look(evidence_of(scored_runs(400, -0.2)), policy).verdict is Verdict.ENABLE


def test_an_open_guardrail_is_waited_for() -> None:
    policy = replace(OPEN, score_margin=0.01)
    decision = look(evidence_of(scored_runs(400, 0.0)), policy)
    assert result(decision, "score").outcome == "open"
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "too_few_units")


def test_slower_first_tokens_hold_where_the_whole_request_is_faster() -> None:
    policy = replace(OPEN, ttft_margin=0.1)
    slow = look(evidence_of(scored_runs(600, 0.0, ttft=1.5)), policy)
    assert (slow.verdict, slow.reason_code) == (Verdict.HOLD, "guardrail")
    assert look(evidence_of(scored_runs(600, 0.0, ttft=1.0)), policy).verdict is Verdict.ENABLE


def latencies(num: int, baseline_ms: float, speculative_ms: float) -> LatencyHistogram:
    times = np.random.default_rng(3).uniform(0.9, 1.1, num)
    counts = {
        arm: Counter(bin_of(float(time * scale)) for time in times)
        for arm, scale in (("baseline", baseline_ms), ("speculative", speculative_ms))
    }
    return LatencyHistogram(counts)


def test_marginal_quantiles_are_required_only_where_the_policy_sets_their_margin() -> None:
    many = latencies(2_000, 100.0, 90.0)
    assert quantile_results(many, OPEN, 0.05) == []
    policy = replace(OPEN, p95_margin=0.1, p99_margin=0.1)
    p95, p99 = quantile_results(many, policy, 0.05)
    assert (p95.name, p95.outcome, p99.name, p99.outcome) == ("p95", "pass", "p99", "pass")
    assert p95.is_required
    assert p95.estimate == pytest.approx(0.9, rel=0.02)
    assert p95.lower is not None
    assert p95.upper is not None
    assert p95.lower < 0.9 < p95.upper <= (p95.threshold or 0.0)
    slower = quantile_results(latencies(2_000, 100.0, 150.0), policy, 0.05)
    assert [each.outcome for each in slower] == ["fail", "fail"]
    assert quantile_results(latencies(0, 1.0, 1.0), policy, 0.05)[0].outcome == "open"


def test_p99_says_nothing_below_about_five_hundred_units() -> None:
    policy = replace(OPEN, p99_margin=0.5)
    assert 450 <= min_quantile_units(0.99, 0.05) <= 550
    smallest = min_quantile_units(0.99, 0.025)
    below, at = (quantile_results(latencies(n, 100.0, 50.0), policy, 0.05)[0] for n in (smallest - 1, smallest))
    assert (below.outcome, below.upper, below.units_needed, below.min_units) == ("open", None, 1, smallest)
    assert at.outcome == "pass"


def test_a_required_quantile_is_judged_in_the_decision() -> None:
    policy = replace(OPEN, p95_margin=0.1)
    few, many = look(evidence_of(scored_runs(400, 0.0)), policy), look(evidence_of(scored_runs(1_600, 0.0)), policy)
    assert (few.verdict, result(few, "p95").outcome) == (Verdict.HOLD, "open")
    assert (many.verdict, result(many, "p95").outcome) == (Verdict.ENABLE, "pass")


def drifting(runs: list[Run], phi: float) -> list[Run]:
    """Both arms' times of each block of four grow and shrink together, AR(1) `phi`; its speedups stay as they are."""
    rng, level, found = np.random.default_rng(1), 0.0, []
    for place, run in enumerate(runs):
        if place % 4 == 0:
            level = phi * level + math.sqrt(1.0 - phi**2) * float(rng.normal(0.0, 0.3))
        assert run.baseline is not None
        assert run.speculative is not None
        arms = [
            replace(arm, prefill_ms=arm.prefill_ms * math.exp(level), decode_ms=arm.decode_ms * math.exp(level))
            for arm in (run.baseline, run.speculative)
        ]
        found.append(replace(run, baseline=arms[0], speculative=arms[1]))
    return found


def test_times_that_depend_on_each_other_keep_a_required_quantile_waiting() -> None:
    policy = replace(OPEN, p95_margin=0.5)
    evidence = evidence_of(drifting(scored_runs(1_600, 0.0), 0.9))
    waiting = look(evidence, policy)
    assert (waiting.verdict, waiting.reason_code) == (Verdict.HOLD, "dependent")
    assert waiting.reason == (
        "The ratio of the p95 times meets its limit, but of its 400 blocks those that follow each other resemble each "
        "other. "
        "Their correlation is 0.63, and the limit 0.37. Send traffic that is spread over more time."
    )
    assert result(waiting, "p95").outcome == "pass"
    assert float(result(waiting, "p95").dependence.r1 or 0.0) > 0.5
    assert look(evidence).verdict is Verdict.ENABLE, "nobody asks for it"
    free = look(evidence_of(drifting(scored_runs(1_600, 0.0), 0.0)), policy)
    assert free.verdict is Verdict.ENABLE
    assert abs(float(result(free, "p95").dependence.r1 or 0.0)) < 0.15


def test_the_r1_of_times_is_the_larger_of_both_arms_and_unknown_of_evidence_without_it() -> None:
    rng = np.random.default_rng(2)
    steady, wavy = np.exp(rng.normal(4.0, 0.1, 60)), np.exp(4.0 + np.sin(np.arange(60) / 5.0))
    for baseline, speculative in ((steady, wavy), (wavy, steady)):
        runs = [
            timed(i, (0.0, base, 9), (0.0, spec, 9))
            for i, (base, spec) in enumerate(zip(baseline, speculative, strict=True))
        ]
        blocks = [block_unit(i, [run], n_max=1) for i, run in enumerate(runs)]
        folded = LatencyHistogram().fold(blocks[:25]).fold(blocks[25:])
        expected = max(lag_one_autocorrelation(np.log(times)) for times in (baseline, speculative))
        assert folded.autocorrelation == pytest.approx(expected, abs=1e-9)
        assert expected > 0.9
        old = LatencyHistogram(folded.counts)
        assert old.autocorrelation is None
        assert quantile_results(old.fold(blocks[:1]), replace(OPEN, p95_margin=0.1), 0.05)[0].dependence.r1 is None
    assert LatencyHistogram().autocorrelation == 0.0


def test_a_cost_limit_may_be_set_after_entry_and_then_stands() -> None:
    """Its clip is measured in limits, so that another limit would be another estimand."""
    entered = GatePolicy(window_s=0.0).frozen_parameters()
    first = replace(OPEN, max_cost_per_million_tokens=2.0, device_price_per_hour=1.0).with_frozen_parameters(entered)
    assert first.max_cost_per_million_tokens == 2.0
    later = replace(OPEN, max_cost_per_million_tokens=3.0, device_price_per_hour=2.0)
    kept = later.with_frozen_parameters(first.frozen_parameters())
    assert (kept.max_cost_per_million_tokens, kept.device_price_per_hour) == (2.0, 1.0)


def test_a_guardrail_set_later_counts_the_units_from_then_on() -> None:
    runs, policy = scored_runs(400, 0.0), replace(OPEN, ttft_margin=0.1)
    seen = evidence_of(runs)
    before = HypothesisEvidence().fold(seen.clusters[:200], seen.blocks[:50], OPEN)
    after = before.fold(seen.clusters[200:], seen.blocks[50:], policy)
    assert after.tests["ttft"].num_units == 50
    assert after.tests["speedup"].num_units == 100


def test_every_guardrail_has_a_title_and_a_way_to_be_written_in_reports() -> None:
    policy = replace(POLICY, p95_margin=0.1, p99_margin=0.1, min_span_s=0.0, window_s=0.0)
    names = {test.name for test in look(evidence_of(scored_runs(40, 0.0)), policy).tests}
    names -= {test.name for test in look(evidence_of(scored_runs(40, 0.0))).tests}
    assert names == {"ttft", "tpot", "cost", "structured_validity", "score", "p95", "p99"}
    assert all(title_of_test(name) != name.replace("_", " ") for name in names)
    assert (shown_as("ttft")(1.25), shown_as("cost")(0.8), shown_as("score")(-0.05)) == (
        times(1.25),
        percent(0.8),
        format_signed(-0.05),
    )
