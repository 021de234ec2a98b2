"""What was measured, computed from stored rows: exact order statistics and pooled counts, no estimates.

Pooled figures and quantiles weigh each request by the inverse of its session's sampling rate where rates
differ.  Ratios are formed only by `shadowspec.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from shadowspec import metrics
from shadowspec.reports.figures.tally import SpeedupBin
from shadowspec.reports.report.report_model import (
    Acceptance,
    Distribution,
    KvCacheFigures,
    Latency,
    MemoryFigures,
    OrderStatistic,
    ParityFigures,
)
from shadowspec.types import Arm, ArmTiming, BlockMemory, Memory, Run, ServedMemory, SpeculationCounts

QUANTILES = (0.5, 0.95, 0.99)
SPEEDUP_QUANTILES = (0.05, 0.5, 0.95)
ECDF_POINTS = 160  # more is not visible at the width of a figure
SPEEDUP_BIN_EDGES = tuple(2.0 ** (step / 8) for step in range(-12, 17))  # 0.35x to 4x, 9% wide
RATE_DENOMINATOR = 10**6  # sampling rates are distinguished to one in a million


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """A run with what its record and its block say about it."""

    run: Run
    slice_key: str
    concurrency: int
    sampling_rate: float
    is_greedy: bool  # the request was sampled at temperature 0
    unit_key: str | None  # its session, or the substitute of one
    turn: int | None  # its place in its session, from 1


def request_weights(rates: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to 1 / rate, all 1 where the rates are equal.

    Args:
        rates: inclusion probabilities in (0, 1].
    """
    exact = [1 / Fraction(rate).limit_denominator(RATE_DENOMINATOR) for rate in rates]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*whole) or 1
    return [weight // divisor for weight in whole]


def quantile(values: Sequence[float], probability: float, weights: Sequence[int] | None = None) -> OrderStatistic:
    """The smallest observation with at least `probability` of the weight at or below it.

    Undefined below 1 / min(probability, 1 - probability) observations, where it would only be the extreme one.
    """
    needs = math.ceil(round(1 / min(probability, 1 - probability), 9))
    if len(values) < needs:
        return OrderStatistic(probability, None, needs)
    value = np.quantile(values, probability, weights=_array(weights, len(values)), method="inverted_cdf")
    return OrderStatistic(probability, float(value), needs)


def ecdf(values: Sequence[float], weights: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """(value, weighted share of observations at or below it) at up to `ECDF_POINTS` observations, ascending."""
    if not values:
        return ()
    order = np.argsort(np.asarray(values, dtype=float), kind="stable")
    shares = np.cumsum(_array(weights, len(values))[order])
    picked = np.unique(np.linspace(0, len(values) - 1, ECDF_POINTS).round().astype(int))
    return tuple((float(values[order[i]]), float(shares[i] / shares[-1])) for i in picked)


def acceptance(runs: Sequence[JoinedRun]) -> Acceptance | None:
    """Acceptance pooled over runs of one speculation config; None where no run has counts."""
    counted = [(measured, measured.run.counts) for measured in runs if measured.run.counts is not None]
    plain = metrics.pool_counts(counts for _, counts in counted)
    if plain is None:
        return None
    weights = request_weights([measured.sampling_rate for measured, _ in counted])
    weighted = metrics.pool_counts(_times(counts, weight) for (_, counts), weight in zip(counted, weights, strict=True))
    assert weighted is not None
    lengths = [
        (length, weight)
        for (_, counts), weight in zip(counted, weights, strict=True)
        if (length := metrics.mean_acceptance_length(counts)) is not None
    ]
    return Acceptance(
        num_requests=len(counted),
        counts=plain,
        is_weighted=len(set(weights)) > 1,
        draft_acceptance_rate=metrics.draft_acceptance_rate(weighted),
        first_position_acceptance_rate=metrics.first_position_acceptance_rate(weighted),
        mean_acceptance_length=metrics.mean_acceptance_length(weighted),
        tokens_per_target_pass=metrics.tokens_per_target_pass(weighted),
        mean_of_requests_acceptance_length=metrics.ratio(
            sum(length * weight for length, weight in lengths), sum(weight for _, weight in lengths)
        ),
        marginal_acceptance_rates=metrics.marginal_acceptance_rates(weighted),
        conditional_acceptance_rates=metrics.conditional_acceptance_rates(weighted),
        histogram_shares=tuple(metrics.ratio(steps, weighted.num_drafts) for steps in weighted.acceptance_histogram),
        target_passes_saved=metrics.target_passes_saved(plain),
    )


def latency(runs: Sequence[JoinedRun]) -> Latency | None:
    """Both arms' latency over the runs that have both; None where none has."""
    timed = [
        (measured, measured.run.baseline, measured.run.speculative)
        for measured in runs
        if measured.run.baseline is not None and measured.run.speculative is not None
    ]
    if not timed:
        return None
    weights = request_weights([measured.sampling_rate for measured, _, _ in timed])
    arms = {Arm.BASELINE: [base for _, base, _ in timed], Arm.SPECULATIVE: [spec for _, _, spec in timed]}
    speedups = [
        (value, weight)
        for (_, base, spec), weight in zip(timed, weights, strict=True)
        if (value := metrics.speedup(base, spec)) is not None
    ]
    totals = {arm: _weighted_sum(timings, weights, lambda t: t.end_to_end_ms) for arm, timings in arms.items()}
    decode = _weighted_sum(arms[Arm.SPECULATIVE], weights, lambda t: t.decode_ms)
    parts = [
        _weighted_sum(arms[Arm.SPECULATIVE], weights, part)
        for part in (lambda t: t.draft_ms, lambda t: t.verify_ms, lambda t: t.other_ms)
    ]
    values = [value for value, _ in speedups]
    return Latency(
        num_requests=len(timed),
        distributions=tuple(
            _distribution(name, arm, timings, weights, read)
            for name, read in _MEASURES.items()
            if name not in _NOTED_LATER
            or any(read(timing) is not None for timings in arms.values() for timing in timings)
            for arm, timings in arms.items()
        ),
        ratio_of_total_times=metrics.ratio(totals[Arm.BASELINE], totals[Arm.SPECULATIVE]),
        speedup_quantiles=tuple(quantile(values, q, [weight for _, weight in speedups]) for q in SPEEDUP_QUANTILES),
        speedup_histogram=_speedup_histogram(values),
        draft_share=metrics.ratio(parts[0], decode),
        verify_share=metrics.ratio(parts[1], decode),
        other_share=metrics.ratio(parts[2], decode),
        baseline_concurrency=_mean_concurrency(arms[Arm.BASELINE], weights),
        speculative_concurrency=_mean_concurrency(arms[Arm.SPECULATIVE], weights),
    )


def parity(runs: Sequence[JoinedRun], near_tie_logit: float | None) -> ParityFigures | None:
    """Parity of greedy outputs (compared) and of sampled ones (teacher-forced z, pooled over tokens)."""
    known = [(measured, measured.run.parity) for measured in runs if measured.run.parity is not None]
    if not known:
        return None
    compared = [parity for measured, parity in known if measured.is_greedy]
    diverged = [parity for parity in compared if parity.first_divergence is not None]
    gaps = [parity.divergence_gap for parity in diverged if parity.divergence_gap is not None]
    scored = [parity for _, parity in known if parity.z_sum is not None]
    z_tokens = sum(parity.z_tokens or 0 for parity in scored)
    baseline_tokens = sum(parity.baseline_z_tokens or 0 for parity in scored)
    near = None if near_tie_logit is None else sum(gap <= near_tie_logit for gap in gaps)
    return ParityFigures(
        num_greedy=len(compared),
        num_diverged=len(diverged),
        num_near_ties=near,
        num_faults=None if near is None else len(gaps) - near,
        num_unknown_gaps=len(diverged) - len(gaps),
        num_rerun_differs=sum(parity.rerun_differs is True for parity in diverged),
        largest_gap=max(gaps, default=None),
        near_tie_logit=near_tie_logit,
        num_sampled=len(scored),
        z=metrics.ratio(sum(parity.z_sum or 0.0 for parity in scored), z_tokens),
        z_tokens=z_tokens,
        baseline_z=metrics.ratio(sum(parity.baseline_z_sum or 0.0 for parity in scored), baseline_tokens),
        baseline_z_tokens=baseline_tokens,
    )


def memory(blocks: Iterable[BlockMemory]) -> MemoryFigures | None:
    """The largest peaks of any block, and the largest difference on one block; None where no block has peaks."""
    rows = [memory for memory in blocks if isinstance(memory, Memory)]
    if not rows:
        return None
    return MemoryFigures(
        num_blocks=len(rows),
        baseline_peak_bytes=max(row.baseline_peak_bytes for row in rows),
        speculative_peak_bytes=max(row.speculative_peak_bytes for row in rows),
        extra_peak_bytes=max(row.speculative_peak_bytes - row.baseline_peak_bytes for row in rows),
        displaced_kv_tokens=max(row.displaced_kv_tokens for row in rows),
        displaced_requests=max(
            (displaced for row in rows if (displaced := row.displaced_requests) is not None), default=None
        ),
        draft_weight_bytes=max(row.draft_weight_bytes for row in rows),
        kv_bytes_per_token=max(row.kv_bytes_per_token for row in rows),
        draft_kv_bytes_per_token=max(row.draft_kv_bytes_per_token for row in rows),
    )


def kv_cache(blocks: Iterable[BlockMemory]) -> KvCacheFigures | None:
    """What the servers' caches hold, of the block that displaced the most; None where no server said so."""
    rows = [memory for memory in blocks if isinstance(memory, ServedMemory)]
    if not rows:
        return None
    worst = max(rows, key=lambda row: row.baseline_kv_tokens - row.speculative_kv_tokens)
    return KvCacheFigures(
        num_blocks=len(rows),
        baseline_tokens=worst.baseline_kv_tokens,
        speculative_tokens=worst.speculative_kv_tokens,
        displaced_tokens=worst.displaced_kv_tokens,
        displaced_share=worst.extra_share,
        baseline_requests=worst.baseline_kv_requests,
        speculative_requests=worst.speculative_kv_requests,
        source=worst.source,
    )


_MEASURES: dict[str, Callable[[ArmTiming], float | None]] = {
    "end_to_end_ms": lambda timing: timing.end_to_end_ms,
    "ttft_ms": lambda timing: timing.prefill_ms,
    "tpot_ms": metrics.time_per_output_token_ms,
    "longest_gap_ms": lambda timing: timing.longest_gap_ms,
    "queue_ms": lambda timing: timing.queue_ms,
}

_NOTED_LATER = ("longest_gap_ms",)  # left out where no run has it


def _distribution(
    name: str, arm: Arm, timings: Sequence[ArmTiming], weights: Sequence[int], read: Callable[[ArmTiming], float | None]
) -> Distribution:
    pairs = [
        (value, weight) for timing, weight in zip(timings, weights, strict=True) if (value := read(timing)) is not None
    ]
    values, kept = [value for value, _ in pairs], [weight for _, weight in pairs]
    return Distribution(
        measure=name,
        arm=arm,
        num_requests=len(values),
        mean=metrics.ratio(sum(value * weight for value, weight in pairs), sum(kept)),
        quantiles=tuple(quantile(values, probability, kept) for probability in QUANTILES),
        ecdf=ecdf(values, kept),
    )


def _speedup_histogram(values: Sequence[float]) -> tuple[SpeedupBin, ...]:
    edges = (-math.inf, *SPEEDUP_BIN_EDGES, math.inf)
    counts, _ = np.histogram(np.asarray(values, dtype=float), bins=np.asarray(edges))
    return tuple(
        SpeedupBin(metrics.finite(lower), metrics.finite(upper), int(count))
        for lower, upper, count in zip(edges[:-1], edges[1:], counts, strict=True)
    )


def _times(counts: SpeculationCounts, weight: int) -> SpeculationCounts:
    """Every counter, multiplied."""

    def multiply(value: int | tuple[int, ...]) -> Any:
        return tuple(count * weight for count in value) if isinstance(value, tuple) else value * weight

    return SpeculationCounts(**{field.name: multiply(getattr(counts, field.name)) for field in fields(counts)})


def _weighted_sum(timings: Sequence[ArmTiming], weights: Sequence[int], read: Callable[[ArmTiming], float]) -> float:
    return sum(read(timing) * weight for timing, weight in zip(timings, weights, strict=True))


def _mean_concurrency(timings: Sequence[ArmTiming], weights: Sequence[int]) -> float | None:
    known = [
        (timing.concurrency, weight)
        for timing, weight in zip(timings, weights, strict=True)
        if timing.concurrency is not None
    ]
    return metrics.ratio(sum(value * weight for value, weight in known), sum(weight for _, weight in known))


def _array(weights: Sequence[int] | None, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.ones(size) if weights is None else np.asarray(weights, dtype=float)
