"""An endpoint's history before the gate: units come day by day, and the gate's own functions decide at each look.

What a real gate reads from stored rows is made here at once; everything after that (levels, runs, bounds, detectors,
new fingerprints, the endpoint's composition, what evidence is kept) is `shadowspec.gating`'s.  The units are a
thinned share of the runs in the rollups: a decision needs hundreds of blocks, not hundreds of thousands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from shadowspec.demo.large.units import BlockMaker, Measured
from shadowspec.demo.large.world import LATE_DAY, SyntheticEndpoint
from shadowspec.gate.open_clusters import ClusterProgress
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import Seen, has_ended
from shadowspec.gate.rollout_policy import RolloutPolicy
from shadowspec.gate.units import BlockUnit, ClusterUnit, Entry
from shadowspec.gating.current import Standing
from shadowspec.gating.folding import Rules
from shadowspec.gating.kept import begun_evidence, folded_in_run
from shadowspec.gating.looks import frozen_policy
from shadowspec.gating.rollouts import next_steps
from shadowspec.gating.state import EndpointState, KeptEvidence, begun_state, encode_evidence, encode_state, way_of
from shadowspec.gating.trials import HypothesisId, hypothesis_id
from shadowspec.types import Decision, Rollout, StoredEvidence

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
    last_blocks: tuple[Measured, ...]
    next_offset: int
    num_runs: int


@dataclass(slots=True)
class _Progress:
    """What goes on from look to look."""

    state: EndpointState
    kept: dict[HypothesisId, KeptEvidence] = field(default_factory=dict)
    previous: dict[HypothesisId, Decision] = field(default_factory=dict)
    rollouts: dict[int, Rollout] = field(default_factory=dict)  # by load


def history(
    endpoint: SyntheticEndpoint,
    place: int,
    policy: GatePolicy,
    start: datetime,
    days: int,
    num_looks: int,
    seed: int,
) -> History:
    """The endpoint's looks, evenly spaced over the days; one whose mirror stopped is looked at all the same."""
    draw = np.random.default_rng([seed, place, 1])
    maker = BlockMaker(endpoint, place, draw)
    own = _Progress(begun_state({}, {way_of(policy): policy}))
    step = timedelta(days=days) / num_looks
    looks: list[LookResult] = []
    last: list[Measured] = []
    num_runs = 0
    for number in range(num_looks):
        begins = start + step * number
        blocks = _blocks(endpoint, maker, begins, step, start, days, draw)
        runs = sum(len(each.runs) * len(each.clusters) for each in blocks)
        num_runs += runs
        last += [each for each in blocks if each.block.started_at >= start + timedelta(days=days - 1)]
        if (blocks or looks) and not endpoint.is_undecided:
            now = begins + step
            decisions = _look(endpoint, own, policy, blocks, now)
            records = sum(len(each.clusters) for each in blocks)
            rollouts = _rollouts(endpoint.name, own, now)
            looks.append(LookResult(now, decisions, rollouts, encode_state(own.state), records, runs))
    evidence = tuple(encode_evidence(key, own.kept[key]) for key in sorted(own.kept))
    return History(endpoint.name, tuple(looks), evidence, tuple(last), maker.next_offset, num_runs)


def _blocks(
    endpoint: SyntheticEndpoint,
    maker: BlockMaker,
    begins: datetime,
    step: timedelta,
    start: datetime,
    days: int,
    draw: np.random.Generator,
) -> list[Measured]:
    """The blocks between two looks, in event order."""
    share = (begins - start) / timedelta(days=days)
    is_over = endpoint.is_stale and begins + step > start + timedelta(days=days - 5)
    if is_over or (endpoint.is_late and share < LATE_DAY):
        return []
    mean = sum(own.weight for own in endpoint.slices) / len(endpoint.slices)
    configs = [(endpoint.config_at(versions, share), len(versions)) for versions in endpoint.configs]
    planned = []
    for own in endpoint.slices:
        rate = min(BLOCKS_PER_DAY * own.weight / mean, HEAVY) * (step / timedelta(days=1)) / len(endpoint.loads)
        for load in endpoint.loads:
            for moment in draw.random(draw.poisson(rate)):
                planned.append((begins + float(moment) * (step - timedelta(minutes=5)), own, load))
    planned.sort(key=lambda each: each[0])
    return [maker.block(own, load, at, share, configs) for at, own, load in planned]


