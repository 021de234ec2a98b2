"""The betting tests of latency: speedup, the ratio of total times beside it, and the slowed share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.quantiles import latency_quantiles
from shadowspec.gate.series import (
    BettingTest,
    Unit,
    block_series,
    is_missing,
    log_speedup,
    num_missing_runs,
    unit_series,
)
from shadowspec.gate.units import BlockUnit
from shadowspec.metrics import ratio
from shadowspec.types import Run

TIME_CAP_BLOCKS = 10  # the hypothesis's first blocks set the cap on a block's total time and then do not count
TIME_CAP_FACTOR = 4.0
MAX_TIME_RATIO = 8.0  # where the search for the upper bound of the ratio of total times ends


def speedup_test(blocks: Sequence[BlockUnit], policy: GatePolicy) -> BettingTest:
    """Clipped log(baseline / speculative end-to-end time) of a request; blocks, sums over n_max."""
    clip = policy.log_speedup_clip

    def score(run: Run) -> float | None:
        value = log_speedup(run)
        return None if value is None else min(max(value, -clip), clip)

    logs = [value for unit in blocks for value in (log_speedup(m.run) for m in unit.runs) if value is not None]
    clipped = ratio(sum(abs(value) > clip for value in logs), len(logs))
    series = block_series(blocks, score, -clip, clip)
    return BettingTest(
        "speedup",
        series,
        "block",
        best=clip,
        above=math.log1p(policy.margin),
        is_log=True,
        disables=True,
        num_missing=num_missing_runs(blocks),
        details={"clipped_share": clipped, "log_speedup_clip": clip},
    )


def total_time_test(blocks: Sequence[BlockUnit], policy: GatePolicy) -> BettingTest:
    """Ratio of total times, baseline over speculative: what the fleet pays.

    Times are capped at TIME_CAP_FACTOR times the mean baseline time of the first TIME_CAP_BLOCKS blocks: the
    speculative one always, the baseline one where its size would favour the baseline's side of the bet.
    """
    cap_times = [
        _total(unit, lambda run: _end_to_end_ms(run)[0])
        for unit in blocks[:TIME_CAP_BLOCKS]
        if not any(is_missing(measured.run) for measured in unit.runs)
    ]
    mean_ms = ratio(sum(cap_times), len(cap_times))
    judged = blocks[TIME_CAP_BLOCKS:] if mean_ms else ()
    cap_ms = TIME_CAP_FACTOR * (mean_ms or 1.0)
    units, baseline_ms, speculative_ms = [], 0.0, 0.0
    for unit in judged:
        base = _total(unit, lambda run: _end_to_end_ms(run)[0])
        spec = _total(unit, lambda run: _end_to_end_ms(run)[1])
        baseline_ms, speculative_ms = baseline_ms + base, speculative_ms + spec
        has_missing = any(is_missing(measured.run) for measured in unit.runs)
        capped_base, capped_spec = min(base / cap_ms, 1.0), min(spec / cap_ms, 1.0)
        units.append(
            Unit(
                lower=(base / cap_ms, 1.0 if has_missing else capped_spec),
                upper=(1.0 if has_missing else capped_base, capped_spec),
                observed=(base / cap_ms, spec / cap_ms),
            )
        )
    return BettingTest(
        "total_time",
        unit_series(units, 0.0, MAX_TIME_RATIO, upper_worst=1.0),
        "block",
        best=MAX_TIME_RATIO,
        above=1.0,
        is_required=policy.objective == "both",
        num_missing=num_missing_runs(judged),
        details={
            "baseline_total_ms": baseline_ms,
            "speculative_total_ms": speculative_ms,
            "cap_ms": cap_ms if mean_ms else None,
            "objective": policy.objective,
        },
    )


def tail_test(blocks: Sequence[BlockUnit], policy: GatePolicy) -> BettingTest:
    """Share of requests slowed by more than `tail_margin`; blocks, sums over n_max."""
    slow_log, clip = -math.log1p(policy.tail_margin), policy.log_speedup_clip

    def score(run: Run) -> float | None:
        value = log_speedup(run)
        return None if value is None else float(value < slow_log)

    smallest = [
        min(-clip if (value := log_speedup(m.run)) is None else min(max(value, -clip), clip) for m in unit.runs)
        for unit in blocks
    ]
    series = block_series(blocks, score, 0.0, 1.0, dependence=np.array(smallest, dtype=np.float64))
    slowed = sum(score(m.run) == 1.0 for unit in blocks for m in unit.runs)
    return BettingTest(
        "tail",
        series,
        "block",
        best=0.0,
        below=policy.tail_share,
        disables=True,
        num_missing=num_missing_runs(blocks),
        details={
            "num_slowed": slowed,
            "tail_margin": policy.tail_margin,
            **latency_quantiles(blocks, policy.alpha),
        },
    )


def _end_to_end_ms(run: Run) -> tuple[float, float]:
    if is_missing(run) or run.baseline is None or run.speculative is None:
        return 0.0, 0.0
    return run.baseline.end_to_end_ms, run.speculative.end_to_end_ms


def _total(unit: BlockUnit, time_of: Callable[[Run], float]) -> float:
    return sum(time_of(measured.run) for measured in unit.runs)
