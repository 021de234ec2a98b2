"""From committed rows to decisions: folds an endpoint's evidence and decides every hypothesis it has.

Pure over rows but for `run_gate`, which reads the store, decides and appends under the endpoint's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from shadowspec.errors import InputError
from shadowspec.gate.decision import Hypothesis, HypothesisEvidence, decide
from shadowspec.gate.levels import FIRST_RUN_SHARE, assign_levels
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.results import TestState, betting_tests
from shadowspec.gate.sequences import SequencePoint, sequence_points
from shadowspec.gate.units import (
    Folding,
    MeasuredRun,
    block_units,
    cluster_units,
    fold_clusters,
    is_greedy,
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

HypothesisId = tuple[str, int, str]  # slice key, concurrency, fingerprint

_LOST = frozenset({FunnelCounter.FAILED, FunnelCounter.SHED})


class EvidenceStore(Protocol):
    """What the gate needs of a store."""

    def records(self, endpoint: str) -> list[StoredRecord]:
        """All records consumed for the endpoint."""

    def blocks(self, endpoint: str) -> list[StoredBlock]:
        """All measured blocks of the endpoint."""

    def runs(self, endpoint: str) -> list[Run]:
        """All runs of the endpoint, failed ones included."""

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        """Every speculation config measured with, by fingerprint."""

    def latest_decisions(self, endpoint: str | None = None) -> list[Decision]:
        """The latest decision of each hypothesis."""

    def append_decisions(self, decisions: list[Decision]) -> None:
        """Append decisions with the figures of every test."""

    def endpoint_lock(self, endpoint: str) -> AbstractContextManager[object]:
        """Held by one gate at a time."""


@dataclass(frozen=True, slots=True)
class EndpointEvidence:
    """The stored rows of one endpoint."""

    endpoint: str
    records: Sequence[StoredRecord]
    blocks: Sequence[StoredBlock]
    runs: Sequence[Run]


@dataclass(frozen=True, slots=True)
class Look:
    """All that one hypothesis is judged on at one look; `policy` has its frozen parameters as at its entry."""

    hypothesis: Hypothesis
    evidence: HypothesisEvidence
    policy: GatePolicy
    level: float | None
    has_entered: bool
    previous: Decision | None


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
    closes every cluster.  The endpoint as a whole comes first, then the slices by name.

    Raises:
        InputError: rows contradict each other (a run without its record, a usable record without event time).
    """
    return [
        decide(
            look.hypothesis,
            look.evidence,
            look.policy,
            level=look.level,
            has_entered=look.has_entered,
            previous=look.previous,
            now=now,
        )
        for look in endpoint_looks(evidence, policy, configs, loads, standing, input_ended=input_ended)
    ]


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
    for look in endpoint_looks(evidence, policy, configs, loads, own, input_ended=input_ended):
        if look.previous is not None:
            states = {result.name: TestState.of(result) for result in look.previous.tests}
            level = look.level or look.policy.alpha / look.policy.max_hypotheses * FIRST_RUN_SHARE
            sequences[_id(look.hypothesis)] = {
                test.name: sequence_points(test, states.get(test.name, TestState()), level)
                for test in betting_tests(look.evidence.clusters, look.evidence.blocks, look.policy)
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
) -> list[Look]:
    """Every hypothesis of the endpoint with its evidence and level; arguments as of `decide_endpoint`."""
    # 1. The hypotheses, each with its parameters as frozen at its entry.
    previous = {hypothesis_id(decision): decision for decision in standing if decision.endpoint == evidence.endpoint}
    slices = sorted({r.slice_key for r in evidence.records if r.slice_key and r.event_time is not None})
    hypotheses = {
        (slice_key, load, fingerprint): Hypothesis(evidence.endpoint, slice_key, load, configs[fingerprint])
        for slice_key in ("", *slices)
        for load in sorted(loads)
        for fingerprint in sorted(configs)
    }
    policies = {key: _frozen_policy(policy, previous.get(key)) for key in hypotheses}

    # 2. Clusters in folding order, once for each way of making them.
    foldings: dict[tuple[float, ...], Folding] = {}
    for own in policies.values():
        if own.unit_parameters() not in foldings:
            foldings[own.unit_parameters()] = fold_clusters(evidence.records, own, input_ended=input_ended)
    folding_of = {key: foldings[own.unit_parameters()] for key, own in policies.items()}

    # 3. Levels in the order of entry.
    entered = [key for key in hypotheses if key[0] in folding_of[key].entries]
    entered.sort(key=lambda key: (folding_of[key].entries[key[0]].position, key))
    held = {key: level for key, d in previous.items() if isinstance(level := d.details.get("level"), float)}
    levels = assign_levels(entered, held, policy)

    # 4. The units of each.
    greedy = {record.key: is_greedy(record) for record in evidence.records if "sampling_regime" in record.labels}
    return [
        Look(
            hypothesis,
            hypothesis_evidence(evidence, hypothesis, folding_of[key], policies[key], greedy),
            policies[key],
            levels.get(key),
            key in levels,
            previous.get(key),
        )
        for key, hypothesis in hypotheses.items()
    ]


