"""Seeded worlds of stored rows: what an endpoint's evidence would be if the truth were known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from msgspec.structs import replace

from shadowspec.gate.evidence.units import BlockUnit, Cluster, ClusterUnit, MeasuredRun
from shadowspec.types import (
    Arm,
    ArmTiming,
    FingerprintedConfig,
    FunnelCounter,
    LevelGraph,
    Memory,
    Parity,
    RecordKey,
    Run,
    SpeculationConfig,
    SpeculationCounts,
    StoredBlock,
    StoredRecord,
    VerifyRule,
)
from tests.gate.oracle import EndpointEvidence

START = datetime(2026, 1, 5, tzinfo=UTC)
ENDPOINT = "sql"
GRAPH = LevelGraph(alpha=0.05, num_endpoints=1, num_slots=7)
MEMORY = Memory(1_000_000, 1_100_000, 1_000, 50_000, 100)

CONFIG = FingerprintedConfig(
    config=SpeculationConfig("draft-k4", "target", "draft", "draft_model", 4, VerifyRule.REJECTION),
    engine="shadowspec-torch/0.1.0",
    device="cpu",
    dtype="float32",
    details={},
    fingerprint="f" * 64,
)


def key_of(index: int) -> RecordKey:
    return RecordKey("file", 0, index + 1)


def counts_of(num_drafts: int, num_first_accepted: int) -> SpeculationCounts:
    """K = 1, so that only the first position counts."""
    return SpeculationCounts(
        num_drafts=num_drafts,
        num_draft_tokens=num_drafts,
        num_accepted_tokens=num_first_accepted,
        num_accepted_tokens_per_pos=(num_first_accepted,),
        acceptance_histogram=(num_drafts - num_first_accepted, num_first_accepted),
        num_output_tokens=1 + num_drafts + num_first_accepted,
        num_prompt_tokens=10,
    )


def run_of(
    index: int,
    block_id: str,
    *,
    log_speedup: float = math.log(1.3),
    baseline_ms: float = 100.0,
    num_drafts: int = 30,
    num_first_accepted: int = 20,
    parity: Parity | None = None,
    failure: str | None = None,
) -> Run:
    if failure:
        return Run(key_of(index), CONFIG.fingerprint, block_id, failure=failure)
    return Run(
        key=key_of(index),
        fingerprint=CONFIG.fingerprint,
        block_id=block_id,
        counts=counts_of(num_drafts, num_first_accepted),
        baseline=ArmTiming(0.0, 0.2 * baseline_ms, 0.8 * baseline_ms),
        speculative=ArmTiming(0.0, 0.2 * baseline_ms, baseline_ms * (math.exp(-log_speedup) - 0.2)),
        parity=Parity() if parity is None else parity,
    )


def block_of(sequence: int, slice_key: str = "prompt_class=code", n_max: int = 4) -> StoredBlock:
    return StoredBlock(
        block_id=f"b{sequence:05d}",
        sequence=sequence,
        endpoint=ENDPOINT,
        slice_key=slice_key,
        concurrency=n_max,
        n_max=n_max,
        first_arm=list(Arm)[sequence % 2],
        started_at=START + timedelta(seconds=sequence),
        memory={CONFIG.fingerprint: MEMORY},
    )


def block_unit(sequence: int, runs: list[Run], *, is_greedy: bool = True, n_max: int = 4) -> BlockUnit:
    return BlockUnit(block_of(sequence, n_max=n_max), tuple(MeasuredRun(run, is_greedy) for run in runs))


def cluster_unit(index: int, runs: list[Run], *, is_greedy: bool = True) -> ClusterUnit:
    at = START + timedelta(seconds=index)
    cluster = Cluster("prompt_class=code", f"session:{index}", at, at, at, False, tuple(run.key for run in runs))
    return ClusterUnit(cluster, tuple(MeasuredRun(run, is_greedy) for run in runs))


def record_of(
    index: int,
    *,
    at_s: float,
    session: str | None,
    slice_key: str = "prompt_class=code",
    user: str | None = None,
    regime: str = "greedy",
    counter: FunnelCounter = FunnelCounter.MEASURED,
) -> StoredRecord:
    return StoredRecord(
        key=key_of(index),
        counter=counter,
        endpoint=ENDPOINT,
        slice_key=slice_key,
        labels={"sampling_regime": regime},
        event_time=START + timedelta(seconds=at_s),
        session_hash=session,
        user_hash=user,
        session_position=1,
        sampling_rate=1.0,
    )


@dataclass(frozen=True)
class World:
    """One endpoint; every block holds `block_size` own requests of sessions of their own, of one slice.

    `make_run` draws a run from (rng, index, block id); two more records of each session are not timed.
    """

    num_blocks: int
    slices: tuple[str, ...] = ("prompt_class=code",)
    block_size: int = 4
    n_max: int = 4
    regime: str = "greedy"
    gap_s: float = 20.0
    untimed: int = 2
    make_run: Callable[[np.random.Generator, int, str], Run] = field(
        default=lambda rng, index, block_id: run_of(index, block_id)
    )

    def evidence(self, seed: int = 0) -> EndpointEvidence:
        rng = np.random.default_rng(seed)
        records, blocks, runs = [], [], []
        index = 0
        for sequence in range(self.num_blocks):
            slice_key = self.slices[sequence % len(self.slices)]
            block = block_of(sequence, slice_key, self.n_max)
            blocks.append(block)
            for _ in range(self.block_size):
                session = f"s{index:06d}"
                at_s = index * self.gap_s
                run = self.make_run(rng, index, block.block_id)
                runs.append(run)
                counter = FunnelCounter.FAILED if run.failure else FunnelCounter.MEASURED
                records.append(
                    record_of(
                        index, at_s=at_s, session=session, slice_key=slice_key, regime=self.regime, counter=counter
                    )
                )
                for extra in range(1, self.untimed + 1):
                    other = record_of(
                        index, at_s=at_s + extra, session=session, slice_key=slice_key, regime=self.regime
                    )
                    key = RecordKey("file", 1, index * 10 + extra)
                    records.append(replace(other, key=key, counter=FunnelCounter.SAMPLED_OUT, reason="not_timed"))
                index += 1
        return EndpointEvidence(ENDPOINT, records, blocks, runs)


def noisy_run(
    *, speedup: float = 1.3, noise: float = 0.1, acceptance: float = 0.65, slowed_share: float = 0.0
) -> Callable[[np.random.Generator, int, str], Run]:
    """A run drawn about a true speedup and first-position acceptance, `slowed_share` of them slowed by a third."""

    def draw(rng: np.random.Generator, index: int, block_id: str) -> Run:
        slowed = rng.random() < slowed_share
        log_speedup = -math.log(1.33) if slowed else math.log(speedup) + noise * float(rng.standard_normal())
        return run_of(
            index,
            block_id,
            log_speedup=log_speedup,
            baseline_ms=float(rng.uniform(80.0, 120.0)),
            num_first_accepted=int(rng.binomial(30, acceptance)),
        )

    return draw