def _look(
    endpoint: SyntheticEndpoint, own: _Progress, policy: GatePolicy, blocks: Sequence[Measured], now: datetime
) -> tuple[Decision, ...]:
    """Take the blocks in and decide, as `shadowspec.gating.folding` and `EndpointGate` do with stored rows."""
    # 1. The units by hypothesis.
    rules = Rules(policy, {key: frozen_policy(policy, row) for key, row in own.previous.items()}, own.previous)
    block_units: dict[HypothesisId, list[BlockUnit]] = defaultdict(list)
    cluster_units: dict[HypothesisId, list[ClusterUnit]] = defaultdict(list)
    for each in blocks:
        for fingerprint in each.runs:
            for slice_key in ("", each.block.slice_key):
                key = slice_key, each.block.concurrency, fingerprint
                block_units[key].append(each.block_unit(fingerprint))
                cluster_units[key] += each.cluster_units(fingerprint)

    # 2. Evidence.
    own.state = _state_after(own.state, policy, blocks)
    for key in sorted(block_units):
        previous = own.previous.get(key)
        before = own.kept.get(key) or begun_evidence(rules.of(key), previous)
        in_run = previous if previous is not None and not has_ended(previous) else None
        folded = folded_in_run(before.evidence, cluster_units[key], block_units[key], rules.of(key), in_run)
        own.kept[key] = replace(before, evidence=folded)

    # 3. Decisions.
    configs = {each.fingerprint: each for each in endpoint.fingerprints if each.fingerprint in own.state.seen}
    loads = sorted(own.state.loads)
    decided = Standing(endpoint.name, own.state, own.kept, rules, configs, loads, now).decided(now)
    own.kept |= decided.changed
    own.previous = own.previous | {hypothesis_id(decision): decision for decision in decided.decisions}
    return decided.decisions


def _rollouts(endpoint: str, own: _Progress, now: datetime) -> tuple[Rollout, ...]:
    """How far each load is rolled out after this look; what changed."""
    steps = next_steps(endpoint, list(own.previous.values()), list(own.rollouts.values()), RolloutPolicy(), now)
    changed = tuple(step.rollout for step in steps if step.is_change(own.rollouts.get(step.rollout.concurrency)))
    own.rollouts |= {rollout.concurrency: rollout for rollout in changed}
    return changed


def _state_after(state: EndpointState, policy: GatePolicy, blocks: Sequence[Measured]) -> EndpointState:
    records = [record for each in blocks for record in each.records]
    runs = [measured.run for each in blocks for own in each.runs.values() for measured in own]
    seen = dict(state.seen)
    for each in blocks:
        at = each.block.started_at
        for fingerprint in each.runs:
            own = seen.get(fingerprint, Seen(at, at))
            seen[fingerprint] = Seen(min(own.first, at), max(own.last, at))
    way = way_of(policy)
    return replace(
        state,
        slices=dict.fromkeys([*state.slices, *(each.block.slice_key for each in blocks)], 0),
        ways={way: _entered(state.ways[way], policy, blocks)},
        seen=seen,
        loads=state.loads | {each.block.concurrency for each in blocks},
        traffic=state.traffic.fold(records, runs, policy.mix_window_s),
        num_records=state.num_records + len(records),
    )


def _entered(progress: ClusterProgress, policy: GatePolicy, blocks: Sequence[Measured]) -> ClusterProgress:
    """The progress with the blocks' clusters entered, all of them closed."""
    closed, entries = Counter(progress.num_closed), dict(progress.entries)
    position, newest = progress.num_entered, progress.newest_close
    for cluster in (own for each in blocks for own in each.clusters):
        newest = cluster.closes_at if newest is None else max(newest, cluster.closes_at)
        closed[cluster.slice_key] += 1
        for name, number in (("", position + 1), (cluster.slice_key, closed[cluster.slice_key])):
            if number == policy.entry_clusters:
                entries[name] = Entry(position, newest)
        position += 1
    return replace(progress, num_entered=position, newest_close=newest, num_closed=dict(closed), entries=entries)
