"""An endpoint's history before the gate: blocks come day by day, and the gate is run at each look.

The gate is production's (`run_endpoint_gate`), over rows in memory.  They are a thinned share of the runs in the
rollups: a decision needs hundreds of blocks, not hundreds of thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from kernels.benchmarks.large_store.units import SOURCE, BlockMaker, MeasuredUnit
from kernels.benchmarks.large_store.world import LATE_DAY, SyntheticEndpoint
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.gate.verdict.current_decision import endpoint_decisions
from shadowspec.rollout.endpoint_run import next_steps
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.types import Decision, Rollout, StoredEvidence, Watermark

BLOCKS_PER_DAY = 2.5  # of a slice of mean weight, at each load
HEAVY = 7.0  # no slice has more, whatever its weight


@dataclass(frozen=True, slots=True)
class LookResult:
    """One look: when, what it decided, and the endpoint's progress after it."""

    at: datetime
    decisions: tuple[Decision, ...]
    rollouts: tuple[Rollout, ...]  # what changed
    document: Mapping[str, Any]
    num_records: int
    num_runs: int


@dataclass(frozen=True, slots=True)
class History:
    """All of an endpoint's looks, the evidence after the last one, and the blocks of the last day."""

    endpoint: str
    looks: tuple[LookResult, ...]
    evidence: tuple[StoredEvidence, ...]
    last_blocks: tuple[MeasuredUnit, ...]
    next_offset: int
    num_runs: int


def history(
    endpoint: SyntheticEndpoint, place: int, policy: GatePolicy, start: datetime, days: int, num_looks: int, seed: int
) -> History:
    """The endpoint's looks, evenly spaced over the days; one whose mirror stopped is looked at all the same."""
    draw = np.random.default_rng([seed, place, 1])
    maker = BlockMaker(endpoint, place, draw)
    store = MemoryStore(endpoint.name, (SOURCE, place), endpoint.fingerprints)
    rollouts: dict[int, Rollout] = {}  # by load
    step = timedelta(days=days) / num_looks
    looks: list[LookResult] = []
    last: list[MeasuredUnit] = []
    num_runs = 0
    for number in range(num_looks):
        begins = start + step * number
        blocks = _blocks(endpoint, maker, begins, step, start, days, draw)
        records = [record for unit in blocks for record in unit.records]
        runs = [run for unit in blocks for run in unit.runs]
        num_runs += len(runs)
        last += [unit for unit in blocks if unit.block.started_at >= start + timedelta(days=days - 1)]
        if (blocks or looks) and not endpoint.is_undecided:
            now = begins + step
            store.add(records, [unit.block for unit in blocks], runs)
            # Every session is over: no cluster waits for more at the end of a look.
            store.finish(store.num_records, Watermark(now, is_ended=True))
            decisions = tuple(run_endpoint_gate(store, endpoint.name, policy, now=now).decisions)
            changed = _changed_rollouts(endpoint.name, store, rollouts, now)
            assert store.progress is not None, "the gate was run"
            looks.append(LookResult(now, decisions, changed, store.progress.document, len(records), len(runs)))
    evidence = sorted(store.evidence(), key=lambda stored: (stored.slice_key, stored.concurrency, stored.fingerprint))
    return History(endpoint.name, tuple(looks), tuple(evidence), tuple(last), maker.next_offset, num_runs)


def _blocks(
    endpoint: SyntheticEndpoint,
    maker: BlockMaker,
    begins: datetime,
    step: timedelta,
    start: datetime,
    days: int,
    draw: np.random.Generator,
) -> list[MeasuredUnit]:
    """The blocks between two looks, in event order."""
    share = (begins - start) / timedelta(days=days)
    is_over = endpoint.is_stale and begins + step > start + timedelta(days=days - 5)
    if is_over or (endpoint.is_late and share < LATE_DAY):
        return []
    mean = sum(synthetic.weight for synthetic in endpoint.slices) / len(endpoint.slices)
    configs = [(endpoint.config_at(versions, share), len(versions)) for versions in endpoint.configs]
    planned = []
    for synthetic in endpoint.slices:
        rate = min(BLOCKS_PER_DAY * synthetic.weight / mean, HEAVY) * (step / timedelta(days=1)) / len(endpoint.loads)
        for load in endpoint.loads:
            for moment in draw.random(draw.poisson(rate)):
                planned.append((begins + float(moment) * (step - timedelta(minutes=5)), synthetic, load))
    planned.sort(key=lambda each: each[0])
    return [maker.block(synthetic, load, at, share, configs) for at, synthetic, load in planned]


def _changed_rollouts(
    endpoint: str, store: MemoryStore, rollouts: dict[int, Rollout], now: datetime
) -> tuple[Rollout, ...]:
    """How far each load is rolled out after this look, where that changed; `rollouts` are as they are after it."""
    current = endpoint_decisions(store.latest_decisions(), None, (), now, measured=(), configs={})
    steps = next_steps(endpoint, current, list(rollouts.values()), RolloutPolicy(), now, {})
    changed = tuple(step.rollout for step in steps if step.is_change(rollouts.get(step.rollout.concurrency)))
    rollouts |= {rollout.concurrency: rollout for rollout in changed}
    return changed
