"""Rollups are what their runs add up to, whatever was sent twice, and quantiles of bins keep their bound."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from shadowspec import metrics
from shadowspec.errors import StoreError
from shadowspec.store import METRICS, Histogram, RollupKey, Store
from shadowspec.store.histograms import HIGHEST, LOWEST, MAX_RELATIVE_ERROR, bin_of
from shadowspec.types import (
    Arm,
    ArmTiming,
    BlockResult,
    FingerprintedConfig,
    Intervention,
    Run,
    RunFlags,
    SpeculationCounts,
    StoredRecord,
    WriteBatch,
)
from tests.identities import check_identities
from tests.store import examples, strategies
from tests.store.strategies import FAILURE_NAMES

INTEGERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens", "num_prompt_tokens")


def value_of(run: Run, metric: str) -> float | None:
    """A run's metric, by the definitions of the types and of `metrics`, apart from the code under test."""
    if run.failure is not None or run.baseline is None or run.speculative is None:
        return None
    speedup = metrics.speedup(run.baseline, run.speculative)
    if not speedup:
        return None
    if metric == "speedup":
        return speedup
    timing = run.baseline if metric.startswith("baseline") else run.speculative
    name = metric.partition("_")[2]
    if name == "time_per_output_token_ms":
        return timing.decode_ms / (timing.num_output_tokens - 1) if timing.num_output_tokens > 1 else None
    if name == "longest_gap_ms":
        return timing.longest_gap_ms
    return timing.end_to_end_ms if name == "end_to_end_ms" else timing.prefill_ms


def hours(store: Store, endpoint: str) -> dict[RollupKey, list[tuple[Run, float]]]:
    """The endpoint's stored runs with their weights, by the rollup that they belong to."""
    blocks = {block.block_id: block for block in store.blocks(endpoint)}
    records = {record.key: record for name in (*store.endpoints(), endpoint) for record in store.records(name)}
    found: dict[RollupKey, list[tuple[Run, float]]] = defaultdict(list)
    for run in store.runs(endpoint):
        block, record = blocks[run.block_id], records.get(run.key)
        rate = record.sampling_rate if record is not None else None
        time = record.event_time if record is not None and record.event_time is not None else block.started_at
        hour = time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        key = RollupKey(endpoint, hour, block.slice_key, run.fingerprint, block.concurrency)
        found[key].append((run, 1.0 if rate is None else 1.0 / rate))
    return found


