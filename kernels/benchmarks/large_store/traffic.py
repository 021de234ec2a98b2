"""Runs of one slice, load and config, drawn hour by hour and added up as the store adds up measured ones.

Every sum is over the same drawn runs, so that counts, times and histograms agree with each other as they do in a
measured store (`tests/demo/test_large_store.py` holds them against `shadowspec.store.rollups`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from kernels.benchmarks.large_store.columns import Columns
from kernels.benchmarks.large_store.failures import failures
from kernels.benchmarks.large_store.world import (
    LATE_DAY,
    LONGEST_GAP,
    MEAN_OUTPUT_TOKENS,
    MEAN_PROMPT_TOKENS,
    PREFILL_SHARE,
    SPREAD,
    SyntheticEndpoint,
    SyntheticSlice,
    acceptance_at,
    acceptance_length,
    log_speedup,
)
from shadowspec.store import table_definitions as tables
from shadowspec.store.histograms import GROWTH, HIGHEST_BIN, LOWEST_BIN
from shadowspec.types import FingerprintedConfig

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FAILED_SHARE = 0.003
# Share of a day's requests that comes in each hour (UTC), over that of an even day.
DAY = np.array([0.3, 0.25, 0.2, 0.2, 0.25, 0.4, 0.7, 1.1, 1.5, 1.8, 1.9, 1.8,
                1.7, 1.8, 1.9, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.5, 0.4])  # fmt: skip
WEEKEND = 0.45  # of a working day's requests


@dataclass(frozen=True, slots=True)
class TrafficCell:
    """What one stretch of rollups is of: they differ in the hour alone."""

    endpoint: SyntheticEndpoint
    slice_world: SyntheticSlice
    load: int
    versions: Sequence[FingerprintedConfig]
    config: FingerprintedConfig


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours of all the days: `start` is the first one's."""

    start: datetime
    number: int

    @property
    def shares(self) -> Floats:
        """How far through the days each hour is, from 0 to 1; [number]."""
        shares: Floats = np.arange(self.number) / self.number
        return shares

    @property
    def profile(self) -> Floats:
        """Requests of each hour over those of a mean one; [number]."""
        times = [self.start + timedelta(hours=hour) for hour in range(self.number)]
        profile: Floats = np.array([DAY[at.hour] * (WEEKEND if at.weekday() >= 5 else 1.0) for at in times])
        profile /= profile.mean()
        return profile


def is_measured(endpoint: SyntheticEndpoint, hours: Hours) -> NDArray[np.bool_]:
    """The hours in which the endpoint's mirror was there; [number]."""
    shares = hours.shares
    last = 1.0 - (5 * 24 / hours.number if endpoint.is_stale else 0.0)
    first = LATE_DAY if endpoint.is_late else 0.0
    return (shares >= first) & (shares < last)


