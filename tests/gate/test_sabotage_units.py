"""Every unit value of the gate, with one character of its formula changed, fails a figure worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest

from shadowspec.gate.evidence.totals import RunTotals
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import ArmOrder, ArmTiming, PairedScore, Parity, Run
from tests.gate.sabotage import assert_caught, assert_passes, cases
from tests.gate.worlds import block_unit, cluster_unit, counts_of, run_of

Check = Callable[[ModuleType], None]
POLICY = GatePolicy(window_s=0.0, log_speedup_clip=0.5, margin=0.05, tail_margin=0.2, tail_share=0.1)


def timed(index: int, baseline_ms: float, speculative_ms: float, num_tokens: int = 11) -> Run:
    """A tenth of each time is prefill."""
    arms = [ArmTiming(7.0, ms / 10, ms * 0.9, num_output_tokens=num_tokens) for ms in (baseline_ms, speculative_ms)]
    return replace(run_of(index, "b"), baseline=arms[0], speculative=arms[1])


def failed(index: int) -> Run:
    return run_of(index, "b", failure="timeout")


def pairs(sums: object) -> list[tuple[float, float]]:
    return list(zip(sums.values.tolist(), sums.weights.tolist(), strict=True))  # type: ignore[attr-defined]


def check_blocks(latency: ModuleType) -> None:
    """Requests of blocks of four: failed, clipped, slowed by 30% or by 19%."""
    speedup = latency.speedup_test([block_unit(0, [timed(0, 120.0, 100.0), failed(1)])], POLICY)
    log = math.log(1.2)
    assert pairs(speedup.series.lower) == [pytest.approx(((log - 0.5) / 4, 2 / 4))]
    assert pairs(speedup.series.upper) == [pytest.approx(((log + 0.5) / 4, 2 / 4))]
    assert pairs(speedup.series.observed) == [pytest.approx((log / 4, 1 / 4))]
    assert (speedup.series.lowest, speedup.series.highest, speedup.best) == (-0.5, 0.5, 0.5)
    assert speedup.above == pytest.approx(math.log(1.05))
    assert (speedup.below, speedup.is_log, speedup.disables) == (None, True, True)
    for run, value in ((timed(0, 900.0, 100.0), 0.5), (timed(0, 100.0, 900.0), -0.5)):
        clipped = latency.speedup_test([block_unit(0, [run])], POLICY)
        assert clipped.series.lower.values[0] == pytest.approx(value / 4)
        assert clipped.describe(clipped.totals)["clipped_share"] == 1.0
    runs = [timed(0, 100.0, 130.0), timed(1, 100.0, 119.0), timed(2, 100.0, 90.0), failed(3)]
    tail = latency.tail_test([block_unit(0, runs)], POLICY)
    assert pairs(tail.series.lower) == [(0.0, 0.0)]
    assert pairs(tail.series.upper) == [pytest.approx((2 / 4, 1.0))]
    before = [block_unit(place, [timed(4 * place + i, 130.0, 100.0) for i in range(4)]) for place in range(10)]
    repeated = replace(runs[0], order=ArmOrder(None, None, 57.2))
    last = [repeated, timed(1, 250.0, 100.0), timed(2, 160.0, 100.0)]
    known = latency.tail_test([*before, block_unit(10, runs[:3]), block_unit(11, last)], POLICY)
    assert pairs(known.series.lower)[-2:] == [pytest.approx((1 / 4, 3 / 4)), pytest.approx((0.0, 3 / 4))]
    # The pair 100 / 57.2 is slowed by noise in one order: beyond 1.2 times 1.3.
    assert pairs(known.series.upper)[-1] == pytest.approx((1 / 4 - 10 * 0.5 / 4, 3 / 4))
    assert (tail.above, tail.below, tail.best, tail.disables) == (None, 0.1, 0.0, True)
    assert tail.series.dependence.tolist() == [-0.5], "a failed request was the slowest"
    assert latency.tail_test([block_unit(0, runs[:2])], POLICY).series.dependence[0] == pytest.approx(math.log(1 / 1.3))


def check_totals(latency: ModuleType) -> None:
    """A cap of four times 100 ms; the first ten blocks only set it."""
    first = [block_unit(i, [timed(i, 100.0, 1.0)], n_max=1) for i in range(10)]
    later = [[timed(10, 200.0, 100.0)], [timed(11, 200.0, 4_000.0)], [timed(12, 800.0, 100.0)], [failed(13)]]
    test = latency.total_time_test([*first, *(block_unit(10 + i, runs) for i, runs in enumerate(later))], POLICY)
    assert test.describe(test.totals)["cap_ms"] == pytest.approx(400.0)
    assert pairs(test.series.lower) == [
        pytest.approx(each) for each in ((0.5, 0.25), (0.5, 1.0), (1.0, 0.25), (0.0, 1.0))
    ]
    assert pairs(test.series.upper) == [
        pytest.approx(each) for each in ((0.5, 0.25), (0.5, 1.0), (1.0, 0.25), (1.0, 0.0))
    ]
    assert (test.above, test.series.upper_worst, test.is_required) == (1.0, 1.0, False)


def check_clusters(agreement: ModuleType) -> None:
    """Acceptance weighs min(D, S) / S, z min(T, 64) / 64; what is missing is at its worst."""
    short = replace(run_of(0, "b"), counts=counts_of(16, 12))
    long = replace(run_of(1, "b"), counts=counts_of(640, 320))
    units = [cluster_unit(0, [short]), cluster_unit(1, [long]), cluster_unit(2, [short, failed(3)])]
    test = agreement.acceptance_test(units, POLICY)
    assert pairs(test.series.observed) == [
        pytest.approx(each) for each in ((0.75 * 16 / 64, 16 / 64), (0.5, 1.0), (0.75 * 16 / 64, 16 / 64))
    ]
    assert pairs(test.series.lower)[2] == pytest.approx((12 / 80, 1.0))
    assert pairs(test.series.upper)[2] == pytest.approx(((12 + 64) / 80, 1.0))
    assert (test.above, test.best) == (POLICY.floor, 1.0)
    scored = [
        cluster_unit(i, [run_of(i, "b", parity=parity)], is_greedy=False)
        for i, parity in enumerate((Parity(z_sum=1.6, z_tokens=32), Parity(z_sum=90.0, z_tokens=100), Parity()))
    ]
    z = agreement.z_test(scored, POLICY)
    assert pairs(z.series.lower) == [pytest.approx(each) for each in ((0.05 / 2, 0.5), (0.2, 1.0), (-0.3, 0.5))]
    assert pairs(z.series.upper)[2] == pytest.approx((0.3, 0.5))
    assert (z.above, z.below, z.series.lowest, z.series.highest) == (-0.02, 0.02, -0.2, 0.2)
    apart = Parity(first_divergence=0, divergence_gap=0.0, rerun_differs=False)
    greedy = [apart, replace(apart, rerun_differs=True), Parity(), replace(apart, rerun_differs=None)]
    ties = agreement.near_tie_test([block_unit(0, [run_of(i, "b", parity=p) for i, p in enumerate(greedy)])], POLICY)
    assert ties.series.upper.values.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert ties.series.lower.values.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert (ties.below, ties.num_missing) == (POLICY.parity_margin, 1)


def check_faults(results: ModuleType) -> None:
    """(1 - .05)^n at most the level: n = 72 at .025; the upper bound of the share solves the same equation."""
    for num_known, outcome, needed in ((71, "open", 1), (72, "pass", None)):
        found = results.fault_result(RunTotals(num_greedy=80, num_known_greedy=num_known), "float32", POLICY, 0.025)
        assert (found.outcome, found.units_needed, found.min_units) == (outcome, needed, 72)
        assert (1.0 - (found.upper or 0.0)) ** num_known == pytest.approx(0.025)
        assert found.figures["num_unknown"] == 80 - num_known
    one = RunTotals(num_greedy=9, num_known_greedy=9, num_diverging=3, largest_gaps=(0.5, 1e-3, 1e-4))
    found = results.fault_result(one, "float32", POLICY, 0.025)
    assert (found.outcome, found.figures["num_faults"], found.figures["num_near_ties"]) == ("fail", 1, 2)


def check_guardrails(guardrails: ModuleType) -> None:
    """Device-seconds at load 4 times a price of 3.6 an hour; scores speculative less baseline; TPOT but the first."""
    policy = replace(
        POLICY, ttft_margin=0.1, tpot_margin=0.1, score_margin=0.1, max_cost_per_million_tokens=2.0,
        device_price_per_hour=3.6,
    )  # fmt: skip
    run = replace(timed(0, 4_000.0, 2_000.0, 128), scores={"score": PairedScore(0.25, 0.75)})
    slow = replace(run, speculative=ArmTiming(0.0, 500.0, 1_270.0, num_output_tokens=128))
    tests = {test.name: test for test in guardrails.guardrail_tests([block_unit(0, [slow, failed(1)])], policy)}
    assert pairs(tests["ttft"].series.lower) == [pytest.approx((math.log(400.0 / 500.0) / 4 - 0.5 / 4, 2 / 4))]
    assert tests["tpot"].series.observed.values[0] == pytest.approx(0.5 / 4), "log(3600 / 1270), clipped"
    assert (tests["ttft"].above, tests["score"].above) == (pytest.approx(-math.log(1.1)), -0.1)
    assert pairs(tests["score"].series.upper) == [pytest.approx((1.5 / 4, 2 / 4))]
    cost = 1.770 / 4 * 0.001 / 128 * 1e6
    assert pairs(tests["cost"].series.observed) == [pytest.approx((cost / 2.0 * 0.5 / 4, 0.5 / 4))]
    assert pairs(tests["cost"].series.upper) == [pytest.approx(((cost / 2.0 * 0.5 + 4.0) / 4, 1.5 / 4))]
    assert pairs(tests["cost"].series.lower) == [pytest.approx((cost / 2.0 * 0.5 / 4, 1.5 / 4))]
    figures = tests["cost"].describe(tests["cost"].totals)
    assert figures["speculative_cost_per_million_tokens"] == pytest.approx(cost)
    assert figures["baseline_cost_per_million_tokens"] == pytest.approx(4.0 / 4 * 0.001 / 128 * 1e6)
    assert guardrails.min_quantile_units(0.95, 0.05) == 1 + max(
        n for n in range(1, 400) if guardrails.quantile_ranks(n, 0.95, 0.05).upper is None
    )


CHECKS: dict[str, tuple[str, Check, list[tuple[str, str]]]] = {
    "speedup and tail": (
        "shadowspec.gate.evidence.speedup",
        check_blocks,
        [
            ("clip), -clip, clip)", "clip), +clip, clip)"),
            ("above=policy.log_min_speedup", "above=-policy.log_min_speedup"),
            ("np.abs(logs) > clip", "np.abs(logs) < clip"),
            ("-math.log1p(policy.tail_margin)", "+math.log1p(policy.tail_margin)"),
            ("logs < slow_log", "logs > slow_log"),
            ("is_slowed, 0.0, 1.0)", "is_slowed, 0.0, 2.0)"),
            ("is_slowed - is_sped_up", "is_slowed + is_sped_up"),
            ("2.0 * center - slow_log", "2.0 * center + slow_log"),
            ("0.5 * (-repeats < slow_log", "0.5 * (-repeats > slow_log"),
            ("REPEAT_EVERY * timed", "1.0 * timed"),
            ("clip, clip), -clip))", "clip, clip), +clip))"),
        ],
    ),
    "total time": (
        "shadowspec.gate.evidence.speedup",
        check_totals,
        [
            ("TIME_CAP_BLOCKS = 10 ", "TIME_CAP_BLOCKS = 11 "),
            ("TIME_CAP_FACTOR = 4.0", "TIME_CAP_FACTOR = 5.0"),
            ("np.minimum(spec, 1.0)", "np.minimum(spec, 2.0)"),
            ("np.minimum(base, 1.0)", "np.minimum(base, 9.0)"),
            ("np.where(has_missing, 1.0, capped_spec)", "np.where(has_missing, 0.0, capped_spec)"),
            ("np.where(has_missing, 1.0, capped_base)", "np.where(has_missing, 0.0, capped_base)"),
            ("upper_worst=1.0", "upper_worst=2.0"),
            ("cap_total_ms\"], totals", "num_cap_times\"], totals"),
        ],
    ),
    "clusters and parity": (
        "shadowspec.gate.evidence.agreement",
        check_clusters,
        [
            ("np.minimum(scored, cap) / cap", "np.maximum(scored, cap) / cap"),
            ("Sums(weights * rates,", "Sums(weights / rates,"),
            ("accepted + missing * cap, scored", "accepted - missing * cap, scored"),
            ("lower=capped_rates(accepted, scored + missing * cap", "lower=capped_rates(accepted, scored + missing"),
            ("num_first_accepted, counts.num_drafts", "num_first_accepted, counts.num_drafts+1"),
            ("min(num_tokens, policy.parity_tokens)", "max(num_tokens, policy.parity_tokens)"),
            ("min(max(value, -policy.z_clip), policy.z_clip)", "max(max(value, -policy.z_clip), policy.z_clip)"),
            ("else (-worst[0], worst[1])", "else (+worst[0], worst[1])"),
            ("above=-policy.z_bound", "above=+policy.z_bound"),
            ("np.where(is_known, scores, 1.0)", "np.where(is_known, scores, 0.0)"),
            ("float(not parity.rerun_differs)", "float(parity.rerun_differs)"),
        ],
    ),
    "faults": (
        "shadowspec.gate.verdict.required_tests",
        check_faults,
        [
            ("math.log1p(-policy.max_fault_share)", "-math.log1p(policy.max_fault_share)"),
            ("num_known >= min_units", "num_known > min_units"),
            ("1.0 - level ** (1.0 / num_known)", "1.0 - level ** (2.0 / num_known)"),
            ("runs.num_greedy - runs.num_known_greedy", "runs.num_greedy + runs.num_known_greedy"),
            ("runs.num_diverging - num_faults", "runs.num_diverging + num_faults"),
        ],
    ),
    "guardrails": (
        "shadowspec.gate.evidence.guardrails",
        check_guardrails,
        [
            ("COST_CLIP = 4.0", "COST_CLIP = 5.0"),
            ("COST_TOKENS = 256", "COST_TOKENS = 128"),
            ("device_ms * price / MS_PER_HOUR", "device_ms / price / MS_PER_HOUR"),
            ("MS_PER_HOUR = 3_600_000.0", "MS_PER_HOUR = 3_600_0.0"),
            ("value = cost(arm.end_to_end_ms / unit", "value = cost(arm.end_to_end_ms * unit"),
            ('_device_ms"] += arm.end_to_end_ms / unit', '_device_ms"] += arm.end_to_end_ms * unit'),
            ("weight * min(value / limit", "weight * min(value * limit"),
            ("pair.speculative - pair.baseline", "pair.baseline - pair.speculative"),
            ("above=-margin", "above=+margin"),
            ("above=-math.log1p(margin)", "above=+math.log1p(margin)"),
            ("times = ratio(base, spec)", "times = ratio(spec, base)"),
            ("lower=((value + missing * lowest)", "lower=((value - missing * lowest)"),
            ("upper=((value + missing * highest)", "upper=((value - missing * highest)"),
            ("highest) / n_max, (weight + missing)", "highest) / n_max, (weight - missing)"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_the_product_passes_each_check(name: str) -> None:
    assert_passes(CHECKS, name)


@pytest.mark.parametrize(("name", "old", "new"), cases(CHECKS))
def test_one_changed_character_fails_its_check(name: str, old: str, new: str) -> None:
    assert_caught(CHECKS, name, (old, new), (AssertionError, ValueError, TypeError, Warning))
