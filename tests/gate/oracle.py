"""The batch gate: an oracle that decides from all of an endpoint's rows at once, written apart from production.

Production takes rows in look by look and keeps sums.  Here everything is read again at every look: clusters are made
of all records, units of all runs, and bounds of whole series.  What both come to must agree.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import fmean, stdev

import numpy as np

from shadowspec.errors import InputError
from shadowspec.gate.evidence.betting_tests import score_units
from shadowspec.gate.evidence.clusters import in_event_order
from shadowspec.gate.evidence.entry import Entry
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, restarted_states, watch_detectors, watch_start
from shadowspec.gate.evidence.series import NUM_DISABLING, BettingTest
from shadowspec.gate.evidence.units import (
    BlockUnit,
    Cluster,
    ClusterUnit,
    MeasuredRun,
    block_units,
    cluster_key,
    clusters_of_key,
    dominant_keys,
    is_greedy,
    is_known,
    own_key,
)
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.endpoint_look import Look
from shadowspec.gate.run.traffic_counts import Traffic, TrafficCounts, traffic_of
from shadowspec.gate.stats import betting
from shadowspec.gate.stats.betting import Side, UnitSeries
from shadowspec.gate.stats.drift import ADVISORY_WATCHERS, WATCHERS
from shadowspec.gate.verdict.composition import compose_endpoint, endpoint_bounds, group_key
from shadowspec.gate.verdict.curves import SequencePoint
from shadowspec.gate.verdict.decision import Hypothesis
from shadowspec.gate.verdict.trial_levels import (
    HypothesisId,
    HypothesisName,
    Seen,
    assign_trials,
    current_configs,
    entered_in_order,
    frozen_policy,
    has_passed,
    hypothesis_id,
    latest_by_name,
    name_of,
    shown_level,
    superseded_rows,
)
from shadowspec.metrics import ratio
from shadowspec.types import (
    ARRIVING,
    CachedPrompts,
    Decision,
    FingerprintedConfig,
    FunnelCounter,
    RecordKey,
    Run,
    SliceCounts,
    StoredBlock,
    StoredRecord,
    TestState,
    Trial,
)
from tests.gate.bretz import Graph, Node

LOST = frozenset({FunnelCounter.FAILED, FunnelCounter.SHED})
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EndpointEvidence:
    """The stored rows of one endpoint.

    `watermark` is the event time up to which every record is among the rows (None: their own newest).
    """

    endpoint: str
    records: Sequence[StoredRecord]
    blocks: Sequence[StoredBlock]
    runs: Sequence[Run]
    watermark: datetime | None = None


@dataclass(frozen=True, slots=True)
class UnitsLook(Look):
    """A look with the units that are folded into its evidence, in their order."""

    clusters: tuple[ClusterUnit, ...]
    blocks: tuple[BlockUnit, ...]


@dataclass(frozen=True, slots=True)
class Folding:
    """An endpoint's clusters that are in evidence, in folding order, and what is not in evidence yet or ever."""

    clusters: tuple[Cluster, ...]
    num_waiting: int  # opened, but they or an earlier one are not closed
    num_late: Mapping[str, int]  # by slice: records up to the watermark, between a key's closing and its reopening
    dominant_keys: Mapping[str, int]  # by slice: keys cut into time blocks
    entries: Mapping[str, Entry]  # by slice; "" is the whole endpoint

    def of_slice(self, slice_key: str) -> tuple[Cluster, ...]:
        """The clusters of a slice ("" for the whole endpoint), in folding order."""
        return tuple(cluster for cluster in self.clusters if slice_key in ("", cluster.slice_key))


