"""Sampling that follows the verdicts: the production gate look by look, and the rates that its decisions leave.

The next requests depend on earlier decisions, so that no rows can be drawn up front: traffic is drawn session by
session, sampled by the worker's rule at the rates in force, and put into blocks by the tap.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.gate.verdict.lifecycle import decided_slices
from shadowspec.gate.verdict.trial_levels import hypothesis_id
from shadowspec.simulate.effects import BASELINE_MS
from shadowspec.simulate.gate_under_test import HypothesisOutcome, is_verdict
from shadowspec.simulate.rows import CONFIG, MEMORY, measured_run
from shadowspec.simulate.traffic import CONCURRENCY, ENDPOINT, PLACE, SECOND, event_time
from shadowspec.simulate.world import SteeredWorld
from shadowspec.tap.admission import is_thinned
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule, Load
from shadowspec.types import (
    Block,
    Decision,
    FunnelCounter,
    ReasonCode,
    RecordKey,
    Run,
    SamplingParameters,
    ShadowPrompt,
    StoredBlock,
    StoredRecord,
    Verdict,
    Watermark,
)

GAP_S = 5.0  # between sessions, each of one request
GREEDY = SamplingParameters(temperature=0.0)


def watch_steered(world: SteeredWorld, seed: np.random.SeedSequence) -> list[HypothesisOutcome]:
    """The outcome of every run that got a level."""
    traffic = _Traffic(world, np.random.default_rng(seed))
    outcomes: dict[tuple[str, int], HypothesisOutcome] = {}
    verdicts: dict[tuple[str, int, str], tuple[Verdict, str]] = {}
    phases = list(world.phases[1:])
    while traffic.store.num_records < world.num_sessions:
        traffic.measure(world.look_every)
        run = run_endpoint_gate(traffic.store, ENDPOINT, world.policy, now=event_time(traffic.at_us))
        for decision in run.decisions:
            verdicts[hypothesis_id(decision)] = decision.verdict, decision.reason_code
            note_outcome(outcomes, decision)
            if not decision.slice_key and phases and decision.reason_code == phases[0].begins_at:
                traffic.slices_log = phases.pop(0).slices_log
        traffic.decided = decided_slices(verdicts, (CONCURRENCY,), (CONFIG.fingerprint,))
    return list(outcomes.values())


class _Traffic:
    """The traffic and its stored part; `decided` are the slices at the smallest rate ("": there are any)."""

    def __init__(self, world: SteeredWorld, rng: np.random.Generator) -> None:
        self._rng, self._shares = rng, np.cumsum(world.shares)
        loads = (Load(CONCURRENCY),)
        parts = world.policy.rule_parts()
        self._rule = EndpointRule(ENDPOINT, ("target",), slice_by=("prompt_class",), loads=loads, **parts)
        self._former = BlockFormer([self._rule])
        self.store = MemoryStore(ENDPOINT, PLACE, [CONFIG])
        self.slices_log = world.phases[0].slices_log
        self.decided: Collection[str] = ()
        self.at_us = 0
        self._waiting: dict[int, float] = {}  # mean log speedups of requests in open blocks, by offset

    def measure(self, num_blocks: int) -> None:
        """Let sessions come until this number of further blocks is measured; their rows can then be folded."""
        records: list[StoredRecord] = []
        blocks: list[StoredBlock] = []
        runs: list[Run] = []
        while len(blocks) < num_blocks:
            self.at_us += round(self._rng.exponential(GAP_S) * SECOND)
            place = min(int(np.searchsorted(self._shares, self._rng.random())), len(self._shares) - 1)
            record = self._sample(self.store.num_records + len(records), f"s{place:02d}")
            records.append(record)
            for block in self._start(record, self.slices_log[place]):
                moment = event_time(self.at_us)
                memory = {CONFIG.fingerprint: MEMORY}
                parts = block.block_id, block.sequence, ENDPOINT, block.slice_key, block.concurrency, block.n_max
                blocks.append(StoredBlock(*parts, block.first_arm, moment, memory))
                runs += [self._run(block, prompt.key) for prompt in block.requests]
        self.store.add(records, blocks, runs)
        num_finished = min(self._waiting, default=self.store.num_records)
        finished = self.store.records_of([RecordKey(*PLACE, num_finished - 1)] if num_finished else [])
        at = finished[0].event_time if finished else event_time(0)  # the first request may wait for its block
        self.store.finish(num_finished, Watermark(at, is_ended=False))

    def _rate(self, slice_key: str) -> float:
        return self._rule.min_rate if slice_key in self.decided else self._rule.sample_rate

    def _sample(self, offset: int, prompt_class: str) -> StoredRecord:
        slice_key = f"prompt_class={prompt_class}"
        rate, draw = self._rate(slice_key), self._rng.random()
        is_drawn = draw < rate
        return StoredRecord(
            RecordKey(*PLACE, offset),
            FunnelCounter.MEASURED if is_drawn else FunnelCounter.SAMPLED_OUT,
            None if is_drawn else "not_sampled",
            ENDPOINT,
            slice_key,
            {"prompt_class": prompt_class, "sampling_regime": "greedy"},
            event_time(self.at_us),
            session_hash=f"s{offset:07d}",
            sampling_rate=rate,
            is_thinned=is_thinned(self._rate(""), rate, lambda: draw),
        )

    def _start(self, record: StoredRecord, log_speedup: float) -> list[Block]:
        """The blocks that a record lets start."""
        moment = event_time(self.at_us)
        if record.counter is not FunnelCounter.MEASURED:
            return self._former.advance(ENDPOINT, moment)
        self._waiting[record.key.offset] = log_speedup
        return self._former.add(ShadowPrompt(record.key, ENDPOINT, moment, record.labels, (), GREEDY), CONCURRENCY)

    def _run(self, block: Block, key: RecordKey) -> Run:
        rng, log_speedup = self._rng, self._waiting.pop(key.offset)
        num_drafts = 1 + int(rng.poisson(29.0))
        return measured_run(
            key,
            CONFIG.fingerprint,
            block.block_id,
            float(rng.normal(log_speedup, 0.1)),
            float(rng.lognormal(np.log(BASELINE_MS), 0.2)),
            num_drafts,
            int(rng.binomial(num_drafts, 0.65)),
        )


def note_outcome(outcomes: dict[tuple[str, int], HypothesisOutcome], decision: Decision) -> None:
    """Record a run's outcome: its first verdict, and the alarm after it."""
    trial = decision.run
    if trial is None or trial.level is None:
        return
    key = decision.slice_key, trial.num_restarts
    before = outcomes.get(key)
    if before is None or (before.verdict is Verdict.HOLD and is_verdict(decision)):
        outcomes[key] = HypothesisOutcome.of(decision, trial, trial.level, {}, was_dependent=False)
    elif before.verdict is Verdict.ENABLE and decision.reason_code == ReasonCode.DRIFT and decision.ends_run:
        outcomes[key] = replace(before, alarm_block=decision.num_blocks)
    elif before.verdict is Verdict.DISABLE and decision.reason_code == ReasonCode.REOPENED and decision.ends_run:
        outcomes[key] = replace(before, reopened_block=decision.num_blocks)
