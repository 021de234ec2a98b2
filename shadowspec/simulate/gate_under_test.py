"""Continuous peeking: the production gate over simulated rows, run whenever its verdict could change.

`run_endpoint_gate` folds and decides, from a store in memory.  Running it at every look would take minutes, so an
accelerator excludes looks.  The gate's capitals as paths over all looks (`paths`), of the units of one production
fold of the whole input, show at which looks a verdict other than HOLD is possible, a test may restart, a detector may
alarm, or a fault or memory may revoke.  The gate runs only there, and its decisions are the outcome.  Where it
decides what the accelerator excluded, the repetition fails.  A test compares this with running the gate at every
look.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shadowspec.gate.evidence.betting_tests import betting_tests
from shadowspec.gate.evidence.carry_over import CarryOver, explains, order_totals
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, restarted_states, watch_detectors
from shadowspec.gate.evidence.series import BettingTest, add_times
from shadowspec.gate.evidence.totals import RunTotals
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit
from shadowspec.gate.policy import DAY_S, GatePolicy
from shadowspec.gate.run.folding import LOST, Completed
from shadowspec.gate.run.gate_run import BeginsAnewError, EndpointGateRun, FoldPart, run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.gate.run.state import Units, clustering_id
from shadowspec.gate.stats.betting import Floats
from shadowspec.gate.stats.drift import (
    REOPENING_WATCHERS,
    WATCHERS,
    Detector,
    alarm_threshold,
    log_mean,
    log_statistic_paths,
)
from shadowspec.gate.verdict.current_verdict import AT_ONCE_CODES
from shadowspec.gate.verdict.lifecycle import ALARM_CODES
from shadowspec.gate.verdict.required_tests import memory_result, min_fault_requests, waits_for_independence
from shadowspec.gate.verdict.trial_levels import HypothesisId, assign_trials, hypothesis_id, with_level
from shadowspec.simulate.paths import SLACK, LookPath, TestOutcome, outcome_of, path_of, possible_looks
from shadowspec.simulate.rows import LookMoments, SimulatedRows, cluster_id, moments_of
from shadowspec.simulate.traffic import ENDPOINT, NEVER, PLACE, START, Bools, Ints, Requests, event_time
from shadowspec.types import (
    BlockMemory,
    Decision,
    FingerprintedConfig,
    SliceCounts,
    TestState,
    Trial,
    Verdict,
    Watermark,
)


@dataclass(frozen=True, slots=True)
class HypothesisOutcome:
    """How one run of a hypothesis ended under continuous peeking.

    A run begins with the hypothesis, with a new fingerprint, or after an alarm; `start_blocks` of the fingerprint's
    blocks came before it.  `num_blocks` and `num_clusters` are the run's at its verdict, or all it had.
    `alarm_block` is the run's block at which a detector, a fault or memory ended its ENABLE, `reopened_block` that at
    which a detector refuted its DISABLE, if one did.
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
    reopened_block: int | None = None

    @classmethod
    def of(
        cls,
        decision: Decision,
        trial: Trial,
        level: float,
        tests: Mapping[str, TestOutcome],
        ended_block: int | None = None,
        *,
        was_dependent: bool,
    ) -> HypothesisOutcome:
        """The outcome of the run `trial` at this level, which came to `decision` and ended at its `ended_block`."""
        has_verdict = is_verdict(decision)
        is_disabled = decision.verdict is Verdict.DISABLE
        return cls(
            slice_key=decision.slice_key,
            fingerprint=decision.fingerprint,
            num_restarts=trial.num_restarts,
            start_blocks=trial.start_blocks,
            level=level,
            verdict=decision.verdict if has_verdict else Verdict.HOLD,
            reason_code=decision.reason_code if has_verdict else "",
            num_blocks=decision.num_blocks,
            num_clusters=decision.num_clusters,
            was_dependent=was_dependent,
            tests=tests,
            alarm_block=None if is_disabled else ended_block,
            reopened_block=ended_block if is_disabled else None,
        )


