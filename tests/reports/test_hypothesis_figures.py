"""Measured figures: exact order statistics, pooled ratios, weights; the definitions written out again."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec import metrics
from shadowspec.reports.report import hypothesis_figures as figures
from shadowspec.reports.report.hypothesis_figures import JoinedRun
from shadowspec.types import Arm, ArmTiming, Memory, Parity, RecordKey, Run, ServedMemory
from tests.reports.worlds import counts_of

VALUES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60)
RATES = st.sampled_from([1.0, 0.5, 0.25, 0.1, 0.05, 0.01])


def measured(run: Run, *, rate: float = 1.0, is_greedy: bool = True) -> JoinedRun:
    return JoinedRun(
        run=run,
        slice_key="prompt_class=code",
        concurrency=4,
        unit_key=None,
        turn=None,
        sampling_rate=rate,
        is_greedy=is_greedy,
    )


def run_of(seed: int, **changed: object) -> Run:
    rng = random.Random(seed)
    tokens = rng.randrange(2, 40)
    run = Run(
        key=RecordKey("file", 0, seed),
        fingerprint="f",
        block_id="b",
        counts=counts_of(rng, 0.6, tokens),
        baseline=ArmTiming(rng.random() * 9, rng.random() * 30, rng.random() * 400 + 1, num_output_tokens=tokens),
        speculative=ArmTiming(rng.random() * 9, rng.random() * 30, rng.random() * 400 + 1, num_output_tokens=tokens),
    )
    return replace(run, **changed)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(VALUES, st.sampled_from([0.05, 0.5, 0.95, 0.99]))
def test_quantile_is_the_first_value_that_covers_its_share(values: list[float], probability: float) -> None:
    quantile = figures.quantile(values, probability)
    rare = min(Fraction(str(probability)), 1 - Fraction(str(probability)))
    assert quantile.needs == math.ceil(1 / rare)
    if len(values) < quantile.needs:
        assert quantile.value is None
        return
    covers = [v for v in sorted(values) if sum(w <= v for w in values) >= Fraction(str(probability)) * len(values)]
    assert quantile.value == covers[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 1e6), st.integers(1, 5)), min_size=20, max_size=40))
def test_a_weight_is_that_many_copies(pairs: list[tuple[float, int]]) -> None:
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    copies = [v for v, w in pairs for _ in range(w)]
    assert figures.quantile(values, 0.95, weights).value == figures.quantile(copies, 0.95).value
    for value, share in figures.ecdf(values, weights):
        assert share <= sum(copy <= value for copy in copies) / len(copies) + 1e-9


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_ecdf_rises_to_one_and_agrees_with_counting(values: list[float]) -> None:
    points = figures.ecdf(values, [1] * len(values))
    assert points[-1][0] == max(values)
    assert points[-1][1] == pytest.approx(1.0)
    assert [v for v, _ in points] == sorted(v for v, _ in points)
    assert all(later[1] > earlier[1] for earlier, later in pairwise(points))
    distinct = dict(points)  # of ties the last point holds the whole share
    for value, share in distinct.items():
        assert share == pytest.approx(sum(v <= value for v in values) / len(values))


@settings(max_examples=60, deadline=None)
@given(st.lists(RATES, min_size=1, max_size=12))
def test_weights_are_whole_and_inverse_to_rates(rates: list[float]) -> None:
    weights = figures.request_weights(rates)
    assert math.gcd(*weights) == 1
    for rate, weight in zip(rates, weights, strict=True):
        assert weight * rate == pytest.approx(weights[0] * rates[0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=12, unique=True))
def test_acceptance_is_pooled_and_named(seeds: list[int]) -> None:
    runs = [run_of(seed) for seed in seeds]
    acceptance = figures.acceptance([measured(run) for run in runs])
    assert acceptance is not None
    assert not acceptance.is_weighted
    counts = [run.counts for run in runs if run.counts]
    steps, accepted = sum(c.num_drafts for c in counts), sum(c.num_accepted_tokens for c in counts)
    assert acceptance.mean_acceptance_length == pytest.approx(1 + accepted / steps)
    assert acceptance.mean_acceptance_length == pytest.approx(
        1 + sum(r or 0 for r in acceptance.marginal_acceptance_rates)
    )
    lengths = [1 + c.num_accepted_tokens / c.num_drafts for c in counts]
    assert acceptance.mean_of_requests_acceptance_length == pytest.approx(sum(lengths) / len(lengths))
    assert sum(share or 0 for share in acceptance.histogram_shares) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 40)), min_size=1, max_size=12, unique=True))
def test_tokens_per_target_pass_count_every_pass_of_every_request(requests: list[tuple[int, int]]) -> None:
    """Plain steps emit one token each; a mean over drafted steps alone says more than speculation gives."""
    runs = []
    for seed, plain in requests:
        run = run_of(seed)
        assert run.counts is not None
        counts = replace(run.counts, num_plain_steps=plain, num_output_tokens=run.counts.num_output_tokens + plain)
        runs.append(replace(run, counts=counts))
    acceptance = figures.acceptance([measured(run) for run in runs])
    assert acceptance is not None
    counts_of_all = [run.counts for run in runs if run.counts]
    passes = sum(1 + counts.num_drafts + counts.num_plain_steps for counts in counts_of_all)
    tokens = sum(counts.num_output_tokens for counts in counts_of_all)
    assert acceptance.tokens_per_target_pass == pytest.approx(tokens / passes)
    assert acceptance.target_passes_saved == tokens - passes
    assert acceptance.counts.target_passes == passes


def test_acceptance_weighs_by_the_inverse_sampling_rate() -> None:
    rare, common = run_of(1), run_of(2)
    weighted = figures.acceptance([measured(rare, rate=0.25), measured(common, rate=1.0)])
    copies = figures.acceptance([measured(rare)] * 4 + [measured(common)])
    assert weighted is not None
    assert copies is not None
    assert weighted.is_weighted
    assert weighted.draft_acceptance_rate == copies.draft_acceptance_rate
    assert weighted.tokens_per_target_pass == copies.tokens_per_target_pass
    assert weighted.marginal_acceptance_rates == copies.marginal_acceptance_rates
    assert weighted.mean_of_requests_acceptance_length == pytest.approx(copies.mean_of_requests_acceptance_length)
    assert weighted.counts == metrics.pool_counts(c for c in (rare.counts, common.counts) if c)  # as they were counted


def test_queue_time_is_in_no_judged_figure() -> None:
    quick = [measured(run_of(seed)) for seed in range(1, 41)]
    waiting = [
        replace(m, run=replace(m.run, baseline=_wait(m.run.baseline), speculative=_wait(m.run.speculative)))
        for m in quick
    ]
    first, second = figures.latency(quick), figures.latency(waiting)
    assert first is not None
    assert second is not None
    assert first.ratio_of_total_times == second.ratio_of_total_times
    assert first.speedup_histogram == second.speedup_histogram
    for before, after in zip(first.distributions, second.distributions, strict=True):
        assert (before == after) is (before.measure != "queue_ms")


def _wait(timing: ArmTiming | None) -> ArmTiming:
    assert timing is not None
    return replace(timing, queue_ms=timing.queue_ms + 1000.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30))
def test_every_request_lies_in_one_speedup_bin(seeds: list[int]) -> None:
    runs = [run_of(seed) for seed in seeds]
    latency = figures.latency([measured(run) for run in runs])
    assert latency is not None
    assert sum(b.num_requests for b in latency.speedup_histogram) == len(runs)
    for b in latency.speedup_histogram:
        inside = [
            run
            for run in runs
            if run.baseline
            and run.speculative
            and (b.lower or 0) <= (metrics.speedup(run.baseline, run.speculative) or 0) < (b.upper or math.inf)
        ]
        assert b.num_requests == len(inside)


def test_realised_concurrency_weighs_by_the_inverse_sampling_rate_and_leaves_out_the_unknown() -> None:
    arms = [ArmTiming(0.0, 1.0, 9.0, num_output_tokens=4, concurrency=value) for value in (3.0, 1.0, None)]
    first, second, unknown = (
        run_of(seed, baseline=timing, speculative=replace(timing, concurrency=2.0)) for seed, timing in enumerate(arms)
    )
    found = figures.latency([measured(first, rate=0.25), measured(second), measured(unknown)])
    assert found is not None
    assert found.baseline_concurrency == pytest.approx((4 * 3.0 + 1.0) / 5)
    assert found.speculative_concurrency == 2.0
    alone = figures.latency([measured(replace(unknown, speculative=arms[2]))])
    assert alone is not None
    assert alone.baseline_concurrency is None


def test_failed_runs_have_no_figures() -> None:
    failed = measured(Run(RecordKey("file", 0, 1), "f", "b", failure="out_of_memory"))
    assert figures.acceptance([failed]) is None
    assert figures.latency([failed]) is None
    assert figures.parity([failed], 1e-3) is None


def test_memory_of_servers_is_that_of_the_block_that_displaced_the_most() -> None:
    held = [ServedMemory(48_000, tokens, 48.0, tokens / 1_000, "vllm") for tokens in (47_000, 41_000, 49_000)]
    found = figures.kv_cache(held)
    assert found is not None
    assert (found.num_blocks, found.speculative_tokens, found.displaced_tokens) == (3, 41_000, 7_000)
    assert (found.baseline_requests, found.speculative_requests) == (48.0, 41.0)
    assert figures.memory(held) is None
    in_process = [Memory(10, 30, 1, 0, 0, kv_tokens_per_request=each) for each in (None, 8.0, 5.0)]
    assert figures.kv_cache(in_process) is None
    measured_in_process = figures.memory(in_process)
    assert measured_in_process is not None
    assert measured_in_process.displaced_requests == 4.0


def test_one_token_has_no_time_per_output_token() -> None:
    timing = ArmTiming(0.0, 10.0, 0.0, num_output_tokens=1)
    latency = figures.latency([measured(run_of(3, baseline=timing, speculative=timing))])
    assert latency is not None
    tpot = [d for d in latency.distributions if d.measure == "tpot_ms"]
    assert [(d.num_requests, d.mean, d.ecdf) for d in tpot] == [(0, None, ()), (0, None, ())]


def test_gaps_are_shown_where_a_run_has_one() -> None:
    """Runs of before they were noted are left out of them."""
    noted = replace(ArmTiming(0.0, 10.0, 50.0, num_output_tokens=6), longest_gap_ms=30.0)
    known = run_of(3, baseline=noted, speculative=replace(noted, longest_gap_ms=12.0))
    without = replace(noted, longest_gap_ms=None)
    unknown = run_of(4, baseline=without, speculative=without)
    found = figures.latency([measured(known), measured(unknown)])
    assert found is not None
    gaps = [(d.arm, d.num_requests, d.mean) for d in found.distributions if d.measure == "longest_gap_ms"]
    assert gaps == [(Arm.BASELINE, 1, 30.0), (Arm.SPECULATIVE, 1, 12.0)]
    before = figures.latency([measured(unknown)])
    assert before is not None
    assert "longest_gap_ms" not in {d.measure for d in before.distributions}


def test_parity_tells_near_ties_from_faults_and_from_the_unknown() -> None:
    equal = Parity()
    near = Parity(first_divergence=3, divergence_gap=1e-3, rerun_differs=True)
    fault = Parity(first_divergence=3, divergence_gap=0.2, rerun_differs=False)
    unknown = Parity(first_divergence=3)
    runs = [measured(run_of(i, parity=p)) for i, p in enumerate([equal, near, fault, unknown], start=1)]
    parity = figures.parity(runs, 1e-3)
    assert parity is not None
    assert (parity.num_greedy, parity.num_diverged) == (4, 3)
    assert (parity.num_near_ties, parity.num_faults, parity.num_unknown_gaps) == (1, 1, 1)
    assert parity.num_rerun_differs == 1
    assert figures.parity(runs, None) == replace(parity, num_near_ties=None, num_faults=None, near_tie_logit=None)


def test_sampled_outputs_are_scored_not_compared() -> None:
    runs = [
        measured(
            run_of(i, parity=Parity(z_sum=z, z_tokens=n, baseline_z_sum=-z, baseline_z_tokens=2 * n)), is_greedy=False
        )
        for i, (z, n) in enumerate([(1.0, 10), (2.0, 40)], start=1)
    ]
    parity = figures.parity(runs, 1e-3)
    assert parity is not None
    assert parity.num_greedy == 0
    assert (parity.z_tokens, parity.baseline_z_tokens) == (50, 100)
    assert parity.z == pytest.approx(3 / 50)
    assert parity.baseline_z == pytest.approx(-3 / 100)
