"""Measured blocks of the made-up world: what a look of the gate takes in.

A session has one timed request, so that each request is a cluster of its own, and each block is full.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from kernels.benchmarks.large_store.world import (
    LONGEST_GAP,
    MEAN_PROMPT_TOKENS,
    PREFILL_SHARE,
    SPREAD,
    SyntheticEndpoint,
    SyntheticSlice,
    acceptance_at,
    log_speedup,
)
from shadowspec.tap.context_buckets import context_bucket
from shadowspec.types import (
    Arm,
    ArmTiming,
    FingerprintedConfig,
    FunnelCounter,
    Memory,
    Parity,
    RecordKey,
    Run,
    RunFlags,
    SpeculationCounts,
    StoredBlock,
    StoredRecord,
    parse_slice_key,
)

SOURCE = "synthetic-topic"
PEAK_BYTES = 20_000_000_000
KV_BYTES_PER_TOKEN = 131_072
NEAR_TIE_SHARE, NEAR_TIE_GAP = 0.01, 0.02  # of greedy requests; below a near-tie's gap in bfloat16
FAULT_GAP = 0.9
STEPS = (25, 45)  # of a request, from and up to


@dataclass(frozen=True, slots=True)
class MeasuredUnit:
    """One block with its requests' records in event order, and their runs with each config."""

    block: StoredBlock
    records: tuple[StoredRecord, ...]
    runs: tuple[Run, ...]


class BlockMaker:
    """Draws an endpoint's blocks.  Counts its offsets and blocks, so that no two of its requests share a key."""

    def __init__(self, endpoint: SyntheticEndpoint, partition: int, draw: np.random.Generator) -> None:
        self._endpoint, self._partition, self._draw = endpoint, partition, draw
        self.next_offset = 0
        self._sequence = 0

    def block(
        self,
        synthetic: SyntheticSlice,
        load: int,
        at: datetime,
        share: float,
        configs: Sequence[tuple[FingerprintedConfig, int]],
    ) -> MeasuredUnit:
        """A full block begun at `at`, `share` through the days; each config with its name's number of versions."""
        draw = self._draw
        keys = [self._key(at + timedelta(seconds=20 * place)) for place in range(load)]
        baselines = [_baseline(self._endpoint, load, draw) for _ in keys]
        name = hashlib.sha256(f"{self._endpoint.name} {self._partition} {self._sequence}".encode()).hexdigest()
        block = StoredBlock(
            block_id=name,
            sequence=self._sequence,
            endpoint=self._endpoint.name,
            slice_key=synthetic.key,
            concurrency=load,
            n_max=load,
            first_arm=Arm.BASELINE if draw.random() < 0.5 else Arm.SPECULATIVE,
            started_at=at,
            memory={config.fingerprint: _memory(self._endpoint, draw) for config, _ in configs},
        )
        self._sequence += 1
        runs: list[Run] = []
        for config, versions in configs:
            acceptance = acceptance_at(synthetic, versions, share)
            depth = config.config.num_speculative_tokens
            mean = log_speedup(acceptance, depth, load)
            runs += [
                _run(key, name, config.fingerprint, synthetic, baseline, acceptance, depth, mean, draw)
                for key, baseline in zip(keys, baselines, strict=True)
            ]
        return MeasuredUnit(block, tuple(self._record(synthetic, key) for key in keys), tuple(runs))

    def _record(self, synthetic: SyntheticSlice, key: RecordKey) -> StoredRecord:
        num_prompt_tokens = int(self._draw.lognormal(math.log(MEAN_PROMPT_TOKENS), 0.8))
        session = hashlib.sha256(str(key).encode()).hexdigest()
        return StoredRecord(
            key=key,
            counter=FunnelCounter.MEASURED,
            endpoint=self._endpoint.name,
            slice_key=synthetic.key,
            labels=parse_slice_key(synthetic.key) | {"context_bucket": context_bucket(num_prompt_tokens)},
            event_time=datetime.fromtimestamp(key.timestamp_ms / 1000, UTC),
            session_hash=session,
            unit_key=f"session:{session}",
            session_position=1,
            sampling_rate=self._endpoint.sample_rate,
            num_prompt_tokens=num_prompt_tokens,
        )

    def _key(self, at: datetime) -> RecordKey:
        self.next_offset += 1
        return RecordKey(SOURCE, self._partition, self.next_offset - 1, int(at.timestamp() * 1000))


