"""Takes new rows of an endpoint into its evidence: clusters and blocks as they complete, each once, in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from shadowspec.errors import InputError
from shadowspec.gate.evidence.clusters import ClusterProgress, step
from shadowspec.gate.evidence.units import (
    BlockUnit,
    Cluster,
    ClusterUnit,
    MeasuredRun,
    block_units,
    is_greedy,
    is_known,
    key_from,
    take_blocks,
    unthinned,
)
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.fold_spans import membership
from shadowspec.gate.run.gate_store import OpenUnits, Rows, SourcePartition
from shadowspec.gate.run.state import EndpointState, Units, clustering_id
from shadowspec.gate.verdict.trial_levels import HypothesisId, Seen, frozen_policy, hypothesis_id
from shadowspec.types import (
    ARRIVING,
    CachedPrompts,
    Decision,
    FunnelCounter,
    OpenBlock,
    RecordKey,
    Run,
    Span,
    StoredBlock,
    StoredRecord,
    window_start,
)

LOST = frozenset({FunnelCounter.FAILED, FunnelCounter.SHED})
NEVER = datetime(1970, 1, 1, tzinfo=UTC)  # the watermark of who knows of no time


@dataclass(frozen=True, slots=True)
class Completed:
    """The units that a fold's rows completed.  Where keys must be cut (`new_dominant`), the caller discards them."""

    state: EndpointState
    units: Mapping[HypothesisId, Units]
    entered: Mapping[str, Sequence[Cluster]]  # by clustering, measured or not, in folding order
    closed_by: datetime | None
    num_records: int
    num_runs: int
    open_blocks: Mapping[str, OpenBlock] = field(default_factory=dict)  # as they are now
    entered_blocks: Collection[str] = ()  # those that were open before
    new_dominant: bool = False


@dataclass(frozen=True, slots=True)
class FoldRules:
    """The policies of a fold: of each hypothesis, by clustering, and of hypotheses that have not entered."""

    policy: GatePolicy
    by_hypothesis: Mapping[HypothesisId, GatePolicy]
    previous: Mapping[HypothesisId, Decision]  # the latest decisions

    @classmethod
    def under(cls, policy: GatePolicy, decisions: Iterable[Decision]) -> FoldRules:
        """The rules of `policy` given these latest decisions: entered hypotheses keep their frozen parameters."""
        previous = {hypothesis_id(row): row for row in decisions}
        return cls(policy, {key: frozen_policy(policy, row) for key, row in previous.items()}, previous)

    @property
    def clusterings(self) -> dict[str, GatePolicy]:
        """A policy for each clustering."""
        return {clustering_id(policy): policy for policy in (self.policy, *self.by_hypothesis.values())}

    def of(self, key: HypothesisId) -> GatePolicy:
        """The policy of a hypothesis."""
        return self.by_hypothesis.get(key, self.policy)


