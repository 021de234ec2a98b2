"""Bounds of latency quantiles that hold at all looks at once: shown beside the tail test, judged by none.

How many of n values lie at or below the true quantile of probability p is binomial(n, p); a Beta mixture over
the alternatives is a martingale under it, so that ranks whose likelihood ratio ever reaches 1/level are
excluded (the beta-binomial mixture of Howard and Ramdas, arXiv 1906.09712).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shadowspec.gate.series import Detail, is_missing
from shadowspec.gate.units import BlockUnit
from shadowspec.types import Run

PROBABILITIES = {"p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class QuantileBounds:
    """Estimate and bounds of one quantile; `upper` is None while it is infinite, `lower` while it is 0."""

    estimate: float
    lower: float | None
    upper: float | None


def quantile_bounds(values: Sequence[float], probability: float, level: float) -> QuantileBounds | None:
    """Two-sided bounds at `level` of the `probability` quantile of independent `values`; None of nothing.

    The upper bound of p99 is infinite below about 500 values at level .05: no sample that small excludes it.
    """
    ordered, total = sorted(values), len(values)
    if not ordered:
        return None
    middle = probability * total

    def is_excluded(count: int) -> bool:
        return _log_mixture(count, total, probability) >= -math.log(level)

    # The mixture falls up to the expected count and rises beyond it.
    below = [count for count in range(math.floor(middle) + 1) if count < middle and is_excluded(count)]
    above = (count for count in range(math.ceil(middle), total + 1) if count > middle and is_excluded(count))
    highest = next(above, None)
    return QuantileBounds(
        estimate=ordered[min(math.ceil(middle), total) - 1],
        lower=ordered[below[-1]] if below else None,
        upper=None if highest is None else ordered[highest - 1],
    )


def latency_quantiles(blocks: Sequence[BlockUnit], level: float) -> dict[str, Detail]:
    """p95 and p99 of end-to-end time of both arms, ms, each with its bounds: one request per block, drawn by hash."""
    chosen: list[Run] = []
    for unit in blocks:
        runs = [measured.run for measured in unit.runs if not is_missing(measured.run)]
        if runs:
            chosen.append(min(runs, key=lambda run: hashlib.sha256(str(run.key).encode()).digest()))
    arms = {
        "baseline": [run.baseline.end_to_end_ms for run in chosen if run.baseline],
        "speculative": [run.speculative.end_to_end_ms for run in chosen if run.speculative],
    }
    figures: dict[str, Detail] = {"quantile_alpha": level, "quantile_units": len(chosen)}
    for arm, times in arms.items():
        for name, probability in PROBABILITIES.items():
            bounds = quantile_bounds(times, probability, level)
            figures[f"{arm}_{name}_ms"] = bounds.estimate if bounds else None
            figures[f"{arm}_{name}_lower_ms"] = bounds.lower if bounds else None
            figures[f"{arm}_{name}_upper_ms"] = bounds.upper if bounds else None
    return figures


def _log_mixture(count: int, total: int, probability: float) -> float:
    """log of the Beta(p/(1-p), 1) mixture's likelihood ratio against binomial(total, p), at `count`."""
    shape = probability / (1.0 - probability)
    return (
        math.lgamma(shape + count)
        + math.lgamma(1.0 + total - count)
        - math.lgamma(shape + 1.0 + total)
        + math.log(shape)
        - count * math.log(probability)
        - (total - count) * math.log1p(-probability)
    )
