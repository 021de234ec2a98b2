"""The naive gates are what their sources publish, on inputs whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from shadowspec.simulate.naive import (
    NAIVE_GATES,
    Observed,
    fixed_n_t,
    mann_whitney,
    moving_average,
    naive_z,
    observe,
    rolling_mean,
    threshold_checks,
    token_independent,
)
from shadowspec.simulate.repetition import draw, seed_of
from shadowspec.simulate.world import ALONE, BOUNDARY
from shadowspec.simulate.worlds import WORLDS


def seen(
    log_speedup: np.ndarray, *, accepted: float | np.ndarray = 0.65, baseline_ms: np.ndarray | None = None
) -> Observed:
    size = len(log_speedup)
    drafts = np.full(size, 100)
    return Observed(
        np.arange(size),
        log_speedup,
        np.full(size, 250.0) if baseline_ms is None else baseline_ms,
        drafts,
        np.round(drafts * accepted).astype(np.int64),
    )


def test_z_and_t_cross_where_the_textbook_says() -> None:
    rng = np.random.default_rng(2)
    values = BOUNDARY + rng.normal(0.02, 0.1, size=200)
    z_crossed = t_crossed = False
    for n in range(8, 201):
        result = stats.ttest_1samp(values[:n], BOUNDARY)
        t_crossed |= bool(result.pvalue < 0.05 and result.statistic > 0)
        z_crossed |= bool(n >= 30 and result.statistic > stats.norm.ppf(0.95))
        assert fixed_n_t(seen(values[:n]), ALONE) == t_crossed
        assert naive_z(seen(values[:n]), ALONE) == z_crossed


def test_too_few_requests_enable_nothing() -> None:
    assert not naive_z(seen(np.full(29, 1.0)), ALONE)
    assert not fixed_n_t(seen(np.full(7, 1.0)), ALONE)


def test_tokens_are_counted_as_if_independent() -> None:
    assert token_independent(seen(np.zeros(40), accepted=0.45), ALONE)
    assert not token_independent(seen(np.zeros(40), accepted=0.40), ALONE)


def test_the_rolling_mean_switches_off_for_ever() -> None:
    """Five requests below .6 on average end it, whatever comes after; five at .6 do not."""
    low = np.concatenate([np.full(10, 0.9), np.full(4, 0.5), np.full(50, 0.9)])
    assert not rolling_mean(seen(np.zeros(64), accepted=np.where(np.arange(64) < 5, 0.5, 0.9)), ALONE)
    assert rolling_mean(seen(np.zeros(64), accepted=0.61), ALONE)
    assert rolling_mean(seen(np.zeros(64), accepted=np.maximum(low, 0.55)), ALONE)
    assert rolling_mean(seen(np.zeros(4), accepted=0.1), ALONE), "no full window yet"


def test_the_moving_average_is_off_every_other_time_where_acceptance_is_low() -> None:
    states = [moving_average(seen(np.zeros(n), accepted=0.2), ALONE) for n in (12, 15, 20, 25, 30)]
    assert states == [True, False, True, False, True]
    assert moving_average(seen(np.zeros(200), accepted=0.9), ALONE)


def test_the_mann_whitney_judge_passes_what_is_not_proven_slower() -> None:
    rng = np.random.default_rng(5)
    baseline = rng.lognormal(math.log(250.0), 0.2, size=300)
    assert mann_whitney(seen(np.zeros(300), baseline_ms=baseline), ALONE)
    assert mann_whitney(seen(np.zeros(0)), ALONE), "no data passes"
    assert not mann_whitney(seen(np.full(300, -0.3), baseline_ms=baseline), ALONE)


def test_the_interval_of_the_shift_is_hodges_and_lehmanns() -> None:
    """At a shift of s the judge fails once the interval's lower end passes a quarter of the estimate."""
    rng = np.random.default_rng(6)
    baseline = rng.normal(250.0, 10.0, size=90)
    shifted = np.log(baseline / (baseline + 20.0))
    assert not mann_whitney(seen(shifted, baseline_ms=baseline), ALONE)
    assert mann_whitney(seen(np.log(baseline / (baseline + 1.0)), baseline_ms=baseline), ALONE)


def test_ten_checks_of_the_p99() -> None:
    slow = np.full(100, 600.0)
    assert not threshold_checks(seen(np.zeros(100), baseline_ms=slow), ALONE)
    slow[50:] = 200.0
    assert not threshold_checks(seen(np.zeros(100), baseline_ms=slow), ALONE), "five failed checks are the limit"
    slow[40:] = 200.0
    assert threshold_checks(seen(np.zeros(100), baseline_ms=slow), ALONE)


def test_an_arm_that_failed_leaves_no_value() -> None:
    world = WORLDS["failures"]
    drawn = draw(world, seed_of(world, 1, 0))
    assert len(observe(drawn.outcomes, drawn.requests.at_us).log_speedup) == int((~drawn.outcomes.failed).sum())


@pytest.mark.parametrize("gate", NAIVE_GATES, ids=lambda gate: gate.name)
def test_every_gate_names_its_source(gate: object) -> None:
    assert getattr(gate, "source", "")
    assert getattr(gate, "reads", "") in ("speedup", "acceptance")
