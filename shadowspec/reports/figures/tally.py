"""Weighted sums over runs, and the figures formed of them: what a cell of the explorer holds.

Every figure is pooled over its runs, each weighed by the inverse of its inclusion rate, so that it speaks of the
traffic and not of what was sampled.  Nothing here has a bound: bounds are the gate's, on its own units.

`by_context` shows how the figures of one hypothesis change with the length of the prompt.  Ranges double in length.
The cache is what a request's keys and values take at its end, in the arm's models; peaks are another figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from shadowspec import metrics
from shadowspec.metrics import ratio
from shadowspec.store import RollupSums
from shadowspec.tap.context_buckets import prompt_range
from shadowspec.types import BlockMemory, Memory, Run


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums that add up.  Runs are counted plainly, everything else is weighted, as `shadowspec.metrics` takes it."""

    num_runs: int = 0
    num_failed: int = 0
    num_timed: int = 0
    weight: float = 0.0
    num_drafts: float = 0.0
    num_draft_tokens: float = 0.0
    num_accepted_tokens: float = 0.0
    num_first_accepted_tokens: float = 0.0
    timed_weight: float = 0.0
    log_speedup: float = 0.0
    baseline_ms: float = 0.0
    speculative_ms: float = 0.0

    @property
    def num_accepted_tokens_per_pos(self) -> tuple[float]:
        """Of the first position only; no other is summed."""
        return (self.num_first_accepted_tokens,)

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(amount + more for amount, more in zip(astuple(self), astuple(other), strict=True)))

    @staticmethod
    def of_sums(sums: RollupSums) -> Tally:
        """The same of rollups."""
        return Tally(
            num_runs=sums.num_runs,
            num_failed=sums.num_failed,
            num_timed=sums.num_timed,
            weight=sums.weight,
            num_drafts=sums.weighted_drafts,
            num_draft_tokens=sums.weighted_draft_tokens,
            num_accepted_tokens=sums.weighted_accepted_tokens,
            num_first_accepted_tokens=sums.weighted_first_accepted_tokens,
            timed_weight=sums.timed_weight,
            log_speedup=sums.weighted_log_speedup,
            baseline_ms=sums.weighted_baseline_end_to_end_ms,
            speculative_ms=sums.weighted_speculative_end_to_end_ms,
        )

    @staticmethod
    def of_run(row: Mapping[str, Any]) -> Tally:
        """The same of one run, as a page of runs shows it."""
        weight = 1.0 / (row["sampling_rate"] or 1.0)
        baseline_ms, speculative_ms = (
            (row[f"{arm}_prefill_ms"] or 0.0) + (row[f"{arm}_decode_ms"] or 0.0) for arm in ("baseline", "speculative")
        )
        is_timed = row["failure"] is None and baseline_ms > 0.0 and speculative_ms > 0.0
        timed = weight if is_timed else 0.0
        return Tally(
            num_runs=1,
            num_failed=int(row["failure"] is not None),
            num_timed=int(is_timed),
            weight=weight,
            num_drafts=weight * (row["num_drafts"] or 0),
            num_draft_tokens=weight * (row["num_draft_tokens"] or 0),
            num_accepted_tokens=weight * (row["num_accepted_tokens"] or 0),
            num_first_accepted_tokens=weight * (row["num_first_accepted_tokens"] or 0),
            timed_weight=timed,
            log_speedup=timed * math.log(baseline_ms / speculative_ms) if is_timed else 0.0,
            baseline_ms=timed * baseline_ms,
            speculative_ms=timed * speculative_ms,
        )

    @staticmethod
    def of_measured(run: Run, sampling_rate: float) -> Tally:
        """The same of one run that has its counts."""
        counts = run.counts
        assert counts is not None, "a run that failed has no counts"
        baseline, speculative = run.baseline, run.speculative
        return Tally.of_run(
            {
                "sampling_rate": sampling_rate,
                "failure": run.failure,
                "num_drafts": counts.num_drafts,
                "num_draft_tokens": counts.num_draft_tokens,
                "num_accepted_tokens": counts.num_accepted_tokens,
                "num_first_accepted_tokens": counts.num_first_accepted,
                "baseline_prefill_ms": baseline and baseline.prefill_ms,
                "baseline_decode_ms": baseline and baseline.decode_ms,
                "speculative_prefill_ms": speculative and speculative.prefill_ms,
                "speculative_decode_ms": speculative and speculative.decode_ms,
            }
        )


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them added up."""
    return sum(tallies, Tally())


def speedup(tally: Tally) -> float | None:
    """Geometric mean over requests of baseline over speculative end-to-end time, nothing clipped."""
    mean = ratio(tally.log_speedup, tally.timed_weight)
    return None if mean is None else math.exp(mean)


def ratio_of_total_times(tally: Tally) -> float | None:
    """Total baseline over total speculative end-to-end time: what the fleet pays."""
    return ratio(tally.baseline_ms, tally.speculative_ms)


def failed_share(tally: Tally) -> float | None:
    """Runs of which an arm failed, over all runs; plain, not weighted."""
    return ratio(tally.num_failed, tally.num_runs)


@dataclass(frozen=True, slots=True)
class SpeedupBin:
    """Requests whose own speedup lies in [lower, upper); the outermost bins are open (None)."""

    lower: float | None
    upper: float | None
    num_requests: int


@dataclass(frozen=True, slots=True)
class CacheCost:
    """Bytes of keys and values per token."""

    target: int
    draft: int

    @classmethod
    def of(cls, memory: BlockMemory | None) -> CacheCost | None:
        """Those of a block that was measured in process; no server says its bytes."""
        return cls(memory.kv_bytes_per_token, memory.draft_kv_bytes_per_token) if isinstance(memory, Memory) else None


@dataclass(frozen=True, slots=True)
class ContextPoint:
    """One measured request."""

    num_prompt_tokens: int
    num_output_tokens: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class ContextRow:
    """Requests whose prompts have a like number of tokens; figures are None where undefined."""

    name: str  # the range of prompt tokens
    num_requests: int
    mean_acceptance_length: float | None
    first_position_acceptance_rate: float | None
    ratio_of_total_times: float | None
    baseline_cache_bytes: float | None  # of a request, mean
    speculative_cache_bytes: float | None


def by_context(points: Iterable[ContextPoint], cost: CacheCost | None) -> tuple[ContextRow, ...]:
    """The rows of every range that holds a request, shortest prompts first.

    Args:
        cost: None where no block's memory is known.
    """
    by_range: dict[str, list[ContextPoint]] = {}
    for point in sorted(points, key=lambda context_point: context_point.num_prompt_tokens):
        by_range.setdefault(prompt_range(point.num_prompt_tokens), []).append(point)
    return tuple(_context_row(name, context_points, cost) for name, context_points in by_range.items())


def _context_row(name: str, points: list[ContextPoint], cost: CacheCost | None) -> ContextRow:
    pooled = total(point.tally for point in points)
    tokens = ratio(sum(point.num_prompt_tokens + point.num_output_tokens for point in points), len(points)) or 0.0
    return ContextRow(
        name=name,
        num_requests=len(points),
        mean_acceptance_length=metrics.mean_acceptance_length(pooled),
        first_position_acceptance_rate=metrics.first_position_acceptance_rate(pooled),
        ratio_of_total_times=ratio_of_total_times(pooled),
        baseline_cache_bytes=None if cost is None else tokens * cost.target,
        speculative_cache_bytes=None if cost is None else tokens * (cost.target + cost.draft),
    )