def rollups(
    cell: TrafficCell, hours: Hours, mean_runs: float, first_id: int, draw: np.random.Generator
) -> Iterator[Columns]:
    """The cell's rollups, positions, histograms and failures, numbered from `first_id`; `mean_runs` is of an hour.

    The first of what comes are the rollups themselves, one for each hour in which something was measured.
    """
    # 1. Runs by hour.
    is_own = np.array(
        [cell.endpoint.config_at(cell.versions, share) is cell.config for share in hours.shares], dtype=bool
    )
    rates = mean_runs * hours.profile * is_measured(cell.endpoint, hours) * is_own
    runs = draw.poisson(rates)
    kept = np.flatnonzero(runs)
    runs = runs[kept]
    failed = draw.binomial(runs, FAILED_SHARE)
    timed = runs - failed
    hour_of = np.repeat(np.arange(len(kept)), timed)

    # 2. Each run: tokens and times.
    depth = cell.config.config.num_speculative_tokens
    shares = hours.shares[kept]
    acceptance = np.array([acceptance_at(cell.slice_world, len(cell.versions), float(share)) for share in shares])
    means = np.array([log_speedup(float(rate), depth, cell.load) for rate in acceptance])
    drawn = _draw_runs(cell, acceptance, means, hour_of, depth, draw)

    # 3. Their sums.
    def total(values: Floats | Ints) -> Floats:
        sums: Floats = np.bincount(hour_of, weights=values, minlength=len(kept)).astype(np.float64)
        return sums

    drafts = total(drawn.drafts).astype(np.int64)
    steps = _steps(drafts, acceptance, depth, draw)
    accepted = steps @ np.arange(depth + 1)
    per_pos = np.stack([steps[:, place + 1 :].sum(axis=1) for place in range(depth)], axis=1)
    cut_steps = np.minimum(draw.binomial(timed, 0.3), drafts)
    cut_tokens = np.minimum(draw.binomial(timed, 0.5), drafts)
    draft_tokens = depth * drafts - cut_tokens
    outputs = timed + drafts + accepted - cut_steps
    weight = 1.0 / cell.endpoint.sample_rate
    numbers = np.arange(first_id, first_id + len(kept))
    yield Columns(
        tables.rollups,
        len(kept),
        {
            "rollup_id": numbers,
            "endpoint": cell.endpoint.name,
            "slice_key": cell.slice_world.key,
            "fingerprint": cell.config.fingerprint,
            "concurrency": cell.load,
            "hour": [hours.start + timedelta(hours=int(hour)) for hour in kept],
            "num_runs": runs,
            "num_failed": failed,
            "num_timed": timed,
            "num_repetition_loops": draw.binomial(timed, 0.004),
            "num_drafts": drafts,
            "num_draft_tokens": draft_tokens,
            "num_accepted_tokens": accepted,
            "num_output_tokens": outputs,
            "num_prompt_tokens": total(drawn.prompt_tokens).astype(np.int64),
            "num_plain_steps": np.zeros_like(drafts),
            "num_cut_steps": cut_steps,
            "num_cut_draft_tokens": cut_tokens,
            "num_cut_accepted_tokens": np.zeros_like(drafts),
            "baseline_num_output_tokens": outputs,
            "speculative_num_output_tokens": outputs,
            **{name: total(values) for name, values in drawn.times().items()},
            "weight": weight * runs,
            "weight_squares": weight * weight * runs,
            "weighted_drafts": weight * drafts,
            "weighted_draft_tokens": weight * draft_tokens,
            "weighted_accepted_tokens": weight * accepted,
            "weighted_first_accepted_tokens": weight * per_pos[:, 0],
            "timed_weight": weight * timed,
            "weighted_log_speedup": weight * total(drawn.log_speedup),
            "weighted_baseline_end_to_end_ms": weight * total(drawn.baseline_ms),
            "weighted_speculative_end_to_end_ms": weight * total(drawn.speculative_ms),
            "num_with_concurrency": timed,
            "baseline_concurrency": 0.97 * cell.load * timed,  # nearly what it is labelled with
            "speculative_concurrency": 0.95 * cell.load * timed,
            # The in-process engine has no prefix cache.
            **dict.fromkeys(
                ("num_cached_prompt_tokens", "baseline_cached_tokens", "speculative_cached_tokens"), 0 * timed
            ),
        },
    )
    yield Columns(
        tables.rollup_positions,
        len(kept) * (depth + 1),
        {
            "rollup_id": np.repeat(numbers, depth + 1),
            "position": np.tile(np.arange(depth + 1), len(kept)),
            "num_accepted_tokens": np.concatenate([per_pos, np.zeros((len(kept), 1), np.int64)], axis=1).ravel(),
            "num_steps": steps.ravel(),
        },
    )
    for metric, values in drawn.metrics().items():
        yield _bins(metric, values, hour_of, numbers, weight)
    yield from failures(cell.slice_world.key, numbers, timed, drafts, per_pos[:, 0], acceptance)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Timed runs, each an entry; times in ms."""

    prompt_tokens: Ints
    output_tokens: Ints
    drafts: Ints
    log_speedup: Floats
    baseline_prefill_ms: Floats
    baseline_ms: Floats
    speculative_prefill_ms: Floats
    speculative_ms: Floats
    baseline_queue_ms: Floats
    speculative_queue_ms: Floats

    def times(self) -> Mapping[str, Floats]:
        """What is summed over timed runs, by the rollup's names."""
        decode = self.speculative_ms - self.speculative_prefill_ms
        return {
            "baseline_queue_ms": self.baseline_queue_ms,
            "baseline_prefill_ms": self.baseline_prefill_ms,
            "baseline_decode_ms": self.baseline_ms - self.baseline_prefill_ms,
            "speculative_queue_ms": self.speculative_queue_ms,
            "speculative_prefill_ms": self.speculative_prefill_ms,
            "speculative_decode_ms": decode,
            "speculative_draft_ms": 0.17 * decode,
            "speculative_verify_ms": 0.75 * decode,
            "speculative_other_ms": 0.08 * decode,
            "baseline_end_to_end_ms_squares": self.baseline_ms**2,
            "speculative_end_to_end_ms_squares": self.speculative_ms**2,
            "log_speedup": self.log_speedup,
            "log_speedup_squares": self.log_speedup**2,
        }

    def metrics(self) -> Mapping[str, Floats]:
        """What is kept as histograms, by the store's names."""
        after_first = self.output_tokens - 1
        return {
            "speedup": np.exp(self.log_speedup),
            "baseline_end_to_end_ms": self.baseline_ms,
            "baseline_prefill_ms": self.baseline_prefill_ms,
            "baseline_time_per_output_token_ms": (self.baseline_ms - self.baseline_prefill_ms) / after_first,
            "baseline_longest_gap_ms": LONGEST_GAP * (self.baseline_ms - self.baseline_prefill_ms) / after_first,
            "speculative_end_to_end_ms": self.speculative_ms,
            "speculative_longest_gap_ms": LONGEST_GAP
            * (self.speculative_ms - self.speculative_prefill_ms)
            / self.drafts,
            "speculative_prefill_ms": self.speculative_prefill_ms,
            "speculative_time_per_output_token_ms": (self.speculative_ms - self.speculative_prefill_ms) / after_first,
        }


