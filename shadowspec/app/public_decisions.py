"""What `gate`, `demo` and `try` print with `--json`: decisions, in the names that CI and cron rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

from msgspec import UNSET, UnsetType

from shadowspec.app.gate_runs import GateResults
from shadowspec.gate.run.recompute import Explanation
from shadowspec.planning.demand import LoadsPart
from shadowspec.reports.render.json_parts import AuditPart, TestPart
from shadowspec.types import Decision, Rollout, SpeculationConfig, Verdict
from shadowspec.types.public_documents import AtLoad, Labels, PublicDocument, PublicValue, public, shows


class TestDocument(TestPart, frozen=True, kw_only=True):
    """One required test; `num_clusters` is the number of its units."""

    num_clusters: Annotated[int, "num_units"]


class DecisionDocument(PublicValue, frozen=True, kw_only=True):
    """A decision; `current_verdict` is the verdict after overrides, where a gate run prints it."""

    decision_id: int | None
    endpoint: str
    slice: Labels
    load: AtLoad
    speculation_config: Annotated[SpeculationConfig, "config"]
    fingerprint: str
    engine: str
    serving_engine: str | None
    verdict_engine: str
    verdict: Verdict
    reason_code: str
    reason: str
    num_clusters: int
    num_blocks: int
    clusters_needed: int | None
    recording_only: bool
    tests: Sequence[TestDocument]
    decided_at: datetime
    current_verdict: Verdict | UnsetType = UNSET


@shows(Rollout, "decided_at", "num_blocks", "depth_since")
class RolloutDocument(PublicValue, frozen=True, kw_only=True):
    """The rollout of one endpoint at one load."""

    max_num_speculative_tokens: Annotated[Mapping[str, int | None], "depth_caps"]
    waits_for: str | None


class AuditDocument(AuditPart, frozen=True, kw_only=True):
    """The audit of an endpoint's slice and config."""

    endpoint: str


class GateDocument(PublicDocument, frozen=True, kw_only=True):
    """The results of `gate --json`; a dry run has no rollouts and no audits, since nothing of them is stored."""

    decisions: Sequence[DecisionDocument]
    loads: Sequence[LoadsPart]
    rehearsal: bool | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    rollouts: Sequence[RolloutDocument] | UnsetType = UNSET
    audits: Sequence[AuditDocument] | UnsetType = UNSET


@shows(Explanation, "recomputed", "policy")
class ExplanationDocument(PublicValue, frozen=True, kw_only=True):
    """A decision as stored, and every figure that came out otherwise."""

    decision: Annotated[DecisionDocument, "stored"]


class ExplainDocument(PublicDocument, frozen=True, kw_only=True):
    """The recomputation of `gate --explain --json`."""

    explanation: ExplanationDocument


class DemoDocument(PublicDocument, frozen=True, kw_only=True):
    """The results of `demo --json`."""

    decisions: Sequence[DecisionDocument]
    requests_measured: int
    requests_found: int
    report: str
    seconds: float


def public_decision(decision: Decision, current: Verdict | UnsetType = UNSET) -> DecisionDocument:
    """The decision, and its verdict after overrides where it is given."""
    return public(DecisionDocument, decision, current_verdict=current)


def gate_document(run: GateResults, *, dry_run: bool) -> GateDocument:
    """The results of gate runs, made or only rehearsed."""
    audits = [(name, row) for name, rows in run.audits.items() for row in rows]
    return public(
        GateDocument,
        run,
        decisions=[
            public_decision(decision, current.verdict)
            for decision, current in zip(run.decisions, run.current, strict=True)
        ],
        rehearsal=run.is_rehearsal or UNSET,
        dry_run=dry_run or UNSET,
        rollouts=UNSET if dry_run else [public(RolloutDocument, step.rollout, step) for step in run.steps],
        audits=UNSET if dry_run else [AuditDocument.of(row, endpoint=name) for name, row in audits],
    )


def explain_document(explanation: Explanation) -> ExplainDocument:
    """The recomputation of a decision."""
    return ExplainDocument(explanation=public(ExplanationDocument, explanation))
