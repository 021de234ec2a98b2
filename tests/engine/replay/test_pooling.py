"""Pooled counters are sums, and the interval holds the truth as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit

from shadowspec import metrics
from shadowspec.engine.replay.law import StepChances, expected_counts, step_law
from shadowspec.engine.replay.pooling import CounterPool
from shadowspec.types import ExpectedCounts


def counts(rate: float, length: int, depths: tuple[int, ...] = (1, 3)) -> tuple[ExpectedCounts, ...]:
    return expected_counts(step_law(StepChances.of_prefix([np.full(length, rate)], 3), depths), 0, 5)


def test_pooled_counters_are_sums() -> None:
    pool = CounterPool((1, 3))
    parts = [counts(0.3, 10), counts(0.9, 31), counts(0.5, 1)]
    for session, expected in zip("aab", parts, strict=True):
        pool.add(session, expected)
    for place, pooled in enumerate(pool.pool()):
        assert (pooled.num_requests, pooled.num_units) == (3, 2)
        assert pooled.counts.num_drafts == pytest.approx(sum(expected[place].num_drafts for expected in parts))
        assert pooled.counts.num_output_tokens == 42
        assert pooled.counts.num_prompt_tokens == 15
        histogram = np.sum([expected[place].acceptance_histogram for expected in parts], axis=0)
        assert pooled.counts.acceptance_histogram == pytest.approx(histogram.tolist())
        positions = np.sum([expected[place].num_accepted_tokens_per_pos for expected in parts], axis=0)
        assert pooled.counts.num_accepted_tokens_per_pos == pytest.approx(positions.tolist())
        assert sum(positions) == pytest.approx(pooled.counts.num_accepted_tokens)


def test_one_session_has_no_interval_and_equal_ones_have_no_width() -> None:
    pool = CounterPool((1, 3))
    pool.add("a", counts(0.5, 20))
    pool.add("a", counts(0.9, 20))
    assert all(pooled.lower is None and pooled.upper is None for pooled in pool.pool())
    for session in "bcd":
        for rate in (0.5, 0.9):
            pool.add(session, counts(rate, 20))
    for pooled in pool.pool():
        assert pooled.lower == pytest.approx(metrics.mean_acceptance_length(pooled.counts))
        assert pooled.upper == pytest.approx(pooled.lower)


def test_the_interval_holds_the_truth_over_correlated_requests() -> None:
    """Requests of a session accept alike: taken as independent they would miss far more often than 1 in 20."""
    rng = np.random.default_rng(11)
    kinds = [counts(rate, 24, (3,)) for rate in np.linspace(0.1, 0.9, 9)]
    drafts, accepted = (
        np.mean([getattr(expected[0], name) for expected in kinds]) for name in ("num_drafts", "num_accepted_tokens")
    )
    truth = 1.0 + accepted / drafts
    held = 0
    for _ in range(300):
        pool = CounterPool((3,))
        for session, kind in enumerate(rng.integers(0, len(kinds), 40)):
            for _ in range(int(rng.integers(1, 6))):
                pool.add(str(session), kinds[kind])
        pooled = pool.pool()[0]
        assert pooled.lower is not None
        assert pooled.upper is not None
        held += pooled.lower <= truth <= pooled.upper
    assert 0.90 <= held / 300 <= 0.99


@pytest.mark.parametrize("probability", [0.6, 0.975, 0.9999])
def test_student_quantiles_are_those_of_scipy(probability: float) -> None:
    for df in (*range(1, 60), 500, 999, 1_000, 5_000, 1_000_000):
        assert metrics.student_quantile(df, probability) == pytest.approx(stdtrit(df, probability), rel=1e-11)