def _draw_runs(
    cell: TrafficCell, acceptance: Floats, means: Floats, hour_of: Ints, depth: int, draw: np.random.Generator
) -> _Drawn:
    number = len(hour_of)
    outputs = np.maximum(np.rint(draw.lognormal(math.log(MEAN_OUTPUT_TOKENS), 0.5, number)), 4).astype(np.int64)
    lengths = np.array([acceptance_length(float(rate), depth) for rate in acceptance])
    slowed = 1.0 + 0.04 * (cell.load - 1)  # of a token, by the load beside it
    token_ms = 1000.0 / cell.endpoint.tokens_per_s * slowed * draw.lognormal(0.0, 0.06, number)
    decode_ms = token_ms * (outputs - 1)
    prefill_ms = PREFILL_SHARE / (1.0 - PREFILL_SHARE) * decode_ms.mean() * draw.lognormal(0.0, 0.25, number)
    baseline_ms = prefill_ms + decode_ms
    log_speedups = means[hour_of] + draw.normal(0.0, SPREAD, number)
    speculative_ms = baseline_ms / np.exp(log_speedups)
    speculative_prefill_ms = np.minimum(prefill_ms * 1.03, 0.6 * speculative_ms)
    return _Drawn(
        prompt_tokens=np.rint(draw.lognormal(math.log(MEAN_PROMPT_TOKENS), 0.8, number)).astype(np.int64),
        output_tokens=outputs,
        drafts=np.maximum(np.ceil((outputs - 1) / lengths[hour_of]), 1).astype(np.int64),
        log_speedup=log_speedups,
        baseline_prefill_ms=prefill_ms,
        baseline_ms=baseline_ms,
        speculative_prefill_ms=speculative_prefill_ms,
        speculative_ms=speculative_ms,
        baseline_queue_ms=draw.exponential(1.5, number),
        speculative_queue_ms=draw.exponential(1.5, number),
    )


def _steps(drafts: Ints, acceptance: Floats, depth: int, draw: np.random.Generator) -> Ints:
    """Steps that accepted exactly j tokens, of each hour's steps; [hours, depth + 1]."""
    places = np.arange(depth + 1)
    chances = acceptance[:, None] ** places * np.where(places < depth, 1.0 - acceptance[:, None], 1.0)
    steps: Ints = draw.multinomial(drafts, chances / chances.sum(axis=1, keepdims=True))
    return steps


def bins_of(values: Floats) -> Ints:
    """The store's bins of values above 0; as `shadowspec.store.histograms.bin_of`."""
    bins: Ints = np.clip(np.floor(np.log(values) / math.log(GROWTH)), LOWEST_BIN, HIGHEST_BIN).astype(np.int64)
    return bins


def _bins(metric: str, values: Floats, hour_of: Ints, numbers: Ints, weight: float) -> Columns:
    bins = bins_of(values)
    lowest = int(bins.min(initial=0))
    width = int(bins.max(initial=0)) - lowest + 1
    counts = np.bincount(hour_of * width + bins - lowest)
    places = np.flatnonzero(counts)
    return Columns(
        tables.rollup_bins,
        len(places),
        {
            "rollup_id": numbers[places // width],
            "metric": metric,
            "bin": places % width + lowest,
            "num_runs": counts[places],
            "weight": weight * counts[places],
        },
    )
