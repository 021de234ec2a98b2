"""Every formula of the gate, with one character changed, fails the check that guards it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from scipy import integrate

from shadowspec.gate.policy import GatePolicy
from shadowspec.types import Decision, LevelGraph, Trial, Verdict
from tests.builders.decisions import configs, decision
from tests.gate import coverage
from tests.gate.coverage import BETTING, LEVEL
from tests.gate.sabotage import assert_caught, assert_passes, cases, sabotaged

FRACTIONS_AND_WEIGHTS = ((0.1, 0.05), (0.3, 0.1), (0.6, 0.15), (0.95, 0.7))
Check = Callable[[ModuleType], None]


def capital_after(betting: ModuleType, ratios: np.ndarray) -> float:
    """Natural logarithm of the capital after all these units; 0 of none."""
    return float(betting.log_capital_path(ratios)[-1]) if len(ratios) else 0.0


def check_capital(betting: ModuleType) -> None:
    """The capital is the sum of products that the design states, and a fair game where the null holds."""
    rng = np.random.default_rng(1)
    for n in (0, 1, 7):
        ratios = rng.uniform(-1.0, 2.0, n)
        direct = sum(w * math.prod(1.0 + f * ratio for ratio in ratios) for f, w in FRACTIONS_AND_WEIGHTS)
        assert capital_after(betting, ratios) == pytest.approx(math.log(direct), abs=1e-9)
        path = betting.log_capital_path(ratios)
        assert path.tolist() == pytest.approx([capital_after(betting, ratios[: i + 1]) for i in range(n)], abs=1e-9)
    expected = 0.0
    for signs in itertools.product((-1.0, 0.5), repeat=4):  # -1 with probability 1/3
        chance = math.prod(1 / 3 if sign < 0 else 2 / 3 for sign in signs)
        expected += chance * math.exp(capital_after(betting, np.array(signs)))
    assert expected == pytest.approx(1.0, abs=1e-12)


def check_betting(betting: ModuleType) -> None:
    """Unit values, worst values, levels and merged units, worked out by hand."""
    sums = betting.Sums(np.array([0.3, 0.0, 0.9]), np.array([0.5, 0.25, 1.0]))
    series = betting.UnitSeries(sums, sums, sums, -1.0, 2.0)
    assert series.ratios("lower", 0.4).tolist() == pytest.approx([0.1 / 1.4, -0.1 / 1.4, 0.5 / 1.4])
    assert series.ratios("upper", 0.4).tolist() == pytest.approx([-0.1 / 1.6, 0.1 / 1.6, -0.5 / 1.6])
    capped = betting.UnitSeries(sums, sums, sums, -1.0, 2.0, upper_worst=0.25)
    assert capped.ratios("upper", 0.4).tolist() == pytest.approx([-0.4, 0.4, -1.0]), "never below -1"
    light = betting.UnitSeries(sums, sums, sums, -1.0, 2.0, has_light_extremes=True)
    assert light.ratios("upper", 0.4).tolist() == pytest.approx([-0.1 / 2.0, 0.1 / 2.0, -0.5 / 2.0])
    assert betting.is_rejected(math.log(20.0) + 1e-9, 0.05)
    assert not betting.is_rejected(math.log(20.0) - 1e-9, 0.05)
    smallest = betting.min_units(0.2, LEVEL)
    assert betting.is_rejected(capital_after(betting, np.full(smallest, 0.2)), LEVEL)
    assert not betting.is_rejected(capital_after(betting, np.full(smallest - 1, 0.2)), LEVEL)
    merged = betting.Sums(np.arange(11.0), np.arange(11.0) / 10.0).merge(2, 4)
    assert merged.values.tolist() == [3.5, 7.5]
    assert merged.weights.tolist() == pytest.approx([0.35, 0.75])


def check_table(capital: ModuleType) -> None:
    """Folded in pieces or repeated, a table has the direct sums; between nulls it is judged outward."""
    rng, thetas = np.random.default_rng(5), np.array([-0.5, 0.1, 0.4, 1.2])
    weights = rng.uniform(0.2, 1.0, 40)
    values = weights * rng.uniform(-1.0, 2.0, 40)
    for side, sign in (("lower", 1.0), ("upper", -1.0)):
        for worst in (None, 2.5) if side == "upper" else (None,):
            empty = capital.CapitalTable.empty(side, thetas, -1.0, 2.0, worst)
            table = empty.fold(values[:33], weights[:33]).fold(values[33:35], weights[33:35])
            table = table.fold(values[35:], weights[35:])
            twice = empty.fold(np.tile(values, 2), np.tile(weights, 2))
            for theta in thetas.tolist():
                size = worst or (theta + 1.0 if side == "lower" else 2.0 - theta)
                ratios = np.maximum(sign * (values - theta * weights) / size, -1.0)
                logs = [math.log(w) + np.log1p(f * ratios).sum() for f, w in FRACTIONS_AND_WEIGHTS]
                assert table.log_capital(theta) == pytest.approx(math.log(sum(map(math.exp, logs))), abs=1e-9)
                logs = [math.log(w) + 2.0 * np.log1p(f * ratios).sum() for f, w in FRACTIONS_AND_WEIGHTS]
                assert twice.log_capital(theta) == pytest.approx(math.log(sum(map(math.exp, logs))), abs=1e-9)
                logs = [math.log(w) + 2.5 * math.log(1.0 - f) for f, w in FRACTIONS_AND_WEIGHTS]
                assert empty.with_worst(2.5).log_capital(theta) == pytest.approx(math.log(sum(map(math.exp, logs))))
            outward = {"lower": 0.4, "upper": 0.1}[side]
            assert table.log_capital(0.2) == table.log_capital(outward)
            assert table.log_capital({"lower": 1.3, "upper": -0.6}[side]) == 0.0, "beyond every null nothing is known"
    equal = np.full(60, 0.5)
    for side, found in (("lower", 0.375), ("upper", 0.625)):
        table = capital.CapitalTable.empty(side, capital.grid(0.0, 1.0), 0.0, 1.0).fold(equal, np.ones(60))
        bound = table.find_bound(LEVEL)
        assert bound is not None
        step = -0.005 if side == "upper" else 0.005
        assert table.log_capital(bound) >= math.log(20.0) > table.log_capital(bound + step)
        assert abs(bound - found) < 0.1
        assert table.find_bound(1e-300) is None
        theta = {"lower": 0.4, "upper": 0.6}[side]
        short = capital.CapitalTable.empty(side, capital.grid(0.0, 1.0), 0.0, 1.0).fold(equal[:10], np.ones(10))
        needed = short.units_needed(theta, 10, LEVEL)
        assert needed is not None
        missing = [
            (math.log(20.0) - math.log(w) - 10 * math.log1p(f * 0.25)) / math.log1p(f * 0.25)
            for f, w in FRACTIONS_AND_WEIGHTS
        ]
        assert needed == math.ceil(min(missing))
    assert capital.grid(0.0, 1.0).tolist() == pytest.approx((np.arange(1, 200) * 0.005).tolist())
    assert capital.grid(-0.011, 0.011, (0.0049, 0.005)).tolist() == pytest.approx(
        [-0.01, -0.005, 0.0, 0.0049, 0.005, 0.01]
    )
    assert capital.geometric_grid(0.25, 4.0, 2.0, (1.1,)).tolist() == pytest.approx([0.5, 1.0, 1.1, 2.0])


def check_autocorrelation(moments: ModuleType) -> None:
    """r1 by its definition, whatever the pieces."""
    values = np.array([1.0, 2.0, 4.0, 3.0, 5.0]) + 7.0  # deviations -2, -1, 1, 0, 2
    for cut in range(6):
        found = moments.Moments().fold(values[:cut]).fold(values[cut:])
        assert found.autocorrelation == pytest.approx((2.0 - 1.0 + 0.0 + 0.0) / 10.0)
    assert moments.Moments().fold(np.ones(5)).autocorrelation == 0.0
    path = [moments.Moments().fold(values[:num]).autocorrelation for num in range(1, 6)]
    assert moments.autocorrelation_path(values).tolist() == pytest.approx(path)


def check_quantiles(quantiles: ModuleType) -> None:
    """The mixture is the integral of its likelihood ratio; bounds are the ranks that it excludes; they cover."""
    for count, total, probability in ((3, 10, 0.5), (90, 100, 0.95), (0, 40, 0.9), (40, 40, 0.9)):
        shape = probability / (1.0 - probability)

        def integrand(p: float, count: int = count, total: int = total, shape: float = shape) -> float:
            return shape * p ** (shape - 1.0) * p**count * (1.0 - p) ** (total - count)

        integral = integrate.quad(integrand, 0.0, 1.0, epsabs=0.0, epsrel=1e-10, limit=200)[0]
        null = probability**count * (1.0 - probability) ** (total - count)
        assert quantiles._log_mixture(count, total, probability) == pytest.approx(math.log(integral / null), abs=1e-6)
    values = list(range(1, 301))
    found = coverage.quantile_bounds(values, 0.5, LEVEL, quantiles)
    excluded = [quantiles._log_mixture(count, 300, 0.5) >= math.log(20.0) for count in range(301)]
    assert (found.estimate, found.lower) == (150, excluded.index(False))
    assert found.upper == excluded.index(True, 150)
    assert quantiles.bin_of(quantiles.BIN_GROWTH**10 * 1.0001) == 10
    histogram = quantiles.LatencyHistogram({arm: {10: 300, 20: 300} for arm in quantiles.ARMS})
    found = histogram.bounds("baseline", 0.5, LEVEL)
    assert (found.lower, found.upper) == pytest.approx((1.01**10, 1.01**21)), "at the outer edges of their bins"
    assert found.estimate == pytest.approx(1.01**10.5)
    assert 0.1 * LEVEL <= coverage.quantile_misses(quantiles, 0.5, 400, 500) <= LEVEL


def check_drift(drift: ModuleType) -> None:
    """The statistics are the recursion's, and start as many false alarms as they promise at most."""
    detector = drift.Detector(promise=0.1, best=0.7)
    rng = np.random.default_rng(3)
    values, weights = rng.uniform(-0.7, 0.7, 30) * 0.5, np.full(30, 0.5)
    values[5] = 0.9  # beyond the highest: a bet cannot lose more than all
    now = [0.0] * 4
    for value, weight in zip(values, weights, strict=True):
        for index, fraction in enumerate((0.1, 0.3, 0.6, 0.95)):
            ratio = max((0.1 * weight - value) / 0.6, -1.0)
            now[index] = (1.0 + fraction * ratio) * (now[index] + 1.0)
    folded = detector.fold(drift.Sums(values[:11], weights[:11])).fold(drift.Sums(values[11:], weights[11:]))
    assert np.exp(folded.log_statistics).tolist() == pytest.approx(now, rel=1e-9)
    assert math.exp(coverage.log_mean_statistic(folded)) == pytest.approx(sum(now) / 4.0, rel=1e-9)
    assert folded.num_units == 30
    assert coverage.mean_run_length(drift, 100, 100, 2_000) >= 100