def assert_rollups_are_what_runs_add_up_to(store: Store, endpoint: str) -> None:
    runs, rollups = hours(store, endpoint), store.rollups(endpoint)
    assert [rollup.key for rollup in rollups] == sorted(runs)
    for rollup in rollups:
        rollup_runs = runs[rollup.key]
        counted = [(run.counts, weight) for run, weight in rollup_runs if run.counts is not None]
        timed = [(run, weight) for run, weight in rollup_runs if value_of(run, "speedup") is not None]
        sums = rollup.sums
        assert sums.num_runs == len(rollup_runs)
        assert sums.num_failed == sum(run.failure is not None for run, _ in rollup_runs)
        assert sums.num_timed == len(timed)
        assert sums.num_repetition_loops == sum(run.is_repetition_loop for run, _ in rollup_runs)
        for name in INTEGERS:
            assert getattr(sums, name) == sum(getattr(counts, name) for counts, _ in counted)
        assert sums.weight == pytest.approx(math.fsum(weight for _, weight in rollup_runs))
        assert sums.weight_squares == pytest.approx(math.fsum(weight**2 for _, weight in rollup_runs))
        assert sums.timed_weight == pytest.approx(math.fsum(weight for _, weight in timed))
        assert sums.weighted_drafts == pytest.approx(math.fsum(w * counts.num_drafts for counts, w in counted))
        assert sums.weighted_accepted_tokens == pytest.approx(
            math.fsum(weight * counts.num_accepted_tokens for counts, weight in counted)
        )
        assert sums.weighted_first_accepted_tokens == pytest.approx(
            math.fsum(weight * counts.num_accepted_tokens_per_pos[0] for counts, weight in counted)
        )
        logs = [(math.log(value_of(run, "speedup") or 0), weight) for run, weight in timed]
        size = math.fsum(abs(log) for log, _ in logs)
        assert sums.log_speedup == pytest.approx(math.fsum(log for log, _ in logs), abs=1e-9 * size)
        assert sums.log_speedup_squares == pytest.approx(math.fsum(log**2 for log, _ in logs))
        assert sums.weighted_log_speedup == pytest.approx(
            math.fsum(weight * log for log, weight in logs), abs=1e-9 * math.fsum(abs(w * log) for log, w in logs)
        )
        knowing = [
            (run.baseline.concurrency, run.speculative.concurrency)
            for run, _ in timed
            if run.baseline is not None and run.speculative is not None
        ]
        known = [pair for pair in knowing if None not in pair]
        assert sums.num_with_concurrency == len(known)
        assert sums.baseline_concurrency == pytest.approx(math.fsum(base or 0.0 for base, _ in known))
        assert sums.speculative_concurrency == pytest.approx(math.fsum(spec or 0.0 for _, spec in known))
        for arm in Arm:
            times = [timing for run, _ in timed if (timing := getattr(run, arm)) is not None]
            weighted = math.fsum(weight * getattr(run, arm).end_to_end_ms for run, weight in timed)
            assert getattr(sums, f"weighted_{arm}_end_to_end_ms") == pytest.approx(weighted)
            squares = math.fsum(timing.end_to_end_ms**2 for timing in times)
            assert getattr(sums, f"{arm}_end_to_end_ms_squares") == pytest.approx(squares)
            assert getattr(sums, f"{arm}_num_output_tokens") == sum(timing.num_output_tokens for timing in times)
            for name in ("queue_ms", "prefill_ms", "decode_ms"):
                total = math.fsum(getattr(timing, name) for timing in times)
                assert getattr(sums, f"{arm}_{name}") == pytest.approx(total)
        for name in ("draft_ms", "verify_ms", "other_ms"):
            total = math.fsum(getattr(run.speculative, name) for run, _ in timed)
            assert getattr(sums, f"speculative_{name}") == pytest.approx(total)
        for name in ("num_accepted_tokens_per_pos", "acceptance_histogram"):
            by_position: Counter[int] = Counter()
            for counts, _ in counted:
                by_position.update(dict(enumerate(getattr(counts, name))))
            found = dict(enumerate(getattr(rollup, name)))
            assert +Counter(found) == +by_position
        for metric in METRICS:
            key = rollup.key
            histogram = store.histogram(
                endpoint,
                metric,
                slice_key=key.slice_key,
                fingerprint=key.fingerprint,
                concurrency=key.concurrency,
                since=key.hour,
                until=key.hour + timedelta(hours=1),
            )
            values = [(value, weight) for run, weight in rollup_runs if (value := value_of(run, metric)) is not None]
            assert histogram.num_runs == Counter(bin_of(value) for value, _ in values)
            assert math.fsum(histogram.weights.values()) == pytest.approx(math.fsum(weight for _, weight in values))


def failures_of(runs: list[Run]) -> Counter[str]:
    """What runs count as failures, by the definitions of the types, apart from the code under test."""
    found: Counter[str] = Counter()
    for run in runs:
        flags = run.flags
        if run.failure is not None or (flags.is_beyond_draft_context is None and run.served is None):
            continue
        found["looked_at"] += 1
        found["draft_context_unknown"] += flags.is_beyond_draft_context is None
        found["beyond_draft_context"] += flags.is_beyond_draft_context is True
        found["early_known"] += flags.is_early_rejection is not None
        found["early_rejections"] += flags.is_early_rejection is True
        for arm in Arm:
            validity = getattr(flags, f"{arm}_validity")
            if flags.contract is not None and validity is not None:
                found[f"{flags.contract.value}_{arm.value}_{('invalid', 'valid', 'unfinished')[validity]}"] += 1
        if flags.intervention is not None:
            found[flags.intervention.value] += 1
            if run.counts is not None and run.counts.num_drafts:
                found["intervened_drafts"] += run.counts.num_drafts
                found["intervened_draft_tokens"] += run.counts.num_draft_tokens
                found["intervened_accepted_tokens"] += run.counts.num_accepted_tokens
                found["intervened_first_accepted_tokens"] += run.counts.num_accepted_tokens_per_pos[0]
    return +found


