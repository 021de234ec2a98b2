"""Values to rows and back, both directions side by side: what goes in comes out equal."""

# ruff: noqa: D103 - each function is the mapping that its name and types state

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import RowMapping

from shadowspec.store.snapshots import TestSnapshot
from shadowspec.types import (
    Arm,
    ArmTiming,
    BlockResult,
    Decision,
    FingerprintedConfig,
    FunnelCounter,
    Memory,
    Parity,
    RecordKey,
    Run,
    SpeculationConfig,
    SpeculationCounts,
    StoredBlock,
    StoredRecord,
    TestResult,
    Verdict,
    VerifyRule,
)


def _names(kind: type[Any], *without: str) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name not in without)


CONFIG = _names(SpeculationConfig)
COUNTS = _names(SpeculationCounts)
PARITY = _names(Parity)
TIMING = _names(ArmTiming)
MEMORY = _names(Memory)
RECORD = _names(StoredRecord, "key")
FINGERPRINT = _names(FingerprintedConfig, "config")
BLOCK = _names(StoredBlock, "memory")
RUN = ("fingerprint", "block_id", "failure", "is_repetition_loop", "finish_reason")
DECISION = _names(Decision, "config", "tests")
TEST = _names(TestResult)


def _take(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _pick(row: RowMapping, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def key_row(key: RecordKey) -> dict[str, Any]:
    return {
        "source": key.source,
        "source_partition": key.partition,
        "source_offset": key.offset,
        "timestamp_ms": key.timestamp_ms,
    }


def key_value(row: RowMapping) -> RecordKey:
    return RecordKey(row["source"], row["source_partition"], row["source_offset"], row["timestamp_ms"])


def record_row(record: StoredRecord) -> dict[str, Any]:
    return key_row(record.key) | _take(record, RECORD) | {"labels": dict(record.labels)}


def record_value(row: RowMapping) -> StoredRecord:
    return StoredRecord(key=key_value(row), **(_pick(row, RECORD) | {"counter": FunnelCounter(row["counter"])}))


def fingerprint_row(config: FingerprintedConfig) -> dict[str, Any]:
    return _take(config, FINGERPRINT) | _take(config.config, CONFIG) | {"details": dict(config.details)}


def config_value(row: RowMapping) -> SpeculationConfig:
    return SpeculationConfig(**(_pick(row, CONFIG) | {"verify_rule": VerifyRule(row["verify_rule"])}))


def fingerprint_value(row: RowMapping) -> FingerprintedConfig:
    return FingerprintedConfig(config=config_value(row), **_pick(row, FINGERPRINT))


def block_row(result: BlockResult) -> dict[str, Any]:
    names = tuple(name for name in BLOCK if name != "started_at")
    return _take(result.block, names) | {"started_at": result.started_at}


def block_value(row: RowMapping, memory: Mapping[str, Memory]) -> StoredBlock:
    return StoredBlock(memory=memory, **(_pick(row, BLOCK) | {"first_arm": Arm(row["first_arm"])}))


def memory_rows(result: BlockResult) -> list[dict[str, Any]]:
    return [
        {"block_id": result.block.block_id, "fingerprint": fingerprint} | _take(memory, MEMORY)
        for fingerprint, memory in sorted(result.memory.items())
    ]


def memory_value(row: RowMapping) -> Memory:
    return Memory(**_pick(row, MEMORY))


def run_row(run: Run) -> dict[str, Any]:
    counts = _take(run.counts, COUNTS) if run.counts is not None else dict.fromkeys(COUNTS)
    parity = _take(run.parity, PARITY) if run.parity is not None else dict.fromkeys(PARITY)
    return key_row(run.key) | _take(run, RUN) | counts | parity | {"has_parity": run.parity is not None}


def run_value(row: RowMapping, timings: Mapping[Arm, ArmTiming]) -> Run:
    counts = None
    if row["num_drafts"] is not None:
        arrays = {name: tuple(row[name]) for name in ("num_accepted_tokens_per_pos", "acceptance_histogram")}
        counts = SpeculationCounts(**(_pick(row, COUNTS) | arrays))
    return Run(
        key=key_value(row),
        counts=counts,
        baseline=timings.get(Arm.BASELINE),
        speculative=timings.get(Arm.SPECULATIVE),
        parity=Parity(**_pick(row, PARITY)) if row["has_parity"] else None,
        **_pick(row, RUN),
    )


def arm_rows(run: Run) -> list[dict[str, Any]]:
    timings = {Arm.BASELINE: run.baseline, Arm.SPECULATIVE: run.speculative}
    return [
        key_row(run.key) | {"fingerprint": run.fingerprint, "arm": arm} | _take(timing, TIMING)
        for arm, timing in timings.items()
        if timing is not None
    ]


def arm_value(row: RowMapping) -> ArmTiming:
    return ArmTiming(**_pick(row, TIMING))


def decision_row(decision: Decision) -> dict[str, Any]:
    return _take(decision, DECISION) | {"details": dict(decision.details)}


def decision_value(row: RowMapping, config: SpeculationConfig, tests: tuple[TestResult, ...]) -> Decision:
    return Decision(config=config, tests=tests, **(_pick(row, DECISION) | {"verdict": Verdict(row["verdict"])}))


def test_rows(decision_id: int, decision: Decision) -> list[dict[str, Any]]:
    return [
        {"decision_id": decision_id, "position": position} | _take(test, TEST) | {"details": dict(test.details)}
        for position, test in enumerate(decision.tests)
    ]


def test_value(row: RowMapping) -> TestResult:
    return TestResult(**_pick(row, TEST))


def snapshot_value(row: RowMapping, result: TestResult) -> TestSnapshot:
    hypothesis = _pick(row, ("endpoint", "slice_key", "concurrency", "fingerprint", "decided_at"))
    return TestSnapshot(verdict=Verdict(row["verdict"]), result=result, **hypothesis)
