"""A database with decisions on a shop's endpoints, and the promotion check of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from shadowspec.store import Store
from shadowspec.types import (
    Arm,
    ArmTiming,
    Block,
    BlockResult,
    Decision,
    EvidenceSummary,
    FunnelCounter,
    RecordKey,
    Run,
    SpeculationCounts,
    StoredRecord,
    WriteBatch,
)
from tests.cli_process import Result
from tests.rollout.check.worlds import config

URL = "sqlite:///shadow.db"


@dataclass(frozen=True)
class Shop:
    """The folder in which `check` runs."""

    folder: Path
    run: Callable[..., Result]
    url: str = URL  # of the database that decisions and measurements go into

    def decide(self, decisions: Sequence[Decision]) -> list[int]:
        """Append decisions, made now, on what was measured, else on evidence of now; the ids that they got."""
        with Store.open(self.url) as store:
            now = datetime.now(UTC)
            is_dated = bool(store.traffic("chat"))
            evidence = EvidenceSummary(newest_evidence=None if is_dated else now)
            store.append_decisions([replace(each, decided_at=now, evidence=evidence) for each in decisions])
            return [each.decision_id or 0 for each in store.latest_decisions("chat")]

    def measure(self, slice_key: str, requests: int, age: timedelta = timedelta(0), *, revision: str = "a") -> None:
        """Runs of one slice, as old as this."""
        fingerprinted = config(revision=revision)
        event = datetime.now(UTC) - age
        name = f"{slice_key}-{revision}-{event.isoformat()}"
        keys = [RecordKey(name, 0, line) for line in range(1, requests + 1)]
        records = [
            StoredRecord(key, FunnelCounter.MEASURED, None, "chat", slice_key, event_time=event, sampling_rate=1.0)
            for key in keys
        ]
        counts = SpeculationCounts(2, 8, 5, (2, 1, 1, 1), (0, 1, 0, 0, 1), 8, 20)
        timing = ArmTiming(0.0, 10.0, 50.0, num_output_tokens=8)
        runs = tuple(Run(key, fingerprinted.fingerprint, name, None, counts, timing, timing) for key in keys)
        block = BlockResult(Block(name, 1, "chat", slice_key, 4, (), (), Arm.BASELINE), event, runs, {})
        with Store.open(self.url) as store:
            store.save_fingerprints([fingerprinted])
            store.save_batch(WriteBatch(blocks=((block, tuple(records)),)), "test")