def assert_failures_are_what_runs_add_up_to(store: Store, endpoint: str) -> None:
    by_key: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    by_hour: dict[datetime, Counter[str]] = defaultdict(Counter)
    for key, item in hours(store, endpoint).items():
        runs = [run for run, _ in item]
        by_key[key.slice_key, key.fingerprint, key.concurrency] += runs
        by_hour[key.hour].update(failures_of(runs))
    expected = {key: failures_of(runs) for key, runs in by_key.items()}
    stored = store.failure_counts(endpoint)
    assert {key: +counts for key, counts in stored.items()} == {key: each for key, each in expected.items() if each}
    assert all(name in FAILURE_NAMES for counts in stored.values() for name in counts)
    for place in {key[1:] for key in stored}:
        of_place = {key: counts for key, counts in stored.items() if key[1:] == place}
        assert store.failure_counts(endpoint, place=place) == of_place
    assert store.failure_counts(endpoint, place=("unknown", 1)) == {}
    for hour, counts in by_hour.items():
        found: Counter[str] = Counter()
        for own_counts in store.failure_counts(endpoint, hour, hour + timedelta(hours=1)).values():
            found.update(own_counts)
        assert +found == +counts


def _renamed(result: BlockResult, block_id: str) -> BlockResult:
    runs = tuple(replace(run, block_id=block_id) for run in result.runs)
    return replace(result, block=structs.replace(result.block, block_id=block_id), runs=runs)


@pytest.mark.representative("sqlite")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(measured=st.lists(strategies.measured_blocks(), min_size=1, max_size=3), again=st.integers(0, 2))
def test_any_runs_in_any_order_and_twice(
    store: Store, measured: list[tuple[list[FingerprintedConfig], list[StoredRecord], BlockResult]], again: int
) -> None:
    # All examples share a store: a block's id is never drawn twice, as no engine gives one twice.
    fresh = [(configs, records, _renamed(result, uuid.uuid4().hex)) for configs, records, result in measured]
    for configs, records, result in [*fresh, *fresh[:again]]:
        store.save_fingerprints(configs)
        named = tuple(structs.replace(record, endpoint=result.block.endpoint) for record in records)
        store.save_batch(WriteBatch((), ((result, named),), ()), "group")
    for endpoint in ("chat", "sql"):
        assert_rollups_are_what_runs_add_up_to(store, endpoint)
        assert_failures_are_what_runs_add_up_to(store, endpoint)


def traffic(seed: int, blocks: int) -> list[tuple[BlockResult, tuple[StoredRecord, ...]]]:
    """Blocks over several hours, slices and loads, a tenth of their runs failed, at several inclusion rates."""
    draw = random.Random(seed)
    made = []
    for number in range(blocks):
        slice_key, load = draw.choice(["code", "chat"]), draw.choice([1, 4])
        lines = range(number * 4, number * 4 + load)
        plain = examples.block(f"b{number}", lines, sequence=number)
        records = tuple(
            structs.replace(
                examples.record(line),
                slice_key=slice_key,
                event_time=examples.NOON + timedelta(minutes=draw.randrange(300)),
                sampling_rate=draw.choice([0.1, 0.5, None]),
            )
            for line in lines
        )
        runs = tuple(_varied(run, draw) for run in plain.runs)
        shape = structs.replace(plain.block, slice_key=slice_key, concurrency=load)
        made.append((replace(plain, block=shape, runs=runs), records))
    return made


def _varied(run: Run, draw: random.Random) -> Run:
    if draw.random() < 0.1:
        return replace(run, failure="out_of_memory", counts=None, baseline=None, speculative=None)
    accepted = draw.randrange(5)
    per_pos = tuple(2 * (place < accepted) for place in range(4))
    histogram = tuple(2 * (place == accepted) for place in range(5))
    counts = SpeculationCounts(2, 8, 2 * accepted, per_pos, histogram, 3 + 2 * accepted, 20)
    arms = [
        ArmTiming(
            1.0,
            draw.lognormvariate(2, 1),
            draw.lognormvariate(4, 1),
            num_output_tokens=9,
            longest_gap_ms=draw.lognormvariate(2, 1),
        )
        for _ in range(2)
    ]
    flags = RunFlags(
        draw.choice([None, False, True]), draw.random() < 0.2, intervention=draw.choice([*Intervention, None])
    )
    return replace(run, counts=counts, baseline=arms[0], speculative=arms[1], flags=flags)


