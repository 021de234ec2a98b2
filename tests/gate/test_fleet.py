"""A false discovery rate over endpoints: e-BH against its definition, and the e-value of an ENABLE."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.verdict.e_values import e_bh, e_bh_rates, fleet_of, log10_evidence
from shadowspec.types import BettingFigures, Decision, LevelGraph, TestResult, Trial, Verdict
from tests.store import examples

GRAPH = LevelGraph(0.05, 1, 7)


def proven(name: str, log10: float, **fields: Any) -> TestResult:
    betting = BettingFigures(0.2, 10.0, log10, 0.0, 0.01)
    return replace(TestResult(name, "pass", 1.2, 1.1, 1.3, 1.05, 0.0225, "block", 100, 10, betting=betting), **fields)


def enable(endpoint: str, log10: float, *tests: TestResult, level: float = 0.0225) -> Decision:
    row = examples.decision(Verdict.ENABLE)
    run = Trial(0.025, level, GRAPH)
    return replace(row, endpoint=endpoint, slice_key="", run=run, tests=(proven("speedup", log10), *tests))


@given(st.lists(st.floats(-3.0, 6.0), min_size=1, max_size=12), st.floats(0.01, 0.5))
def test_e_bh_rejects_what_its_definition_says(values: list[float], rate: float) -> None:
    ranked, total = sorted(values, reverse=True), len(values)
    ks = [k for k in range(1, total + 1) if 10.0 ** ranked[k - 1] * k * rate / total > 1.0 + 1e-9]
    close = any(math.isclose(10.0 ** ranked[k - 1] * k * rate / total, 1.0, rel_tol=1e-6) for k in range(1, total + 1))
    if not close:
        limit = ranked[max(ks) - 1] if ks else math.inf
        assert e_bh(values, rate) == {place for place, value in enumerate(values) if value >= limit}


def test_more_strong_neighbours_admit_a_weaker_endpoint() -> None:
    assert e_bh([2.0, *[0.0] * 9], 0.05) == set(), "100 of 10 endpoints: 200 is needed"
    assert e_bh([2.0, 2.0, *[0.0] * 8], 0.05) == {0, 1}, "two of 100 each: 10 / (.05 * 2)"
    assert e_bh_rates([3.0, 3.0, -math.inf]) == pytest.approx([0.0015, 0.0015, 1.0])


def test_the_rate_holds_for_dependent_e_values() -> None:
    """Nulls that share one draw: the share of false ones among those that e-BH admits stays below the rate."""
    rng, rate, num_null = np.random.default_rng(3), 0.1, 20
    shares = []
    for _ in range(4_000):
        null = [math.log10(max(1.0 / rng.random() / 1.0, 1e-9)) * 0.5 - 0.31] * num_null  # mean of the e-value below 1
        admitted = e_bh([3.0] * 5 + null, rate)
        shares.append(sum(place >= 5 for place in admitted) / max(len(admitted), 1))
    assert float(np.mean(shares)) <= rate


def test_the_evidence_of_an_enable_is_that_of_its_weakest_test_weighed_by_its_level() -> None:
    faults = proven("parity_faults", 0.0, betting=None, num_units=100, threshold=0.05)
    memory = proven("memory", 0.0, betting=None)
    shown = proven("total_time", -5.0, is_required=False)
    weight = math.log10(0.0225 / 0.05)
    assert log10_evidence(enable("a", 5.0, memory, shown)) == pytest.approx(5.0 + weight)
    assert log10_evidence(enable("a", 5.0, faults)) == pytest.approx(-100 * math.log10(0.95) + weight)
    quantile = proven("p95", 0.0, betting=None)
    assert log10_evidence(enable("a", 5.0, quantile)) == pytest.approx(-math.log10(0.0225) + weight)
    failed = replace(quantile, outcome="open")
    assert log10_evidence(enable("a", 5.0, failed)) == -math.inf
    assert log10_evidence(replace(enable("a", 5.0), run=None)) == -math.inf


def test_a_fleet_counts_every_endpoint_and_the_weakest_enable_of_each() -> None:
    other_load = replace(enable("a", 2.0), concurrency=16)
    held = replace(enable("c", 9.0), verdict=Verdict.HOLD)
    fleet = fleet_of([enable("a", 6.0), other_load, enable("b", 4.0), held])
    assert fleet.num_endpoints == 3
    assert set(fleet.rates) == {"a", "b"}
    assert fleet.rate_of("a") == pytest.approx(3 / 2 / (100 * 0.45))
    assert fleet.rate_of("c") == 1.0
    assert fleet.alpha == pytest.approx(0.15)
    assert fleet.text.startswith("Of 2 enabled endpoints, 0.067 may be wrong on average (false discovery rate 3.3%)")
    assert fleet_of([held]).text == "None of 1 endpoint is enabled."
