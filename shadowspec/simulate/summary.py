"""Summary of results: rates with their intervals, power, sizes, and whether the gate kept its promise.

Intervals are Clopper and Pearson's, which hold at every size and every truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from shadowspec.simulate.repetition import fixed_sample_size
from shadowspec.simulate.results import TestTally, Times, WorldResult, num_times
from shadowspec.simulate.world import SpreadWorld, World
from shadowspec.simulate.worlds import WORLDS

ENOUGH = 1_000  # repetitions from which on each world is held to that; fewer are pooled
POOL = 300  # repetitions of all null worlds together from which on they are
PROOF = 0.998  # confidence of the two-sided interval whose lower end convicts a world of few repetitions
POWER_WANTED = 0.8
ALARMS_WANTED = 0.9  # of ENABLEs, where something changes that an alarm must end and the rules before did not see
FIXED_FACTOR, SMALLEST_FACTOR = 2.5, 1.5  # of the fixed-sample size and of the smallest possible one
NEVER_REQUIRED = ("total_time",)
POWER_WORLD = "minimum_effect"


@dataclass(frozen=True, slots=True)
class Stopping:
    """Blocks at a verdict over all repetitions; None where fewer than that share ever came to it."""

    median: int | None
    ninety: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One world's line.  `limit_blocks` and `power` only where power was asked for."""

    world: World
    repetitions: int
    alpha: float
    level: float
    false_enable: Share
    false_disable: Share
    enabled: Share
    disabled: Share
    dependent: Share
    enable_blocks: Stopping
    disable_blocks: Stopping
    naive: Mapping[str, Share]
    alarmed: Share | None = None
    alarm_blocks: Stopping | None = None
    limit_blocks: int | None = None
    power: Share | None = None


def summarise(result: WorldResult) -> Summary:
    """The line of one world."""
    world, total = WORLDS[result.name], result.repetitions
    limit = power_limit_blocks(result) if world.name == POWER_WORLD else None
    within = num_times(tuple(time for time in result.enable_blocks if time[0] <= limit)) if limit is not None else 0
    has_alarms = world.expects_alarm and bool(result.enable_blocks) and world.kind != "null"
    false_enables = result.false_enables
    if world.reads in NEVER_REQUIRED:  # a world about only this test: others never pass there
        false_enables = num_times(result.tests[world.reads].passed_units)
    return Summary(
        world=world,
        repetitions=total,
        alpha=world.policy.alpha,
        level=result.level,
        false_enable=share(false_enables, total),
        false_disable=share(result.false_disables, total),
        enabled=share(num_times(result.enable_blocks), total),
        disabled=share(num_times(result.disable_blocks), total),
        dependent=share(result.num_dependent, total),
        enable_blocks=stopping(result.enable_blocks, total),
        disable_blocks=stopping(result.disable_blocks, total),
        naive={name: share(count, total) for name, count in result.naive_enables.items()},
        alarmed=share(num_times(result.alarm_blocks), num_times(result.enable_blocks)) if has_alarms else None,
        alarm_blocks=stopping(result.alarm_blocks, num_times(result.enable_blocks)) if has_alarms else None,
        limit_blocks=limit,
        power=share(within, total) if limit is not None else None,
    )


def stopping(times: Times, total: int) -> Stopping:
    """Median and 90% of `times` among `total` runs."""
    return Stopping(quantile(times, 0.5, total), quantile(times, 0.9, total))


