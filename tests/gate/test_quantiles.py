"""Quantile bounds cover at every look, and admit to knowing nothing while they know nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shadowspec.gate.evidence.quantiles import BIN_GROWTH, LatencyHistogram, bin_of
from tests.gate.coverage import quantile_bounds
from tests.gate.worlds import block_unit, run_of


@pytest.mark.parametrize("probability", [0.5, 0.95])
def test_coverage_of_the_true_quantile_at_every_look(probability: float) -> None:
    rng, level, num_worlds, missed = np.random.default_rng(2), 0.1, 200, 0
    truth = -math.log(1.0 - probability)
    for _ in range(num_worlds):
        values = rng.exponential(size=240).tolist()
        for size in range(20, 241, 20):
            bounds = quantile_bounds(values[:size], probability, level)
            if (bounds.lower or 0.0) > truth or (bounds.upper or math.inf) < truth:
                missed += 1
                break
    assert missed / num_worlds <= level + 3.0 * math.sqrt(level / num_worlds)
    assert missed > 0, "bounds that never miss are too wide to be tested by this world"


def test_p99_has_no_upper_bound_below_about_five_hundred_values() -> None:
    few, many = quantile_bounds(list(range(400)), 0.99, 0.05), quantile_bounds(list(range(600)), 0.99, 0.05)
    assert few.upper is None
    assert many.upper == 599


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.floats(0.05, 0.99), st.floats(0.001, 0.3))
@example([0.0, 0.0, 0.0, 0.0, 1.0], 0.25, 0.25)  # the upper bound is zero
def test_bounds_enclose_the_estimate_and_widen_with_the_confidence(values, probability: float, level: float) -> None:
    bounds, wider = quantile_bounds(values, probability, level), quantile_bounds(values, probability, level / 10)
    upper, wider_upper = (math.inf if each.upper is None else each.upper for each in (bounds, wider))
    assert (bounds.lower or 0.0) <= bounds.estimate <= upper
    assert (wider.lower or 0.0) <= (bounds.lower or 0.0)
    assert wider_upper >= upper


def test_one_request_per_block_is_drawn_whatever_its_time() -> None:
    def figures(factor: float) -> dict[str, object]:
        blocks = [
            block_unit(n, [run_of(4 * n + i, "b", baseline_ms=factor * (100.0 + 10 * i)) for i in range(4)])
            for n in range(40)
        ]
        return LatencyHistogram().fold(blocks[:7]).fold(blocks[7:]).figures(0.05)

    assert figures(1.0)["quantile_units"] == 40
    assert figures(2.0)["baseline_p95_ms"] == pytest.approx(2 * float(str(figures(1.0)["baseline_p95_ms"])), rel=0.01)


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 1e7), min_size=1, max_size=300), st.floats(0.01, 0.3))
def test_binned_bounds_are_the_exact_ones_rounded_outward(times: list[float], level: float) -> None:
    blocks = [block_unit(n, [run_of(n, "b", baseline_ms=time)]) for n, time in enumerate(times)]
    exact = [run.runs[0].run.baseline.end_to_end_ms for run in blocks]
    binned = LatencyHistogram().fold(blocks)
    for probability in (0.5, 0.95):
        exact_bounds, wide = quantile_bounds(exact, probability, level), binned.bounds("baseline", probability, level)
        assert (exact_bounds.lower is None, exact_bounds.upper is None) == (wide.lower is None, wide.upper is None)
        assert exact_bounds.lower is None or exact_bounds.lower / BIN_GROWTH * (
            1 - 1e-9
        ) <= wide.lower <= exact_bounds.lower * (1 + 1e-12)
        assert exact_bounds.upper is None or exact_bounds.upper * (
            1 - 1e-12
        ) <= wide.upper <= exact_bounds.upper * BIN_GROWTH * (1 + 1e-9)
        assert wide.estimate == pytest.approx(exact_bounds.estimate, rel=0.005)


@given(st.floats(0.002, 1e9))
def test_a_time_lies_in_its_bin(time_ms: float) -> None:
    number = bin_of(time_ms)
    assert BIN_GROWTH**number <= time_ms < BIN_GROWTH ** (number + 1)
