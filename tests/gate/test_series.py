"""Unit values, worked out by hand, and what is missing folded at the worst value of each bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.gate.evidence.agreement import acceptance_test, near_tie_test, z_test
from shadowspec.gate.evidence.series import BettingTest
from shadowspec.gate.evidence.speedup import speedup_test, tail_test, total_time_test
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import ArmTiming, Figure, Parity, Run
from tests.gate.worlds import block_unit, cluster_unit, counts_of, run_of

POLICY = GatePolicy(window_s=0.0)
CLIP = math.log(2.0)


def timed(index: int, baseline_ms: float, speculative_ms: float) -> Run:
    run = run_of(index, "b")
    return replace(run, baseline=ArmTiming(50.0, baseline_ms, 0.0), speculative=ArmTiming(90.0, 0.0, speculative_ms))


def failed(index: int) -> Run:
    return run_of(index, "b", failure="out_of_memory")


def format_figures(test: BettingTest) -> Mapping[str, Figure]:
    return test.describe(test.totals)


def test_a_short_block_weighs_what_its_own_requests_weigh() -> None:
    runs = [run_of(0, "b", log_speedup=0.4), run_of(1, "b", log_speedup=0.2)]
    test = speedup_test([block_unit(0, runs, n_max=4)], POLICY)
    assert test.series.lower.values[0] == pytest.approx((0.4 + 0.2) / 4)
    assert test.series.lower.weights[0] == pytest.approx(2 / 4)
    margin = math.log(1.05)
    expected = ((0.4 - margin) + (0.2 - margin)) / 4 / (CLIP + margin)
    assert test.series.ratios("lower", margin)[0] == pytest.approx(expected)


def test_log_speedups_are_clipped_and_the_clipped_share_is_shown() -> None:
    runs = [timed(0, 900.0, 100.0), timed(1, 100.0, 900.0), timed(2, 120.0, 100.0), timed(3, 100.0, 100.0)]
    test = speedup_test([block_unit(0, runs)], POLICY)
    assert test.series.lower.values[0] == pytest.approx(math.log(1.2) / 4)
    assert format_figures(test)["clipped_share"] == 0.5


def test_queue_time_is_not_judged() -> None:
    waiting = replace(timed(0, 120.0, 100.0), speculative=ArmTiming(9_999.0, 0.0, 100.0))
    test = speedup_test([block_unit(0, [waiting], n_max=1)], POLICY)
    assert test.series.lower.values[0] == pytest.approx(math.log(1.2))


def test_missing_speedup_is_the_worst_of_each_bound() -> None:
    series = speedup_test([block_unit(0, [run_of(0, "b", log_speedup=0.3), failed(1)], n_max=2)], POLICY).series
    assert series.lower.values[0] == pytest.approx((0.3 - CLIP) / 2)
    assert series.upper.values[0] == pytest.approx((0.3 + CLIP) / 2)
    assert series.observed.values[0] / series.observed.weights[0] == pytest.approx(0.3)


def test_slowed_share_counts_requests_beyond_the_tail_margin_over_the_full_size() -> None:
    runs = [timed(0, 100.0, 121.0), timed(1, 100.0, 119.0), failed(2)]
    test = tail_test([block_unit(0, runs, n_max=4)], POLICY)
    assert test.series.upper.values[0] == pytest.approx(2 / 4), "a failed request counts as slowed against passing"
    assert test.series.lower.weights[0] == 0.0, "no bet against it before its center is known"
    assert test.series.upper.weights[0] == pytest.approx(3 / 4)
    assert format_figures(test)["num_slowed"] == 1
    assert test.series.dependence is not None
    assert test.series.dependence[0] == pytest.approx(-CLIP)


def test_total_times_leave_out_the_first_ten_blocks_and_cap_at_four_times_their_mean() -> None:
    blocks = [block_unit(index, [timed(index, 100.0 + index, 100.0)], n_max=1) for index in range(10)]
    blocks += [block_unit(10, [timed(10, 200.0, 5_000.0)], n_max=1)]
    test = total_time_test(blocks, POLICY)
    cap = 4 * 104.5
    assert format_figures(test)["cap_ms"] == pytest.approx(cap)
    assert test.series.num_units == 1
    assert test.series.ratios("lower", 1.0)[0] == pytest.approx((200.0 - cap) / cap)
    assert format_figures(test)["speculative_total_ms"] == 5_000.0
    assert total_time_test(blocks[:10], POLICY).series.num_units == 0


def test_missing_total_time_is_the_worst_of_each_bound() -> None:
    blocks = [block_unit(index, [timed(index, 100.0, 100.0), timed(50 + index, 0.1, 0.1)]) for index in range(10)]
    blocks.append(block_unit(10, [timed(10, 100.0, 80.0), failed(11)]))
    series = total_time_test(blocks, POLICY).series
    cap = 4 * 100.1
    assert series.ratios("lower", 1.0)[0] == pytest.approx((100.0 - cap) / cap)
    assert series.ratios("upper", 1.0)[0] == pytest.approx((80.0 - cap) / cap)


def test_a_clusters_weight_in_acceptance_is_capped() -> None:
    long = replace(run_of(0, "b"), counts=counts_of(640, 320))
    short = replace(run_of(1, "b"), counts=counts_of(32, 24))
    test = acceptance_test([cluster_unit(0, [long]), cluster_unit(1, [short])], POLICY)
    assert test.series.lower.weights.tolist() == [1.0, 0.5]
    assert test.series.lower.values.tolist() == [0.5, 0.375]
    assert test.series.ratios("lower", 0.4).tolist() == pytest.approx([0.1 / 0.4, 0.5 * 0.35 / 0.4])


def test_acceptance_metrics_differ_in_their_denominator() -> None:
    counts = replace(
        counts_of(10, 8),
        num_draft_tokens=30,
        num_accepted_tokens=15,
        num_accepted_tokens_per_pos=(8, 5, 2),
        acceptance_histogram=(2, 3, 3, 2),
    )
    units = [cluster_unit(0, [replace(run_of(0, "b"), counts=counts)])]
    first = acceptance_test(units, POLICY).series.observed
    drafted = acceptance_test(
        units, GatePolicy(window_s=0.0, acceptance_metric="draft_acceptance_rate")
    ).series.observed
    assert first.values[0] / first.weights[0] == pytest.approx(0.8)
    assert drafted.values[0] / drafted.weights[0] == pytest.approx(0.5)
    assert drafted.weights[0] == pytest.approx(30 / 64)


def test_missing_and_undrafted_clusters_in_acceptance() -> None:
    undrafted = replace(run_of(1, "b"), counts=counts_of(0, 0))
    series = acceptance_test([cluster_unit(0, [failed(0)]), cluster_unit(1, [undrafted])], POLICY).series
    assert series.lower.values.tolist() == [0.0, 0.0]
    assert series.upper.values.tolist() == [1.0, 0.0]
    assert series.lower.weights.tolist() == [1.0, 0.0], "missing: D = S; nothing drafted: y = 0"


def test_near_ties_count_differences_beyond_the_baselines_own() -> None:
    parities = [
        Parity(),
        Parity(first_divergence=3, divergence_gap=0.0001, rerun_differs=False),
        Parity(first_divergence=3, divergence_gap=0.0001, rerun_differs=True),
        Parity(first_divergence=3, divergence_gap=0.0001, rerun_differs=None),
    ]
    runs = [run_of(index, "b", parity=parity) for index, parity in enumerate(parities)]
    test = near_tie_test([block_unit(0, runs)], POLICY)
    assert test.series.upper.values.tolist() == [0.0, 1.0, 0.0, 1.0], "not rerun: the worst"
    assert test.series.lower.values.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert test.series.ratios("upper", 0.05)[1] == pytest.approx(-1.0), "b = 1 - parity_margin"
    assert near_tie_test([block_unit(0, runs, is_greedy=False)], POLICY).series.num_units == 0


def test_z_is_pooled_clipped_and_weighted_by_tokens() -> None:
    parities = [
        Parity(z_sum=0.64, z_tokens=32, baseline_z_sum=-0.32, baseline_z_tokens=32),
        Parity(z_sum=40.0, z_tokens=100),
    ]
    units = [
        cluster_unit(index, [run_of(index, "b", parity=parity)], is_greedy=False)
        for index, parity in enumerate(parities)
    ]
    test = z_test([*units, cluster_unit(9, [failed(9)], is_greedy=False), cluster_unit(10, [run_of(10, "b")])], POLICY)
    assert test.series.lower.values.tolist() == pytest.approx([0.02 * 0.5, 0.2, -0.3])
    assert test.series.upper.values.tolist() == pytest.approx([0.02 * 0.5, 0.2, 0.3])
    assert test.series.lower.weights.tolist() == [0.5, 1.0, 0.5]
    for theta in (-0.15, -0.02, 0.0, 0.02, 0.15):
        assert test.series.ratios("lower", theta)[2] == test.series.ratios("upper", theta)[2] == pytest.approx(-1.0)
    assert format_figures(test)["z_unclipped"] == pytest.approx((0.02 * 0.5 + 0.4) / 1.5)
    assert format_figures(test)["baseline_z"] == pytest.approx(-0.01)
    assert test.series.ratios("upper", 0.02)[0] == pytest.approx(0.0)


def test_a_z_that_is_known_within_an_error_is_at_its_worse_end_for_each_bound() -> None:
    parities = [
        Parity(z_sum=0.64, z_tokens=64, z_error=0.32),
        Parity(z_sum=0.64, z_tokens=64),
        Parity(z_sum=12.0, z_tokens=64, z_error=6.4),
    ]
    units = [
        cluster_unit(0, [run_of(i, "b", parity=parity) for i, parity in enumerate(parities[:2])], is_greedy=False),
        cluster_unit(1, [run_of(2, "b", parity=parities[2])], is_greedy=False),
    ]
    series = z_test(units, POLICY).series
    assert series.observed.values.tolist() == pytest.approx([1.28 / 128, 12.0 / 64])
    assert series.lower.values.tolist() == pytest.approx([0.96 / 128, 5.6 / 64])
    assert series.upper.values.tolist() == pytest.approx([1.6 / 128, POLICY.z_clip])
    assert series.lower.weights.tolist() == series.upper.weights.tolist() == [1.0, 1.0]


TIMES = st.floats(0.5, 10_000.0)


@settings(deadline=None)
@given(st.lists(st.lists(st.one_of(st.tuples(TIMES, TIMES), st.none()), min_size=1, max_size=4), max_size=25))
def test_no_unit_is_ever_worse_than_its_bound(blocks: list[list[tuple[float, float] | None]]) -> None:
    """y >= -b for every test, side and null of the grid: without it the capital could go negative."""
    units = [
        block_unit(
            sequence,
            [timed(10 * sequence + i, *pair) if pair else failed(10 * sequence + i) for i, pair in enumerate(pairs)],
        )
        for sequence, pairs in enumerate(blocks)
    ]
    for build in (speedup_test, tail_test, total_time_test, near_tie_test):
        series = build(units, POLICY).series
        for theta in (0.005, 0.05, 0.4, 0.6):
            for side, sums, sign in (("lower", series.lower, 1.0), ("upper", series.upper, -1.0)):
                values = sign * (sums.values - theta * sums.weights)
                worst = theta - series.lowest if side == "lower" else series.upper_worst or series.highest - theta
                assert (values >= -worst - 1e-9).all(), (build.__name__, side, theta)
