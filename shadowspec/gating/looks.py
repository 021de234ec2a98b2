"""All of an endpoint's rows at once, to decisions or to drawings: what folding them piece by piece comes to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shadowspec.errors import InputError
from shadowspec.gate.composition import composed, group_key
from shadowspec.gate.decision import Hypothesis, restarted_states
from shadowspec.gate.drift import ADVISORY_WATCHERS, WATCHERS
from shadowspec.gate.evidence import HypothesisEvidence, TestState
from shadowspec.gate.levels import FIRST_RUN_SHARE
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import Trial, has_ended, trial_of
from shadowspec.gate.scores import betting_tests
from shadowspec.gate.sequences import SequencePoint, sequence_points
from shadowspec.gate.standing import watch_start, watch_states
from shadowspec.gate.units import (
    BlockUnit,
    ClusterUnit,
    Folding,
    MeasuredRun,
    block_units,
    cluster_units,
    fold_clusters,
    is_greedy,
)
from shadowspec.gating.look import Look
from shadowspec.gating.open_blocks import is_known, newest_events
from shadowspec.gating.traffic import current_traffic
from shadowspec.gating.trials import (
    HypothesisId,
    assign_trials,
    current_configs,
    entered_in_order,
    hypothesis_id,
    seen_fingerprints,
    superseded_rows,
)
from shadowspec.types import (
    Decision,
    FingerprintedConfig,
    FunnelCounter,
    RecordKey,
    Run,
    StoredBlock,
    StoredRecord,
)

LOST = frozenset({FunnelCounter.FAILED, FunnelCounter.SHED})


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


def decide_endpoint(
    evidence: EndpointEvidence,
    policy: GatePolicy,
    configs: Mapping[str, FingerprintedConfig],
    loads: Sequence[int],
    standing: Sequence[Decision],
    *,
    input_ended: bool,
    now: datetime,
) -> list[Decision]:
    """Decisions on every slice and the endpoint as a whole, at each load and with each config.

    `standing` are the endpoint's latest decisions; `input_ended` says that no more records will come, which
    closes every cluster.  The endpoint as a whole comes first, then the slices by name, and last the rows that
    take superseded verdicts out of force.

    Raises:
        InputError: rows contradict each other (a run without its record, a usable record without event time).
    """
    own = [row for row in standing if row.endpoint == evidence.endpoint]
    looks = endpoint_looks(evidence, policy, configs, loads, own, input_ended=input_ended)
    decisions = [look.decided(now) for look in looks]
    previous = {group_key(row): row for row in own if not row.slice_key}
    traffic = current_traffic(evidence.records, evidence.runs, policy, evidence.watermark)
    replaced = superseded_rows({_id(look.hypothesis): look.trial for look in looks}, own, now)
    return [*composed(decisions, previous, traffic, policy), *replaced]


def endpoint_sequences(
    evidence: EndpointEvidence, policy: GatePolicy, decisions: Sequence[Decision], *, input_ended: bool
) -> dict[HypothesisId, dict[str, list[SequencePoint]]]:
    """Estimate and bounds of each betting test after each unit, by hypothesis and test: what a report draws.

    `decisions` are the endpoint's latest; the sequences are recomputed from the same rows.
    """
    own = [decision for decision in decisions if decision.endpoint == evidence.endpoint]
    configs = {
        d.fingerprint: FingerprintedConfig(d.config, str(d.details.get("engine", "")), "", "", {}, d.fingerprint)
        for d in own
    }
    loads = sorted({decision.concurrency for decision in own})
    sequences: dict[HypothesisId, dict[str, list[SequencePoint]]] = {}
    for look in endpoint_looks(evidence, policy, configs, loads, own, input_ended=input_ended, as_decided=True):
        if look.previous is not None:
            states = restarted_states(look.previous)
            level = look.level or look.policy.alpha / look.policy.max_hypotheses * FIRST_RUN_SHARE
            sequences[_id(look.hypothesis)] = {
                test.name: sequence_points(test, states.get(test.name, TestState()), level)
                for test in betting_tests(look.clusters, look.blocks, look.policy)
            }
    return sequences


def endpoint_looks(
    evidence: EndpointEvidence,
    policy: GatePolicy,
    configs: Mapping[str, FingerprintedConfig],
    loads: Sequence[int],
    standing: Sequence[Decision],
    *,
    input_ended: bool,
    as_decided: bool = False,
) -> list[UnitsLook]:
    """Every hypothesis of the endpoint, of the fingerprints that are current, with its evidence and run.

    Arguments as of `decide_endpoint`; `as_decided`: the runs are those that the standing decisions rest on, not
    those that begin after them.
    """
    # 1. The hypotheses, each with its parameters as frozen at its entry.
    rows = [decision for decision in standing if decision.endpoint == evidence.endpoint]
    previous = {hypothesis_id(decision): decision for decision in rows}
    started = {block.block_id: block.started_at for block in evidence.blocks}
    measured = [(run.fingerprint, started[run.block_id]) for run in evidence.runs if run.block_id in started]
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
    for own in policies.values():
        if own.unit_parameters() not in foldings:
            foldings[own.unit_parameters()] = fold_clusters(
                evidence.records, own, input_ended=input_ended, watermark=evidence.watermark
            )
    folding_of = {key: foldings[own.unit_parameters()] for key, own in policies.items()}

    # 3. Runs and their levels, in the order of entry.
    entries = {key: folding_of[key].entries.get(key[0]) for key in hypotheses}
    positions = {key: None if entry is None else entry.position for key, entry in entries.items()}
    trials = assign_trials(entered_in_order(positions, current, rows), current, rows, policy)

    # 4. The units of each; blocks that the watermark has not reached wait.
    newest = newest_events(evidence.runs, evidence.records)
    closed_by = None if input_ended else evidence.watermark
    waiting = {block_id for block_id, at in newest.items() if not is_known(at, closed_by)}
    greedy = {record.key: is_greedy(record) for record in evidence.records if "sampling_regime" in record.labels}
    looks = []
    for key, hypothesis in hypotheses.items():
        own, before = policies[key], previous.get(key)
        trial = trials.get(key)
        if as_decided and before is not None:
            trial = trial_of(before)
        in_run = before if before is not None and (as_decided or not has_ended(before)) else None
        uncapped = replace(own, max_clusters=len(evidence.records) + 1)
        clusters, blocks = hypothesis_units(evidence, hypothesis, folding_of[key], uncapped, greedy, newest, waiting)
        clusters, blocks = _units_of_run(clusters, blocks, trial)
        counted = _slice_counts(evidence, hypothesis.slice_key, folding_of[key])
        if trial is not None:
            counted = replace(counted, num_lost=counted.num_lost - trial.start_lost)
        folded = _folded(counted, clusters, blocks, own, in_run)
        is_watched = in_run is not None and bool(watch_states(in_run))
        shown = clusters if is_watched else clusters[: own.max_clusters]
        looks.append(UnitsLook(hypothesis, folded, own, trial, key in trials, before, shown, blocks))
    return looks


def _units_of_run(
    clusters: tuple[ClusterUnit, ...],
    blocks: tuple[BlockUnit, ...],
    trial: Trial | None,
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
    watched = watch_states(in_run) if in_run is not None else {}
    if in_run is None or not watched:
        return counted.fold(clusters, blocks, policy, states=states)
    num_blocks, num_clusters = watch_start(in_run)
    before = counted.fold(clusters[:num_clusters], blocks[:num_blocks], policy, states=states)
    return replace(before, watchers=watched).fold(
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
    own = {block.block_id for block in blocks}
    runs: dict[RecordKey, MeasuredRun] = {}
    for run in evidence.runs:
        if run.block_id not in all_blocks or run.key not in greedy:
            raise InputError(
                f"run of {run.key} at endpoint {evidence.endpoint} has no block, no record or no sampling regime"
            )
        if run.fingerprint == fingerprint and run.block_id in own:
            runs[run.key] = MeasuredRun(run, greedy[run.key])
    units = cluster_units(folding.of_slice(slice_key), runs, policy.max_clusters)
    return units, block_units([block for block in blocks if block.block_id not in waiting], runs, newest)


def _slice_counts(evidence: EndpointEvidence, slice_key: str, folding: Folding) -> HypothesisEvidence:
    """What is counted of a slice ("" for the whole endpoint) whatever the load and config."""
    measured = {run.key for run in evidence.runs}
    lost = [r for r in evidence.records if r.counter in LOST and slice_key in ("", r.slice_key)]
    return HypothesisEvidence(
        num_closed_clusters=len(folding.of_slice(slice_key)),
        num_members=sum(len(cluster.members) for cluster in folding.of_slice(slice_key)),
        num_lost=sum(record.key not in measured for record in lost),
        num_late=sum(late for name, late in folding.num_late.items() if slice_key in ("", name)),
        num_dominant_keys=sum(keys for name, keys in folding.dominant_keys.items() if slice_key in ("", name)),
        newest_event=evidence.watermark,
    )


def _id(hypothesis: Hypothesis) -> HypothesisId:
    return hypothesis.slice_key, hypothesis.concurrency, hypothesis.config.fingerprint


def frozen_policy(policy: GatePolicy, previous: Decision | None) -> GatePolicy:
    """The policy with a hypothesis's parameters as they were fixed when it entered."""
    stored = previous.details.get("frozen_parameters") if previous else None
    return policy.with_frozen_parameters(stored) if isinstance(stored, str) else policy
