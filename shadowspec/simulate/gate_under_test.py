"""Continuous peeking: the real gate over simulated rows, looked at whenever a unit enters.

Nothing is decided here.  Rows become units, levels and tests by the gate's own functions, once; its own capital
paths say at which looks a verdict other than HOLD is possible at all; and at each of these the gate's own
decision is asked for, with what the gate would have seen then.  A test holds this against calling the gate at
every look.  With `moments` and `paths`, this is all of the simulation that knows the gate from inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shadowspec.gate.decision import Hypothesis, restarted_states
from shadowspec.gate.drift import WATCHERS, Detector, alarm_threshold, log_statistic_paths, started_states
from shadowspec.gate.evidence import HypothesisEvidence, TestState
from shadowspec.gate.levels import assign_shares, level_of_run
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import DRIFT, Trial
from shadowspec.gate.scores import betting_tests
from shadowspec.gate.series import BettingTest
from shadowspec.gate.standing import standing_decision
from shadowspec.gate.units import BlockUnit, ClusterUnit, Folding, fold_clusters, is_greedy
from shadowspec.gating import EndpointEvidence
from shadowspec.gating.looks import hypothesis_units
from shadowspec.gating.open_blocks import newest_events
from shadowspec.simulate.moments import Moments, cluster_id, moments_of
from shadowspec.simulate.paths import TestOutcome, outcome_of, path_of, possible_looks
from shadowspec.simulate.traffic import START, Bools, Ints, Requests
from shadowspec.types import Decision, FingerprintedConfig, Verdict


@dataclass(frozen=True, slots=True)
class HypothesisOutcome:
    """How one run of a hypothesis ended under continuous peeking.

    A run begins with the hypothesis, with a new fingerprint, or after an alarm; `start_blocks` of the fingerprint's
    blocks came before it.  `num_blocks` and `num_clusters` are the run's at its verdict, or all it had.
    `alarm_block` is the run's block at which a detector sounded after ENABLE, if one did.
    """

    slice_key: str
    fingerprint: str
    num_restarts: int
    start_blocks: int
    level: float
    verdict: Verdict
    reason_code: str
    num_blocks: int
    num_clusters: int
    was_dependent: bool
    tests: Mapping[str, TestOutcome]
    alarm_block: int | None = None


def watch(
    evidence: EndpointEvidence,
    requests: Requests,
    policy: GatePolicy,
    configs: Mapping[str, FingerprintedConfig],
    loads: Sequence[int],
) -> list[HypothesisOutcome]:
    """The outcome of every hypothesis that got a level, looking at each moment at which a unit enters."""
    folding = fold_clusters(evidence.records, policy, input_ended=True)
    moments = moments_of(requests, folding)
    greedy = {record.key: is_greedy(record) for record in evidence.records}
    fingerprints = list(dict.fromkeys(run.fingerprint for run in evidence.runs))  # in the order in which they came
    newest = newest_events(evidence.runs, evidence.records)
    names = [(slice_key, load) for slice_key in folding.entries for load in loads]
    in_order = sorted(names, key=lambda name: (folding.entries[name[0]].position, name))
    outcomes = []
    for (slice_key, load), share in assign_shares(in_order, {}, policy).items():
        if share is None:
            continue
        measured = []
        for fingerprint in fingerprints:
            hypothesis = Hypothesis(evidence.endpoint, slice_key, load, configs[fingerprint])
            clusters, blocks = hypothesis_units(evidence, hypothesis, folding, policy, greedy, newest)
            if blocks:
                measured.append(_Watched(hypothesis, clusters, blocks, policy, share))
        outcomes += _watch_name(measured, folding, moments)
    return outcomes


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    """One fingerprint of a hypothesis with all the units that it ever gets, in folding order."""

    hypothesis: Hypothesis
    clusters: tuple[ClusterUnit, ...]
    blocks: tuple[BlockUnit, ...]
    policy: GatePolicy
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """How much of a hypothesis's evidence there was at each look, [looks]."""

    blocks: Ints
    clusters: Ints
    closed: Ints