def hypothesis_evidence(
    evidence: EndpointEvidence,
    hypothesis: Hypothesis,
    folding: Folding,
    policy: GatePolicy,
    greedy: Mapping[RecordKey, bool],
) -> HypothesisEvidence:
    """The units that a hypothesis rests on.

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
    clusters = folding.of_slice(slice_key)
    measured = {run.key for run in evidence.runs}
    lost = [r for r in evidence.records if r.counter in _LOST and slice_key in ("", r.slice_key)]
    return HypothesisEvidence(
        clusters=cluster_units(clusters, runs, policy.max_clusters),
        blocks=block_units(blocks, runs),
        num_closed_clusters=len(clusters),
        num_lost=sum(record.key not in measured for record in lost),
        num_late=sum(late for name, late in folding.num_late.items() if slice_key in ("", name)),
        num_dominant_keys=sum(keys for name, keys in folding.dominant_keys.items() if slice_key in ("", name)),
    )


def run_gate(
    store: EvidenceStore,
    policy_by_endpoint: Mapping[str, GatePolicy],
    *,
    input_ended: bool,
    loads_by_endpoint: Mapping[str, Sequence[int]] | None = None,
    fingerprints_by_endpoint: Mapping[str, Collection[str]] | None = None,
    now: datetime | None = None,
) -> list[Decision]:
    """Decide every endpoint of `policy_by_endpoint` and append the decisions.

    Without `loads_by_endpoint` and `fingerprints_by_endpoint`, the loads and configs are those measured with.
    Two gates at once see the same evidence: each endpoint is read, decided and appended under its lock.
    """
    decisions: list[Decision] = []
    for endpoint, policy in policy_by_endpoint.items():
        with store.endpoint_lock(endpoint):
            evidence = EndpointEvidence(endpoint, store.records(endpoint), store.blocks(endpoint), store.runs(endpoint))
            known = store.fingerprints()
            wanted: Collection[str] = {run.fingerprint for run in evidence.runs}
            if fingerprints_by_endpoint is not None:
                wanted = fingerprints_by_endpoint.get(endpoint, ())
            loads: Sequence[int] = sorted({block.concurrency for block in evidence.blocks})
            if loads_by_endpoint is not None:
                loads = loads_by_endpoint.get(endpoint, ())
            decided = decide_endpoint(
                evidence,
                policy,
                {fingerprint: known[fingerprint] for fingerprint in wanted},
                loads,
                store.latest_decisions(endpoint),
                input_ended=input_ended,
                now=now or datetime.now(UTC),
            )
            store.append_decisions(decided)
        decisions += decided
    return decisions


def hypothesis_id(decision: Decision) -> HypothesisId:
    """What identifies a decision's hypothesis within its endpoint."""
    return decision.slice_key, decision.concurrency, decision.fingerprint


def _id(hypothesis: Hypothesis) -> HypothesisId:
    return hypothesis.slice_key, hypothesis.concurrency, hypothesis.config.fingerprint


def _frozen_policy(policy: GatePolicy, previous: Decision | None) -> GatePolicy:
    stored = previous.details.get("frozen_parameters") if previous else None
    return policy.with_frozen_parameters(stored) if isinstance(stored, str) else policy