def _baseline(endpoint: SyntheticEndpoint, load: int, draw: np.random.Generator) -> ArmTiming:
    outputs = int(draw.integers(60, 240))
    decode_ms = 1000.0 / endpoint.tokens_per_s * (1.0 + 0.04 * (load - 1)) * (outputs - 1) * draw.lognormal(0.0, 0.06)
    prefill_ms = PREFILL_SHARE / (1.0 - PREFILL_SHARE) * decode_ms * draw.lognormal(0.0, 0.2)
    gap_ms = LONGEST_GAP * decode_ms / (outputs - 1)
    return ArmTiming(draw.exponential(1.5), prefill_ms, decode_ms, num_output_tokens=outputs, longest_gap_ms=gap_ms)


def _run(
    key: RecordKey,
    block_id: str,
    fingerprint: str,
    synthetic: SyntheticSlice,
    baseline: ArmTiming,
    acceptance: float,
    depth: int,
    mean: float,
    draw: np.random.Generator,
) -> Run:
    total_ms = baseline.end_to_end_ms * math.exp(-mean - draw.normal(0.0, SPREAD))
    prefill_ms = min(baseline.prefill_ms * 1.03, 0.6 * total_ms)
    decode_ms = total_ms - prefill_ms
    counts = _counts(acceptance, depth, draw)
    return Run(
        key=key,
        fingerprint=fingerprint,
        block_id=block_id,
        counts=counts,
        baseline=baseline,
        speculative=ArmTiming(
            draw.exponential(1.5), prefill_ms, decode_ms, 0.17 * decode_ms, 0.75 * decode_ms, 0.08 * decode_ms,
            baseline.num_output_tokens, longest_gap_ms=LONGEST_GAP * decode_ms / counts.num_drafts,
        ),
        parity=_parity(synthetic, draw),
        finish_reason="stop" if draw.random() < 0.8 else "length",
        flags=RunFlags(is_beyond_draft_context=False),
    )  # fmt: skip


def _counts(acceptance: float, depth: int, draw: np.random.Generator) -> SpeculationCounts:
    drafts = int(draw.integers(*STEPS))
    chances = [acceptance**place * (1.0 - acceptance) for place in range(depth)] + [acceptance**depth]
    steps = [int(number) for number in draw.multinomial(drafts, chances)]
    per_pos = tuple(sum(steps[place + 1 :]) for place in range(depth))
    return SpeculationCounts(
        num_drafts=drafts,
        num_draft_tokens=depth * drafts,
        num_accepted_tokens=sum(per_pos),
        num_accepted_tokens_per_pos=per_pos,
        acceptance_histogram=tuple(steps),
        num_output_tokens=1 + drafts + sum(per_pos),
        num_prompt_tokens=int(draw.lognormal(6.0, 0.8)),
    )


def _parity(synthetic: SyntheticSlice, draw: np.random.Generator) -> Parity:
    if not synthetic.is_greedy:
        z, base = draw.normal(0.0, 4.0, 2)
        return Parity(z_sum=float(z), z_tokens=100, baseline_z_sum=float(base), baseline_z_tokens=100)
    chance = draw.random()
    if synthetic.has_faults and chance < 0.01:
        return Parity(first_divergence=17, divergence_gap=FAULT_GAP, rerun_differs=False)
    if chance < NEAR_TIE_SHARE:
        return Parity(first_divergence=40, divergence_gap=NEAR_TIE_GAP, rerun_differs=True)
    return Parity()


def _memory(endpoint: SyntheticEndpoint, draw: np.random.Generator) -> Memory:
    extra = endpoint.extra_memory_share * float(draw.uniform(0.97, 1.0))
    return Memory(
        baseline_peak_bytes=PEAK_BYTES,
        speculative_peak_bytes=int(PEAK_BYTES * (1.0 + extra)),
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        draft_weight_bytes=int(0.8 * extra * PEAK_BYTES),
        draft_kv_bytes_per_token=16_384,
    )