def _watch_name(measured: Sequence[_Watched], folding: Folding, moments: Moments) -> list[HypothesisOutcome]:
    """All runs of one hypothesis: its fingerprints follow each other, and runs of one follow its alarms."""
    outcomes: list[HypothesisOutcome] = []
    num_restarts, before = 0, None
    firsts = [min(moments.started_us[unit.block.block_id] for unit in watched.blocks) for watched in measured]
    for place, watched in enumerate(measured):
        counts = _counts(watched, folding, moments)
        first = max(
            int(np.searchsorted(counts.closed, watched.policy.entry_clusters)),
            int(np.searchsorted(moments.looks, firsts[place])),
        )
        end = len(moments.looks)
        if place + 1 < len(measured):
            end = int(np.searchsorted(moments.looks, firsts[place + 1]))
        start_blocks = start_clusters = 0
        while first < end:
            level = level_of_run(watched.share, num_restarts)
            if level is None:
                break
            trial = Trial(
                watched.hypothesis.config.fingerprint,
                watched.share,
                num_restarts,
                start_blocks,
                start_clusters,
                supersedes=before,
            )
            outcome, alarmed_at = _watch_run(watched, counts, trial, level, first, end)
            outcomes.append(outcome)
            if alarmed_at is None:
                break
            num_restarts, before = num_restarts + 1, None
            start_blocks, start_clusters = int(counts.blocks[alarmed_at]), int(counts.clusters[alarmed_at])
            first = alarmed_at + 1
        if outcomes:  # a new fingerprint begins the next run
            num_restarts, before = num_restarts + 1, watched.hypothesis.config.fingerprint
    return outcomes


def _watch_run(
    watched: _Watched, every: _Counts, trial: Trial, level: float, first: int, end: int
) -> tuple[HypothesisOutcome, int | None]:
    """One run at the looks from `first` up to `end`, and the look at which an alarm ended it."""
    clusters, blocks = watched.clusters[trial.start_clusters :], watched.blocks[trial.start_blocks :]
    counts = _Counts(
        np.maximum(every.blocks[:end] - trial.start_blocks, 0),
        np.maximum(every.clusters[:end] - trial.start_clusters, 0),
        every.closed[:end],
    )
    watched = replace(watched, clusters=clusters, blocks=blocks)
    tests = betting_tests(clusters, blocks, watched.policy)
    states = {test.name: TestState() for test in tests}
    units = {test.name: _units_at(test, watched, counts) for test in tests}
    paths = {test.name: path_of(test, states[test.name], level, units[test.name]) for test in tests}
    faults = _faults_at(watched, counts, level)

    evidence, decision = HypothesisEvidence(), None
    num_clusters = num_blocks = 0
    was_dependent, at = False, first
    while at < end:
        candidates, surely_waits = possible_looks(tests, paths, faults)
        ahead = np.flatnonzero(candidates[at:])
        next_at = at + int(ahead[0]) if len(ahead) else end
        was_dependent |= bool(surely_waits[at:next_at].any())
        at = next_at
        if at == end:
            break
        to_clusters, to_blocks = int(counts.clusters[at]), int(counts.blocks[at])
        evidence = replace(
            evidence.fold(clusters[num_clusters:to_clusters], blocks[num_blocks:to_blocks], watched.policy),
            num_closed_clusters=int(counts.closed[at]),
        )
        num_clusters, num_blocks = to_clusters, to_blocks
        decision = standing_decision(
            watched.hypothesis,
            evidence,
            watched.policy,
            trial=trial,
            has_entered=True,
            previous=decision,
            now=START,
        )
        if is_verdict(decision):
            break
        was_dependent |= decision.reason_code == "dependent"
        left = restarted_states(decision)
        evidence = evidence.restarted(left)
        for test in tests:
            if left.get(test.name, states[test.name]) != states[test.name]:
                states[test.name] = left[test.name]
                paths[test.name] = path_of(test, states[test.name], level, units[test.name])
        at += 1
    verdict = decision if decision is not None and is_verdict(decision) else None
    alarmed_at = None
    if verdict is not None and verdict.verdict is Verdict.ENABLE:
        alarmed_at = _alarmed_at(tests, watched.policy, counts, at)
    outcome = HypothesisOutcome(
        slice_key=watched.hypothesis.slice_key,
        fingerprint=trial.fingerprint,
        num_restarts=trial.num_restarts,
        start_blocks=trial.start_blocks,
        level=level,
        verdict=Verdict.HOLD if verdict is None else verdict.verdict,
        reason_code="" if verdict is None else verdict.reason_code,
        num_blocks=num_blocks if verdict is not None else int(counts.blocks[-1]),
        num_clusters=num_clusters if verdict is not None else int(counts.clusters[-1]),
        was_dependent=was_dependent,
        tests={test.name: outcome_of(test, level) for test in tests if test.series.num_units},
        alarm_block=None if alarmed_at is None else int(counts.blocks[alarmed_at]),
    )
    return outcome, alarmed_at


