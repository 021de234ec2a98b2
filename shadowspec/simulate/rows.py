"""Rows as the worker would have stored them, from simulated requests and their outcomes, and when they are evidence.

The gate looks at the moments at which looking again shows anything new.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from shadowspec.gate.evidence.units import Cluster
from shadowspec.simulate.effects import Outcomes
from shadowspec.simulate.traffic import ENDPOINT, NEVER, START, Ints, Requests, event_time, slice_key_of
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
    Watermark,
)

MEMORY = Memory(1_000_000, 1_100_000, 1_000, 50_000, 100)  # 10% more than the baseline: within the budget
PREFILL_SHARE = 0.2  # of the baseline's time; the same in both arms
PROMPT_TOKENS = 100

EQUAL = Parity()
NEAR_TIE = Parity(first_divergence=5, divergence_gap=0.0, rerun_differs=False)
FAULT = Parity(first_divergence=5, divergence_gap=1.0, rerun_differs=False)


@dataclass(frozen=True, slots=True)
class SimulatedRows:
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


def configs_of(releases: Sequence[int]) -> list[FingerprintedConfig]:
    """The config of one name on each engine, of which a release begins the next."""
    return [config_of(CONFIG.config.name, chr(ord("a") + place)) for place in range(1 + len(releases))]


def rows_of(requests: Requests, outcomes: Outcomes, regime: str, releases: Sequence[int]) -> SimulatedRows:
    """All rows of the endpoint.  From each block of `releases` on the next fingerprint is measured with."""
    configs = configs_of(releases)
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
        outcomes.repeat_log.tolist(),
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
        repeat_log,
    ) in columns:
        counter, reason = (FunnelCounter.MEASURED, None) if timed else (FunnelCounter.SAMPLED_OUT, "not_timed")
        if shed:
            counter, reason = FunnelCounter.SHED, "queue_full"
        if timed:
            block, order = requests.blocks[place], outcomes.orders[place]
            block_id = block.block_id
            if block.repeats_baseline:
                order = replace(order, baseline_repeat_ms=base * math.exp(-repeat_log))
            fingerprint = configs[bisect_right(releases, place)].fingerprint
            if failed:
                counter, reason = FunnelCounter.FAILED, "time_out"
                runs.append(Run(key, fingerprint, block_id, failure="time_out"))
            else:
                scored = Parity(None, None, None, z[0], z[1], 0.0, z[1])
                parity = output if regime == "greedy" else scored
                run = measured_run(key, fingerprint, block_id, log, base, drafts, accepted, parity, lost)
                runs.append(replace(run, order=order))
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
                {configs[bisect_right(releases, place)].fingerprint: MEMORY},
            )
        )
    return SimulatedRows(records, blocks, runs)


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


ClusterId = tuple[str, str, datetime]

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, eq=False)
class LookMoments:
    """When rows become evidence: `looks` are the moments at which anything is new, in microseconds."""

    finished_us: Ints  # by request in event order: when it and all before it are finished
    cluster_us: Mapping[ClusterId, int]
    started_us: Mapping[str, int]  # by block: when it and its records were stored
    block_us: Mapping[str, int]  # by block: when the watermark reached its newest measured request
    at_us: Ints  # by request
    looks: Ints

    def known_at(self, look: int) -> tuple[int, Watermark]:
        """How many requests are finished at a look, and the watermark then."""
        look_us = int(self.looks[look])
        number = int(np.searchsorted(self.finished_us, look_us, "right"))
        return number, Watermark(event_time(int(self.at_us[number - 1])) if number else START, look_us == NEVER)


def moments_of(requests: Requests, clusters: Sequence[Cluster]) -> LookMoments:
    """When each block and each cluster of the finished input became evidence; `clusters` are in folding order.

    A record is finished when it is stored: at once, or when its block was started.  The event time up to which
    all are finished is the watermark, by which clusters close.
    """
    values = np.where(requests.is_timed, requests.started_us[requests.block], requests.at_us)
    finished = np.maximum.accumulate(values)
    at_us = requests.at_us
    closes = np.array([_microseconds(cluster) for cluster in clusters], dtype=np.int64)
    is_full = np.array([cluster.is_full for cluster in clusters], dtype=np.int64)
    places = np.searchsorted(at_us, closes, "right") - is_full
    entered = np.maximum.accumulate(np.append(finished, NEVER)[places])
    cluster_us = dict(zip(map(cluster_id, clusters), entered.tolist(), strict=True))
    names = [block.block_id for block in requests.blocks]
    newest = np.zeros(len(names), dtype=np.int64)
    timed = np.flatnonzero(requests.is_timed)
    np.maximum.at(newest, requests.block[timed], timed)
    started_us = dict(zip(names, requests.started_us.tolist(), strict=True))
    block_us = dict(zip(names, finished[newest].tolist(), strict=True))
    looks = np.unique(np.array([*cluster_us.values(), *block_us.values()], dtype=np.int64))
    return LookMoments(finished, cluster_us, started_us, block_us, at_us, looks)


def cluster_id(cluster: Cluster) -> ClusterId:
    """The identity of a cluster within its endpoint."""
    return cluster.slice_key, cluster.key, cluster.first_event


def _microseconds(cluster: Cluster) -> int:
    return (cluster.closes_at - START) // MICROSECOND
