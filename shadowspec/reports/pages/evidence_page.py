"""What the verdict on one hypothesis rests on, as the evidence page draws it.

Bounds are those that the gate stored at its looks.  Latencies come from rollups: their quantiles are known to within a
bin, whose width `shadowspec.store.histograms` states, and every request weighs the inverse of its sampling rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from shadowspec.gate.verdict.curves import SequencePoint
from shadowspec.metrics import ratio
from shadowspec.reports.figures.tally import SpeedupBin
from shadowspec.store import Histogram, LookPoint, Quantile, RollupSums
from shadowspec.store.histograms import GROWTH
from shadowspec.types import Arm, SpeculationCounts, Verdict

PATH_TESTS = ("speedup", "acceptance", "tail", "parity_sampled")
MAX_POINTS = 400  # of a path; more is not visible at the width of a chart
PROBABILITIES = (0.5, 0.95, 0.99)
BINS_PER_BAR = 2  # of the histogram of speedups: bars are a tenth wide
DRAWN = {"end_to_end_ms": "End to end", "prefill_ms": "TTFT", "time_per_output_token_ms": "TPOT"}  # with a chart
MEASURES = DRAWN | {"longest_gap_ms": "Longest gap"}


@dataclass(frozen=True, slots=True)
class PathPoint(SequencePoint):
    """A test at one look (or after one unit, where `at` is None)."""

    at: datetime | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class TestPath:
    """A test's confidence sequence, oldest first, and the points at which the verdict became another one."""

    __test__ = False  # a value, not a pytest class

    name: str
    threshold: float | None
    points: tuple[PathPoint, ...]
    changes: tuple[PathPoint, ...]


@dataclass(frozen=True, slots=True)
class BinnedDistribution:
    """One latency measure of one arm, milliseconds; `cumulative` is (upper edge of a bin, share at or below)."""

    measure: str
    arm: Arm
    num_runs: int
    quantiles: tuple[tuple[float, Quantile], ...]
    cumulative: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class TimeParts:
    """Mean milliseconds of a timed request of one arm.  Queue time is a part of the prefill."""

    arm: Arm
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    draft_ms: float
    verify_ms: float
    other_ms: float
    concurrency: float | None  # realised, mean over the requests that know it; None: none does
    cached_share: float | None  # of the prompts' tokens, from a server's prefix cache; None: no server says


@dataclass(frozen=True, slots=True)
class RollupFigures:
    """What rollups add up to for one hypothesis; figures are None or empty where nothing was measured."""

    sums: RollupSums
    counts: SpeculationCounts | None
    distributions: tuple[BinnedDistribution, ...]
    speedups: tuple[SpeedupBin, ...]
    speedup_quantiles: tuple[tuple[float, Quantile], ...]
    parts: tuple[TimeParts, ...]


def pool_figures(
    sums: Sequence[RollupSums], counts: SpeculationCounts | None, histograms: Mapping[str, Histogram]
) -> RollupFigures:
    """The figures of one hypothesis, from its rollups."""
    total = add_sums(sums)
    speedups = histograms.get("speedup")
    return RollupFigures(
        sums=total,
        counts=counts,
        distributions=tuple(
            distribution(measure, arm, histograms[name])
            for measure in MEASURES
            for arm in Arm
            if (name := f"{arm}_{measure}") in histograms
        ),
        speedups=() if speedups is None else speedup_bars(speedups),
        speedup_quantiles=() if speedups is None else _quantiles(speedups, (0.05, 0.5, 0.95)),
        parts=time_parts(total),
    )


def paths(looks: Sequence[LookPoint]) -> dict[str, TestPath]:
    """Each test's path over the looks, thinned; points at which the verdict changed are kept."""
    by_name: dict[str, list[LookPoint]] = defaultdict(list)
    for look in looks:
        by_name[look.name].append(look)
    parts = {}
    for name, look_points in by_name.items():
        points = [PathPoint(p.num_units, p.estimate, p.lower, p.upper, p.decided_at, p.verdict) for p in look_points]
        changes = [
            point
            for before, point in zip([None, *points[:-1]], points, strict=True)
            if before is None or before.verdict is not point.verdict
        ]
        parts[name] = TestPath(name, look_points[-1].threshold, thin_points(points), tuple(changes))
    return parts