Decisions = Mapping[HypothesisId, Decision]
# Yields the next look at which the gate must run, and is sent every look at which the gate was run.
Course = Generator[int, tuple[int, Decisions], None]


class AcceleratorError(Exception):
    """The gate decided what the accelerator excluded: one of the two is wrong."""


def watch(
    rows: SimulatedRows, requests: Requests, policy: GatePolicy, configs: Sequence[FingerprintedConfig], load: int
) -> list[HypothesisOutcome]:
    """The outcome of every run of every hypothesis that got a level, looking at each moment at which a unit enters.

    `configs` are in the order in which they are measured.

    Raises:
        AcceleratorError: the gate decided what the accelerator excluded.
    """
    # 1. All units, and the looks at which they could decide anything.
    whole = _fill_store(rows, configs)
    whole.finish(len(rows.records), Watermark(event_time(int(requests.at_us[-1])), is_ended=True))
    gate, part = _fold_all(whole, policy)
    completed = part.completed
    moments = moments_of(requests, completed.entered[clustering_id(policy)])
    begins = [_first_look(completed.units.get(("", load, config.fingerprint)), moments) for config in configs]
    by_slice: list[list[HypothesisOutcome]] = []
    courses = []
    for slice_key, trial in _first_trials(completed, policy, configs[0], load).items():
        by_slice.append([])
        measured = _measure(
            slice_key, load, configs, begins, completed, moments, policy, _lost_at(rows, slice_key, moments)
        )
        courses.append(_course(measured, policy, trial, by_slice[-1]))

    # 2. The gate's decisions there.
    waiting = [(course, look) for course in courses if (look := next(course, None)) is not None]
    store = _fill_store(rows, configs)
    while waiting:
        look = min(look for _, look in waiting)
        if store.progress is None and moments.looks[look] == NEVER:  # all at once: folded already
            gate.conclude(whole, part)
            decisions = gate.decisions
        else:
            store.finish(*moments.known_at(look))
            decisions = run_endpoint_gate(store, ENDPOINT, policy, now=START).decisions
        said = look, {hypothesis_id(decision): decision for decision in decisions}
        waiting = [(course, after) for course, _ in waiting if (after := _advance(course, said)) is not None]
    return [outcome for outcomes in by_slice for outcome in outcomes]


def is_verdict(decision: Decision) -> bool:
    """Whether a run has reached ENABLE or DISABLE by its tests; an alarm's verdict does not count."""
    return decision.verdict is not Verdict.HOLD and decision.reason_code not in ALARM_CODES


def _fill_store(rows: SimulatedRows, configs: Sequence[FingerprintedConfig]) -> MemoryStore:
    store = MemoryStore(ENDPOINT, PLACE, configs)
    store.add(rows.records, rows.blocks, rows.runs)
    return store


def _fold_all(store: MemoryStore, policy: GatePolicy) -> tuple[EndpointGateRun, FoldPart]:
    """A gate run over the whole input that has folded it and not decided."""
    gate = EndpointGateRun(ENDPOINT, policy, None, START)
    while True:
        try:
            with store.evidence_session(ENDPOINT) as session:
                return gate, gate.fold(session)
        except BeginsAnewError as error:
            gate.begins = error.begins


def _advance(course: Course, said: tuple[int, Decisions]) -> int | None:
    """The next look that the course needs; None where it has ended."""
    try:
        return course.send(said)
    except StopIteration:
        return None


