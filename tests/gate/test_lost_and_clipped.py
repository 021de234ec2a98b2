"""What was lost, failed or clipped away counts at its worst."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shadowspec.gate.evidence.agreement import z_test
from shadowspec.gate.evidence.guardrails import quantile_results
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, TestEvidence
from shadowspec.gate.evidence.quantiles import INFINITE_BIN, LOWEST_BIN, LatencyHistogram
from shadowspec.gate.evidence.speedup import total_time_test
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import FRACTIONS, worst_values
from shadowspec.gate.stats.capital import grid
from shadowspec.gate.verdict.required_tests import betting_result
from shadowspec.types import Parity, Run, SliceCounts, TestResult, TestState, Verdict
from shadowspec.types.codec import pack, unpack
from tests.builders.hypothesis_evidence import draw_runs, evidence_of, look, result
from tests.gate.worlds import block_unit, cluster_unit, run_of

POLICY = GatePolicy(window_s=0.0, max_hypotheses=1, min_span_s=0.0)


def failed(index: int, block_id: str = "b") -> Run:
    return run_of(index, block_id, failure="timeout")


def z_result(policy: GatePolicy, tokens: int, num_units: int, never: float = 0.0) -> TestResult:
    """Unbiased tokens with target(argmax) = .9; a share `never` of the clusters emits the argmax never."""
    rng = np.random.default_rng(1)
    sums = rng.binomial(tokens, 0.9, num_units) - 0.9 * tokens
    sums = np.where(rng.random(num_units) < never, -0.9 * tokens, sums)
    units = [
        cluster_unit(i, [run_of(i, "b", parity=Parity(z_sum=float(z), z_tokens=tokens))], is_greedy=False)
        for i, z in enumerate(sums)
    ]
    test = z_test(units, policy)
    return betting_result(z_test((), policy), TestEvidence.empty(test).fold(test), policy, 0.0125)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_correct_outputs_of_few_tokens_are_not_biased(tokens: int) -> None:
    now = z_result(POLICY, tokens, 2_000)
    assert abs(now.estimate or 1.0) < 0.01
    assert now.outcome != "fail"


def test_sessions_that_never_emit_the_argmax_keep_the_clipped_mean_from_passing() -> None:
    seen = z_result(POLICY, 64, 3_000, never=0.05)
    assert seen.figures["z_unclipped"] == pytest.approx(-0.045, abs=0.01)
    assert seen.lower is not None
    assert seen.lower > -0.02, "of the clipped mean alone it would be proven"
    assert (seen.outcome, seen.units_needed) == ("open", None)
    assert z_result(POLICY, 64, 3_000).outcome == "pass"


def test_no_unit_is_worse_than_the_worst_one_that_the_bets_allow_for() -> None:
    """Over every sum and weight that a cluster may have: against no null a bet of all the capital loses more."""
    thetas = grid(-0.2, 0.2)
    lower = worst_values("lower", thetas, -0.2, 0.2, None, True)
    upper = worst_values("upper", thetas, -0.2, 0.2, None, True)
    for weight in np.linspace(0.0, 1.0, 21):
        for value in np.clip(np.linspace(-weight, weight, 21), -0.2, 0.2):
            assert (value - thetas * weight >= -lower - 1e-12).all()
            assert (thetas * weight - value >= -upper - 1e-12).all()


def test_equal_arms_with_heavy_tails_are_not_proven_cheaper() -> None:
    rng = np.random.default_rng(3)
    times = rng.lognormal(5.0, 1.5, (500, 4)).tolist()
    blocks = [
        block_unit(n, [run_of(4 * n + i, "b", log_speedup=0.0, baseline_ms=ms) for i, ms in enumerate(row)])
        for n, row in enumerate(times)
    ]
    test = total_time_test(blocks, POLICY)
    assert betting_result(test, TestEvidence.empty(test).fold(test), POLICY, 0.5).outcome == "open"


def test_the_ratio_of_total_times_lies_within_its_bounds() -> None:
    """A block over the cap counts as the cap in the estimate too."""
    times = [6_000.0 if n % 40 == 39 else 100.0 for n in range(400)]
    one = run_of(0, "b", log_speedup=0.1).speculative  # also where the baseline takes 60 times as long
    blocks = [block_unit(n, [replace(run_of(n, "b", baseline_ms=ms), speculative=one)]) for n, ms in enumerate(times)]
    test = total_time_test(blocks, POLICY)
    found = betting_result(test, TestEvidence.empty(test).fold(test), POLICY, 0.01)
    assert (found.lower or 9.0) <= (found.estimate or 0.0) <= (found.upper or 0.0)


def histogram(share_failed: float, num_blocks: int = 400) -> LatencyHistogram:
    rng = np.random.default_rng(4)
    blocks = [
        block_unit(n, [failed(4 * n + i) if rng.random() < share_failed else run_of(4 * n + i, "b") for i in range(4)])
        for n in range(num_blocks)
    ]
    folded = LatencyHistogram()
    for part in (blocks[:150], blocks[150:]):
        folded = folded.fold(part)
    return folded


def test_a_failed_request_takes_speculation_for_ever() -> None:
    policy = replace(POLICY, p95_margin=0.2)
    now = histogram(0.06)
    assert now.counts["speculative"][INFINITE_BIN] == now.counts["baseline"][LOWEST_BIN] > 10
    assert now.num_units == 400
    assert now.autocorrelation is not None
    (p95,) = quantile_results(now, policy, 0.05)
    assert (p95.outcome, p95.estimate, p95.upper, p95.figures["speculative_ms"]) == ("open", None, None, None)
    assert p95.figures["baseline_ms"] == pytest.approx(100.0, rel=0.02)
    assert quantile_results(histogram(0.01), policy, 0.05)[0].outcome == "pass"


def test_lost_requests_are_infinitely_slow_too() -> None:
    policy = replace(POLICY, p95_margin=0.2)
    evidence = HypothesisEvidence(latencies=histogram(0.0), counts=SliceCounts(num_lost=30))
    judged = evidence.judged_latencies()
    assert judged.counts["speculative"][INFINITE_BIN] == 30
    assert judged.num_units == 430
    assert quantile_results(judged, policy, 0.05)[0].estimate is None


@pytest.mark.parametrize("name", ["speedup", "tail", "acceptance", "parity_near_ties", "total_time"])
def test_lost_requests_count_at_the_worst_of_each_bound(name: str) -> None:
    """As many as a block holds are worth a block in which every request failed: the capital is the same."""
    runs = draw_runs(400)
    without, lost = look(evidence_of(runs), POLICY), look(evidence_of(runs, num_lost=16), POLICY)
    failing = [failed(index, f"b{index // 4:05d}") for index in range(400, 416)]
    with_failed = result(look(evidence_of([*runs, *failing]), POLICY), name)
    assert result(lost, name).lower == with_failed.lower
    assert result(lost, name).upper == with_failed.upper
    assert result(lost, name).betting.log10_capital_pass == pytest.approx(with_failed.betting.log10_capital_pass)
    assert result(lost, name).betting.log10_capital_pass < result(without, name).betting.log10_capital_pass


def test_a_gate_that_would_enable_holds_where_enough_was_lost() -> None:
    runs, policy = draw_runs(260), replace(POLICY, max_missing=0.2)
    assert look(evidence_of(runs), policy).verdict is Verdict.ENABLE
    held = look(evidence_of(runs, num_lost=30), policy)
    assert (held.verdict, held.reason_code) == (Verdict.HOLD, "too_few_units")


def test_merged_units_take_as_many_lost_ones() -> None:
    test = total_time_test((), POLICY)
    evidence = TestEvidence.empty(test, TestState(0, 4)).with_lost(8.0)
    assert evidence.lower.logs[0].tolist() == pytest.approx((2.0 * np.log1p(-FRACTIONS)).tolist())


def test_evidence_with_light_units_and_infinite_times_round_trips() -> None:
    parities = [Parity(z_sum=0.3, z_tokens=2), Parity(z_sum=-1.0, z_tokens=80)]
    clusters = [cluster_unit(i, [run_of(i, "b", parity=p)], is_greedy=False) for i, p in enumerate(parities)]
    evidence = HypothesisEvidence().fold(clusters, [block_unit(0, [failed(0)], n_max=1)], POLICY)
    read = unpack(pack(evidence, 1), HypothesisEvidence, 1)
    assert read.latencies == evidence.latencies
    first, second = read.tests["parity_sampled"], evidence.tests["parity_sampled"]
    assert first.waiting.has_light_extremes
    for side in ("lower", "upper"):
        assert np.array_equal(getattr(first, side).worst, getattr(second, side).worst)
        assert np.array_equal(getattr(first, side).logs, getattr(second, side).logs)
