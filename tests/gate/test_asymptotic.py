"""Asymptotic sequences: the mixtures that they come from, integrated; their moments; and why no verdict reads them."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from shadowspec.gate.evidence import asymptotic
from shadowspec.gate.evidence.asymptotic import BURN_IN, RatioMoments
from shadowspec.gate.verdict import decision
from shadowspec.gate.verdict import required_tests as results
from tests.gate.coverage import running_moments

LEVELS = st.floats(0.001, 0.3)
SIZES = st.integers(2, 5_000)


def mixture(total: float, num_units: float, rho: float) -> float:
    """The integral over bets of exp(bet * total - bet^2 n / 2), normal or half-normal with scale rho."""

    def integrand(bet: float) -> float:
        density = math.exp(-((bet / rho) ** 2) / 2.0) / (rho * math.sqrt(2.0 * math.pi))
        return density * math.exp(bet * total - bet**2 * num_units / 2.0)

    peak = total * rho**2 / (num_units * rho**2 + 1.0)
    width = rho / math.sqrt(num_units * rho**2 + 1.0)
    start = peak - 14.0 * width
    return float(integrate.quad(integrand, start, peak + 14.0 * width, epsabs=0.0, epsrel=1e-11, limit=400)[0])


@settings(max_examples=60, deadline=None)
@given(SIZES, st.floats(0.01, 1.0), LEVELS)
def test_two_sided_width_is_where_the_integrated_mixture_reaches_one_over_level(n: int, rho: float, level: float):
    width = float(asymptotic.half_width(np.array(1.0), np.array(float(n)), rho, level))
    assert mixture(n * width, n, rho) * level == pytest.approx(1.0, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(50.0, 5_000.0), st.floats(0.001, 0.1))
def test_the_planned_size_is_about_where_the_bounds_are_tightest(planned: float, level: float) -> None:
    unit, size = np.array(1.0), np.array(planned)
    best = min(float(asymptotic.half_width(unit, size, rho, level)) for rho in np.geomspace(0.001, 1.0, 400))
    rho = asymptotic.planned_rho(planned, level)
    assert float(asymptotic.half_width(unit, size, rho, level)) <= 1.005 * best


def influence_values(a: np.ndarray, d: np.ndarray) -> np.ndarray:
    """What each pair adds to the error of the ratio: (A - ratio * D) / mean of D."""
    return (a - a.sum() / d.sum() * d) / d.mean()


PAIRS = st.lists(st.tuples(st.floats(-5.0, 5.0), st.floats(0.1, 4.0)), min_size=3, max_size=60)


@settings(deadline=None)
@given(PAIRS)
def test_the_sd_from_sums_is_that_of_the_influence_values(pairs: list[tuple[float, float]]) -> None:
    a, d = np.array(pairs).T
    moments, direct = RatioMoments.of(a, d), influence_values(a, d)
    assert float(moments.influence_sd) == pytest.approx(float(np.std(direct, ddof=1)), abs=1e-6)


@settings(deadline=None)
@given(PAIRS)
def test_influence_is_what_leaving_one_unit_out_changes(pairs: list[tuple[float, float]]) -> None:
    """To first order: exactly, it is the change times the mean of D left over that of all, and n - 1."""
    a, d = np.array(pairs).T
    influence, n = influence_values(a, d), len(a)
    for index in range(n):
        left = (a.sum() - a[index]) / (d.sum() - d[index])
        change = (a.sum() / d.sum() - left) * (d.sum() - d[index]) / d.mean()
        assert influence[index] == pytest.approx(change, abs=1e-7)


@settings(deadline=None)
@given(PAIRS, st.integers(1, 59))
def test_moments_add_up_whatever_the_cut(pairs: list[tuple[float, float]], cut: int) -> None:
    a, d = np.array(pairs).T
    whole, running = RatioMoments.of(a, d), running_moments(a, d)
    parts = RatioMoments.of(a[:cut], d[:cut]) + RatioMoments.of(a[cut:], d[cut:])
    for name in RatioMoments.__slots__:
        assert float(getattr(parts, name)) == pytest.approx(float(getattr(whole, name)), abs=1e-9)
        assert float(getattr(running, name)[-1]) == pytest.approx(float(getattr(whole, name)), abs=1e-9)


def test_leading_axes_are_paths_of_their_own() -> None:
    rng = np.random.default_rng(4)
    a, d = rng.normal(0.3, 1.0, (3, 2, 400)), rng.uniform(0.2, 1.0, (3, 2, 400))
    lower, upper = asymptotic.bounds(running_moments(a, d), 0.05)
    assert lower.shape == upper.shape == (3, 2, 400)
    one = asymptotic.bounds(RatioMoments.of(a[1, 1, :300], d[1, 1, :300]), 0.05)
    assert (lower[1, 1, 299], upper[1, 1, 299]) == pytest.approx((float(one[0]), float(one[1])))


def test_nothing_is_said_before_burn_in_or_of_a_ratio_without_denominator() -> None:
    rng = np.random.default_rng(5)
    moments = running_moments(rng.normal(size=200), np.ones(200))
    lower, upper = asymptotic.bounds(moments, 0.05)
    assert np.isneginf(lower[: BURN_IN - 1]).all()
    assert np.isposinf(upper[: BURN_IN - 1]).all()
    assert np.isfinite(lower[BURN_IN - 1 :]).all()
    undefined = RatioMoments.of(np.zeros(200), np.zeros(200))
    assert asymptotic.bounds(undefined, 0.05) == (-math.inf, math.inf)
    assert math.isnan(float(undefined.ratio))


def test_rare_large_slowdowns_are_why_no_verdict_reads_them() -> None:
    """At the boundary, 3% of blocks far slower: false at more than the level, where betting keeps it."""
    rng, level, num_runs = np.random.default_rng(6), 0.05, 1_000
    share, loss = 0.02, -0.6
    gain = -share * loss / (1.0 - share)
    values = np.where(rng.random((num_runs, 400)) < share, loss, gain) + rng.normal(0.0, 0.01, (num_runs, 400))
    lower, _ = asymptotic.bounds(running_moments(values, np.ones_like(values)), level)
    assert (lower > 0.0).any(axis=1).mean() > level
    for module in (decision, results):
        judging = [line for line in inspect.getsource(module).splitlines() if "asymptotic" in line]
        assert all("detail" in line or "import" in line for line in judging), judging
