"""A hypothesis's evidence, as a state into which units are folded once and from which they can then be dropped.

Invariant: folding units in any pieces, in their order, leaves the same state as folding all of them at once (up to
rounding), so a look costs only the units since the last one.  The caller that stores a state ensures that each unit
enters it once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from shadowspec.gate.evidence.betting_tests import Totals, score_units
from shadowspec.gate.evidence.guardrails import DOCUMENT, TASK_SCORE
from shadowspec.gate.evidence.quantiles import LatencyHistogram
from shadowspec.gate.evidence.series import BettingTest, TimedBlocks, add_times
from shadowspec.gate.evidence.totals import RunTotals
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit
from shadowspec.gate.evidence.windows import TIMED_UNITS, WindowMemory, Windows, robust_sd
from shadowspec.gate.policy import CLIPPED_MARGINS, DAY_S, GatePolicy
from shadowspec.gate.stats.autocorrelation import BatchSums, Moments
from shadowspec.gate.stats.betting import Floats, Side, UnitSeries
from shadowspec.gate.stats.capital import CapitalTable
from shadowspec.gate.stats.drift import ALL_WATCHERS, Detector
from shadowspec.metrics import ratio
from shadowspec.types import Decision, PairedScore, SliceCounts, TestState

MAX_FIRST_LOGS = 4_096  # log speedups that set the clip


@dataclass(frozen=True, slots=True)
class TestEvidence:
    """The sums of one betting test over its units.

    `waiting` holds the units that are seen but do not count yet: fewer than a group of merged ones.  `totals` are
    over all units, those before a restart included; everything else is over those that count.
    """

    __test__ = False

    state: TestState
    num_seen: int
    num_units: int  # groups of `state.merged_units`
    lower: CapitalTable
    upper: CapitalTable
    observed_value: float
    observed_weight: float
    moments: Moments
    null: float  # at which `moments` are taken
    batches: Mapping[Side, BatchSums]
    waiting: UnitSeries
    num_missing: int
    totals: Totals

    @classmethod
    def empty(cls, test: BettingTest, state: TestState | None = None, thetas: Floats | None = None) -> TestEvidence:
        """The evidence of no units of a test, which counts from `state` on, against the nulls `thetas` (None: all)."""
        series, thetas = test.series, test.thetas if thetas is None else thetas
        described = series.lowest, series.highest, series.upper_worst, series.has_light_extremes
        return cls(
            state=state or TestState(),
            num_seen=0,
            num_units=0,
            lower=CapitalTable.empty("lower", thetas, *described),
            upper=CapitalTable.empty("upper", thetas, *described),
            observed_value=0.0,
            observed_weight=0.0,
            moments=Moments(),
            null=test.nulls[0],
            batches={"lower": BatchSums.empty(), "upper": BatchSums.empty()},
            waiting=series.part(0, 0),
            num_missing=0,
            totals=dict.fromkeys(test.totals, 0),
        )

    @property
    def mean(self) -> float | None:
        """The mean of the observed values."""
        return ratio(self.observed_value, self.observed_weight)

    def fold(self, test: BettingTest) -> TestEvidence:
        """The evidence with the units of `test` added at the end."""
        num_new = test.series.num_units
        not_counted = min(max(self.state.start_unit - self.num_seen, 0), num_new)
        totals = dict(self.totals)
        for name, value in test.totals.items():
            totals[name] = totals.get(name, 0) + value
        seen = replace(
            self, num_seen=self.num_seen + num_new, num_missing=self.num_missing + test.num_missing, totals=totals
        )
        return count_units(seen, test.series.part(not_counted, num_new))

    def with_lost(self, num_units: float) -> TestEvidence:
        """The evidence with `num_lost` units at the worst of each side, for reading bounds where units were lost.

        Groups of merged units take as many of them.
        """
        if not num_units:
            return self
        num_groups = num_units / self.state.merged_units
        return replace(self, lower=self.lower.with_worst(num_groups), upper=self.upper.with_worst(num_groups))

    def restart(self, state: TestState) -> TestEvidence:
        """The evidence restarted at `state`: drops the counted units, and counts the waiting ones from now on.

        Raises:
            ValueError: units that were dropped would have to count again.
        """
        if state.start_unit < self.num_seen - self.waiting.num_units:
            raise ValueError("a test restarts at a unit that has not counted yet")
        first_waiting = self.num_seen - self.waiting.num_units
        begun = replace(
            self,
            state=state,
            num_units=0,
            lower=self.lower.without_units(),
            upper=self.upper.without_units(),
            observed_value=0.0,
            observed_weight=0.0,
            moments=Moments(),
            batches={side: BatchSums.empty() for side in self.batches},
            waiting=self.waiting.part(0, 0),
        )
        return count_units(begun, self.waiting.part(state.start_unit - first_waiting, self.waiting.num_units))


def count_units(evidence: TestEvidence, units: UnitSeries) -> TestEvidence:
    """The evidence in which these units count, whole groups of them; the rest waits."""
    if not units.num_units:
        return evidence
    waiting, group = evidence.waiting, evidence.state.merged_units
    every = waiting.concat(units) if waiting.num_units else units
    whole = every.num_units // group * group
    counted = every.part(0, whole)
    merged = counted.merge(0, group) if group > 1 else counted
    return replace(
        evidence,
        num_units=evidence.num_units + merged.num_units,
        lower=evidence.lower.fold(merged.lower.values, merged.lower.weights),
        upper=evidence.upper.fold(merged.upper.values, merged.upper.weights),
        observed_value=evidence.observed_value + float(merged.observed.values.sum()),
        observed_weight=evidence.observed_weight + float(merged.observed.weights.sum()),
        moments=evidence.moments.fold(merged.dependence_values(evidence.null)),
        batches={
            "lower": evidence.batches["lower"].fold(merged.lower),
            "upper": evidence.batches["upper"].fold(merged.upper),
        },
        waiting=every.part(whole, every.num_units),
    )


class Watcher(Protocol):
    """Folds a test's unit values, in folding order, into a detector that is stored with the hypothesis's evidence."""

    @property
    def name(self) -> str:
        """The key under which its detector is stored."""

    @property
    def test_name(self) -> str:
        """The test whose units it watches."""

    def fold(self, detector: Detector | None, units: UnitSeries) -> Detector | None:
        """The detector after these units; None if it has none (yet)."""


@dataclass(frozen=True, slots=True)
class HypothesisEvidence:
    """The evidence of a hypothesis at one look.

    `counts` are those of its slice.  `num_days` are the UTC days on which measured clusters began, `newest_day` the
    last of them, counted from the epoch.  `mix_lower` is the lower bound of the endpoint's speedup under the current
    mix of its slices, where a policy requires it.
    """

    tests: Mapping[str, TestEvidence] = field(default_factory=dict)
    runs: RunTotals = field(default_factory=RunTotals)
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    detectors: Mapping[str, Detector] = field(default_factory=dict)  # by watcher
    num_clusters: int = 0
    first_event: datetime | None = None  # of the measured clusters
    last_event: datetime | None = None
    num_days: int = 0
    newest_day: int = -1
    counts: SliceCounts = field(default_factory=SliceCounts)
    num_capped_clusters: int = 0  # passed by at `max_clusters`: in no test, and in no later run either
    mix_lower: float | None = None
    newest_event: datetime | None = None  # up to which the endpoint's records are known
    windows: WindowMemory = field(default_factory=WindowMemory)
    clip: float | None = None  # of the log speedup, set by the first windows; None: the policy's
    first_logs: tuple[float, ...] = ()  # log speedups of those windows, until they set it

    def fold(
        self,
        clusters: Sequence[ClusterUnit],
        blocks: Sequence[BlockUnit],
        policy: GatePolicy,
        *,
        states: Mapping[str, TestState] | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> HypothesisEvidence:
        """The evidence with these units added, in their order.

        Clusters beyond `max_clusters` are left out, unless something watches: detectors outlive the question.

        `states` are those from which tests count that have no evidence yet.
        """
        num_given, own_blocks = len(clusters), add_times(blocks)
        begun, windows = self._take_windows(own_blocks, policy)
        in_time = own_blocks if windows is None else windows.blocks
        policy = begun.policy_of(policy)
        if not self.detectors:
            clusters = clusters[: max(policy.max_clusters - self.num_clusters, 0)]
        tests, kept = dict(self.tests), dict(self.detectors)
        past = {name: evidence.totals for name, evidence in tests.items()}
        for test in score_units(clusters, in_time, policy, past, windows=windows):
            before = tests.get(test.name)
            has_no_clip = windows is not None and begun.clip is None and test.name in CLIPPED_MARGINS
            if before is None and not test.series.num_units and (has_no_clip or not any(test.totals.values())):
                continue
            if before is None:
                before = TestEvidence.empty(test, (states or {}).get(test.name))
            tests[test.name] = before.fold(test)
            for watcher in watchers:
                if watcher.test_name == test.name:
                    detector = watcher.fold(kept.get(watcher.name), test.series)
                    if detector is not None:
                        kept[watcher.name] = detector
        num_days, newest_day = self.num_days, self.newest_day
        for unit in clusters:
            day = int(unit.cluster.first_event.timestamp() // DAY_S)
            num_days, newest_day = num_days + (day > newest_day), max(day, newest_day)
        # Clusters enter in the order of their first event.  One that opened before all of them came late: what was
        # backfilled does not lengthen the span.
        first_event = self.first_event or min((unit.cluster.first_event for unit in clusters), default=None)
        ends = [unit.cluster.last_event for unit in clusters] + ([self.last_event] if self.last_event else [])
        return replace(
            begun,
            tests=tests,
            runs=self.runs.fold(own_blocks),
            latencies=self.latencies.fold(in_time),
            detectors=kept,
            num_clusters=self.num_clusters + len(clusters),
            num_capped_clusters=self.num_capped_clusters + num_given - len(clusters),
            first_event=first_event,
            last_event=max(ends, default=None),
            num_days=num_days,
            newest_day=newest_day,
        )

    def pass_by(self, blocks: Sequence[BlockUnit], policy: GatePolicy) -> HypothesisEvidence:
        """The evidence after blocks of an earlier run: they only set the clip and the traffic of a full window."""
        passed = self._take_windows(add_times(blocks), policy)[0]
        return replace(passed, windows=replace(passed.windows, num_late_blocks=0))

    def _take_windows(self, blocks: TimedBlocks, policy: GatePolicy) -> tuple[HypothesisEvidence, Windows | None]:
        """The evidence with the windows of these blocks remembered, and those windows; None where blocks are units."""
        if policy.unit_window is None:
            return self, None
        windows = self.windows.take(blocks, policy.unit_window)
        begun = self if self.clip is not None else self._take_clip(windows, policy)
        return replace(begun, windows=windows.memory), windows

    def policy_of(self, policy: GatePolicy) -> GatePolicy:
        """The policy with the clip that the first windows set."""
        return policy.with_clip(self.clip)

    def _take_clip(self, windows: Windows, policy: GatePolicy) -> HypothesisEvidence:
        """The evidence with its clip, once a window counts; else with the log speedups of the windows before it."""
        logs = (*self.first_logs, *windows.first_logs.tolist())[:MAX_FIRST_LOGS]
        if not (windows.full > 0.0).any():
            return replace(self, first_logs=logs)
        return replace(self, first_logs=(), clip=policy.clip_for(robust_sd(logs) if logs else math.inf))

    def restart(self, states: Mapping[str, TestState]) -> HypothesisEvidence:
        """The evidence with the tests restarted whose state is another than in `states`; itself if none is."""
        restarted = {
            name: test.restart(states[name])
            for name, test in self.tests.items()
            if name in states and states[name] != test.state
        }
        return replace(self, tests={**self.tests, **restarted}) if restarted else self

    def with_documents(
        self, documents: Sequence[PairedScore], policy: GatePolicy, state: TestState | None
    ) -> HypothesisEvidence:
        """The evidence with the documents of task sets, in their order, where the policy sets their margin.

        They are rows of few columns and no units of traffic: each look reads all of them, and none is stored as folded.
        """
        if policy.task_margin is None:
            return self
        (test,) = (test for test in score_units((), (), policy, documents=documents) if test.name == TASK_SCORE)
        return replace(self, tests={**self.tests, TASK_SCORE: TestEvidence.empty(test, state).fold(test)})

    def lost_units(self, unit: str) -> float:
        """The lost requests in units of a test, all at their worst.

        Each would have made one cluster, or one block in which it weighs 1 / n_max.
        """
        if unit == DOCUMENT:
            return 0.0
        return (
            self.counts.num_lost / max(self.runs.max_block_requests, 1)
            if unit in TIMED_UNITS
            else float(self.counts.num_lost)
        )

    def judged_latencies(self) -> LatencyHistogram:
        """The latencies with the lost requests that would have been timed, rounded up to blocks."""
        return self.latencies.with_lost(math.ceil(self.lost_units("block")))

    @property
    def missing_share(self) -> float | None:
        """Failed and shed requests over all that should have been measured."""
        return ratio(self.runs.num_failed + self.counts.num_lost, self.runs.num_requests + self.counts.num_lost)

    @property
    def late_share(self) -> float | None:
        """The larger share of what came too late: records for their cluster in evidence, or blocks for their window."""
        of_records = ratio(self.counts.num_left_out, self.counts.num_members + self.counts.num_left_out)
        shares = [share for share in (of_records, self.late_block_share) if share is not None]
        return max(shares, default=None)

    @property
    def late_block_share(self) -> float | None:
        """Blocks that came after their window had entered, over all blocks; None without blocks."""
        return ratio(self.windows.num_late_blocks, self.runs.num_blocks)

    @property
    def span_s(self) -> float:
        """Event time between the first and the last measured cluster, seconds."""
        if self.first_event is None or self.last_event is None:
            return 0.0
        return (self.last_event - self.first_event).total_seconds()


def fold_in_run(
    evidence: HypothesisEvidence,
    clusters: Sequence[ClusterUnit],
    blocks: Sequence[BlockUnit],
    policy: GatePolicy,
    in_run: Decision | None,
    recorders: Sequence[Watcher] = (),
) -> HypothesisEvidence:
    """The evidence with these units: before the run's verdict without detectors, with them after it.

    `recorders` see all of the units.
    """
    states = restarted_states(in_run) if in_run is not None else {}
    watched = watch_detectors(in_run) if in_run is not None else {}
    if in_run is not None and watched and not evidence.detectors:
        num_blocks, num_clusters = watch_start(in_run)
        head_blocks = max(num_blocks - evidence.runs.num_blocks, 0)
        head_clusters = max(num_clusters - evidence.num_clusters - evidence.num_capped_clusters, 0)
        evidence = evidence.fold(
            clusters[:head_clusters], blocks[:head_blocks], policy, states=states, watchers=recorders
        )
        clusters, blocks = clusters[head_clusters:], blocks[head_blocks:]
        num_passed = evidence.num_clusters + evidence.num_capped_clusters
        if evidence.runs.num_blocks >= num_blocks and num_passed >= num_clusters:
            evidence = replace(evidence, detectors=watched)
    watchers = ALL_WATCHERS if evidence.detectors else ()
    return evidence.fold(clusters, blocks, policy, states=states, watchers=(*watchers, *recorders))


def restarted_states(decision: Decision) -> dict[str, TestState]:
    """From where on each betting test counts after the decision."""
    return {result.name: result.state for result in decision.tests if result.state is not None}


def watch_detectors(decision: Decision) -> dict[str, Detector]:
    """The detectors as they were started at the verdict on which `decision` rests; empty without one."""
    promises = {} if decision.watch is None else decision.watch.promises
    return {name: Detector(promise.promise, promise.best) for name, promise in promises.items()}


def watch_start(decision: Decision) -> tuple[int, int]:
    """Blocks and clusters of the run that had come by at that verdict: the detectors fold those after them."""
    return (0, 0) if decision.watch is None else (decision.watch.num_blocks, decision.watch.num_clusters)