def decide_endpoint(
    evidence: EndpointEvidence,
    policy: GatePolicy,
    configs: Mapping[str, FingerprintedConfig],
    loads: Sequence[int],
    latest_decisions: Sequence[Decision],
    *,
    input_ended: bool,
    now: datetime,
) -> list[Decision]:
    """Decisions on every slice and the endpoint as a whole, at each load and with each config.

    `latest_decisions` are the endpoint's latest decisions; `input_ended` says that no more records will come, which
    closes every cluster.  The endpoint as a whole comes first, then the slices by name, and last the rows that
    take superseded verdicts out of force.

    Raises:
        InputError: rows contradict each other (a run without its record, a usable record without event time).
    """
    at_endpoint = [row for row in latest_decisions if row.endpoint == evidence.endpoint]
    traffic = current_traffic(evidence.records, evidence.runs, policy, evidence.watermark)
    looks: list[UnitsLook] = []
    decisions: list[Decision] = []
    passed: set[HypothesisName] = set()
    while True:  # everything again, until nothing new has passed its level on
        again = endpoint_looks(evidence, policy, configs, loads, at_endpoint, input_ended=input_ended, passed=passed)
        is_new = [not looks or look.level != looks[at].level for at, look in enumerate(again)]
        looks = [look if new else looks[at] for at, (look, new) in enumerate(zip(again, is_new, strict=True))]
        every = enumerate(zip(looks, is_new, strict=True))
        slices = [look.decide(now) if new else decisions[at] for at, (look, new) in every if look.hypothesis.slice_key]
        asked = [_with_mix_bound(look, slices, traffic) if policy.require_mix_bound else look for look in looks]
        decisions = [
            look.decide(now) if new else decisions[at] for at, (look, new) in enumerate(zip(asked, is_new, strict=True))
        ]
        if passed == (now_passed := passed | {name_of(each) for each in decisions if has_passed(each)}):
            break
        passed = now_passed
    check_levels([*at_endpoint, *decisions])
    for look, decision in zip(looks, decisions, strict=True):
        check_batches(look, decision)
    previous = {group_key(row): row for row in at_endpoint if not row.slice_key}
    replaced = superseded_rows(
        {_id(look.hypothesis): look.trial for look in looks},
        {hypothesis_id(row): row for row in at_endpoint},
        now,
    )
    return [*compose_endpoint(decisions, previous, traffic, policy), *replaced]


def _with_mix_bound(look: UnitsLook, slices: Sequence[Decision], traffic: Traffic) -> UnitsLook:
    place = look.hypothesis.config.fingerprint, look.hypothesis.concurrency
    own = [each for each in slices if (each.fingerprint, each.concurrency) == place]
    found = endpoint_bounds(own, traffic.get(place[0], {}), look.policy.log_speedup_clip).get("speedup")
    return replace(look, evidence=replace(look.evidence, mix_lower=found.lower if found else None))


def endpoint_sequences(
    evidence: EndpointEvidence, policy: GatePolicy, decisions: Sequence[Decision], *, input_ended: bool
) -> dict[HypothesisId, dict[str, list[SequencePoint]]]:
    """Estimate and bounds of each betting test after each unit, by hypothesis and test: what a report draws.

    `decisions` are the endpoint's latest; the sequences are recomputed from the same rows.
    """
    at_endpoint = [decision for decision in decisions if decision.endpoint == evidence.endpoint]
    configs = {d.fingerprint: FingerprintedConfig(d.config, d.engine, "", "", {}, d.fingerprint) for d in at_endpoint}
    loads = sorted({decision.concurrency for decision in at_endpoint})
    sequences: dict[HypothesisId, dict[str, list[SequencePoint]]] = {}
    for look in endpoint_looks(evidence, policy, configs, loads, at_endpoint, input_ended=input_ended, as_decided=True):
        if look.previous is not None:
            states = restarted_states(look.previous)
            level = shown_level(look.level, look.policy)
            sequences[_id(look.hypothesis)] = {
                test.name: _points(test, states.get(test.name, TestState()), level)
                for test in score_units(look.clusters, look.blocks, look.policy)
                if test.series.num_units
            }
    return sequences


