"""The betting sequence keeps its level at every look, and its bounds cover at every look."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.gate.stats import betting
from shadowspec.gate.stats.betting import FRACTIONS, WEIGHTS, Sums, UnitSeries
from shadowspec.gate.stats.capital import CapitalTable, grid
from tests.builders.capital_oracle import log_capital

RATIOS = st.lists(st.floats(-1.0, 3.0), max_size=30).map(np.array)


def series_of(values: np.ndarray, weights: np.ndarray | None = None, lowest: float = 0.0, highest: float = 1.0):
    sums = Sums(values, np.ones(len(values)) if weights is None else weights)
    return UnitSeries(sums, sums, sums, lowest, highest)


def table_of(series: UnitSeries, side: str) -> CapitalTable:
    sums = series.lower if side == "lower" else series.upper
    empty = CapitalTable.empty(side, grid(series.lowest, series.highest), series.lowest, series.highest)
    return empty.fold(sums.values, sums.weights)


def find_bound(series: UnitSeries, side: str, level: float) -> float:
    found = table_of(series, side).find_bound(level)
    return {"lower": series.lowest, "upper": series.highest}[side] if found is None else found


@settings(deadline=None)
@given(RATIOS)
def test_capital_is_the_sum_of_products_that_the_design_states(ratios: np.ndarray) -> None:
    direct = sum(
        w * math.prod(1.0 + f * ratio for ratio in ratios.tolist())
        for f, w in ((0.1, 0.05), (0.3, 0.1), (0.6, 0.15), (0.95, 0.7))
    )
    assert math.exp(log_capital(ratios)) == pytest.approx(direct, rel=1e-9)


@settings(deadline=None)
@given(st.floats(0.01, 1.0), st.floats(0.01, 2.0), st.integers(1, 7))
def test_expected_capital_is_one_where_the_null_holds_with_equality(loss: float, gain: float, num_units: int) -> None:
    """Every path of a two-valued unit with mean 0, enumerated: a martingale, whatever the two values."""
    loss_probability = gain / (gain + loss)
    expected = 0.0
    for path in itertools.product((-loss, gain), repeat=num_units):
        losses = sum(value < 0 for value in path)
        probability = loss_probability**losses * (1.0 - loss_probability) ** (num_units - losses)
        expected += probability * math.exp(log_capital(np.array(path)))
    assert expected == pytest.approx(1.0, abs=1e-9)


@settings(deadline=None)
@given(RATIOS, st.randoms(use_true_random=False))
def test_capital_does_not_depend_on_the_order_of_folding(ratios: np.ndarray, random) -> None:
    shuffled = ratios.tolist()
    random.shuffle(shuffled)
    assert log_capital(np.array(shuffled)) == pytest.approx(log_capital(ratios), abs=1e-9)


@settings(deadline=None)
@given(RATIOS.filter(len))
def test_path_ends_where_the_capital_stands(ratios: np.ndarray) -> None:
    path = betting.log_capital_path(ratios)
    assert path[-1] == pytest.approx(log_capital(ratios))
    assert path[0] == pytest.approx(log_capital(ratios[:1]))


@pytest.mark.parametrize("slowed_share", [0.03, 0.1, 0.5])
def test_false_rejections_under_continuous_peeking_stay_below_the_level(slowed_share: float) -> None:
    """Shares exactly at the threshold: a unit is at its worst or near its best, the hardest world there is."""
    rng, level, num_runs, num_units = np.random.default_rng(7), 0.1, 2_000, 250
    units = (rng.random((num_runs, num_units)) < slowed_share).astype(np.float64)
    paths = (betting.log_capital_path(series_of(run).ratios("upper", slowed_share)) for run in units)
    false = sum(bool((path >= -math.log(level)).any()) for path in paths) / num_runs
    assert false <= level + 3.0 * math.sqrt(level * (1.0 - level) / num_runs)
    assert false >= 0.3 * level, "the world is not at the boundary: this test could not fail"


@pytest.mark.representative("rare_slowdowns", "heavy_tails")
@pytest.mark.parametrize("world", ["rare_slowdowns", "short_blocks", "heavy_tails"])
def test_bounds_cover_the_mean_at_every_look(world: str) -> None:
    rng, level, num_runs, num_units, clip = np.random.default_rng(11), 0.05, 300, 120, math.log(2.0)
    missed = 0
    for _ in range(num_runs):
        weights = np.ones(num_units)
        if world == "rare_slowdowns":
            values = np.where(rng.random(num_units) < 0.05, -clip, 0.1)
            mean = 0.05 * -clip + 0.95 * 0.1
        elif world == "heavy_tails":
            draws = np.clip(rng.standard_t(1.5, size=num_units) * 0.3, -clip, clip)
            values, mean = draws, 0.0
        else:
            weights = rng.integers(1, 5, num_units) / 4.0
            values = np.array([np.clip(rng.normal(0.1, 0.3, int(w * 4)), -clip, clip).sum() / 4.0 for w in weights])
            mean = _mean_of_clipped_normal(0.1, 0.3, clip)
        series = series_of(values, weights, -clip, clip)
        lower = (betting.log_capital_path(series.ratios("lower", mean)) >= -math.log(level)).any()
        upper = (betting.log_capital_path(series.ratios("upper", mean)) >= -math.log(level)).any()
        at_end = find_bound(series, "lower", level), find_bound(series, "upper", level)
        assert lower or at_end[0] <= mean, "a bound beyond the mean must be a rejection of the mean"
        assert upper or mean <= at_end[1]
        missed += lower or upper
    assert missed / num_runs <= 2.0 * level + 3.0 * math.sqrt(2.0 * level / num_runs)


def _mean_of_clipped_normal(mean: float, sd: float, clip: float) -> float:
    points = np.linspace(mean - 8 * sd, mean + 8 * sd, 200_001)
    density = np.exp(-((points - mean) ** 2) / (2 * sd * sd))
    return float((np.clip(points, -clip, clip) * density).sum() / density.sum())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), max_size=40), st.sampled_from([0.3, 0.05, 0.01]))
def test_bounds_are_the_last_rejected_points_of_the_grid(units: list[tuple[float, float]], level: float) -> None:
    table = np.array(units, dtype=np.float64).reshape(-1, 2)
    series = series_of(table[:, 0] * table[:, 1], table[:, 1])
    thetas = np.arange(1, 200) * 0.005
    for side, ordered, end in (("lower", thetas, 0.0), ("upper", thetas[::-1], 1.0)):
        rejected = [betting.is_rejected(log_capital(series.ratios(side, float(theta))), level) for theta in ordered]
        assert rejected == sorted(rejected, reverse=True), "the rejected nulls must be an interval"
        expected = ordered[sum(rejected) - 1] if any(rejected) else end
        assert find_bound(series, side, level) == pytest.approx(expected)


# Golden figures: the smallest sizes are the first n at which the sum of w * (1 + f * ratio) ** n reaches 1 / level,
# the others were measured over 1,000 runs of these draws.


@pytest.mark.parametrize(
    ("best_ratio", "level", "expected"),
    [
        (0.05 / 0.95, 0.0125, 97),  # greedy near-ties
        (0.1 / 0.9, 0.00625, 54),  # tail with nothing slowed
        (0.02 / 0.22, 0.00625, 66),  # z exactly 0
    ],
)
def test_smallest_n_by_hand(best_ratio: float, level: float, expected: int) -> None:
    smallest = betting.min_units(best_ratio, level)
    assert smallest == expected
    best = np.full(smallest, best_ratio)
    assert betting.is_rejected(log_capital(best), level)
    assert not betting.is_rejected(log_capital(best[:-1]), level)


def median_units(draw, level: float, num_runs: int = 300) -> tuple[float, float]:
    rng = np.random.default_rng(3)
    sizes = []
    for _ in range(num_runs):
        path = betting.log_capital_path(draw(rng))
        assert path.max() >= -math.log(level)
        sizes.append(int(np.argmax(path >= -math.log(level))) + 1)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


@pytest.mark.parametrize(("speedup", "median", "ninety"), [(1.15, 55, 71), (1.3, 24, 28), (1.6, 14, 15)])
def test_units_to_prove_a_speedup(speedup: float, median: int, ninety: int) -> None:
    clip, margin = math.log(2.0), math.log(1.05)

    def draw(rng: np.random.Generator) -> np.ndarray:
        logs = np.clip(rng.normal(math.log(speedup), 0.25, (300, 4)), -clip, clip)
        return series_of(logs.mean(axis=1), None, -clip, clip).ratios("lower", margin)

    observed = median_units(draw, 0.00625)
    assert observed[0] == pytest.approx(median, rel=0.12)
    assert observed[1] == pytest.approx(ninety, rel=0.15)


@pytest.mark.parametrize(("slowed", "median", "ninety"), [(0.0, 54, 54), (0.02, 68, 81), (0.05, 119, 163)])
def test_units_to_prove_a_small_tail(slowed: float, median: int, ninety: int) -> None:
    def draw(rng: np.random.Generator) -> np.ndarray:
        return series_of(rng.binomial(4, slowed, 900) / 4.0).ratios("upper", 0.1)

    observed = median_units(draw, 0.00625)
    assert observed[0] == pytest.approx(median, rel=0.1)
    assert observed[1] == pytest.approx(ninety, rel=0.12)


@pytest.mark.parametrize(("acceptance", "median", "ninety"), [(0.55, 46, 76), (0.65, 25, 35), (0.75, 18, 23)])
def test_units_to_prove_an_acceptance_rate(acceptance: float, median: int, ninety: int) -> None:
    """Clusters of one request of about 30 steps, acceptance correlated within a session by .3."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        steps, spread = rng.integers(28, 33, 900), 1.0 / 0.3 - 1.0
        rates = rng.beta(acceptance * spread, (1 - acceptance) * spread, 900)
        weights = np.minimum(steps, 64) / 64.0
        return series_of(weights * rng.binomial(steps, rates) / steps, weights).ratios("lower", 0.4)

    observed = median_units(draw, 0.00625)
    assert observed[0] == pytest.approx(median, rel=0.12)
    assert observed[1] == pytest.approx(ninety, rel=0.12)


