"""Small fixed values for tests that are about something other than the values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shadowspec.types import (
    Arm,
    ArmTiming,
    AuditedRun,
    BackfilledBlock,
    Block,
    BlockPlace,
    BlockResult,
    Composition,
    Decision,
    Evaluation,
    ExpectedCounts,
    FingerprintedConfig,
    FunnelCounter,
    Memory,
    Override,
    PairedScore,
    RecordKey,
    ReplayedRecord,
    Rollout,
    Run,
    SliceCover,
    SpeculationConfig,
    SpeculationCounts,
    Stage,
    StoredRecord,
    TestResult,
    Verdict,
    VerifyRule,
    Watch,
    WatchedMean,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
CONFIG = SpeculationConfig("ngram-4", "target", None, "ngram", 4, VerifyRule.GREEDY)


def config(fingerprint: str = "fp") -> FingerprintedConfig:
    return FingerprintedConfig(CONFIG, "engine/1", "cpu", "float32", {}, fingerprint)


def record(
    line: int, endpoint: str | None = "chat", counter: FunnelCounter = FunnelCounter.MEASURED, reason: str | None = None
) -> StoredRecord:
    return StoredRecord(RecordKey("file", 0, line), counter, reason, endpoint, event_time=NOON)


def block(block_id: str, lines: range, *, fingerprint: str = "fp", sequence: int = 1) -> BlockResult:
    counts = SpeculationCounts(2, 8, 5, (2, 1, 1, 1), (0, 1, 0, 0, 1), 8, 20)
    timing = ArmTiming(0.0, 10.0, 50.0, num_output_tokens=8, longest_gap_ms=20.0)
    runs = tuple(Run(RecordKey("file", 0, line), fingerprint, block_id, None, counts, timing, timing) for line in lines)
    shape = Block(block_id, sequence, "chat", "", 4, (), (), Arm.BASELINE)
    return BlockResult(shape, NOON, runs, {fingerprint: Memory(10, 12, 1, 1, 1)})


def decision(verdict: Verdict = Verdict.HOLD, *, endpoint: str = "chat", fingerprint: str = "fp") -> Decision:
    test = TestResult("speedup", "open", 0.1, -0.2, 0.4, 0.05, 0.025, "window", 30, 27)
    return Decision(endpoint, "", 4, CONFIG, fingerprint, verdict, "too_few_units", "not yet", (test,), 9, 30, 11, NOON)


def in_traffic(decision: Decision, share: float | None) -> Decision:
    """The decision on a slice with this share of the traffic."""
    return replace(decision, composition=Composition(is_named=True, cover=SliceCover(share, False, None)))


def watched(**promises: float) -> Watch:
    """The watch of an ENABLE with these promises by detector."""
    return Watch(0, 0, {name: WatchedMean(promise, 1.0) for name, promise in promises.items()})


def override(verdict: Verdict = Verdict.DISABLE, *, endpoint: str = "chat", slice_key: str = "") -> Override:
    return Override(0, endpoint, slice_key, None, verdict, "it answers nonsense", "ada", NOON)


def rollout(stage: Stage = Stage.PARTIAL, *, endpoint: str = "chat", concurrency: int = 4) -> Rollout:
    return Rollout(
        endpoint, concurrency, stage, "fp", NOON, NOON, "advanced", "ENABLE stands", 30, ("drift",), NOON, {"": 2}, 0.1
    )


def audited(block: BlockResult, expected_accepted_tokens: float | None = 4.5) -> BlockResult:
    """The block with an audit of each of its runs."""
    audits = (AuditedRun(run.key, run.fingerprint, 8, 5, expected_accepted_tokens) for run in block.runs)
    return replace(block, audits=tuple(audits))


def expected(accepted: float = 4.5, *, drafts: float = 2.25) -> ExpectedCounts:
    """Of one response at K = 2: a third of the accepted tokens at the second position."""
    first, second = accepted * 2 / 3, accepted / 3
    histogram = (drafts - first, first - second, second)
    return ExpectedCounts(drafts, 2 * drafts, accepted, (first, second), histogram, 8, 20, accepted_variance=0.5)


def replayed(line: int, *configs: FingerprintedConfig, unit_key: str = "session:a") -> ReplayedRecord:
    counts = tuple((each, expected()) for each in configs or (config(),))
    return ReplayedRecord(RecordKey("file", 0, line), "chat", "a=b", unit_key, NOON, counts)


def backfilled(number: int, source: str = "file", **changes: Any) -> BackfilledBlock:
    funnel = {
        ("chat", FunnelCounter.UNSUPPORTED, "no_token_ids"): 2,
        (None, FunnelCounter.MALFORMED, "no_json"): 1,
        ("chat", FunnelCounter.DUPLICATE, None): 3,
    }
    return replace(BackfilledBlock(BlockPlace(source, number), False, 8, 2, 1, funnel, NOON), **changes)


def evaluation() -> Evaluation:
    """Of a task set; one of its scores is missing."""
    documents = {"a" * 64: PairedScore(1.0, 0.5), "b" * 64: PairedScore(None, 1.0)}
    return Evaluation("chat", "fp", "sums", "exact_match,none", NOON, documents)