def check_levels(rows: Iterable[Decision]) -> None:
    """The levels of an endpoint's latest decisions are those of the graph; of one hypothesis the last row counts."""
    latest = latest_by_name({name_of(row): row for row in rows if row.run is not None}.values())
    nodes: dict[HypothesisName, Node] = {}
    for name, row in latest.items():
        if row.run is not None and row.run.graph is not None and (row.run.in_slot or not name[0]):
            kind = "slot" if row.run.in_slot else "endpoint"
            nodes[name] = kind, sum(other == kind for other, _ in nodes.values())
    for name, row in latest.items():
        run = row.run
        if run is None or run.graph is None or run.level is None or run.has_passed:
            continue
        num_restarts, graph = run.num_restarts - run.num_before, run.graph
        node = nodes.get(name, ("endpoint", 0))  # a slice that makes up its whole endpoint
        weight = Graph(graph.num_endpoints, graph.num_slots).weights[node]
        reserve = 0.1 - (graph.reused if run.in_slot else 0.0)
        expected = reserve * 6.0 / (math.pi * max(num_restarts, 1)) ** 2 * float(weight)
        if not num_restarts:
            levels = Graph(graph.num_endpoints, graph.num_slots)
            for other, each in latest.items():
                if name in nodes and other in nodes and other != name and has_passed(each):
                    levels.reject(nodes[other])
            expected = 0.9 * float(levels.weights[node])
        assert math.isclose(run.level, expected * graph.alpha, rel_tol=1e-9), (name, run.level, expected * graph.alpha)


def check_batches(look: UnitsLook, decision: Decision) -> None:
    """What each result says of its batches is what the means of batches of all its units say."""
    tests = {test.name: test for test in score_units(look.clusters, look.blocks, look.policy)}
    for result in decision.tests:
        if result.betting is None:
            continue
        test, state = tests[result.name], result.state or TestState()
        series = test.series.merge(state.start_unit, state.merged_units)
        assert series.num_units == result.num_units, result.name
        expected = None
        if result.outcome != "open":
            sides = [(side, theta) for side, theta in test.sides]
            if result.outcome == "fail":
                turned: dict[Side, Side] = {"lower": "upper", "upper": "lower"}
                sides = [(turned[side], theta) for side, theta in sides]
                level = result.alpha / NUM_DISABLING
                paths = [betting.log_capital_path(series.ratios(*each)) for each in sides]
                sides = [each for each, path in zip(sides, paths, strict=True) if path[-1] >= -math.log(level)]
            errors = [naive_errors(series, side, theta) / test.batch_errors for side, theta in sides]
            expected = min(errors) if result.outcome == "pass" else max(errors)
        said = None if result.dependence is None else result.dependence.batch_agreement
        assert (said is None) == (expected is None), (result.name, said, expected)
        if said is not None and expected is not None:
            assert math.isclose(said, expected, rel_tol=1e-6, abs_tol=1e-9), (result.name, said, expected)


def naive_errors(series: UnitSeries, side: Side, theta: float) -> float:
    """By how many standard errors the mean lies beyond `theta`, by the batches that say least; 1e9 without any."""
    sums = series.lower if side == "lower" else series.upper
    sign = 1.0 if side == "lower" else -1.0
    values = [sign * (u - theta * g) for u, g in zip(sums.values.tolist(), sums.weights.tolist(), strict=True)]
    least = 1e9
    for length in (4, 8, 16, 32, 64):
        means = [fmean(values[at : at + length]) for at in range(0, len(values) - length + 1, length)]
        if len(means) >= 4:
            spread = stdev(means)
            sure = 1e9 if fmean(means) > 0.0 else -1e9  # batches that are all alike leave no doubt
            least = min(least, fmean(means) / spread * math.sqrt(len(means)) if spread > 1e-6 else sure)
    return least


