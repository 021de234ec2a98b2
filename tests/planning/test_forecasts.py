"""A plan says what simulated futures say; capacity is shared, and sampling starts at the rates that decide soonest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.gate.evidence.betting_tests import score_units
from shadowspec.gate.evidence.hypothesis import TestEvidence
from shadowspec.gate.evidence.series import BettingTest
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats import betting
from shadowspec.gate.stats.betting import Floats, Sums
from shadowspec.planning import first_passage as planning
from shadowspec.planning.capacity import ClusterDemand, course, starting_rates
from shadowspec.planning.first_passage import MIN_UNITS, FirstPassages, first_passage_times, outlook

POLICY = GatePolicy(window_s=0.0)
LEVEL = 0.00625
Draw = Callable[[np.random.Generator, int], Floats]


def definition(name: str) -> BettingTest:
    return next(test for test in score_units((), (), POLICY) if test.name == name)


def of_values(name: str, values: Floats) -> BettingTest:
    """The test over units of weight 1 with these sums."""
    test = definition(name)
    sums = Sums(values, np.ones(len(values)))
    unit_series = test.series
    dependence = None if unit_series.dependence is None else values
    series = replace(unit_series, lower=sums, upper=sums, observed=sums, dependence=dependence)
    return replace(test, series=series)


def evidence_of(name: str, values: Floats) -> TestEvidence:
    return TestEvidence.empty(definition(name)).fold(of_values(name, values))


def speedups(mean: float) -> Draw:
    return lambda rng, n: rng.normal(math.log(mean), 0.2, (n, 4)).clip(-math.log(2), math.log(2)).mean(axis=1)


def slowed(share: float) -> Draw:
    return lambda rng, n: rng.binomial(4, share, n) / 4


def accepted(mean: float) -> Draw:
    return lambda rng, n: rng.beta(4 * mean, 4 * (1 - mean), n)


def true_sizes(name: str, draw: Draw, begun: Floats, horizon: int, num_paths: int = 300) -> tuple[float, float]:
    """Median and 90% of units until the test passes, by drawing from the truth; `begun` has been seen."""
    rng, test = np.random.default_rng(5), definition(name)
    sizes = []
    for _ in range(num_paths):
        series = of_values(name, np.concatenate([begun, draw(rng, horizon)])).series
        is_there = np.ones(horizon + 1, dtype=bool)
        for side, theta in (("lower", test.above), ("upper", test.below)):
            if theta is not None:
                path = np.concatenate([[0.0], betting.log_capital_path(series.ratios(side, theta))])
                is_there &= path[len(begun) :] >= -math.log(LEVEL)
        sizes.append(float(np.argmax(is_there)) if is_there.any() else math.inf)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9, method="lower"))


@pytest.mark.representative(
    "15-speedup-<lambda>1", "0-acceptance-<lambda>0", "15-tail-<lambda>0", "0-parity_sampled-<lambda>"
)
@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("speedup", speedups(1.15)),
        ("speedup", speedups(1.3)),
        ("tail", slowed(0.02)),
        ("tail", slowed(0.05)),
        ("acceptance", accepted(0.55)),
        ("acceptance", accepted(0.75)),
        ("parity_sampled", lambda rng, n: rng.normal(0.0, 0.05, n).clip(-0.2, 0.2)),
    ],
)
@pytest.mark.parametrize("num_seen", [0, 15])
def test_a_plan_agrees_with_futures_drawn_from_the_truth(name: str, draw: Draw, num_seen: int) -> None:
    """With the means taken for certain; what they are learnt from is long, so that only the method is judged."""
    rng = np.random.default_rng(3)
    learnt = outlook(definition(name), evidence_of(name, draw(rng, 4_000)), LEVEL)
    begun = draw(rng, num_seen)
    now = outlook(definition(name), evidence_of(name, begun), LEVEL)
    forecast = replace(learnt, passes=now.passes, fails=now.fails)
    found = first_passage_times(forecast, 2_000, np.random.default_rng(1), 300, is_certain=True)
    median, late = true_sizes(name, draw, begun, 2_000)
    assert np.median(found.passes) == pytest.approx(median, rel=0.12, abs=3)
    assert np.quantile(found.passes, 0.9) == pytest.approx(late, rel=0.2, abs=5)


@pytest.mark.parametrize(
    ("name", "draw"),
    [("speedup", speedups(1.15)), ("tail", slowed(0.05)), ("acceptance", accepted(0.55)), ("tail", slowed(0.3))],
)
def test_the_spread_is_read_from_summed_capitals(name: str, draw: Draw) -> None:
    values = draw(np.random.default_rng(7), 4_000)
    forecast = outlook(definition(name), evidence_of(name, values), LEVEL)
    scores = forecast.passes[0].sign * (values - forecast.passes[0].theta) / forecast.passes[0].worst
    assert forecast.mean == pytest.approx(scores.mean(), abs=1e-6)
    assert forecast.spread * (forecast.mean + 1.0) * (forecast.highest - forecast.mean) == pytest.approx(
        scores.var(), rel=0.1
    )


def test_a_long_way_agrees_in_its_middle_and_in_its_spread() -> None:
    """Hundreds of units, most of them in steps."""
    draw = speedups(1.07)
    forecast = outlook(definition("speedup"), evidence_of("speedup", draw(np.random.default_rng(3), 4_000)), LEVEL)
    now = outlook(definition("speedup"), evidence_of("speedup", np.zeros(0)), LEVEL)
    fresh = replace(
        forecast, passes=now.passes, fails=now.fails, mean=(math.log(1.07) - math.log(1.05)) / now.passes[0].worst
    )
    found = first_passage_times(fresh, 4_000, np.random.default_rng(1), is_certain=True).passes
    median, late = true_sizes("speedup", draw, np.zeros(0), 4_000)
    assert median > 300
    assert np.median(found) == pytest.approx(median, rel=0.12)
    assert np.quantile(found, 0.9) == pytest.approx(late, rel=0.2)


@pytest.mark.parametrize("name", ["speedup", "parity_sampled"])
def test_steps_spread_as_the_units_that_they_stand_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = {"speedup": speedups(1.12), "parity_sampled": lambda rng, n: rng.normal(0.0, 0.05, n).clip(-0.2, 0.2)}
    values = draws[name](np.random.default_rng(3), 4_000)
    learnt = outlook(definition(name), evidence_of(name, values), LEVEL)
    now = outlook(definition(name), None, LEVEL)
    forecast = replace(learnt, passes=now.passes, fails=now.fails)
    exact = first_passage_times(forecast, 240, np.random.default_rng(1), is_certain=True).passes
    monkeypatch.setattr(planning, "EXACT_UNITS", 8)
    stepped = first_passage_times(forecast, 240, np.random.default_rng(2), is_certain=True).passes
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(stepped, share) == pytest.approx(np.quantile(exact, share), rel=0.2, abs=3)


def needed(name: str, values: Floats, horizon: int = 20_000) -> FirstPassages:
    forecast = outlook(definition(name), evidence_of(name, values), LEVEL)
    return first_passage_times(forecast, horizon, np.random.default_rng(1))


def test_few_units_make_a_wide_plan_and_many_a_narrow_one() -> None:
    values = speedups(1.12)(np.random.default_rng(2), 400)
    forecast = outlook(definition("speedup"), evidence_of("speedup", values), LEVEL)
    fresh = replace(forecast, passes=tuple(replace(bet, logs=0.0 * bet.logs) for bet in forecast.passes))
    widths = []
    for certainty in (10.0, 1_000.0):
        found = first_passage_times(replace(fresh, certainty=certainty), 20_000, np.random.default_rng(1)).passes
        low, high = np.quantile(found, [0.1, 0.9])
        widths.append(high / low)
    assert widths[0] > 1.5 * widths[1]


def test_what_has_passed_wants_nothing_more_and_what_loses_is_disabled() -> None:
    rng = np.random.default_rng(4)
    done = needed("speedup", speedups(1.5)(rng, 80))
    assert set(done.passes.tolist()) == {0.0}
    losing = needed("speedup", speedups(0.9)(rng, 12))
    assert np.isfinite(losing.fails).mean() > 0.95
    assert np.isfinite(losing.passes).mean() < 0.05
    assert np.median(losing.fails) < 60


def test_nothing_seen_is_planned_by_what_is_typical() -> None:
    forecast = outlook(definition("speedup"), None, LEVEL)
    assert forecast.is_assumed
    found = first_passage_times(forecast, 20_000, np.random.default_rng(1))
    assert 20 < np.median(found.passes) < 200
    values = speedups(1.3)(np.random.default_rng(2), MIN_UNITS)
    assert not outlook(definition("speedup"), evidence_of("speedup", values), LEVEL).is_assumed


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_units_that_are_all_equal_can_be_planned(value: float) -> None:
    found = needed("tail", np.full(20, value))
    assert np.isfinite(found.passes if value == 0.0 else found.fails).mean() > 0.9


def test_a_plan_is_the_same_twice() -> None:
    values = speedups(1.1)(np.random.default_rng(2), 30)
    first, second = needed("speedup", values), needed("speedup", values)
    assert np.array_equal(first.passes, second.passes)


# capacity


def test_unlimited_capacity_decides_each_slice_by_its_own_traffic() -> None:
    demands = [ClusterDemand("", 4, 50.0), ClusterDemand("code", 4, 100.0, 2.0), ClusterDemand("chat", 4, 30.0, 1.0)]
    assert course(demands, None, 0.01).decided_after == {
        ("code", 4): 50.0,
        ("chat", 4): 30.0,
        ("", 4): pytest.approx(50 / 3),
    }


def test_what_is_decided_leaves_its_capacity_to_the_others() -> None:
    demands = [ClusterDemand("code", 4, 100.0, 10.0), ClusterDemand("chat", 4, 300.0, 10.0)]
    after = course(demands, 10.0, 0.0).decided_after
    assert after["code", 4] == pytest.approx(20.0)
    assert after["chat", 4] == pytest.approx(20.0 + 200.0 / 10.0)
    held = course([ClusterDemand("", 4, 1e9), *demands], 10.0, 0.0).decided_after
    assert held["chat", 4] == pytest.approx(60.0)  # the endpoint is undecided, so code keeps its rate


def test_what_nothing_feeds_is_never_decided() -> None:
    demands = [
        ClusterDemand("code", 4, 10.0, 0.0),
        ClusterDemand("chat", 4, math.inf, 1.0),
        ClusterDemand("sql", 4, 0.0, 0.0),
    ]
    assert course(demands, 5.0, 0.01).decided_after == {("code", 4): math.inf, ("chat", 4): math.inf, ("sql", 4): 0.0}


def test_a_course_measures_what_is_served_until_the_last_question_that_can_be_decided() -> None:
    demands = [ClusterDemand("", 4, 50.0), ClusterDemand("code", 4, 100.0, 2.0), ClusterDemand("chat", 4, 30.0, 1.0)]
    free = course(demands, None, 0.1)
    # Chat is decided after 30 s and then comes at a tenth; code wants 50 s.
    assert free.measured == {("code", 4): pytest.approx(100.0), ("chat", 4): pytest.approx(30.0 + 20.0 * 0.1)}
    never = course([ClusterDemand("code", 4, math.inf, 2.0), ClusterDemand("chat", 4, 30.0, 1.0)], None, 0.1)
    assert never.measured == {("code", 4): pytest.approx(60.0), ("chat", 4): pytest.approx(30.0)}
    assert set(course([ClusterDemand("code", 4, math.inf, 2.0)], None, 0.1).measured.values()) == {0.0}


FLOWS = st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(1e-3, 1e2)), min_size=1, max_size=8)


@settings(deadline=None)
@given(FLOWS, st.floats(0.01, 500.0))
def test_starting_rates_fit_the_capacity_and_decide_soonest(flows: list[tuple[float, float]], capacity: float) -> None:
    wanted = {f"s{number}": need for number, (need, _) in enumerate(flows)}
    traffic = {f"s{number}": rate for number, (_, rate) in enumerate(flows)}
    rates = starting_rates(wanted, traffic, capacity)
    used = sum(rates[name] * traffic[name] for name in rates)
    assert used <= capacity * (1 + 1e-9)
    assert all(0.0 < rate <= 1.0 + 1e-12 for rate in rates.values())
    last = max(wanted[name] / (rates[name] * traffic[name]) for name in rates)
    bound = max(sum(wanted.values()) / capacity, *(wanted[name] / traffic[name] for name in wanted), 0.0)
    assert last >= bound * (1 - 1e-9)
    even = min(1.0, capacity / sum(traffic.values()))
    assert last <= max(wanted[name] / (even * traffic[name]) for name in wanted) * (1 + 1e-9)
    assert starting_rates(wanted, traffic, None) == dict.fromkeys(wanted, 1.0)