def _first_trials(whole: Completed, policy: GatePolicy, config: FingerprintedConfig, load: int) -> dict[str, Trial]:
    """The first run of each slice's hypothesis that gets a level, in the order of entry.

    A slice that is its whole endpoint is the same hypothesis, and left out.
    """
    (progress,) = whole.state.clusterings.values()
    in_order = sorted(progress.entries, key=lambda slice_key: (progress.entries[slice_key].position, slice_key))
    entered = [(slice_key, load, config.fingerprint) for slice_key in in_order]
    trials = assign_trials(entered, {config.fingerprint: config}, [], policy, len(whole.state.slices))
    return {
        slice_key: trial
        for (slice_key, *_), trial in trials.items()
        if trial is not None and (not slice_key or trial.graph is None or trial.in_slot)
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Units of one hypothesis in folding order, how many of them there were at each look, and lost records, [looks]."""

    clusters: Sequence[ClusterUnit]
    blocks: Sequence[BlockUnit]
    clusters_at: Ints
    blocks_at: Ints
    lost_at: Ints

    def after(self, look: int) -> _Seen:
        """Those that came after a look."""
        num_clusters, num_blocks = int(self.clusters_at[look]), int(self.blocks_at[look])
        return _Seen(
            self.clusters[num_clusters:],
            self.blocks[num_blocks:],
            np.maximum(self.clusters_at - num_clusters, 0),
            np.maximum(self.blocks_at - num_blocks, 0),
            np.maximum(self.lost_at - int(self.lost_at[look]), 0),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _MeasuredConfig:
    """One fingerprint of a hypothesis with all its units; it is decided from look `first` up to, but without, `end`."""

    key: HypothesisId
    config: FingerprintedConfig
    units: _Seen
    first: int
    end: int


def _measure(
    slice_key: str,
    load: int,
    configs: Sequence[FingerprintedConfig],
    begins: Sequence[int],
    whole: Completed,
    moments: LookMoments,
    policy: GatePolicy,
    lost_at: Ints,
) -> list[_MeasuredConfig]:
    """The fingerprints of a hypothesis, which follow each other: each is current from its look of `begins` on.

    By each look `lost_at` records of the slice were lost, [looks].
    """
    looks = moments.looks
    clustering = clustering_id(policy)
    entering = whole.entered[clustering][whole.state.clusterings[clustering].entries[slice_key].position]
    entry = int(np.searchsorted(looks, moments.cluster_us[cluster_id(entering)]))
    ends = [*begins[1:], len(looks)]
    measured = []
    for config, begin, end in zip(configs, begins, ends, strict=True):
        key = slice_key, load, config.fingerprint
        if key in whole.units and whole.units[key].blocks:
            all_units = whole.units[key]
            block_us = [moments.block_us[unit.block.block_id] for unit in all_units.blocks]
            cluster_us = [moments.cluster_us[cluster_id(unit.cluster)] for unit in all_units.clusters]
            units = _Seen(
                all_units.clusters,
                all_units.blocks,
                np.searchsorted(np.array(cluster_us, dtype=np.int64), looks, "right"),
                np.searchsorted(np.array(block_us, dtype=np.int64), looks, "right"),
                np.maximum(lost_at - int(lost_at[begin]), 0),
            )
            measured.append(_MeasuredConfig(key, config, units, max(entry, begin), end))
    return measured


def _lost_at(rows: SimulatedRows, slice_key: str, moments: LookMoments) -> Ints:
    """How many records of the slice were lost without leaving a run, by each look, [looks]."""
    measured = {run.key for run in rows.runs}
    is_lost = [
        slice_key in ("", record.slice_key) and record.counter in LOST and record.key not in measured
        for record in rows.records
    ]
    num_finished = np.searchsorted(moments.finished_us, moments.looks, "right")
    return np.append(0, np.cumsum(is_lost))[num_finished]


def _first_look(units: Units | None, moments: LookMoments) -> int:
    """The look at which a fingerprint is first measured at its endpoint, of which it has these units."""
    if units is None or not units.blocks:
        return len(moments.looks)
    first = min(measured.run.key.offset for unit in units.blocks for measured in unit.runs)
    return int(np.searchsorted(moments.looks, moments.finished_us[first]))


def _course(
    measured: Sequence[_MeasuredConfig], policy: GatePolicy, trial: Trial, outcomes: list[HypothesisOutcome]
) -> Course:
    """All runs of one hypothesis: its fingerprints follow each other, and runs of one follow its alarms."""
    num_restarts = 0
    for measured_config in measured:
        first, units = measured_config.first, measured_config.units
        while first < measured_config.end:
            level = with_level(replace(trial, num_restarts=num_restarts), ("", 0, ""), {}).level
            assert level is not None, "every run of a hypothesis with a part of alpha has a level"
            run = _TestRun(measured_config, units, policy, level)
            outcome, alarmed_at = yield from run.course(first)
            outcomes.append(outcome)
            expected = num_restarts, len(measured_config.units.blocks) - len(units.blocks)
            if (outcome.num_restarts, outcome.start_blocks) != expected:
                raise AcceleratorError(f"{measured_config.key}: a run {expected} is {outcome}")
            if alarmed_at is None:
                break
            num_restarts += 1
            first, units = alarmed_at + 1, measured_config.units.after(alarmed_at)
        if outcomes:  # a new fingerprint begins the next run
            num_restarts += 1


class _TestRun:
    """One run of a hypothesis's tests: where its verdict may come, and the gate's decisions there."""

    def __init__(self, measured: _MeasuredConfig, units: _Seen, policy: GatePolicy, level: float) -> None:
        self._key, self._end, self._units, self._policy = measured.key, measured.end, units, policy
        self._level = self._first_level = level
        self._config = measured.config
        self._tests = betting_tests(units.clusters, units.blocks, policy)
        self._states = {test.name: TestState() for test in self._tests}
        self._units_at = {test.name: _units_at(test, units) for test in self._tests}
        self._lost_at = {test.name: self._lost_units(test) for test in self._tests}
        self._paths = {test.name: self._path(test) for test in self._tests}
        self._from_start = dict(self._paths)
        self._faults = _faults_at(units, policy, self._config, level)
        self._is_long = _is_long(units, policy)

    def course(self, first: int) -> Generator[int, tuple[int, Decisions], tuple[HypothesisOutcome, int | None]]:
        """The run's outcome from look `first` on, and the look at which an alarm ended it."""
        # 1. Until the verdict, or the last look.
        at, was_dependent = first, False
        candidates, waits = possible_looks(self._tests, self._paths, self._faults, self._is_long)
        while True:
            # Until the gate has found the run dependent, it is run where it may find so; and at once, for the level
            # that others have left the run by then.
            asks = candidates if was_dependent else candidates | waits
            look, said = yield self._first_asked(candidates, asks, at) if at > first else at
            if look < first:
                continue
            decision = said[self._key]
            if decision.level is None and look + 1 < self._end:  # the gate lets it enter at a later look than expected
                first = at = look + 1
                continue
            if self._has_new_level(decision):
                candidates, waits = possible_looks(self._tests, self._paths, self._faults, self._is_long)
            was_dependent |= waits_for_independence(decision)
            if is_verdict(decision):
                break
            at = look + 1
            if at >= self._end:
                break
            if self._has_restarted(decision):
                candidates, waits = possible_looks(self._tests, self._paths, self._faults, self._is_long)
        if is_verdict(decision) and not candidates[look]:
            raise AcceleratorError(f"{self._key}: {decision.verdict} at look {look}")

        # 2. From the verdict on, until an alarm.
        alarm = None
        if is_verdict(decision) and decision.watch is not None:
            alarm = yield from self._alarm(look, decision)
        ended = None if alarm is None else alarm[1]
        outcome = self._outcome(decision, ended, was_dependent=was_dependent)
        return outcome, alarm[0] if alarm is not None and alarm[1].ends_run else None

    def _first_asked(self, candidates: Bools, asks: Bools, at: int) -> int:
        """The first look from `at` on that must be asked: where the order of the arms holds ENABLE back, none."""
        others, _ = possible_looks(self._tests, self._paths, self._faults, np.zeros_like(self._is_long))
        for look in (at + np.flatnonzero(asks[at : self._end])).tolist():
            if others[look] or not candidates[look] or not self._is_held(look):
                return int(look)
        return self._end - 1

    def _is_held(self, look: int) -> bool:
        blocks = add_times(self._units.blocks[: self._units.blocks_at[look]])
        found = CarryOver.of(order_totals(blocks, self._policy.log_speedup_clip))
        return explains(found, self._policy, SLACK)

    def _alarm(
        self, decided_at: int, decided: Decision
    ) -> Generator[int, tuple[int, Decisions], tuple[int, Decision] | None]:
        """The first look at which a verdict ends, by a detector or at once, with the gate's decision there."""
        alarm_looks = _alarm_looks(self._tests, self._policy, self._units, decided_at, watch_detectors(decided))
        alarm_looks = np.union1d(alarm_looks, np.flatnonzero(self._faults[1]))
        at = decided_at + 1
        while True:
            ahead = alarm_looks[(alarm_looks >= at) & (alarm_looks < self._end)]
            if not len(ahead):
                return None
            look, said = yield int(ahead[0])
            decision = said[self._key]
            if decided.verdict is Verdict.DISABLE and decision.reason_code in AT_ONCE_CODES:
                return None  # nothing watches it any more
            if decision.reason_code in ALARM_CODES or decision.verdict is not decided.verdict:
                if look not in alarm_looks:
                    raise AcceleratorError(f"{self._key}: an alarm at look {look}")
                return look, decision
            at = look + 1

    def _path(self, test: BettingTest) -> LookPath:
        units, lost = self._units_at[test.name], self._lost_at[test.name]
        return path_of(test, self._states[test.name], self._policy, self._level, units, lost)

    def _lost_units(self, test: BettingTest) -> Floats:
        """The lost records in units of a test by each look, or less, [looks]."""
        if not self._units.lost_at.any():
            return np.zeros(len(self._units.lost_at))
        every = HypothesisEvidence(runs=RunTotals().fold(self._units.blocks), counts=SliceCounts(num_lost=1))
        return self._units.lost_at.astype(np.float64) * every.lost_units(test.unit)

    def _has_new_level(self, decision: Decision) -> bool:
        """Whether other hypotheses have passed levels on to this one; its paths then go by the new one."""
        if decision.level is None:
            raise AcceleratorError(f"{self._key}: no level")
        is_new = decision.level != self._level
        if is_new:
            self._level = decision.level
            self._paths = {test.name: self._path(test) for test in self._tests}
            self._faults = _faults_at(self._units, self._policy, self._config, self._level)
        return is_new

    def _has_restarted(self, decision: Decision) -> bool:
        """Whether the decision restarts tests; their paths then do."""
        left = restarted_states(decision)
        restarted = [
            test for test in self._tests if left.get(test.name, self._states[test.name]) != self._states[test.name]
        ]
        for test in restarted:
            self._states[test.name] = left[test.name]
            self._paths[test.name] = self._path(test)
        return bool(restarted)

    def _outcome(self, decision: Decision, alarm: Decision | None, *, was_dependent: bool) -> HypothesisOutcome:
        trial = decision.run
        if trial is None or trial.level is None:
            raise AcceleratorError(f"{self._key}: no level")
        tests = {
            test.name: outcome_of(test, self._from_start[test.name], self._policy, self._first_level)
            for test in self._tests
            if test.series.num_units
        }
        ended_block = None if alarm is None else alarm.num_blocks
        return HypothesisOutcome.of(decision, trial, trial.level, tests, ended_block, was_dependent=was_dependent)


def _units_at(test: BettingTest, seen: _Seen) -> Ints:
    """How many units the test had at each look."""
    if test.unit == "block":
        waiting = len(seen.blocks) - test.series.num_units  # blocks that do not enter this test
        return np.maximum(seen.blocks_at - waiting, 0)
    if test.unit == "request":
        greedy = [sum(measured.is_greedy for measured in unit.runs) for unit in seen.blocks]
        return np.concatenate([[0], np.cumsum(greedy, dtype=np.int64)])[seen.blocks_at]
    if test.series.num_units == len(seen.clusters):
        return seen.clusters_at
    sampled = [any(not measured.is_greedy for measured in unit.runs) for unit in seen.clusters]
    return np.concatenate([[0], np.cumsum(sampled, dtype=np.int64)])[seen.clusters_at]


def _faults_at(units: _Seen, policy: GatePolicy, config: FingerprintedConfig, level: float) -> tuple[Bools, Bools]:
    """At each look: whether enough greedy requests may have shown no fault, and whether a fault, or a block over the
    budget for memory, may have been seen.
    """
    greedy, gaps, over = [0], [0.0], [False]
    known: dict[BlockMemory | None, bool] = {}
    for unit in units.blocks:
        parities = [measured.run.parity for measured in unit.runs if measured.is_greedy]
        greedy.append(len(parities))
        gaps.append(max((parity.divergence_gap or 0.0 for parity in parities if parity is not None), default=0.0))
        memory = unit.block.memory.get(config.fingerprint)
        if memory not in known:
            known[memory] = memory_result(RunTotals().fold([unit]), policy, level).outcome == "fail"
        over.append(known[memory])
    greedy_at = np.cumsum(greedy)[units.blocks_at]
    largest_at = np.maximum.accumulate(gaps)[units.blocks_at]
    is_enough = (greedy_at == 0) | (greedy_at >= min_fault_requests(policy, level))
    is_over = np.logical_or.accumulate(over)[units.blocks_at]
    return is_enough, is_over | (largest_at > policy.near_tie_logit_of(config.dtype))


def _is_long(units: _Seen, policy: GatePolicy) -> Bools:
    """At each look, whether the clusters may span enough event time, and days, for ENABLE."""
    days = np.array([unit.cluster.first_event.timestamp() // DAY_S for unit in units.clusters])
    num_days = np.append(0, (np.diff(np.maximum.accumulate(days), prepend=-1.0) > 0).cumsum())
    wanted = math.ceil(policy.min_span_s / DAY_S)
    first_s = np.minimum.accumulate([unit.cluster.first_event.timestamp() for unit in units.clusters])
    last_s = np.maximum.accumulate([unit.cluster.last_event.timestamp() for unit in units.clusters])
    is_long: Bools = np.append(0.0, last_s - first_s)[units.clusters_at] >= policy.min_span_s - SLACK
    return is_long & (num_days[units.clusters_at] >= wanted)


def _alarm_looks(
    tests: Sequence[BettingTest], policy: GatePolicy, units: _Seen, decided_at: int, detectors: Mapping[str, Detector]
) -> Ints:
    """The looks after a verdict, which came at the look `decided_at`, at which one of its `detectors` may alarm."""
    by_name = {test.name: test for test in tests}
    looks = [np.zeros(0, dtype=np.int64)]
    for watcher in (*WATCHERS, *REOPENING_WATCHERS):
        if watcher.name not in detectors:
            continue
        seen, series = _units_at(by_name[watcher.test_name], units), by_name[watcher.test_name].series
        after = watcher.sums(series.part(int(seen[decided_at]), min(int(seen[-1]), series.num_units)))
        if len(after.values):
            paths = log_statistic_paths(detectors[watcher.name], after.values, after.weights)
            alarms = np.flatnonzero(log_mean(paths) >= math.log(alarm_threshold(policy)) - SLACK)
            looks.append(np.searchsorted(seen, int(seen[decided_at]) + alarms + 1))
    return np.unique(np.concatenate(looks))
