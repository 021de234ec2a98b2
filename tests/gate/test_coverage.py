"""Every sequence covers the truth at all looks at once, in 1,000 paths of 5,000 units."""

from __future__ import annotations

import pytest

from shadowspec.gate.evidence import quantiles
from shadowspec.gate.stats import betting, drift
from tests.gate import coverage
from tests.gate.coverage import BETTING, LEVEL

NUM_PATHS, NUM_UNITS = 1_000, 5_000


@pytest.mark.representative("speedup, short blocks", "parity, near ties")
@pytest.mark.parametrize("name", BETTING)
def test_betting_bounds_cover_at_every_look(name: str) -> None:
    rates = coverage.betting_misses(betting, BETTING[name], NUM_PATHS, NUM_UNITS)
    assert max(rates) <= LEVEL
    assert max(rates) >= 0.1 * LEVEL, "a world in which nothing ever misses could not show a fault"


@pytest.mark.parametrize("probability", [0.5, 0.95, 0.99])
def test_quantile_bounds_cover_at_every_look(probability: float) -> None:
    rate = coverage.quantile_misses(quantiles, probability, NUM_PATHS, NUM_UNITS)
    assert 0.1 * LEVEL <= rate <= LEVEL


@pytest.mark.representative("100")
@pytest.mark.parametrize("wanted", [100, 1_000])
def test_false_drift_alarms_come_no_oftener_than_the_run_length(wanted: int) -> None:
    mean = coverage.mean_run_length(drift, wanted, NUM_PATHS, NUM_UNITS)
    assert mean >= wanted
    if wanted == 100:
        assert mean <= 20 * wanted, "a detector that never alarms could not show a fault"