def is_verdict(decision: Decision) -> bool:
    """Whether a run has come to ENABLE or DISABLE by its own tests; what an alarm leaves behind is none."""
    return decision.verdict is not Verdict.HOLD and decision.reason_code != DRIFT


def _counts(watched: _Watched, folding: Folding, moments: Moments) -> _Counts:
    blocks = np.array([moments.block_us[unit.block.block_id] for unit in watched.blocks], dtype=np.int64)
    clusters = np.array([moments.cluster_us[cluster_id(unit.cluster)] for unit in watched.clusters], dtype=np.int64)
    closed = np.array(
        [moments.cluster_us[cluster_id(cluster)] for cluster in folding.of_slice(watched.hypothesis.slice_key)],
        dtype=np.int64,
    )
    return _Counts(
        np.searchsorted(blocks, moments.looks, "right"),
        np.searchsorted(clusters, moments.looks, "right"),
        np.searchsorted(closed, moments.looks, "right"),
    )


def _units_at(test: BettingTest, watched: _Watched, counts: _Counts) -> Ints:
    """How many units the test had at each look."""
    if test.unit == "block":
        waiting = len(watched.blocks) - test.series.num_units  # blocks that do not enter this test
        return np.maximum(counts.blocks - waiting, 0)
    if test.unit == "request":
        greedy = [sum(measured.is_greedy for measured in unit.runs) for unit in watched.blocks]
        return np.concatenate([[0], np.cumsum(greedy, dtype=np.int64)])[counts.blocks]
    if test.series.num_units == len(watched.clusters):
        return counts.clusters
    sampled = [any(not measured.is_greedy for measured in unit.runs) for unit in watched.clusters]
    return np.concatenate([[0], np.cumsum(sampled, dtype=np.int64)])[counts.clusters]


def _faults_at(watched: _Watched, counts: _Counts, level: float) -> tuple[Bools, Bools]:
    """At each look: whether enough greedy requests showed no fault, and whether one was seen."""
    limit = watched.policy.near_tie_logit_of(watched.hypothesis.config.dtype)
    known, faults = [0], [0]
    has_greedy = False
    for unit in watched.blocks:
        for measured in unit.runs:
            parity = measured.run.parity if measured.is_greedy and measured.run.failure is None else None
            has_greedy |= measured.is_greedy
            if parity is not None:
                known[-1] += 1
                faults[-1] += parity.divergence_gap is not None and parity.divergence_gap > limit
        known.append(0)
        faults.append(0)
    if not has_greedy:
        return np.ones(len(counts.blocks), bool), np.zeros(len(counts.blocks), bool)
    known_at = np.concatenate([[0], np.cumsum(known)])[counts.blocks]
    faults_at = np.concatenate([[0], np.cumsum(faults)])[counts.blocks]
    min_units = math.ceil(math.log(level) / math.log1p(-watched.policy.max_fault_share) - 1e-9)
    return known_at >= min_units, faults_at > 0


def _alarmed_at(tests: Sequence[BettingTest], policy: GatePolicy, counts: _Counts, enabled_at: int) -> int | None:
    """The first look after ENABLE, which came at the look `enabled_at`, at which a required detector has sounded."""
    by_name = {test.name: test for test in tests}
    states = started_states(policy, {})
    found = []
    for watcher in WATCHERS:
        seen = counts.blocks if by_name[watcher.test_name].unit == "block" else counts.clusters
        series = by_name[watcher.test_name].series
        after = series.part(int(seen[enabled_at]), min(int(seen[-1]), series.num_units)).lower
        if len(after.values):
            paths = log_statistic_paths(Detector.of(states[watcher.name]), after.values, after.weights)
            means = np.logaddexp.reduce(paths, axis=0) - math.log(len(paths))
            sounds = np.flatnonzero(means >= math.log(alarm_threshold(policy)))
            if len(sounds):
                found.append(int(np.searchsorted(seen, int(seen[enabled_at]) + int(sounds[0]) + 1)))
    return min(found, default=None)