class Folding:
    """One fold of an endpoint.  Lives as long as the transaction that it reads and writes in."""

    def __init__(self, endpoint: str, rows: Rows, units: OpenUnits, rules: FoldRules) -> None:
        self._endpoint, self._rows, self._units, self._rules = endpoint, rows, units, rules
        self._measured: dict[RecordKey, list[MeasuredRun]] = {}
        # Whether greedy, whether thinned, and the sampling rate.
        self._labels: dict[RecordKey, tuple[bool, bool, float]] = {}
        self._blocks: dict[str, tuple[StoredBlock, int]] = {}
        self._clusterings: dict[HypothesisId, str] = {}

    def complete(
        self,
        state: EndpointState,
        spans: Sequence[Span],
        cursors: Sequence[Span],
        closed_by: datetime | None,
        unfinished: Iterable[SourcePartition] = (),
        finite: Iterable[SourcePartition] = (),
    ) -> Completed:
        """Fold the rows of `spans`: returns the units that they complete.

        Args:
            state: the state after the earlier folds.
            cursors: the offsets that are folded after this fold.
            closed_by: the watermark (None: no record follows).
            unfinished: places with more stored rows than these spans hold; of each, nothing newer than these spans is
                known yet.
            finite: those of them whose records may be in any order; nothing of them is known yet.

        Raises:
            InputError: rows contradict each other.
        """
        # 1. The new rows.
        records, runs = self._rows.records(spans), self._rows.runs(spans)
        closed_by = _known_until(records, unfinished, finite, closed_by)
        self._measured = {record.key: [] for record in records}
        self._labels = _labels(records)
        self._read_blocks({run.block_id for run in runs})
        new = [self._measured_run(run) for run in runs]
        for measured in new:
            self._measured[measured.run.key].append(measured)

        # 2. Clusters that enter, by clustering.
        entered: dict[str, tuple[Cluster, ...]] = {}
        clusterings: dict[str, ClusterProgress] = {}
        for clustering, policy in self._rules.clusterings.items():
            result = step(
                self._units.keys(clustering),
                state.clusterings[clustering],
                records,
                policy,
                closed_by,
                lambda slice_key, until: self._key_counts(slice_key, until, cursors),
            )
            clusterings[clustering], entered[clustering] = result.progress, result.entered
            if result.new_dominant:
                after = replace(state, clusterings={**state.clusterings, **clusterings})
                return Completed(after, {}, entered, closed_by, len(records), len(runs), new_dominant=True)

        # 3. Units by hypothesis.
        clusters = self._cluster_units(entered)
        after = self._state_after(state, clusterings, records, runs)
        times = {record.key: record.event_time for record in records if record.event_time is not None}
        blocks, open_blocks, entered_blocks = self._block_units(new, times, closed_by)
        units = {key: Units(clusters.get(key, ()), blocks.get(key, ())) for key in sorted({*clusters, *blocks})}
        return Completed(after, units, entered, closed_by, len(records), len(runs), open_blocks, entered_blocks)

    def _read_blocks(self, block_ids: Iterable[str]) -> None:
        self._blocks.update(self._rows.blocks(set(block_ids) - self._blocks.keys()))

    def _measured_run(self, run: Run) -> MeasuredRun:
        labels = self._labels.get(run.key)
        if labels is None or run.block_id not in self._blocks:
            raise InputError(
                f"run of {run.key} at endpoint {self._endpoint} has no block, no record or no sampling regime"
            )
        return MeasuredRun(run, *labels)

    def _earlier(self, keys: Iterable[RecordKey]) -> list[MeasuredRun]:
        """The runs of records that earlier folds took in."""
        runs = self._rows.runs_of(sorted(keys))
        missing = sorted({run.key for run in runs} - self._labels.keys())
        self._labels.update(_labels(self._rows.records_of(missing)))
        self._read_blocks({run.block_id for run in runs})
        return [self._measured_run(run) for run in runs]

    def _clustering_of(self, key: HypothesisId) -> str:
        if key not in self._clusterings:
            self._clusterings[key] = clustering_id(self._rules.of(key))
        return self._clusterings[key]

    def _runs_for(self, key: HypothesisId, runs: Sequence[MeasuredRun]) -> tuple[MeasuredRun, ...]:
        """Those of a unit's runs that count for a hypothesis.

        Windows weigh each by its sampling rate.  Blocks do not, so that those of the whole endpoint are thinned.
        """
        has_weights = self._rules.of(key).unit_window is not None
        return tuple(runs) if key[0] or has_weights else unthinned(runs)

    def _key_counts(self, slice_key: str, until: datetime, cursors: Sequence[Span]) -> Counter[str]:
        rows, is_folded = self._rows.key_columns(slice_key, until, ARRIVING), membership(cursors)
        return Counter(key_from(session, user) for place, offset, session, user in rows if is_folded(place, offset))

    def _cluster_units(self, entered: Mapping[str, Sequence[Cluster]]) -> dict[HypothesisId, list[ClusterUnit]]:
        known = self._measured
        earlier = {
            key for clusters in entered.values() for cluster in clusters for key in cluster.members if key not in known
        }
        before: dict[RecordKey, list[MeasuredRun]] = defaultdict(list)
        for measured in self._earlier(earlier):
            before[measured.run.key].append(measured)
        units: dict[HypothesisId, list[ClusterUnit]] = defaultdict(list)
        blocks, nothing = self._blocks, list[MeasuredRun]()
        for clustering, clusters in entered.items():
            concerned: dict[HypothesisId, list[HypothesisId]] = {}  # by slice, load and config
            for cluster in clusters:
                runs_by_hypothesis: dict[HypothesisId, list[MeasuredRun]] = {}
                for key in cluster.members:
                    for measured in known.get(key) or before.get(key, nothing):
                        run = measured.run
                        place = cluster.slice_key, blocks[run.block_id][0].concurrency, run.fingerprint
                        runs_by_hypothesis.setdefault(place, []).append(measured)
                for place, runs in runs_by_hypothesis.items():
                    if place not in concerned:
                        concerned[place] = [
                            hypothesis
                            for hypothesis in {("", *place[1:]), place}
                            if self._clustering_of(hypothesis) == clustering
                        ]
                    for hypothesis in concerned[place]:
                        if counted := self._runs_for(hypothesis, runs):
                            units[hypothesis].append(ClusterUnit(cluster, counted))
        return units

    def _block_units(
        self, measured: Sequence[MeasuredRun], event_times: Mapping[RecordKey, datetime], closed_by: datetime | None
    ) -> tuple[dict[HypothesisId, list[BlockUnit]], Mapping[str, OpenBlock], Collection[str]]:
        """The blocks that enter, in their order; the others as they are now; and which of those known before enter."""
        before = self._units.open_blocks()
        known = {name for name, block in before.items() if is_known(block.newest, closed_by)}
        self._read_blocks(known)
        gone = known - self._blocks.keys()  # a forced removal took their rows
        before = {name: block for name, block in before.items() if name not in gone}
        new = [measured_run.run for measured_run in measured]
        # A window's blocks enter together, once no other can come.
        window = self._rules.policy.unit_window
        if closed_by is not None and window is not None:
            closed_by = window_start(closed_by, window)
        result = take_blocks(before, new, event_times, lambda name: self._blocks[name][1], closed_by)
        ended = result.entered.keys() & before.keys()
        earlier = self._earlier({key for block_id in ended for key in before[block_id].runs})
        by_fingerprint: dict[str, dict[RecordKey, MeasuredRun]] = defaultdict(dict)
        entered: dict[str, StoredBlock] = {}
        for measured_runs, names in ((measured, result.entered.keys()), (earlier, ended)):
            for measured_run in measured_runs:
                run = measured_run.run
                if run.block_id in names:
                    by_fingerprint[run.fingerprint][run.key] = measured_run
                    entered[run.block_id] = self._blocks[run.block_id][0]
        units: dict[HypothesisId, list[BlockUnit]] = defaultdict(list)
        for fingerprint, runs in by_fingerprint.items():
            for unit in block_units(entered.values(), runs, result.entered):
                for slice_key in {"", unit.block.slice_key}:
                    key = slice_key, unit.block.concurrency, fingerprint
                    if counted := self._runs_for(key, unit.runs):
                        units[key].append(replace(unit, runs=counted))
        return units, result.begun, ended | gone

    def _state_after(
        self,
        state: EndpointState,
        clusterings: Mapping[str, ClusterProgress],
        records: Sequence[StoredRecord],
        runs: Sequence[Run],
    ) -> EndpointState:
        slices = Counter(dict(state.slices))
        for (slice_key, is_lost), number in self._endings(records).items():
            slices[slice_key] += number * is_lost
        arrived, beyond = Counter(dict(state.arrived)), Counter(dict(state.beyond))
        for record in records:
            if record.counter in ARRIVING and record.slice_key:
                arrived[record.slice_key] += 1
                beyond[record.slice_key] += (record.session_position or 0) > self._rules.policy.timed_positions
        compared, differing = _prompts_after(state, records, runs)
        events = {record.key: record.event_time for record in records}
        blocks = {(run.fingerprint, run.block_id): self._blocks[run.block_id][0] for run in runs}
        seen = dict(state.seen)
        for run in runs:
            at = self._blocks[run.block_id][0].started_at
            times = Seen(at, at, events[run.key])
            earlier = seen.get(run.fingerprint)
            seen[run.fingerprint] = times if earlier is None else earlier.join(times)
        return replace(
            state,
            slices=dict(slices),
            clusterings={**state.clusterings, **clusterings},
            seen=seen,
            loads=state.loads | {block.concurrency for block in blocks.values()},
            traffic=state.traffic.fold(records, runs, self._rules.policy.mix_window_s),
            num_records=state.num_records + len(records),
            arrived=dict(arrived),
            beyond=dict(beyond),
            compared=compared,
            differing=differing,
            cached=_cached_after(state, records, runs),
        )

    def _endings(self, records: Sequence[StoredRecord]) -> Counter[tuple[str, bool]]:
        """Records by slice, and by whether they were lost without leaving a run."""
        return Counter(
            (record.slice_key, record.counter in LOST and not self._measured[record.key])
            for record in records
            if record.slice_key and record.event_time is not None
        )