def check_levels(levels: ModuleType) -> None:
    """No history spends more than alpha, and each level is worked out by hand."""
    entered = [(slice_key, 4, "one") for slice_key in ("", *"abcdefghijk")]

    def rows(trials: dict[tuple[str, int, str], Trial | None], *enabled: str) -> list[Decision]:
        """Decisions on these runs, some of them ENABLE."""
        return [
            decision("one", run, slice_key=key[0], verdict=Verdict.ENABLE if key[0] in enabled else Verdict.HOLD)
            for key, run in trials.items()
        ]

    shares, policy = [0.025] + [0.00625] * 4, GatePolicy(window_s=0.0, alpha=0.05, max_hypotheses=5)
    for numbers in (range(1, 13), (12,)):  # as they enter one by one, and at once
        held: list[Decision] = []
        for number in numbers:
            held = rows(levels.assign_trials(entered[:number], configs("one"), held, policy, 11))
        runs = [row.run for row in held]
        assert [run is not None for run in runs] == [True] * 5 + [False] * 7
        assert [run.share for run in runs[:5]] == pytest.approx(shares)
        assert [run.level for run in runs[:5]] == pytest.approx([0.9 * share for share in shares])
    # The endpoint passes .025 to four slots; one of them passes .00625 + .00625 to the three that are left.
    trials = levels.assign_trials(
        entered, configs("one"), rows(dict(zip(entered, runs, strict=True)), "", "b"), policy, 11
    )
    given = [trials[key].level for key in entered[:5]]
    assert given == pytest.approx([0.0225, 0.9 * (0.0125 + 0.0125 / 3), 0.005625, *[0.9 * (0.0125 + 0.0125 / 3)] * 2])
    later = levels.assign_trials([entered[0], ("", 8, "one")], configs("one"), rows({entered[0]: runs[0]}), policy, 11)
    assert later["", 8, "one"].share == pytest.approx(0.00625), "another load takes a slot"
    run = Trial(0.01, None, LevelGraph(0.05, 1, 4), num_restarts=2)
    assert levels.with_level(run, ("a", 4, "draft-k4"), {}).level == pytest.approx(0.001 * 6.0 / (2.0 * math.pi) ** 2)


