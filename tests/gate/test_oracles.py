"""Other people's code, papers and brute force say the same to 1e-6.

How the figures of their code were made stands beside them in tests/data/oracles.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate

from shadowspec.gate.evidence import quantiles
from shadowspec.gate.stats import betting, drift
from shadowspec.gate.stats.capital import CapitalTable
from tests.gate.coverage import log_mean_statistic

WEIGHTS = (0.15, 0.2, 0.25, 0.4)  # with which confseq's figures were made
DATA = Path(__file__).parents[1] / "data" / "oracles"
CONFSEQ = json.loads((DATA / "confseq.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CONFSEQ["capitals"])
def test_capital_is_that_of_confseq_at_every_unit(case: dict[str, Any]) -> None:
    values = np.array(case["values"])
    sums = betting.Sums(values, np.ones(len(values)))
    series = betting.UnitSeries(sums, sums, sums, 0.0, 1.0)
    path = betting.log_capital_path(series.ratios(case["side"], case["mean"]), WEIGHTS)
    assert path.tolist() == pytest.approx(np.log(case["capital"]).tolist(), abs=1e-6)
    empty = CapitalTable.empty(case["side"], np.array([case["mean"]]), 0.0, 1.0, weights=WEIGHTS)
    table = empty.fold(values, np.ones(len(values)))
    assert table.log_capital(case["mean"]) == pytest.approx(math.log(case["capital"][-1]), abs=1e-6)


def test_the_quantile_mixture_is_that_of_confseq() -> None:
    assert len(CONFSEQ["mixtures"]) > 60
    for case in CONFSEQ["mixtures"]:
        log_mixture = quantiles._log_mixture(case["count"], case["total"], case["probability"])
        assert log_mixture == pytest.approx(case["log"], abs=1e-6), case


@pytest.mark.parametrize(("probability", "count", "total"), [(0.95, 130, 150), (0.99, 600, 600), (0.5, 10, 60)])
def test_the_quantile_mixture_is_the_integral_over_alternatives(probability: float, count: int, total: int) -> None:
    """Howard and Ramdas, arXiv 1906.09712: the Beta density that they mix with, integrated piece by piece."""
    shape = probability / (1.0 - probability)

    def integrand(p: float) -> float:
        log = (shape - 1.0 + count) * math.log(p) + (total - count) * math.log1p(-p)
        null = count * math.log(probability) + (total - count) * math.log1p(-probability)
        return shape * math.exp(log - null)

    edges = np.linspace(0.0, 1.0, 41)
    pieces = [integrate.quad(integrand, a, b, epsabs=0.0, epsrel=1e-11)[0] for a, b in itertools.pairwise(edges)]
    assert quantiles._log_mixture(count, total, probability) == pytest.approx(math.log(sum(pieces)), abs=1e-6)


def test_the_quantile_mixture_is_a_martingale() -> None:
    """Summed over every count with its chance, the likelihood ratio is 1."""
    for total, probability in ((1, 0.95), (17, 0.95), (60, 0.5), (40, 0.99)):
        expected = sum(
            math.comb(total, count)
            * probability**count
            * (1.0 - probability) ** (total - count)
            * math.exp(quantiles._log_mixture(count, total, probability))
            for count in range(total + 1)
        )
        assert expected == pytest.approx(1.0, abs=1e-9)


def test_e_sr_statistics_have_mean_n_while_the_promise_just_holds() -> None:
    """Shin, Ramdas and Rinaldo, arXiv 2203.03532: M_n - n is a martingale, hence the run length; by enumeration."""
    detector, num_units = drift.Detector(promise=0.0, best=1.0), 9
    gain, loss = 0.5, 1.0  # +0.5 with chance 2/3, -1 with 1/3: mean 0
    expected = 0.0
    for path in range(2**num_units):
        values = np.array([gain if path >> unit & 1 else -loss for unit in range(num_units)])
        chance = math.prod(2 / 3 if value > 0 else 1 / 3 for value in values)
        expected += chance * math.exp(log_mean_statistic(detector.fold(drift.Sums(values, np.ones(num_units)))))
    assert expected == pytest.approx(num_units, abs=1e-9)


def test_the_papers_equations_worked_out_by_hand() -> None:
    # Waudby-Smith and Ramdas, arXiv 2010.09686, section 4: one bet's capital is the product of 1 + bet * (x - mean).
    values = np.array([0.9, 0.4, 0.7])
    sums = betting.Sums(values, np.ones(3))
    ratios = betting.UnitSeries(sums, sums, sums, 0.0, 1.0).ratios("lower", 0.5)
    assert ratios.tolist() == pytest.approx(((values - 0.5) / 0.5).tolist())