def endpoint_looks(
    evidence: EndpointEvidence,
    policy: GatePolicy,
    configs: Mapping[str, FingerprintedConfig],
    loads: Sequence[int],
    latest_decisions: Sequence[Decision],
    *,
    input_ended: bool,
    as_decided: bool = False,
    passed: Collection[HypothesisName] = (),
) -> list[UnitsLook]:
    """Every hypothesis of the endpoint, of the fingerprints that are current, with its evidence and run.

    Arguments as of `decide_endpoint`; `as_decided`: the runs are those that the latest decisions rest on, not
    those that begin after them; `passed` have come to ENABLE at this look.
    """
    # 1. The hypotheses, each with its parameters as frozen at its entry.
    rows = [decision for decision in latest_decisions if decision.endpoint == evidence.endpoint]
    previous = {hypothesis_id(decision): decision for decision in rows}
    started = {block.block_id: block.started_at for block in evidence.blocks}
    times = {record.key: record.event_time for record in evidence.records}
    measured = [
        (run.fingerprint, Seen(started[run.block_id], started[run.block_id], times.get(run.key)))
        for run in evidence.runs
        if run.block_id in started
    ]
    current = current_configs(configs, seen_fingerprints(measured))
    slices = sorted({r.slice_key for r in evidence.records if r.slice_key and r.event_time is not None})
    hypotheses = {
        (slice_key, load, fingerprint): Hypothesis(evidence.endpoint, slice_key, load, current[fingerprint])
        for slice_key in ("", *slices)
        for load in sorted(loads)
        for fingerprint in sorted(current)
    }
    policies = {key: frozen_policy(policy, previous.get(key)) for key in hypotheses}

    # 2. Clusters in folding order, once for each way of making them.
    foldings: dict[tuple[float, ...], Folding] = {}
    for item in policies.values():
        if item.unit_parameters() not in foldings:
            foldings[item.unit_parameters()] = fold_clusters(
                evidence.records, item, input_ended=input_ended, watermark=evidence.watermark
            )
    folding_of = {key: foldings[policy.unit_parameters()] for key, policy in policies.items()}

    # 3. Runs and their levels, in the order of entry.
    entries = {key: folding_of[key].entries.get(key[0]) for key in hypotheses}
    positions = {key: None if entry is None else entry.position for key, entry in entries.items()}
    entered = entered_in_order(positions, current, rows)
    trials = assign_trials(entered, current, rows, policy, len(slices), passed)

    # 4. The units of each; blocks that the watermark has not reached wait.
    newest = newest_events(evidence.runs, evidence.records)
    closed_by = None if input_ended else evidence.watermark
    waiting = {block_id for block_id, at in newest.items() if not is_known(at, closed_by)}
    greedy = {record.key: is_greedy(record) for record in evidence.records if "sampling_regime" in record.labels}
    looks = []
    for key, hypothesis in hypotheses.items():
        gate_policy, before = policies[key], previous.get(key)
        trial = trials.get(key)
        if as_decided and before is not None:
            trial = before.run
        in_run = before if before is not None and (as_decided or not before.ends_run) else None
        uncapped = replace(gate_policy, max_clusters=len(evidence.records) + 1)
        clusters, blocks = hypothesis_units(evidence, hypothesis, folding_of[key], uncapped, greedy, newest, waiting)
        clusters, blocks = _units_of_run(clusters, blocks, trial)
        counted = _slice_counts(
            evidence, hypothesis.slice_key, hypothesis.config.fingerprint, folding_of[key], gate_policy
        )
        if trial is not None:
            num_lost = counted.counts.num_lost - trial.start_lost
            counted = replace(counted, counts=replace(counted.counts, num_lost=num_lost))
        folded = _folded(counted, clusters, blocks, gate_policy, in_run)
        is_watched = in_run is not None and bool(watch_detectors(in_run))
        shown = clusters if is_watched else clusters[: gate_policy.max_clusters]
        looks.append(UnitsLook(hypothesis, folded, gate_policy, trial, key in trials, before, shown, blocks))
    return looks


def _units_of_run(
    clusters: tuple[ClusterUnit, ...], blocks: tuple[BlockUnit, ...], trial: Trial | None
) -> tuple[tuple[ClusterUnit, ...], tuple[BlockUnit, ...]]:
    """The units of one run and of those after it."""
    if trial is not None:
        clusters, blocks = clusters[trial.start_clusters :], blocks[trial.start_blocks :]
    return clusters, blocks


def _folded(
    counted: HypothesisEvidence,
    clusters: tuple[ClusterUnit, ...],
    blocks: tuple[BlockUnit, ...],
    policy: GatePolicy,
    in_run: Decision | None,
) -> HypothesisEvidence:
    """The evidence of a run: what came before its ENABLE, and with its detectors what came after."""
    states = restarted_states(in_run) if in_run is not None else {}
    watched = watch_detectors(in_run) if in_run is not None else {}
    if in_run is None or not watched:
        return counted.fold(clusters, blocks, policy, states=states)
    num_blocks, num_clusters = watch_start(in_run)
    before = counted.fold(clusters[:num_clusters], blocks[:num_blocks], policy, states=states)
    return replace(before, detectors=watched).fold(
        clusters[num_clusters:], blocks[num_blocks:], policy, states=states, watchers=(*WATCHERS, *ADVISORY_WATCHERS)
    )