CHECKS: dict[str, tuple[str, Check, list[tuple[str, str]]]] = {
    "capital": (
        "shadowspec.gate.stats.betting",
        check_capital,
        [
            ("FRACTIONS = np.array([0.1, ", "FRACTIONS = np.array([0.2, "),
            ("0.6, 0.95])", "0.6, 0.96])"),
            ("0.15, 0.7)", "0.15, 0.8)"),
            ("ratios)).cumsum(axis=1)", "ratios)).cumsum(axis=0)"),
            ("np.log(weights)[:, None] + summed", "np.log(weights)[:, None] - summed"),
        ],
    ),
    "betting": (
        "shadowspec.gate.stats.betting",
        check_betting,
        [
            ("self.lower.values - theta * self.lower.weights", "self.lower.values + theta * self.lower.weights"),
            ("(-lowest, thetas) if", "(-lowest, -thetas) if"),
            ("theta * self.upper.weights - self.upper.values", "theta * self.upper.weights + self.upper.values"),
            ("(highest, -thetas)", "(highest, thetas)"),
            ("np.maximum(extra, 0.0)", "np.minimum(extra, 0.0)"),
            ("np.maximum(values / worst, -1.0)", "np.maximum(values / worst, -2.0)"),
            ("np.maximum(values / worst, -1.0)", "np.maximum(values * worst, -1.0)"),
            ("log_capital_now >= -math.log(level)", "log_capital_now >= +math.log(level)"),
            ("num_units * np.log1p(FRACTIONS * ratio)", "num_units * np.log1p(FRACTIONS / ratio)"),
            ("kept = values[start:]", "kept = values[:start]"),
        ],
    ),
    "capital table": (
        "shadowspec.gate.stats.capital",
        check_table,
        [
            ("logs, lowest, highest, upper_worst, has", "logs, highest, lowest, upper_worst, has"),
            ("num_units * np.log1p(-FRACTIONS)", "num_units * np.log1p(FRACTIONS)"),
            ("values[None, :] - self.thetas", "values[None, :] + self.thetas"),
            ("weights[None, :] - values[None, :]", "weights[None, :] + values[None, :]"),
            ("scores / self.worst[:, None], -1.0", "scores * self.worst[:, None], -1.0"),
            ("scores / self.worst[:, None], -1.0", "scores / self.worst[:, None], -0.0"),
            ("logs += _weighted", "logs -= _weighted"),
            ("np.log1p(FRACTIONS[:, None, None] * ratios)", "np.log1p(FRACTIONS[:, None, None] / ratios)"),
            ("factors = fraction * grouped", "factors = -fraction * grouped"),
            ("np.log1p(fraction * ratios) @ counts", "np.log1p(fraction / ratios) @ counts"),
            ('theta - _SAME, side="left"))', 'theta - _SAME, side="left")) - 1'),
            ('theta + _SAME, side="right")) - 1', 'theta + _SAME, side="right")) - 0'),
            ("fallen = self._log_capitals >= -math.log(level)", "fallen = self._log_capitals >= +math.log(level)"),
            ("int(remaining[0]) - 1 if", "int(remaining[0]) - 0 if"),
            ("int(remaining[-1]) + 1 if", "int(remaining[-1]) + 0 if"),
            ("-math.log(level) - logs, sums / num_units", "-math.log(level) + logs, sums / num_units"),
            ("-math.log(level) - logs, sums / num_units", "-math.log(level) - logs, sums * num_units"),
            ("math.floor(lowest / GRID_STEP) + 1", "math.floor(lowest / GRID_STEP) + 3"),
            (
                "math.floor(math.log(lowest) / math.log(growth)) + 1",
                "math.floor(math.log(lowest) / math.log(growth)) + 2",
            ),
        ],
    ),
    "autocorrelation": (
        "shadowspec.gate.stats.autocorrelation",
        check_autocorrelation,
        [
            ("shifted[:-1] * shifted[1:]", "shifted[:-2] * shifted[2:]"),
            ("(self.last - first) * float(shifted[0])", "(self.last + first) * float(shifted[0])"),
            ("squares - num * mean * mean", "squares + num * mean * mean"),
            ("2.0 * total - last", "1.0 * total - last"),
            ("shifted[1:] * shifted[:-1]", "shifted[2:] * shifted[:-2]"),
            ("(num - 1) * mean", "(num - 2) * mean"),
            ("(shifted**2).sum()", "(shifted**4).sum()"),
        ],
    ),
    "quantiles": (
        "shadowspec.gate.evidence.quantiles",
        check_quantiles,
        [
            ("shape = probability / (1.0 - probability)", "shape = probability / (1.0 + probability)"),
            ("math.lgamma(shape + count)", "math.lgamma(shape - count)"),
            ("math.lgamma(1.0 + total - count)", "math.lgamma(2.0 + total - count)"),
            ("- math.lgamma(shape + 1.0 + total)", "- math.lgamma(shape + 2.0 + total)"),
            ("+ math.log(shape)", "- math.log(shape)"),
            ("- count * math.log(probability)", "+ count * math.log(probability)"),
            ("(total - count) * math.log1p(-probability)", "(total + count) * math.log1p(-probability)"),
            ("probability) >= -math.log(level)", "probability) >= +math.log(level)"),
            ("lower=lower + 1 if", "lower=lower + 2 if"),
            ("highest = num_below - 1, above + num_above", "highest = num_below - 0, above + num_above"),
            ("highest = num_below - 1, above + num_above", "highest = num_below - 1, above - num_above"),
            ("BIN_GROWTH ** (upper + 1)", "BIN_GROWTH ** (upper + 0)"),
            ("else BIN_GROWTH**lower", "else BIN_GROWTH*lower"),
            ("BIN_GROWTH ** (estimate + 0.5)", "BIN_GROWTH ** (estimate + 9.5)"),
        ],
    ),
    "drift": (
        "shadowspec.gate.stats.drift",
        check_drift,
        [
            ("detector.best - detector.promise", "detector.best + detector.promise"),
            ("detector.promise * weights - values", "values - detector.promise * weights"),
            ("/ slack, -1.0)", "/ slack, -9.0)"),
            ("logaddexp.accumulate(-before", "logaddexp.accumulate(+before"),
            ("grown + np.logaddexp(", "grown - np.logaddexp("),
        ],
    ),
    "levels": (
        "shadowspec.gate.verdict.trial_levels",
        check_levels,
        [
            ("FIRST_RUN = 0.9", "FIRST_RUN = 0.8"),
            ("num_endpoints < graph.num_endpoints", "num_endpoints <= graph.num_endpoints"),
            ("num_slots < graph.num_slots", "num_slots <= graph.num_slots"),
            ("policy.max_hypotheses - num_endpoints, REUSED", "policy.max_hypotheses + num_endpoints, REUSED"),
            ("6.0 / (math.pi * index) ** 2", "7.0 / (math.pi * index) ** 2"),
            ("(trial.graph.num_slots - sum(", "(trial.graph.num_slots + sum("),
            ("trial.share + given", "trial.share - given"),
            ("if other != name]", "if other == name]"),
        ],
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_product_passes_each_check(name: str) -> None:
    assert_passes(CHECKS, name)


@pytest.mark.parametrize(("name", "old", "new"), cases(CHECKS))
def test_one_changed_character_fails_its_check(name: str, old: str, new: str) -> None:
    assert_caught(CHECKS, name, (old, new), (AssertionError, ValueError, Warning))


@pytest.mark.parametrize(
    ("old", "new", "world"),
    [
        ("0.6, 0.95])", "0.6, 0.99])", None),  # legal bets: coverage must not fail, which shows that it is not luck
        ("log_capital_now >= -math.log(level)", "log_capital_now >= -math.log(level) / 2", "tail"),
        ("(-lowest, thetas) if", "(-lowest / 2, thetas / 2) if", "speedup"),
        ("(highest, -thetas)", "(highest / 9, -thetas / 9)", "tail"),
    ],
)
def test_coverage_itself_sees_bets_that_are_too_large(old: str, new: str, world: str | None) -> None:
    broken = sabotaged("shadowspec.gate.stats.betting", (old, new))
    with np.errstate(all="ignore"):
        worst = max(max(coverage.betting_misses(broken, BETTING[name], 300, 1_000)) for name in [world or "tail"])
    assert (worst > LEVEL) == (world is not None)
