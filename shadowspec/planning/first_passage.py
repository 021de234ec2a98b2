"""How much more evidence open tests need: their capitals continued over units that are yet to come.

A plan promises nothing and decides nothing.  The distribution of a test's next units is taken from its units so far:
the observed mean and the spread that its summed capitals imply, both with the uncertainty of so few units.  Each path
draws a mean once and units about it, continues every bet from its current capital, and stops when the nulls fall.
Thousands of units ahead go in growing steps, whose sums are taken as normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shadowspec.gate.evidence.hypothesis import TestEvidence
from shadowspec.gate.evidence.series import BettingTest
from shadowspec.gate.stats.betting import FRACTIONS, Floats, Side, opposite

NUM_PATHS = 400
EXACT_UNITS = 256  # units ahead that are drawn one by one
POOL_UNITS = 512  # units of a path that its later steps are judged by
STEP_GROWTH = 1.1  # of the steps beyond the exact units
MIN_UNITS = 5  # with fewer, typical units are assumed
ASSUMED_UNITS = 20  # how many units' worth of certainty an assumption has

# Typical units, at a useful speedup of 1.15: mean and standard deviation of a unit.
ASSUMED: Mapping[str, tuple[float, float]] = {
    "speedup": (math.log(1.15), 0.15),
    "total_time": (1.15, 0.3),
    "acceptance": (0.55, 0.25),
    "tail": (0.02, 0.07),
    "parity_near_ties": (0.005, 0.07),
    "parity_sampled": (0.0, 0.06),
}


@dataclass(frozen=True, slots=True)
class Bet:
    """One null of a test: y = sign * (u - theta * g) / worst, and the log-capitals by fraction so far."""

    sign: float
    theta: float
    worst: float
    logs: Floats  # [len(FRACTIONS)]
    level: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outlook:
    """A test and the distribution of its next units.

    `mean` and `spread` are of the y of its first null; the spread is the variance as a share of the largest that a
    variable with this mean and range can have.  `weight` is a unit's mean g; `certainty` the number of units that
    the mean rests on.
    """

    name: str
    unit: str
    is_required: bool
    disables: bool
    is_assumed: bool
    mean: float
    spread: float
    highest: float  # the largest y
    weight: float
    certainty: float
    merged_units: int
    passes: tuple[Bet, ...]  # all must fall
    fails: tuple[Bet, ...]  # one is enough


@dataclass(frozen=True, slots=True)
class FirstPassages:
    """Units until every null has fallen, and until an opposite one has, per path; infinite beyond the horizon."""

    passes: Floats  # [paths]
    fails: Floats  # [paths]


def outlook(test: BettingTest, evidence: TestEvidence | None, level: float) -> Outlook:
    """The expected units of a test at this level, from its evidence; `test` is its definition, without units."""
    evidence = evidence or TestEvidence.empty(test)
    passes = tuple(_bet(test, evidence, side, theta, level) for side, theta in test.sides)
    fails = tuple(_bet(test, evidence, opposite(side), theta, test.fail_level(level)) for side, theta in test.sides)
    first, series = passes[0], test.series
    far = series.highest if first.sign > 0 else series.lowest
    highest = first.sign * (far - first.theta) / first.worst
    num = evidence.num_units
    weight = evidence.observed_weight / num if num and evidence.observed_weight > 0.0 else 1.0
    if num >= MIN_UNITS:
        mean = first.sign * (evidence.observed_value / num - first.theta * weight) / first.worst
        variance = _second_moment(first.logs / num, mean) - mean * mean
    else:
        typical, sd = ASSUMED.get(test.name, (0.5 * (first.theta + test.best), 0.25 * abs(test.best - first.theta)))
        mean, variance = first.sign * (typical - first.theta) / first.worst, (sd / first.worst) ** 2
    mean = min(max(mean, -1.0 + 1e-6), highest - 1e-6)
    largest = (mean + 1.0) * (highest - mean)
    return Outlook(
        name=test.name,
        unit=test.unit,
        is_required=test.is_required,
        disables=test.disables,
        is_assumed=num < MIN_UNITS,
        mean=mean,
        spread=min(max(variance / largest, 1e-3), 0.99),
        highest=highest,
        weight=weight,
        certainty=float(num if num >= MIN_UNITS else ASSUMED_UNITS),
        merged_units=evidence.state.merged_units,
        passes=passes,
        fails=fails,
    )


def first_passage_times(
    outlook: Outlook, horizon: int, rng: np.random.Generator, num_paths: int = NUM_PATHS, *, is_certain: bool = False
) -> FirstPassages:
    """How many more units each path takes, up to `horizon`; with `is_certain` the mean is taken for the truth."""
    # 1. A mean per path, and units about it (a beta distribution has any mean and variance of a bounded range).
    share = (outlook.mean + 1.0) / (outlook.highest + 1.0)
    certainty = outlook.certainty / outlook.spread
    means = np.full(num_paths, share)
    if not is_certain:
        means = rng.beta(share * certainty + 0.5, (1.0 - share) * certainty + 0.5, num_paths)
    means = np.clip(means, 1e-4, 1.0 - 1e-4)[:, None]
    shape = 1.0 / outlook.spread - 1.0
    draws = rng.beta(means * shape, (1.0 - means) * shape, (num_paths, POOL_UNITS))  # [P, POOL_UNITS]
    first = outlook.passes[0]
    values, centres = (
        first.sign * first.worst * (shares * (outlook.highest + 1.0) - 1.0) + first.theta * outlook.weight
        for shares in (draws, means)
    )

    # 2. The looks: now, after each of the first units, and then in growing steps.
    exact = min(horizon, EXACT_UNITS)
    steps, far = [], exact
    while far < horizon:
        steps.append(min(max(math.ceil(far * (STEP_GROWTH - 1.0)), 1), horizon - far))
        far += steps[-1]
    looks = np.concatenate([np.arange(exact + 1), exact + np.cumsum(steps)]).astype(np.float64)
    shocks = rng.standard_normal((num_paths, len(steps)))

    # 3. Every bet along every path; all of a path's bets see the same units.
    rises = [_capitals(bet, values, centres, outlook.weight, exact, np.array(steps), shocks) for bet in outlook.passes]
    falls = [_capitals(bet, values, centres, outlook.weight, exact, np.array(steps), shocks) for bet in outlook.fails]
    passed = np.logical_and.reduce(
        [paths >= -math.log(bet.level) for paths, bet in zip(rises, outlook.passes, strict=True)]
    )
    failed = np.logical_or.reduce(
        [paths >= -math.log(bet.level) for paths, bet in zip(falls, outlook.fails, strict=True)]
    )
    return FirstPassages(_first(passed, looks), _first(failed, looks))


def _bet(test: BettingTest, evidence: TestEvidence, side: Side, theta: float, level: float) -> Bet:
    table = evidence.lower if side == "lower" else evidence.upper
    sums = table.sums_at(theta)
    logs = np.zeros(len(FRACTIONS)) if sums is None else sums
    sign = 1.0 if side == "lower" else -1.0
    return Bet(sign, theta, test.series.worst(side, theta), logs, level, table.weights)


def _second_moment(mean_logs: Floats, mean: float) -> float:
    """E[y^2] from the means of log(1 + f * y) at the two smallest fractions, their third moment eliminated."""
    small, large = float(FRACTIONS[0]), float(FRACTIONS[1])
    first, second = ((f * mean - float(log)) * 2.0 / f**2 for f, log in ((small, mean_logs[0]), (large, mean_logs[1])))
    return first + (first - second) * small / (large - small)


def _capitals(
    bet: Bet, values: Floats, centres: Floats, weight: float, exact: int, steps: Floats, shocks: Floats
) -> Floats:
    """Log-capital at every look, [P, 1 + exact + steps], of units' sums [P, POOL_UNITS] about `centres` [P, 1]."""
    ratios = np.maximum(bet.sign * (values - bet.theta * weight) / bet.worst, -1.0)
    # By how much the pool happens to lie off its centre, which thousands of further units would not.
    off = ratios.mean(axis=1, keepdims=True) - np.maximum(bet.sign * (centres - bet.theta * weight) / bet.worst, -1.0)
    spread = ratios - ratios.mean(axis=1, keepdims=True)
    variance = np.maximum((spread**2).sum(axis=1, keepdims=True), 1e-12)
    total = np.full((len(values), 1 + exact + len(steps)), -np.inf)
    for fraction, share, begun in zip(FRACTIONS, bet.weights, bet.logs, strict=True):
        logs = np.log1p(fraction * ratios)
        near = np.cumsum(logs[:, :exact], axis=1)
        paths = np.concatenate([np.zeros((len(values), 1)), near], axis=1)
        if len(steps):
            slope = (spread * logs).sum(axis=1, keepdims=True) / variance
            mean, sd = logs.mean(axis=1, keepdims=True) - slope * off, logs.std(axis=1, keepdims=True)
            far = np.cumsum(steps * mean + np.sqrt(steps) * sd * bet.sign * shocks, axis=1)
            paths = np.concatenate([paths, paths[:, -1:] + far], axis=1)
        total = np.logaddexp(total, math.log(share) + begun + paths)
    return total


def _first(is_there: np.typing.NDArray[np.bool_], looks: Floats) -> Floats:
    first: Floats = np.where(is_there.any(axis=1), looks[is_there.argmax(axis=1)], np.inf)
    return first
