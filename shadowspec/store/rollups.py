"""Rollups: sums of runs per endpoint, slice, config, load and hour of event time.

Every figure is a sum over runs, so that rollups merge by addition, in any order, and outlive their runs.  They change
only for runs that an insert really added, in its transaction.  `weight` is the inverse of a run's inclusion rate: a
weighted sum estimates that of all the traffic.  Times are summed only over timed runs: those that did not fail and
whose arms both took some time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta

from shadowspec.errors import StoreError
from shadowspec.metrics import speedup, time_per_output_token_ms
from shadowspec.store.histograms import bin_of
from shadowspec.store.row_values import event_time
from shadowspec.types import Arm, ArmTiming, BlockResult, Run, SpeculationCounts, StoredRecord
from shadowspec.types.failures import add_run as add_failures

METRICS = (
    "speedup",  # baseline over speculative end-to-end
    *(
        f"{arm}_{name}"
        for arm in Arm
        for name in ("end_to_end_ms", "prefill_ms", "time_per_output_token_ms", "longest_gap_ms")
    ),
)

SHARE_WINDOW = timedelta(days=7)  # of event time: a whole cycle of the traffic


@dataclass(frozen=True, slots=True, order=True)
class RollupKey:
    """The runs that a rollup sums: one endpoint, hour, slice, config and load."""

    endpoint: str
    hour: datetime  # its start, UTC
    slice_key: str
    fingerprint: str
    concurrency: int


@dataclass(frozen=True, slots=True)
class RollupSums:
    """The sums; names as in `shadowspec.types`, `_squares` for sums of squares, `weighted_` for those by weight."""

    num_runs: int = 0
    num_failed: int = 0
    num_timed: int = 0
    num_repetition_loops: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0
    num_prompt_tokens: int = 0
    num_plain_steps: int = 0
    num_cut_steps: int = 0
    num_cut_draft_tokens: int = 0
    num_cut_accepted_tokens: int = 0
    baseline_num_output_tokens: int = 0
    speculative_num_output_tokens: int = 0
    baseline_queue_ms: float = 0.0
    baseline_prefill_ms: float = 0.0
    baseline_decode_ms: float = 0.0
    speculative_queue_ms: float = 0.0
    speculative_prefill_ms: float = 0.0
    speculative_decode_ms: float = 0.0
    speculative_draft_ms: float = 0.0
    speculative_verify_ms: float = 0.0
    speculative_other_ms: float = 0.0
    baseline_end_to_end_ms_squares: float = 0.0
    speculative_end_to_end_ms_squares: float = 0.0
    log_speedup: float = 0.0
    log_speedup_squares: float = 0.0
    weight: float = 0.0
    weight_squares: float = 0.0
    weighted_drafts: float = 0.0
    weighted_draft_tokens: float = 0.0
    weighted_accepted_tokens: float = 0.0
    weighted_first_accepted_tokens: float = 0.0
    timed_weight: float = 0.0
    weighted_log_speedup: float = 0.0
    weighted_baseline_end_to_end_ms: float = 0.0
    weighted_speculative_end_to_end_ms: float = 0.0
    num_with_concurrency: int = 0  # timed runs that know the realised concurrency of their arms, which follow
    baseline_concurrency: float = 0.0
    speculative_concurrency: float = 0.0
    num_cached_prompt_tokens: int = 0  # prompt tokens of the runs for which both servers report their cached tokens
    baseline_cached_tokens: int = 0
    speculative_cached_tokens: int = 0


SUM_NAMES = tuple(field.name for field in fields(RollupSums))


@dataclass(frozen=True, slots=True)
class Rollup:
    """One hour's sums, with those by position in a step."""

    key: RollupKey
    sums: RollupSums
    num_accepted_tokens_per_pos: tuple[int, ...]
    acceptance_histogram: tuple[int, ...]

    @property
    def counts(self) -> SpeculationCounts:
        """The pooled counts, of which `shadowspec.metrics` forms ratios."""
        names = (count.name for count in fields(SpeculationCounts))
        sums = {name: getattr(self.sums, name) for name in names if hasattr(self.sums, name)}
        return SpeculationCounts(
            num_accepted_tokens_per_pos=self.num_accepted_tokens_per_pos,
            acceptance_histogram=self.acceptance_histogram,
            **sums,
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """A slice's, config's and load's recent share of an endpoint's traffic, and when it was last measured.

    `weight` is the sum over its runs of the last `SHARE_WINDOW`, each by the inverse of its inclusion rate: divided by
    that of all slices it is the slice's share of the requests.  `first_hour` and `newest_hour` are the hours of event
    time of its first and its newest run.
    """

    slice_key: str
    fingerprint: str
    concurrency: int
    weight: float
    first_hour: datetime  # its start, UTC
    newest_hour: datetime


@dataclass(slots=True)
class Addition:
    """A batch's contribution to one rollup: summands of each run, sums by position and by metric and bin, failures."""

    summands: list[tuple[float, ...]] = field(default_factory=list)  # in the order of SUM_NAMES
    positions: dict[int, list[int]] = field(default_factory=dict)  # accepted tokens, steps
    bins: dict[tuple[str, int], list[float]] = field(default_factory=dict)  # runs, weight
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def sums(self) -> list[float]:
        """The sums in the order of SUM_NAMES."""
        return [sum(column) for column in zip(*self.summands, strict=True)]


def additions(runs: Iterable[tuple[Run, BlockResult, StoredRecord]]) -> dict[RollupKey, Addition]:
    """The additions of these runs, each with its block and record, by rollup.

    Raises:
        StoreError: an inclusion rate is not above 0 and at most 1.
    """
    additions: dict[RollupKey, Addition] = {}
    for run, result, record in runs:
        block, hour = result.block, hour_of(event_time(result, record))
        key = RollupKey(block.endpoint, hour, block.slice_key, run.fingerprint, block.concurrency)
        _add_run(additions.setdefault(key, Addition()), run, weight_of(record))
    return additions


def hour_of(time: datetime) -> datetime:
    """The start of the hour, in UTC."""
    return time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def weight_of(record: StoredRecord) -> float:
    """The inverse of the record's inclusion rate; 1 where it was not sampled."""
    rate = record.sampling_rate
    if rate is None:
        return 1.0
    if not 0.0 < rate <= 1.0:
        raise StoreError(f"record {record.key}: a sampling rate lies above 0 and is at most 1")
    return 1.0 / rate


def _add_run(addition: Addition, run: Run, weight: float) -> None:
    counts = _count_sums(run.counts, weight) if run.counts is not None else _NO_COUNTS
    is_timed = False
    times = _NO_TIMES
    if run.failure is None and run.baseline is not None and run.speculative is not None:
        ratio = speedup(run.baseline, run.speculative)
        if ratio:
            is_timed = True
            times = _time_sums(run.baseline, run.speculative, math.log(ratio), weight)
            _add_bins(addition.bins, run.baseline, run.speculative, ratio, weight)
    sums = (1, run.failure is not None, is_timed, run.is_repetition_loop, *counts[:9], *times[:15])
    realised = _concurrency_sums(run) if is_timed else _NO_CONCURRENCY
    addition.summands.append((*sums, weight, weight * weight, *counts[9:], *times[15:], *realised, *_cached_sums(run)))
    if run.counts is not None:
        _add_positions(addition.positions, run.counts)
    add_failures(addition.failures, run)


_NO_COUNTS: tuple[float, ...] = (0,) * 9 + (0.0,) * 4
_NO_TIMES: tuple[float, ...] = (0,) * 2 + (0.0,) * 17
_NO_CONCURRENCY: tuple[float, ...] = (0, 0.0, 0.0)
_NO_CACHED: tuple[float, ...] = (0, 0, 0)


def _count_sums(counts: SpeculationCounts, weight: float) -> tuple[float, ...]:
    per_pos = counts.num_accepted_tokens_per_pos
    return (
        counts.num_drafts,
        counts.num_draft_tokens,
        counts.num_accepted_tokens,
        counts.num_output_tokens,
        counts.num_prompt_tokens,
        counts.num_plain_steps,
        counts.num_cut_steps,
        counts.num_cut_draft_tokens,
        counts.num_cut_accepted_tokens,
        weight * counts.num_drafts,
        weight * counts.num_draft_tokens,
        weight * counts.num_accepted_tokens,
        weight * per_pos[0] if per_pos else 0.0,
    )


def _time_sums(baseline: ArmTiming, speculative: ArmTiming, log_speedup: float, weight: float) -> tuple[float, ...]:
    baseline_ms, speculative_ms = baseline.end_to_end_ms, speculative.end_to_end_ms
    return (
        baseline.num_output_tokens,
        speculative.num_output_tokens,
        baseline.queue_ms,
        baseline.prefill_ms,
        baseline.decode_ms,
        speculative.queue_ms,
        speculative.prefill_ms,
        speculative.decode_ms,
        speculative.draft_ms,
        speculative.verify_ms,
        speculative.other_ms,
        baseline_ms * baseline_ms,
        speculative_ms * speculative_ms,
        log_speedup,
        log_speedup * log_speedup,
        weight,
        weight * log_speedup,
        weight * baseline_ms,
        weight * speculative_ms,
    )


def _concurrency_sums(run: Run) -> tuple[float, ...]:
    """Of a timed run."""
    assert run.baseline is not None
    assert run.speculative is not None
    baseline, speculative = run.baseline.concurrency, run.speculative.concurrency
    return _NO_CONCURRENCY if baseline is None or speculative is None else (1, baseline, speculative)


def _cached_sums(run: Run) -> tuple[float, ...]:
    """The prompt's tokens, and how many of them each server found in its prefix cache."""
    pair = None if run.served is None else run.served.cached_tokens
    return _NO_CACHED if pair is None or run.counts is None else (run.counts.num_prompt_tokens, *pair)


def _add_positions(positions: dict[int, list[int]], counts: SpeculationCounts) -> None:
    for column, figures in enumerate((counts.num_accepted_tokens_per_pos, counts.acceptance_histogram)):
        for position, figure in enumerate(figures):
            if position not in positions:
                positions[position] = [0, 0]
            positions[position][column] += figure


def _add_bins(
    bins: dict[tuple[str, int], list[float]], baseline: ArmTiming, speculative: ArmTiming, ratio: float, weight: float
) -> None:
    values: list[float | None] = [ratio]
    for timing in (baseline, speculative):
        per_token = time_per_output_token_ms(timing) if timing.num_output_tokens > 1 else None
        values += (timing.end_to_end_ms, timing.prefill_ms, per_token, timing.longest_gap_ms)
    for metric, value in zip(METRICS, values, strict=True):
        if value is not None:
            place = metric, bin_of(value)
            entry = bins.get(place)
            if entry is None:
                bins[place] = [1, weight]
            else:
                entry[0] += 1
                entry[1] += weight