def power_limit_blocks(result: WorldResult) -> int:
    """Blocks within which the gate must have decided ENABLE: those of the slowest required test.

    2.5 times the fixed-sample size at the same level or 1.5 times the test's smallest possible size, the larger.
    """
    in_a_block = WORLDS[result.name].arrivals.concurrency
    return max(
        -(-test_limit(test) // (1 if test.unit == "block" else in_a_block))
        for name, test in result.tests.items()
        if name not in NEVER_REQUIRED
    )


def test_limit(test: TestTally) -> int:
    """Units within which a test must pass."""
    fixed = fixed_sample_size(test.mean, test.sd, test.level) if test.mean > 0.0 else 0
    return round(max(FIXED_FACTOR * fixed, SMALLEST_FACTOR * test.min_units))


def broken_promises(results: Iterable[WorldResult]) -> list[str]:
    """The gate's promises that these results contradict, one sentence each; [] if it kept its promises.

    A world of many repetitions must have the upper end of its interval at most 1.2 alpha (2 alpha where units depend on
    each other).  Worlds of few must meet it together, if they are enough, and each singly only where its lower end lies
    above alpha.  Worlds beyond what the gate assumes are stated and not judged.  Power must be .8; where the
    repetitions are few, the upper end of its interval must reach it.
    """
    summaries = [summary for summary in map(summarise, results) if not is_beyond(summary.world)]
    broken = []
    for verdict, rate_of in (("ENABLE", attrgetter("false_enable")), ("DISABLE", attrgetter("false_disable"))):
        few = [
            s for s in summaries if s.world.kind == "null" and s.repetitions < ENOUGH and not s.world.may_be_dependent
        ]
        for summary in summaries:
            rate = rate_of(summary)
            limit = summary.world.tolerance * summary.alpha
            if summary.repetitions >= ENOUGH and rate.upper > limit:
                broken.append(f"{summary.world.name}: false {verdict} up to {rate.upper:.1%}, above {limit:.1%}")
            elif summary.repetitions < ENOUGH:
                proven = share(rate.count, rate.total, PROOF)
                if proven.lower > max(summary.world.tolerance, 1.2) / 1.2 * summary.alpha:
                    broken.append(f"{summary.world.name}: false {verdict} {proven.lower:.1%} at least")
        pooled = share(sum(rate_of(s).count for s in few), sum(s.repetitions for s in few))
        if pooled.total >= POOL and pooled.upper > few[0].world.tolerance * few[0].alpha:
            broken.append(f"all null worlds together: false {verdict} up to {pooled.upper:.1%}")
    for summary in summaries:
        if summary.world.must_alarm and summary.alarmed is not None and summary.alarmed.upper < ALARMS_WANTED:
            broken.append(f"{summary.world.name}: {summary.alarmed.value or 0.0:.0%} of ENABLEs ended")
        if summary.power is None:
            continue
        shown = summary.power.upper if summary.repetitions < ENOUGH else summary.power.value or 0.0
        if shown < POWER_WANTED:
            broken.append(
                f"{summary.world.name}: power {summary.power.value or 0.0:.0%} within {summary.limit_blocks} blocks"
            )
    return broken


def is_beyond(world: World) -> bool:
    """Whether the world's requests share more than the gate assumes."""
    return isinstance(world, SpreadWorld) and world.is_beyond


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `total`, with the bounds of a two-sided interval."""

    count: int
    total: int
    lower: float
    upper: float

    @property
    def value(self) -> float | None:
        """The share itself; None if the total is 0."""
        return self.count / self.total if self.total else None


def share(count: int, total: int, confidence: float = 0.95) -> Share:
    """`count` of `total` with its exact interval at `confidence`; from 0 to 1 where the total is 0."""
    from scipy.special import betaincinv  # slow to load: at its use here and beside

    tail = (1.0 - confidence) / 2.0
    lower = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    upper = float(betaincinv(count + 1, total - count, 1.0 - tail)) if count < total else 1.0
    return Share(count, total, lower, upper)


def quantile(times: Times, probability: float, total: int) -> int | None:
    """The time that a `probability` of `total` runs did not exceed, those without one being infinite."""
    wanted = math.ceil(probability * total)
    reached = accumulate(number for _, number in times)
    return next((time for (time, _), number in zip(times, reached, strict=True) if number >= wanted > 0), None)