@pytest.mark.representative("postgres")
def test_a_day_of_traffic_with_redeliveries(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    made = traffic(seed=1, blocks=60)
    for start in range(0, 60, 12):
        store.save_batch(WriteBatch((), tuple(made[max(0, start - 5) : start + 12]), ()), "group")  # some again
    assert_rollups_are_what_runs_add_up_to(store, "chat")
    assert_failures_are_what_runs_add_up_to(store, "chat")
    assert sum(counts["rewritten"] for counts in store.failure_counts("chat").values()) > 5
    rollups = store.rollups("chat")
    assert len({rollup.key.hour for rollup in rollups}) == 5
    assert sum(rollup.sums.num_runs for rollup in rollups) == len(store.runs("chat"))
    since, until = examples.NOON + timedelta(hours=1), examples.NOON + timedelta(hours=3)
    assert store.rollups("chat", since, until) == [each for each in rollups if since <= each.key.hour < until]
    assert store.rollups("sql") == []
    for rollup in rollups:
        check_identities(rollup.counts, is_single_run=False)


def test_quantiles_of_traffic_keep_their_bound(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    store.save_batch(WriteBatch((), tuple(traffic(seed=2, blocks=80)), ()), "group")
    runs = store.runs("chat")
    for metric in METRICS:
        values = sorted(value for run in runs if (value := value_of(run, metric)) is not None)
        for share in (0.05, 0.5, 0.95, 1.0):
            num_runs = store.histogram("chat", metric).num_runs
            found = Histogram(num_runs, num_runs).quantile(share)
            exact = values[math.ceil(share * len(values)) - 1]
            assert found is not None
            assert found.lower <= exact <= found.upper
            assert abs(found.estimate / exact - 1) <= MAX_RELATIVE_ERROR * (1 + 1e-9)


def test_an_unknown_metric_is_named(store: Store) -> None:
    with pytest.raises(StoreError, match="no histogram of 'p99' is stored; there are speedup"):
        store.histogram("chat", "p99")


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5])
def test_a_rate_that_is_none_is_refused(store: Store, rate: float) -> None:
    store.save_fingerprints([examples.config()])
    record = structs.replace(examples.record(1), sampling_rate=rate)
    with pytest.raises(StoreError, match="sampling rate"):
        store.save_batch(WriteBatch((), ((examples.block("b", range(1, 2)), (record,)),), ()), "group")
    assert store.runs("chat") == []


def test_the_hour_is_of_utc(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    early = datetime.fromisoformat("2026-01-02T00:10:00+05:45")
    record = structs.replace(examples.record(1), event_time=early)
    store.save_batch(WriteBatch((), ((examples.block("b", range(1, 2)), (record,)),), ()), "group")
    assert [rollup.key.hour for rollup in store.rollups("chat")] == [datetime(2026, 1, 1, 18, tzinfo=UTC)]


@given(value=st.floats(LOWEST, HIGHEST))
def test_a_bin_holds_its_values(value: float) -> None:
    found = Histogram({bin_of(value): 1}, {bin_of(value): 1.0}).quantile(0.5)
    assert found is not None
    assert found.lower * (1 - 1e-9) <= value <= found.upper * (1 + 1e-9)
    assert abs(found.estimate / value - 1) <= MAX_RELATIVE_ERROR * (1 + 1e-6) or value >= HIGHEST / 1.05


def test_values_beyond_the_bins_have_open_bounds() -> None:
    low, high = (Histogram({}, {bin_of(value): 1.0}).quantile(0.5) for value in (0.0, 1e300))
    assert low is not None
    assert high is not None
    assert (low.lower, high.upper) == (0.0, math.inf)
    assert bin_of(math.inf) == bin_of(1e300)


@given(
    figures=st.dictionaries(st.integers(-100, 300), st.integers(1, 50), min_size=1),
    share=st.floats(0, 1, exclude_min=True),
)
def test_a_quantile_is_that_of_the_sorted_runs(figures: dict[int, int], share: float) -> None:
    bins = sorted(number for number, count in figures.items() for _ in range(count))
    found = Histogram(figures, figures).quantile(share)
    exact = bins[min(len(bins), max(1, math.ceil(share * len(bins) - 1e-9))) - 1]
    assert found is not None
    assert found.lower == pytest.approx(1.05**exact)


def test_weighted_quantiles() -> None:
    found = Histogram({10: 1, 20: 10}, {10: 99.0, 20: 1.5}).quantile(0.5)
    assert found is not None
    assert found.lower == 1.05**10
    assert Histogram({}, {}).quantile(0.5) is None
