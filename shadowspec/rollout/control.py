"""The control: while a rollout is partial, production's pool without speculation beside the pool with it.

The unit is an interval.  In each, the two pools serve the same hour of the day and the same mix, because the gateway
draws which pool a request goes to.  The value of a time is the logarithm of the plain pool's mean over the speculative
pool's, clipped at `TIME_CLIP`; that of failures is the plain pool's share less the speculative pool's, clipped at
`FAILURE_CLIP`.  The gate's betting sequence gives the bounds, which hold at every look.  The level is parted among the
figures.  So the bounds move a speculative pool that is no worse than tolerated back with probability `control_level` at
most, however often anybody looks.  A pool that was good and becomes bad has a good mean for long, so one of the gate's
drift detectors watches each figure too: its first false alarm comes after `control_run_length` intervals on average, or
later.

Assumption: given the past, an interval's mean value is no worse than the tolerance.  The logarithm of a mean of n
requests lies (coefficient of variation)^2 / 2n too low; the engine's bins estimate it, and it is added back, because
the smaller pool has the smaller n.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from shadowspec.gate.stats.betting import Side, Sums
from shadowspec.gate.stats.capital import CapitalTable, grid
from shadowspec.gate.stats.drift import Detector
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.store.evidence.live_rows import sum_counts
from shadowspec.text import DASH, format_signed, plural, times
from shadowspec.types import END_TO_END, FIRST_TOKEN, PER_TOKEN, Buckets, LiveCounts, LiveWindow, Pool

FAILURES: Final = "failed_requests"
TIME_CLIP: Final = math.log(2.0)
FAILURE_CLIP: Final = 0.1
COMPARED: Final[Mapping[str, str]] = {
    END_TO_END: "end-to-end time",
    FIRST_TOKEN: "time to first token",
    PER_TOKEN: "time per output token",
    FAILURES: "increase of failed requests",
}
_SIDES: Final[tuple[Side, Side]] = ("lower", "upper")
_MAX_SPREAD: Final = 4.0  # of a squared coefficient of variation: what lies in the last bin is unknown


class ControlVerdict(StrEnum):
    """What the control allows the rollout."""

    FORWARD = "forward"
    HOLD = "hold"
    REVERT = "revert"


@dataclass(frozen=True, slots=True)
class PoolComparison:
    """One figure of both pools.  Times are ratios, plain over speculative: above 1 speculation is faster.  Failures are
    the plain pool's share less the speculative pool's: above 0 speculation fails less.

    `tolerated` is the worst mean that the policy allows.  Bounds are None where none is proven yet.  `has_alarmed`: the
    figure's drift detector has fired.
    """

    name: str
    num_intervals: int
    estimate: float | None
    lower: float | None
    upper: float | None
    tolerated: float
    has_alarmed: bool

    @property
    def is_worse(self) -> bool:
        """Whether speculation is proven to be worse than tolerated, on average since the stage began."""
        return self.upper is not None and self.upper < self.tolerated

    @property
    def is_no_worse(self) -> bool:
        """Whether speculation is proven to be no worse than tolerated."""
        return self.lower is not None and self.lower >= self.tolerated

    @property
    def text(self) -> str:
        """The figure with its bounds, for people; failures as their increase with speculation."""
        figures = [times(value) for value in (self.estimate, self.lower, self.upper)]
        if self.name == FAILURES:
            figures = [_increase(value) for value in (self.estimate, self.upper, self.lower)]
        value, first, last = figures
        return f"{COMPARED[self.name]} {value} ({first} to {last}) in {plural(self.num_intervals, 'interval')}"


@dataclass(frozen=True, slots=True)
class Control:
    """The comparison since a stage began, and what it allows.

    `num_small` intervals have too few requests in a pool, `num_unlike` too different a load per replica; in
    `num_drafted` the plain pool drafted, so that it was no control.  `promised` is
    the lower bound of the shadow's speedup.
    """

    verdict: ControlVerdict
    reason: str
    comparisons: tuple[PoolComparison, ...]
    num_small: int
    num_unlike: int
    num_drafted: int
    promised: float | None


@dataclass(frozen=True, slots=True)
class PoolInterval:
    """The counts of both pools in an interval, and the seconds that their replicas' windows cover."""

    counts: Mapping[Pool, LiveCounts]
    seconds: Mapping[Pool, float]

    @property
    def num_requests(self) -> int:
        """Of the pool with fewer."""
        return min(self.counts[pool].num_requests or 0 for pool in Pool)

    @property
    def load_difference(self) -> float:
        """By which factor less one the requests per replica and second differ."""
        rates = [(self.counts[pool].num_requests or 0) / self.seconds[pool] for pool in Pool]
        return math.inf if not min(rates) else max(rates) / min(rates) - 1.0

    def log_ratio(self, name: str) -> float | None:
        """Logarithm of the plain pool's mean time over the speculative pool's; None where a pool does not count it."""
        logs = [_log_mean(self.counts[pool].latencies.get(name)) for pool in (Pool.PLAIN, Pool.SPECULATIVE)]
        return None if logs[0] is None or logs[1] is None else logs[0] - logs[1]

    def failure_difference(self) -> float | None:
        """The plain pool's share of failed requests less the speculative pool's; None where a pool does not count it.

        Requests that failed may be counted beside those that ended, so the share is at most 1.
        """
        shares = []
        for pool in (Pool.PLAIN, Pool.SPECULATIVE):
            counts = self.counts[pool]
            if counts.num_failed_requests is None or not counts.num_requests:
                return None
            shares.append(min(1.0, counts.num_failed_requests / counts.num_requests))
        return shares[0] - shares[1]

    def value(self, name: str) -> float | None:
        """The interval's value of a figure; None where a pool does not count it."""
        return self.failure_difference() if name == FAILURES else self.log_ratio(name)