def _prompts_after(
    state: EndpointState, records: Sequence[StoredRecord], runs: Sequence[Run]
) -> tuple[Mapping[str, Mapping[str, int]], Mapping[str, Mapping[str, int]]]:
    """The counts of measured prompts that production counted, and of those that it counts otherwise, after these."""
    compared = {fingerprint: Counter(counts) for fingerprint, counts in state.compared.items()}
    differing = {fingerprint: Counter(counts) for fingerprint, counts in state.differing.items()}
    counted = {record.key: record for record in records if record.num_served_tokens is not None and record.slice_key}
    for run in runs:
        if (record := counted.get(run.key)) is not None:
            slice_key = record.slice_key or ""
            compared.setdefault(run.fingerprint, Counter())[slice_key] += 1
            # A server that renders chats itself counts what was measured.
            measured = record.num_prompt_tokens if run.counts is None else run.counts.num_prompt_tokens
            if record.num_served_tokens != measured:
                differing.setdefault(run.fingerprint, Counter())[slice_key] += 1
    plain = [{name: dict(counts) for name, counts in sums.items()} for sums in (compared, differing)]
    return plain[0], plain[1]


def _cached_after(
    state: EndpointState, records: Sequence[StoredRecord], runs: Sequence[Run]
) -> Mapping[str, Mapping[str, CachedPrompts]]:
    """The measured prompts of which production and both arms say how much was cached, after these."""
    cached = {fingerprint: dict(by_slice) for fingerprint, by_slice in state.cached.items()}
    known = {record.key: record for record in records if record.slice_key}
    for run in runs:
        record = known.get(run.key)
        if record is None or (found := CachedPrompts.of(record, run)) is None:
            continue
        by_slice, slice_key = cached.setdefault(run.fingerprint, {}), record.slice_key or ""
        by_slice[slice_key] = by_slice.get(slice_key, CachedPrompts()) + found
    return cached


def _known_until(
    records: Sequence[StoredRecord],
    unfinished: Iterable[SourcePartition],
    finite: Iterable[SourcePartition],
    closed_by: datetime | None,
) -> datetime | None:
    """The watermark where some places are only partly read: at most the newest record read of each, and unknown where
    records may be in any order.
    """
    if frozenset(finite):
        return NEVER
    newest = dict.fromkeys(unfinished, NEVER)
    for record in records:
        place = record.key.source, record.key.partition
        if place in newest and record.event_time is not None:
            newest[place] = max(newest[place], record.event_time)
    known = [*newest.values(), *([] if closed_by is None else [closed_by])]
    return min(known) if known else None


def _labels(records: Iterable[StoredRecord]) -> dict[RecordKey, tuple[bool, bool, float]]:
    return {
        record.key: (is_greedy(record), bool(record.is_thinned), record.sampling_rate or 1.0)
        for record in records
        if "sampling_regime" in record.labels
    }
