"""Worlds of the control: two pools of production whose truth is known, and what `rollout.control` makes of them.

Requests arrive with the hour of the day and last lognormally long.  A shock of each interval is common to both pools,
one of each pool lasts for some intervals.  Nothing is folded here: the windows are the product's, and so is the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from shadowspec.rollout.control import ControlEvidence, ControlVerdict, pool_intervals
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.types import END_TO_END, FIRST_TOKEN, PER_TOKEN, Buckets, LiveCounts, LiveWindow, Pool

INTERVALS_PER_DAY: Final = 144
LOOK_INTERVALS: Final = 6  # an hour: between two looks of the gate
BOUNDS: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)  # of vLLM, seconds
_START: Final = datetime(2026, 6, 1, tzinfo=UTC)
_MEAN_S: Final = 4.0
_STAY: Final = 0.7  # of a pool's shock from one interval to the next


@dataclass(frozen=True, slots=True)
class PoolWorld:
    """Two pools.  `speedup` is the truth on the first day, `last_speedup` on the last, in a straight line of time.

    `requests` are expected in an interval by each replica; `growth` is the factor of the last day's.  `spread` is the
    standard deviation of a request's log time, `shock` that of an interval's, `pool_shock` that of a pool's.
    """

    name: str
    title: str
    speedup: float = 1.0
    last_speedup: float | None = None
    days: float = 14.0
    num_plain: int = 4
    num_speculative: int = 1
    requests: float = 60.0
    growth: float = 1.0
    daily: float = 0.5  # amplitude of the requests over a day
    spread: float = 0.8
    shock: float = 0.15
    pool_shock: float = 0.03
    failures: float = 0.005
    speculative_failures: float = 0.005

    @property
    def num_intervals(self) -> int:
        return round(self.days * INTERVALS_PER_DAY)

    def true_speedup(self, place: int) -> float:
        """In the interval of this number."""
        last = self.speedup if self.last_speedup is None else self.last_speedup
        return self.speedup + (last - self.speedup) * place / max(1, self.num_intervals - 1)

    def worse_from(self, policy: RolloutPolicy) -> int | None:
        """The first interval in which speculation is worse than tolerated; None: it never is."""
        if self.speculative_failures - self.failures > policy.max_failure_increase:
            return 0
        limit = 1.0 / (1.0 + policy.max_slowdown)
        return next((place for place in range(self.num_intervals) if self.true_speedup(place) < limit - 1e-9), None)


WORLDS: Final = (
    PoolWorld("a_a", "A/A: both pools are the same"),
    PoolWorld("tolerated", "speculation is slower by exactly the tolerance", speedup=1.0 / 1.02),
    PoolWorld(
        "few_requests", "A/A with 25 requests of a long tail in an interval", requests=25.0, spread=1.3, daily=0.1
    ),
    PoolWorld("demand", "A/A while demand triples over two weeks", growth=3.0),
    PoolWorld("gain", "speculation is 1.2 times as fast", speedup=1.2),
    PoolWorld("loss", "speculation makes requests 10% longer", speedup=1.0 / 1.1),
    PoolWorld("crossing", "1.2 times as fast at first, 0.8 times at last, while demand triples", 1.2, 0.8, growth=3.0),
    PoolWorld("failures", "speculation fails 3% of requests, plain 0.5%", speedup=1.2, speculative_failures=0.03),
)


@dataclass(frozen=True, slots=True)
class PoolOutcome:
    """The numbers of intervals after which the control first said so, at looks an hour apart; None: never."""

    reverted_after: int | None
    forward_after: int | None


def draw_windows(world: PoolWorld, seed: int) -> Iterator[LiveWindow]:
    """The windows of all replicas, one per replica and interval, in the order of time."""
    draw = np.random.default_rng(seed)
    replicas = [(Pool.SPECULATIVE, f"speculative-{number}") for number in range(world.num_speculative)]
    replicas += [(Pool.PLAIN, f"plain-{number}") for number in range(world.num_plain)]
    lasting = dict.fromkeys(Pool, 0.0)
    length = timedelta(days=1) / INTERVALS_PER_DAY
    for place in range(world.num_intervals):
        began = _START + place * length
        share = place / world.num_intervals
        expected = world.requests * world.growth**share
        expected *= 1.0 + world.daily * math.sin(2.0 * math.pi * place / INTERVALS_PER_DAY)
        common = float(draw.normal(0.0, world.shock))
        for pool in Pool:
            fresh = float(draw.normal(0.0, world.pool_shock * math.sqrt(1.0 - _STAY**2)))
            lasting[pool] = _STAY * lasting[pool] + fresh
        for pool, replica in replicas:
            speedup = world.true_speedup(place) if pool is Pool.SPECULATIVE else 1.0
            centre = math.log(_MEAN_S / speedup) - world.spread**2 / 2.0 + common + lasting[pool]
            seconds = draw.lognormal(centre, world.spread, draw.poisson(expected))
            failing = world.speculative_failures if pool is Pool.SPECULATIVE else world.failures
            counts = LiveCounts(
                num_requests=len(seconds),
                latencies={
                    name: _bins(part * seconds)
                    for name, part in ((END_TO_END, 1.0), (FIRST_TOKEN, 0.1), (PER_TOKEN, 0.01))
                },
                num_failed_requests=int(draw.binomial(len(seconds), failing)),
            )
            ended = began + length - timedelta(seconds=1)
            yield LiveWindow(replica, "simulated", began, ended, False, 0, counts, pool=pool)


def run_world(world: PoolWorld, seed: int, policy: RolloutPolicy) -> PoolOutcome:
    """One repetition: the control looks every hour, from the first to the last interval."""
    intervals = pool_intervals(draw_windows(world, seed), policy.control_interval_s)
    evidence, reverted, forward = ControlEvidence.empty(policy), None, None
    for start in range(0, len(intervals), LOOK_INTERVALS):
        evidence = evidence.fold(intervals[start : start + LOOK_INTERVALS])
        verdict, seen = evidence.control(None).verdict, min(start + LOOK_INTERVALS, len(intervals))
        reverted = seen if reverted is None and verdict is ControlVerdict.REVERT else reverted
        forward = seen if forward is None and verdict is ControlVerdict.FORWARD else forward
    return PoolOutcome(reverted, forward)


def _bins(seconds: np.ndarray) -> Buckets:
    counts = np.bincount(np.searchsorted(BOUNDS, seconds), minlength=len(BOUNDS) + 1)
    return Buckets(BOUNDS, tuple(counts.tolist()), round(1e6 * float(seconds.sum())))