@dataclass(frozen=True, slots=True)
class ControlEvidence:
    """The sums of the comparisons over intervals.  Folding them in parts gives the same as folding all at once."""

    policy: RolloutPolicy
    tables: Mapping[str, tuple[CapitalTable, CapitalTable]]  # lower and upper, by name
    detectors: Mapping[str, Detector]  # by name
    sums: Mapping[str, tuple[int, float]]  # of intervals and of their values, by name
    num_small: int = 0
    num_unlike: int = 0
    num_drafted: int = 0

    @classmethod
    def empty(cls, policy: RolloutPolicy) -> ControlEvidence:
        """The evidence of no intervals."""
        tables, detectors = {}, {}
        for name in COMPARED:
            clip, tolerated = _scale(name, policy)
            detectors[name] = Detector(tolerated, clip)
            thetas = grid(-clip, clip, [tolerated])
            lower, upper = (CapitalTable.empty(side, thetas, -clip, clip) for side in _SIDES)
            tables[name] = lower, upper
        return cls(policy, tables, detectors, dict.fromkeys(COMPARED, (0, 0.0)))

    def fold(self, intervals: Sequence[PoolInterval]) -> ControlEvidence:
        """The evidence with these intervals added."""
        plain = [interval for interval in intervals if not interval.counts[Pool.PLAIN].num_drafts]
        busy = [interval for interval in plain if interval.num_requests >= self.policy.control_requests]
        alike = [interval for interval in busy if interval.load_difference <= self.policy.max_load_difference]
        tables, detectors, sums = dict(self.tables), dict(self.detectors), dict(self.sums)
        for name, (lower, upper) in self.tables.items():
            clip, _ = _scale(name, self.policy)
            values = np.clip([value for interval in alike if (value := interval.value(name)) is not None], -clip, clip)
            ones, (number, total) = np.ones(len(values)), self.sums[name]
            tables[name] = lower.fold(values, ones), upper.fold(values, ones)
            detectors[name] = detectors[name].fold(Sums(values, ones))
            sums[name] = number + len(values), total + float(values.sum())
        return replace(
            self,
            tables=tables,
            detectors=detectors,
            sums=sums,
            num_small=self.num_small + len(plain) - len(busy),
            num_unlike=self.num_unlike + len(busy) - len(alike),
            num_drafted=self.num_drafted + len(intervals) - len(plain),
        )

    def comparison(self, name: str) -> PoolComparison:
        """One figure with its bounds."""
        number, total = self.sums[name]
        level = self.policy.control_level / len(COMPARED)
        lower, upper = (table.find_bound(level) for table in self.tables[name])
        estimate, tolerated = total / number if number else None, _scale(name, self.policy)[1]
        if name != FAILURES:
            estimate, lower, upper = (None if value is None else math.exp(value) for value in (estimate, lower, upper))
            tolerated = math.exp(tolerated)
        has_alarmed = self.detectors[name].has_alarmed(float(self.policy.control_run_length * len(COMPARED)))
        return PoolComparison(name, number, estimate, lower, upper, tolerated, has_alarmed)

    def control(self, promised: float | None) -> Control:
        """What the comparisons allow; `promised` is the lower bound of the shadow's speedup (None: unknown)."""
        comparisons = tuple(self.comparison(name) for name in COMPARED)
        skipped = {
            "too few requests": self.num_small,
            "unlike loads per replica": self.num_unlike,
            "drafts in the plain pool": self.num_drafted,
        }
        verdict, reason = _judge(comparisons, promised, skipped)
        return Control(verdict, reason, comparisons, self.num_small, self.num_unlike, self.num_drafted, promised)


