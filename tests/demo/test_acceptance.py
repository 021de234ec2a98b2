"""The correlation within sessions: the true one where it is known, none where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.benchmarks.bundled_pair.acceptance import SessionCorrelation, session_correlation


def simulated(true_icc: float, num_sessions: int, seed: int) -> SessionCorrelation:
    rng = np.random.default_rng(seed)
    rates = {}
    for session in range(num_sessions):
        effect = rng.normal(0.0, np.sqrt(true_icc))
        size = int(rng.integers(1, 5))
        rates[str(session)] = list(0.5 + effect + rng.normal(0.0, np.sqrt(1.0 - true_icc), size))
    return session_correlation(rates)


@pytest.mark.all
@pytest.mark.parametrize("true_icc", [0.0, 0.2, 0.6])
def test_the_interval_holds_the_truth_as_often_as_it_says(true_icc: float) -> None:
    results = [simulated(true_icc, 120, seed) for seed in range(60)]
    estimates = [result.icc for result in results if result.icc is not None]
    assert abs(float(np.mean(estimates)) - true_icc) < 0.03  # 60 x 120 sessions: standard error below 0.012
    covered = sum(
        result.lower is not None and result.upper is not None and result.lower <= true_icc <= result.upper
        for result in results
    )
    assert covered >= 50  # of 60 at 95 %: below 50 less than once in 10,000


def test_balanced_sessions_give_the_textbook_value() -> None:
    # Shrout and Fleiss (1979), table 2 read as one-way: ICC(1) = .17 by their equation.
    ratings = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    result = session_correlation({str(index): [float(value) for value in row] for index, row in enumerate(ratings)})
    assert result.icc == pytest.approx(0.17, abs=0.005)
    assert (result.num_sessions, result.num_requests) == (6, 24)


@pytest.mark.parametrize("rates", [{}, {"a": [0.5, 0.6]}, {"a": [0.5], "b": [0.7]}, {"a": [0.5, 0.5], "b": [0.5]}])
def test_what_cannot_be_estimated_is_undefined(rates: dict[str, list[float]]) -> None:
    assert session_correlation(rates).icc is None