def hypothesis_units(
    evidence: EndpointEvidence,
    hypothesis: Hypothesis,
    folding: Folding,
    policy: GatePolicy,
    greedy: Mapping[RecordKey, bool],
    newest: Mapping[str, datetime],
    waiting: Collection[str] = (),
) -> tuple[tuple[ClusterUnit, ...], tuple[BlockUnit, ...]]:
    """All units of a hypothesis's fingerprint, of whatever run, in folding order; clusters up to `max_clusters`.

    `newest` are the blocks' newest events, `waiting` the blocks that are no units yet.

    Raises:
        InputError: a run without its block, its record or the record's sampling regime.
    """
    slice_key, fingerprint = hypothesis.slice_key, hypothesis.config.fingerprint
    all_blocks = {block.block_id: block for block in evidence.blocks}
    blocks = [
        block
        for block in evidence.blocks
        if block.concurrency == hypothesis.concurrency and slice_key in ("", block.slice_key)
    ]
    block_ids = {block.block_id for block in blocks}
    is_thinning = not slice_key
    left_out = {record.key for record in evidence.records if is_thinning and record.is_thinned}
    runs: dict[RecordKey, MeasuredRun] = {}
    for run in evidence.runs:
        if run.block_id not in all_blocks or run.key not in greedy:
            raise InputError(
                f"run of {run.key} at endpoint {evidence.endpoint} has no block, no record or no sampling regime"
            )
        if run.fingerprint == fingerprint and run.block_id in block_ids and run.key not in left_out:
            runs[run.key] = MeasuredRun(run, greedy[run.key])
    units = cluster_units(folding.of_slice(slice_key), runs, policy.max_clusters)
    return units, block_units([block for block in blocks if block.block_id not in waiting], runs, newest)


def _slice_counts(
    evidence: EndpointEvidence, slice_key: str, fingerprint: str, folding: Folding, policy: GatePolicy
) -> HypothesisEvidence:
    """What is counted of a slice ("" for the whole endpoint) whatever the load; prompts are a fingerprint's."""
    measured = {run.key for run in evidence.runs}
    arrived = [r for r in evidence.records if r.counter in ARRIVING and r.slice_key and slice_key in ("", r.slice_key)]
    of_fingerprint = {run.key for run in evidence.runs if run.fingerprint == fingerprint}
    compared = [r for r in arrived if r.key in of_fingerprint and r.num_served_tokens is not None]
    lost = [r for r in evidence.records if r.counter in LOST and slice_key in ("", r.slice_key)]
    counts = SliceCounts(
        num_closed_clusters=len(folding.of_slice(slice_key)),
        num_members=sum(len(cluster.members) for cluster in folding.of_slice(slice_key)),
        num_lost=sum(record.key not in measured for record in lost),
        num_late=sum(late for name, late in folding.num_late.items() if slice_key in ("", name)),
        num_dominant_keys=sum(keys for name, keys in folding.dominant_keys.items() if slice_key in ("", name)),
        num_arrived=len(arrived),
        num_beyond=sum((record.session_position or 0) > policy.timed_positions for record in arrived),
        num_compared_prompts=len(compared),
        num_other_prompts=sum(record.num_served_tokens != record.num_prompt_tokens for record in compared),
        cached=_cached(evidence, slice_key, fingerprint),
        recent_share=recent_share(folding.clusters, slice_key) if folding.clusters else None,
    )
    return HypothesisEvidence(counts=counts, newest_event=evidence.watermark)