def compare_pools(windows: Iterable[LiveWindow], promised: float | None, policy: RolloutPolicy) -> Control:
    """The comparison of the pools over the windows of a stage; `promised` is the shadow's, as in `Control`."""
    return ControlEvidence.empty(policy).fold(pool_intervals(windows, policy.control_interval_s)).control(promised)


def _scale(name: str, policy: RolloutPolicy) -> tuple[float, float]:
    """The clip of a figure's values and the worst tolerated mean, on the scale of the values."""
    if name == FAILURES:
        return FAILURE_CLIP, -policy.max_failure_increase
    slowdown = policy.max_first_token_slowdown if name == FIRST_TOKEN else policy.max_slowdown
    return TIME_CLIP, -math.log1p(slowdown)


def _judge(
    comparisons: Sequence[PoolComparison], promised: float | None, skipped: Mapping[str, int]
) -> tuple[ControlVerdict, str]:
    """Back where one figure is proven to be worse; forward where times and failures are proven to be no worse."""
    by_name = {comparison.name: comparison for comparison in comparisons}
    end_to_end, failures = by_name[END_TO_END], by_name[FAILURES]
    for comparison in comparisons:
        if comparison.is_worse:
            return ControlVerdict.REVERT, f"production is worse with speculation: {comparison.text}"
    for comparison in comparisons:
        if comparison.has_alarmed:
            return ControlVerdict.REVERT, f"production has become worse with speculation: {comparison.text}"
    if not end_to_end.num_intervals:
        reasons = [f"{plural(number, 'interval')} with {why}" for why, number in skipped.items() if number]
        why = ", ".join(reasons) or "no interval is over in which both pools were read"
        return ControlVerdict.HOLD, f"the pools are not compared yet: {why}"
    if promised is not None and end_to_end.upper is not None and end_to_end.upper < promised:
        return ControlVerdict.HOLD, f"the shadow promised {times(promised)}, production shows {end_to_end.text}"
    if not end_to_end.is_no_worse:
        return ControlVerdict.HOLD, f"not yet proven to be no slower: {end_to_end.text}"
    if failures.num_intervals and not failures.is_no_worse:
        return ControlVerdict.HOLD, f"not yet proven to fail no more: {failures.text}"
    return ControlVerdict.FORWARD, f"production confirms it: {end_to_end.text}"


def pool_intervals(windows: Iterable[LiveWindow], interval_s: float) -> list[PoolInterval]:
    """The intervals that are over and have windows of both pools, in the order of time; windows count where they end.

    One is over when a later one has a window: both pools are read at the same time.
    """
    by_place: dict[int, dict[Pool, list[LiveWindow]]] = defaultdict(lambda: defaultdict(list))
    for window in sorted(windows, key=lambda window: window.ended_at):
        by_place[int(window.ended_at.timestamp() // interval_s)][window.pool].append(window)
    intervals = []
    for place in sorted(by_place)[:-1]:
        pools = by_place[place]
        if len(pools) == len(Pool):
            counts = {pool: sum_counts(window.counts for window in pools[pool]) for pool in Pool}
            intervals.append(
                PoolInterval(counts, {pool: sum(window.seconds for window in pools[pool]) for pool in Pool})
            )
    return intervals


def _log_mean(bins: Buckets | None) -> float | None:
    """Logarithm of a mean time, corrected for the number of requests; None where it is unknown."""
    if bins is None or not bins.sum_us or not bins.total:
        return None
    centres = [(low + high) / 2.0 for low, high in zip((0.0, *bins.bounds), bins.bounds, strict=False)]
    centres.append(bins.bounds[-1] if bins.bounds else 0.0)
    first, second = (
        sum(count * centre**power for count, centre in zip(bins.counts, centres, strict=True)) / bins.total
        for power in (1, 2)
    )
    spread = min(second / first**2 - 1.0, _MAX_SPREAD) if first else 0.0
    return math.log(bins.sum_us / bins.total) + spread / (2.0 * bins.total)


def _increase(value: float | None) -> str:
    return DASH if value is None else f"{format_signed(-100.0 * value, 2)}%"
