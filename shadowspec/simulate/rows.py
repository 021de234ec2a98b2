"""Rows as the worker would have stored them, from simulated requests and their outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shadowspec.simulate.effects import Outcomes
from shadowspec.simulate.traffic import ENDPOINT, Requests, event_time, slice_key_of
from shadowspec.types import (
    ArmTiming,
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
    VerifyRule,
)

MEMORY = Memory(1_000_000, 1_100_000, 1_000, 50_000, 100)  # 10% more than the baseline: within the budget
PREFILL_SHARE = 0.2  # of the baseline's time; the same in both arms
PROMPT_TOKENS = 100

EQUAL = Parity()
NEAR_TIE = Parity(first_divergence=5, divergence_gap=0.0, rerun_differs=False)
FAULT = Parity(first_divergence=5, divergence_gap=1.0, rerun_differs=False)


@dataclass(frozen=True, slots=True)
class Rows:
    """The stored rows of the simulated endpoint, records in the order of their offsets."""

    records: Sequence[StoredRecord]
    blocks: Sequence[StoredBlock]
    runs: Sequence[Run]


def config_of(name: str, letter: str) -> FingerprintedConfig:
    """A speculation config of that name whose fingerprint is one letter over and over."""
    return FingerprintedConfig(
        config=SpeculationConfig(name, "target", "draft", "draft_model", 1, VerifyRule.REJECTION),
        engine="simulated",
        device="simulated",
        dtype="float32",
        details={},
        fingerprint=letter * 64,
    )


CONFIG = config_of("draft-k1", "a")
CHANGED = config_of("draft-k1", "b")  # the config of the same name after an engine change


def rows_of(requests: Requests, outcomes: Outcomes, regime: str, change_block: int | None) -> Rows:
    """All rows of the endpoint.  From the block `change_block` on another fingerprint is measured with."""
    keys, labels = requests.keys(), {"sampling_regime": regime}
    records: list[StoredRecord] = []
    runs: list[Run] = []
    compared = [
        FAULT if is_fault else NEAR_TIE if differs else EQUAL
        for is_fault, differs in zip(outcomes.is_fault.tolist(), outcomes.differs.tolist(), strict=True)
    ]
    columns = zip(
        keys,
        requests.at_us.tolist(),
        requests.session.tolist(),
        requests.slice_index.tolist(),
        requests.is_timed.tolist(),
        requests.is_shed.tolist(),
        requests.block.tolist(),
        outcomes.failed.tolist(),
        outcomes.log_speedup.tolist(),
        outcomes.baseline_ms.tolist(),
        outcomes.lost_ms.tolist(),
        outcomes.num_drafts.tolist(),
        outcomes.num_accepted.tolist(),
        zip(outcomes.z_sum.tolist(), outcomes.z_tokens.tolist(), strict=True),
        compared,
        strict=True,
    )
    slices = [slice_key_of(index) for index in range(int(requests.slice_index.max(initial=0)) + 1)]
    for (
        key,
        at,
        session,
        slice_index,
        timed,
        shed,
        place,
        failed,
        log,
        base,
        lost,
        drafts,
        accepted,
        z,
        output,
    ) in columns:
        counter, reason = (FunnelCounter.MEASURED, None) if timed else (FunnelCounter.SAMPLED_OUT, "not_timed")
        if shed:
            counter, reason = FunnelCounter.SHED, "queue_full"
        if timed:
            block_id = requests.blocks[place].block_id
            fingerprint = _config(place, change_block).fingerprint
            if failed:
                counter, reason = FunnelCounter.FAILED, "time_out"
                runs.append(Run(key, fingerprint, block_id, failure="time_out"))
            else:
                scored = Parity(None, None, None, z[0], z[1], 0.0, z[1])
                parity = output if regime == "greedy" else scored
                runs.append(measured_run(key, fingerprint, block_id, log, base, drafts, accepted, parity, lost))
        records.append(
            StoredRecord(
                key,
                counter,
                reason,
                ENDPOINT,
                slices[slice_index],
                labels,
                event_time(at),
                session_hash=f"s{session:06d}",
                sampling_rate=1.0,
            )
        )
    blocks = []
    last_us = int(requests.at_us[-1]) if len(requests.at_us) else 0
    for place, (block, started) in enumerate(zip(requests.blocks, requests.started_us.tolist(), strict=True)):
        blocks.append(
            StoredBlock(
                block.block_id,
                block.sequence,
                ENDPOINT,
                block.slice_key,
                block.concurrency,
                block.n_max,
                block.first_arm,
                event_time(min(started, last_us + 1)),
                {_config(place, change_block).fingerprint: MEMORY},
            )
        )
    return Rows(records, blocks, runs)


def measured_run(
    key: RecordKey,
    fingerprint: str,
    block_id: str,
    log_speedup: float,
    baseline_ms: float,
    num_drafts: int,
    num_accepted: int,
    parity: Parity = EQUAL,
    lost_ms: float = 0.0,
) -> Run:
    """The run of a request that went through both arms; of the speculative one `lost_ms` went to failed attempts."""
    timings = _timing(baseline_ms), _timing(baseline_ms * math.exp(-log_speedup), lost_ms)
    return Run(key, fingerprint, block_id, None, _counts(num_drafts, num_accepted), *timings, parity)


def _config(place: int, change_block: int | None) -> FingerprintedConfig:
    return CHANGED if change_block is not None and place >= change_block else CONFIG


def _counts(num_drafts: int, num_accepted: int) -> SpeculationCounts:
    """K = 1: every draft is one token, so that the first position is all there is."""
    return SpeculationCounts(
        num_drafts,
        num_drafts,
        num_accepted,
        (num_accepted,),
        (num_drafts - num_accepted, num_accepted),
        1 + num_drafts + num_accepted,
        PROMPT_TOKENS,
    )


def _timing(end_to_end_ms: float, lost_ms: float = 0.0) -> ArmTiming:
    served_ms = end_to_end_ms - lost_ms
    return ArmTiming(lost_ms, PREFILL_SHARE * served_ms + lost_ms, (1.0 - PREFILL_SHARE) * served_ms)