def _cached(evidence: EndpointEvidence, slice_key: str, fingerprint: str) -> CachedPrompts:
    records = {r.key: r for r in evidence.records if r.slice_key and slice_key in ("", r.slice_key)}
    rows = [
        (run.counts.num_prompt_tokens, records[run.key].num_cached_tokens or 0, *run.served.cached_tokens)
        for run in evidence.runs
        if run.fingerprint == fingerprint
        and run.key in records
        and records[run.key].num_cached_tokens is not None
        and run.counts is not None
        and run.served is not None
        and run.served.cached_tokens is not None
    ]
    columns = list(zip(*((tokens, min(found, tokens), *arms) for tokens, found, *arms in rows), strict=True))
    return CachedPrompts(len(rows), *map(sum, columns)) if rows else CachedPrompts()


def _id(hypothesis: Hypothesis) -> HypothesisId:
    return hypothesis.slice_key, hypothesis.concurrency, hypothesis.config.fingerprint


def fold_clusters(
    records: Iterable[StoredRecord], policy: GatePolicy, *, input_ended: bool, watermark: datetime | None = None
) -> Folding:
    """Clusters of one endpoint's records.

    Unless the input has ended, a cluster is closed if the `watermark` has reached the record that filled it, or is
    past its closing: the event time up to which every record is among `records` (None: the newest of their own).

    A key with more than `dominant_key_share` of its slice's records at the slice's entry, and more records than
    one cluster counts (below that it cannot dominate), is cut into time blocks.

    Raises:
        InputError: a usable record has no event time or no slice.
    """
    timed = in_event_order(records)
    if watermark is None and timed:
        watermark = timed[-1][0]
    closed_by = None if input_ended else watermark or _NEVER
    dominant: frozenset[tuple[str, str]] = frozenset()
    judged: dict[str, Entry] = {}
    folding = _fold(timed, policy, dominant, closed_by)
    while True:
        entries = {**folding.entries, **judged}
        waiting = sorted((entry.position, name) for name, entry in entries.items() if name and name not in judged)
        if not waiting:
            counts = Counter(slice_key for slice_key, _ in dominant)
            return replace(folding, dominant_keys=counts, entries=entries)
        # Slices are judged in the order of their entry; what is cut then changes the order of those after them.
        name = waiting[0][1]
        judged |= {other: entry for other, entry in entries.items() if entry.position <= entries[name].position}
        until = entries[name].at
        held = Counter(own_key(r) for at, r in timed if r.slice_key == name and r.counter in ARRIVING and at <= until)
        cut = dominant_keys(name, held, policy)
        if cut:
            dominant |= cut
            folding = _fold(timed, policy, dominant, closed_by)


def _fold(
    timed: Sequence[tuple[datetime, StoredRecord]],
    policy: GatePolicy,
    dominant: frozenset[tuple[str, str]],
    closed_by: datetime | None,
) -> Folding:
    """`closed_by`: the watermark; None: everything is closed."""
    by_key: dict[tuple[str, str], list[tuple[datetime, RecordKey]]] = defaultdict(list)
    for at, record in timed:
        if record.counter in ARRIVING:
            slice_key = record.slice_key or ""
            is_dominant = (slice_key, own_key(record)) in dominant
            key = cluster_key(record, at, policy, is_dominant=is_dominant)
            by_key[slice_key, key].append((at, record.key))
    opened: list[Cluster] = []
    num_late: Counter[str] = Counter()
    for (slice_key, key), arrivals in by_key.items():
        clusters, late = clusters_of_key(slice_key, key, arrivals, policy)
        opened.extend(clusters)
        num_late[slice_key] += sum(closed_by is None or at <= closed_by for at, _ in late)
    opened.sort(key=lambda cluster: (cluster.first_event, cluster.key, cluster.slice_key))
    entered: list[Cluster] = []
    for cluster in opened:
        if closed_by is not None and not _is_closed(cluster, closed_by):
            break
        entered.append(cluster)
    entries = _entries(entered, policy)
    return Folding(tuple(entered), len(opened) - len(entered), num_late, {}, entries)


def _is_closed(cluster: Cluster, closed_by: datetime) -> bool:
    return cluster.closes_at < closed_by or (cluster.is_full and cluster.closes_at == closed_by)