# Small parts.


def test_bets_cannot_go_bankrupt_and_start_from_one_unit_of_capital() -> None:
    assert FRACTIONS.max() < 1.0
    assert pytest.approx(1.0) == sum(WEIGHTS)
    assert log_capital(np.array([])) == pytest.approx(0.0)


def test_merged_units_are_means_of_whole_groups_after_the_restart() -> None:
    series = UnitSeries(
        *[Sums(np.arange(11.0), np.full(11, 0.5))] * 3, lowest=0.0, highest=20.0, dependence=np.arange(11.0)
    )
    merged = series.merge(start=2, group=4)
    assert merged.lower.values.tolist() == [3.5, 7.5]
    assert merged.lower.weights.tolist() == [0.5, 0.5]
    assert merged.dependence_values(0.0).tolist() == [2.0, 6.0]


def test_units_needed_extrapolates_the_growth_so_far() -> None:
    def needed(values: np.ndarray) -> int | None:
        return table_of(series_of(values), "lower").units_needed(0.5, len(values), 0.01)

    steady = needed(np.full(10, 0.6))  # y / b = 0.2
    assert steady is not None
    assert 10 + steady == pytest.approx(betting.min_units(0.2, 0.01), abs=2)
    assert needed(np.full(10, 0.4)) is None
    assert needed(np.array([])) is None
    assert needed(np.full(1000, 0.6)) == 0
