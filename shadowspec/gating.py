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
from shadowspec.gate.levels import assign_levels
from shadowspec.gate.policy import GatePolicy
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
    previous = {hypothesis_id(decision): decision for decision in standing if decision.endpoint == evidence.endpoint}
    slices = sorted({r.slice_key for r in evidence.records if r.slice_key and r.event_time is not None})
    hypotheses = [
        Hypothesis(evidence.endpoint, slice_key, load, configs[fingerprint])
        for slice_key in ("", *slices)
        for load in sorted(loads)
        for fingerprint in sorted(configs)
    ]
    greedy = {record.key: is_greedy(record) for record in evidence.records if "sampling_regime" in record.labels}
    foldings: dict[tuple[float, ...], Folding] = {}
    policies: dict[HypothesisId, GatePolicy] = {}
    for hypothesis in hypotheses:
        own = _frozen_policy(policy, previous.get(_id(hypothesis)))
        policies[_id(hypothesis)] = own
        if own.unit_parameters() not in foldings:
            foldings[own.unit_parameters()] = fold_clusters(evidence.records, own, input_ended=input_ended)

    def folding_of(hypothesis: Hypothesis) -> Folding:
        return foldings[policies[_id(hypothesis)].unit_parameters()]

    entered = [h for h in hypotheses if h.slice_key in folding_of(h).entries]
    entered.sort(key=lambda h: (folding_of(h).entries[h.slice_key].position, *_id(h)))
    held = {key: level for key, d in previous.items() if isinstance(level := d.details.get("level"), float)}
    levels = assign_levels([_id(hypothesis) for hypothesis in entered], held, policy)
    return [
        decide(
            hypothesis,
            hypothesis_evidence(evidence, hypothesis, folding_of(hypothesis), policies[_id(hypothesis)], greedy),
            policies[_id(hypothesis)],
            level=levels.get(_id(hypothesis)),
            has_entered=_id(hypothesis) in levels,
            previous=previous.get(_id(hypothesis)),
            now=now,
        )
        for hypothesis in hypotheses
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
        InputError: a run without its block or record.
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
            raise InputError(f"run of {run.key} at endpoint {evidence.endpoint} has no block or no record")
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