def _entries(entered: Sequence[Cluster], policy: GatePolicy) -> dict[str, Entry]:
    counts: Counter[str] = Counter()
    entries: dict[str, Entry] = {}
    at: datetime | None = None
    for position, cluster in enumerate(entered):
        at = cluster.closes_at if at is None else max(at, cluster.closes_at)
        for slice_key in ("", cluster.slice_key):
            counts[slice_key] += 1
            if slice_key in entries or counts[slice_key] < policy.entry_clusters:
                continue
            if recent_share(entered[: position + 1], slice_key) >= policy.entry_share:
                entries[slice_key] = Entry(position, at)
    return entries


def recent_share(entered: Sequence[Cluster], slice_key: str) -> float:
    """A slice's share of the requests of the clusters that began on the last seven UTC days."""
    newest = max(cluster.first_event.date() for cluster in entered)
    recent = [cluster for cluster in entered if cluster.first_event.date() > newest - timedelta(days=7)]
    own = [cluster for cluster in recent if slice_key in ("", cluster.slice_key)]
    return sum(len(cluster.members) for cluster in own) / sum(len(cluster.members) for cluster in recent)


def cluster_units(
    clusters: Iterable[Cluster], runs: Mapping[RecordKey, MeasuredRun], max_clusters: int
) -> tuple[ClusterUnit, ...]:
    """The clusters that hold a run of the hypothesis, in folding order, up to `max_clusters`."""
    units = []
    for cluster in clusters:
        found = tuple(runs[key] for key in cluster.members if key in runs)
        if found:
            units.append(ClusterUnit(cluster, found))
            if len(units) == max_clusters:
                break
    return tuple(units)


def newest_events(runs: Iterable[Run], records: Iterable[StoredRecord]) -> dict[str, datetime]:
    """The newest event time of each block's own requests, by id."""
    event_times = {record.key: record.event_time for record in records}
    newest: dict[str, datetime] = {}
    for run in runs:
        at = event_times.get(run.key)
        if at is not None:
            newest[run.block_id] = max(newest.get(run.block_id, at), at)
    return newest


def seen_fingerprints(measured: Iterable[tuple[str, Seen]]) -> dict[str, Seen]:
    """When each fingerprint was first and last measured, of the times of each run."""
    seen: dict[str, Seen] = {}
    for fingerprint, times in measured:
        seen[fingerprint] = seen.get(fingerprint, times).join(times)
    return seen


def current_traffic(
    records: Sequence[StoredRecord], runs: Iterable[Run], policy: GatePolicy, until: datetime | None
) -> Traffic:
    """Requests by slice within `mix_window_s` before `until` (None: the newest record), measured or not."""
    return traffic_of(TrafficCounts().fold(records, runs, policy.mix_window_s), policy, until)


def _points(test: BettingTest, state: TestState, level: float) -> list[SequencePoint]:
    """A point after each unit of one test from `state` on, at the levels at which its result states them."""
    series = test.series.merge(state.start_unit, state.merged_units)
    if not series.num_units:
        return []
    moments = np.arange(1, series.num_units + 1)
    lowers = _bounds(test, series, "lower", level, moments)
    uppers = _bounds(test, series, "upper", level, moments)
    values, weights = series.observed.values.cumsum(), series.observed.weights.cumsum()
    points = []
    for num_units, lower, upper in zip(moments.tolist(), lowers, uppers, strict=True):
        mean = ratio(float(values[num_units - 1]), float(weights[num_units - 1]))
        estimate = None if mean is None else math.exp(mean) if test.is_log else mean
        points.append(SequencePoint(num_units, estimate, test.to_readable(lower), test.to_readable(upper)))
    return points


def _bounds(test: BettingTest, series: UnitSeries, side: Side, level: float, moments: np.ndarray) -> Sequence[float]:
    """The bound of one side after each of `moments` units: the outermost null that still stands, rounded outward."""
    thetas = test.thetas if side == "lower" else test.thetas[::-1]
    num_rejected = np.zeros(len(moments), dtype=np.int64)
    for theta in thetas:
        path = betting.log_capital_path(series.ratios(side, float(theta)))
        num_rejected += path[moments - 1] >= -math.log(level)
    ends = np.concatenate([[series.lowest if side == "lower" else series.highest], thetas])
    bounds: list[float] = ends[num_rejected].tolist()  # the capital is monotone in theta: the rejected come first
    return bounds