def unit_paths(sequences: Mapping[str, Sequence[SequencePoint]], last: Mapping[str, TestPath]) -> dict[str, TestPath]:
    """The same after each unit, as the gate would have seen it at a look there; thresholds are the last look's."""
    distributions = {}
    for name, points in sequences.items():
        if name in last and points:
            path_points = [PathPoint(p.num_units, p.estimate, p.lower, p.upper) for p in points]
            distributions[name] = TestPath(name, last[name].threshold, thin_points(path_points), ())
    return distributions


def thin_points(points: Sequence[PathPoint]) -> tuple[PathPoint, ...]:
    """At most about `MAX_POINTS`, evenly spaced, the last among them, and every one at which the verdict changes."""
    if len(points) <= MAX_POINTS:
        return tuple(points)
    step = len(points) / MAX_POINTS
    kept = {int(index * step) for index in range(MAX_POINTS)} | {len(points) - 1}
    kept |= {i for i in range(1, len(points)) if points[i].verdict is not points[i - 1].verdict}
    return tuple(points[index] for index in sorted(kept))


def distribution(measure: str, arm: Arm, histogram: Histogram) -> BinnedDistribution:
    """A histogram as its cumulative curve and quantiles."""
    total = sum(histogram.weights.values())
    reached, curve = 0.0, []
    for number in sorted(histogram.weights):
        reached += histogram.weights[number]
        curve.append((GROWTH ** (number + 1), ratio(reached, total) or 0.0))
    return BinnedDistribution(
        measure, arm, sum(histogram.num_runs.values()), _quantiles(histogram, PROBABILITIES), tuple(curve)
    )


def speedup_bars(histogram: Histogram) -> tuple[SpeedupBin, ...]:
    """Requests by their own speedup, in bars of `BINS_PER_BAR` bins that meet at 1."""
    bars: dict[int, int] = defaultdict(int)
    for number, runs in histogram.num_runs.items():
        bars[number // BINS_PER_BAR] += runs
    return tuple(
        SpeedupBin(GROWTH ** (bar * BINS_PER_BAR), GROWTH ** ((bar + 1) * BINS_PER_BAR), runs)
        for bar, runs in sorted(bars.items())
    )


def time_parts(sums: RollupSums) -> tuple[TimeParts, ...]:
    """Where a timed request's time goes in each arm; the baseline neither drafts nor verifies."""
    if not sums.num_timed:
        return ()
    number = sums.num_timed
    return tuple(
        TimeParts(
            arm=arm,
            queue_ms=getattr(sums, f"{arm}_queue_ms") / number,
            prefill_ms=getattr(sums, f"{arm}_prefill_ms") / number,
            decode_ms=getattr(sums, f"{arm}_decode_ms") / number,
            **{
                f"{part}_ms": getattr(sums, f"speculative_{part}_ms") / number if arm is Arm.SPECULATIVE else 0.0
                for part in ("draft", "verify", "other")
            },
            concurrency=ratio(getattr(sums, f"{arm}_concurrency"), sums.num_with_concurrency),
            cached_share=ratio(getattr(sums, f"{arm}_cached_tokens"), sums.num_cached_prompt_tokens),
        )
        for arm in Arm
    )


def add_sums(sums: Sequence[RollupSums]) -> RollupSums:
    """The sum of sums."""
    names = RollupSums.__slots__
    return RollupSums(**{name: sum(getattr(rollup_sums, name) for rollup_sums in sums) for name in names})


def _quantiles(histogram: Histogram, shares: Sequence[float]) -> tuple[tuple[float, Quantile], ...]:
    quantiles = ((share, histogram.quantile(share)) for share in shares)
    return tuple((share, quantile) for share, quantile in quantiles if quantile is not None)
