"""Values to rows and back, both directions side by side, so that a stored value is read back equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import RowMapping

from shadowspec.store.column_types import RECORD_KEY
from shadowspec.types import (
    Arm,
    ArmOrder,
    ArmTiming,
    BlockMemory,
    BlockResult,
    Decision,
    FingerprintedConfig,
    Memory,
    Parity,
    RecordKey,
    Run,
    RunFlags,
    ServedMemory,
    ServedRun,
    SpeculationConfig,
    SpeculationCounts,
    StoredBlock,
    StoredRecord,
    StreamParity,
    TestResult,
    Thinking,
)
from shadowspec.types.decision_documents import DECISION_FIELDS, TEST_FIELDS, read_test, stored_test_details

# ruff: noqa: D103 - each function is the mapping that its name and types state


def _names(kind: type[Any], *without: str) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name not in without)


CONFIG = _names(SpeculationConfig)
COUNTS = _names(SpeculationCounts)
PARITY = _names(Parity)
FLAGS = _names(RunFlags)
SERVED = _names(ServedRun)
TIMING = _names(ArmTiming)
ORDER = _names(ArmOrder)
STREAM = _names(StreamParity)
THINKING = _names(Thinking)
MEMORY = _names(Memory)
SERVED_MEMORY = _names(ServedMemory, "source")
RECORD = tuple(name for name in StoredRecord.__struct_fields__ if name != "key")
LABELS = RECORD.index("labels")
RECORD_NAMES = (*RECORD_KEY, *RECORD)
FINGERPRINT = _names(FingerprintedConfig, "config")
BLOCK = (*_names(StoredBlock, "memory", "started_at"), "started_at")
BLOCK_NAMES = (*BLOCK, "num_out_of_memory", "num_runs", "seconds")
MEMORY_NAMES = ("block_id", "fingerprint", *MEMORY, *SERVED_MEMORY)
RUN = ("fingerprint", "block_id", "failure", "is_repetition_loop", "finish_reason")
OF_BLOCK = ("endpoint", "slice_key", "concurrency")  # repeated in every run, so that reads need no join
TIMINGS = {arm: tuple(f"{arm}_{name}" for name in TIMING) for arm in Arm}
RUN_NAMES = (
    *(*RECORD_KEY, *RUN, *OF_BLOCK, "event_time", "sampling_rate"),
    *(*COUNTS, *TIMINGS[Arm.BASELINE], *TIMINGS[Arm.SPECULATIVE], "has_parity", *PARITY, "scores", *FLAGS, *SERVED),
    *(*ORDER, *STREAM, *THINKING),
)
DECISION = tuple(name for name in DECISION_FIELDS if name not in ("config", "tests", "decision_id"))


_no_counts, _no_parity, _no_timing, _no_served, _no_order, _no_stream, _no_thinking = (
    (None,) * len(names) for names in (COUNTS, PARITY, TIMING, SERVED, ORDER, STREAM, THINKING)
)
_record, _run, _of_block = attrgetter(*RECORD), attrgetter(*RUN), attrgetter(*OF_BLOCK)
_flags, _served = attrgetter(*FLAGS), attrgetter(*SERVED)
_counts, _parity, _timing, _order = (attrgetter(*names) for names in (COUNTS, PARITY, TIMING, ORDER))
_stream, _thinking = attrgetter(*STREAM), attrgetter(*THINKING)
_block = attrgetter(*(name for name in BLOCK if name != "started_at"))


def _take(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _pick(row: RowMapping, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def key_value(row: RowMapping) -> RecordKey:
    return RecordKey(*(row[name] for name in RECORD_KEY))


def record_tuple(record: StoredRecord) -> tuple[Any, ...]:
    values = _record(record)
    return *record.key, *values[:LABELS], dict(record.labels), *values[LABELS + 1 :]


def fingerprint_row(config: FingerprintedConfig) -> dict[str, Any]:
    return _take(config, FINGERPRINT) | _take(config.config, CONFIG) | {"details": dict(config.details)}


def config_value(row: RowMapping) -> SpeculationConfig:
    return SpeculationConfig.read(_pick(row, CONFIG))


def fingerprint_value(row: RowMapping) -> FingerprintedConfig:
    return FingerprintedConfig(config=config_value(row), **_pick(row, FINGERPRINT))


def block_tuple(result: BlockResult, num_runs: int) -> tuple[Any, ...]:
    return *_block(result.block), result.started_at, result.num_out_of_memory, num_runs, result.seconds


def block_value(row: RowMapping, memory: Mapping[str, BlockMemory]) -> StoredBlock:
    defaults = {"max_turns": row["max_turns"] or 1, "stands_for": row["stands_for"] or 1.0}
    return StoredBlock(memory=memory, **(_pick(row, BLOCK) | {"first_arm": Arm(row["first_arm"])} | defaults))


def memory_tuple(block_id: str, fingerprint: str, memory: BlockMemory) -> tuple[Any, ...]:
    values = (getattr(memory, name, None) for name in (*MEMORY, *SERVED_MEMORY))
    return block_id, fingerprint, *values


def memory_value(row: RowMapping) -> BlockMemory:
    if row["baseline_kv_tokens"] is not None:
        return ServedMemory(**_pick(row, (*SERVED_MEMORY, "source")))
    return Memory(**_pick(row, MEMORY))


def run_tuple(run: Run, result: BlockResult, record: StoredRecord) -> tuple[Any, ...]:
    return (
        *run.key,
        *_run(run),
        *_of_block(result.block),
        event_time(result, record),
        record.sampling_rate,
        *(_no_counts if run.counts is None else _counts(run.counts)),
        *(_no_timing if run.baseline is None else _timing(run.baseline)),
        *(_no_timing if run.speculative is None else _timing(run.speculative)),
        run.parity is not None,
        *(_no_parity if run.parity is None else _parity(run.parity)),
        _scores(run),
        *_flags(run.flags),
        *(_no_served if run.served is None else _served(run.served)),
        *(_no_order if run.order is None else _order(run.order)),
        *(_no_stream if run.stream is None else _stream(run.stream)),
        *(_no_thinking if run.thinking is None else _thinking(run.thinking)),
    )


def event_time(result: BlockResult, record: StoredRecord) -> datetime:
    """When a measured record happened; where it does not say, when its block was measured."""
    return record.event_time or result.started_at


def _scores(run: Run) -> dict[str, tuple[float | None, float | None] | None] | None:
    """Baseline and speculative score by name; none where a run carries none."""
    if not run.scores:
        return None
    return {name: None if pair is None else (pair.baseline, pair.speculative) for name, pair in run.scores.items()}


def test_rows(decision_id: int, decision: Decision) -> list[dict[str, Any]]:
    return [
        {"decision_id": decision_id, "position": position}
        | _take(test, TEST_FIELDS)
        | {"document": stored_test_details(test)}
        for position, test in enumerate(decision.tests)
    ]


def test_value(row: RowMapping) -> TestResult:
    return read_test(_pick(row, TEST_FIELDS), row["document"])
