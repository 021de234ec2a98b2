"""What `gate`, `demo` and `try` print with `--json`: decisions, in the names that CI and cron rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType

from shadowspec.app.gate_runs import GateResults
from shadowspec.gate.run.recompute import Difference, Explanation
from shadowspec.reports.render.json_trees import audit_document, plain, test_document
from shadowspec.rollout.stages import RolloutStep
from shadowspec.types import Decision, Stage, TestResult, Verdict
from shadowspec.types.public_documents import AtLoad, Labels, PublicDocument, PublicValue, public


class TestDocument(PublicValue, frozen=True, kw_only=True):
    """One required test; `num_clusters` is the number of its units, `details` are figures for people."""

    __test__ = False  # a value, not a pytest class

    name: str
    outcome: str
    estimate: float | None
    lower: float | None
    upper: float | None
    threshold: float | None
    alpha: float
    unit: str
    num_clusters: int
    min_units: int
    units_needed: int | None
    details: Mapping[str, Any]


class DecisionDocument(PublicValue, frozen=True, kw_only=True):
    """A decision; `current_verdict` is the verdict after overrides, where a gate run prints it."""

    decision_id: int | None
    endpoint: str
    slice: Labels
    load: AtLoad
    speculation_config: Mapping[str, Any]
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


class RolloutDocument(PublicValue, frozen=True, kw_only=True):
    """The rollout of one endpoint at one load."""

    endpoint: str
    load: AtLoad
    stage: Stage
    share: float
    fingerprint: str | None
    max_num_speculative_tokens: Mapping[str, int | None]
    since: datetime
    reason_code: str
    reason: str
    alarms: Sequence[str]
    waits_for: str | None


class GateDocument(PublicDocument, frozen=True, kw_only=True):
    """The results of `gate --json`; a dry run has no rollouts and no audits, since nothing of them is stored."""

    decisions: Sequence[DecisionDocument]
    loads: Sequence[Mapping[str, Any]]
    rehearsal: bool | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    rollouts: Sequence[RolloutDocument] | UnsetType = UNSET
    audits: Sequence[Mapping[str, Any]] | UnsetType = UNSET


class ExplanationDocument(PublicValue, frozen=True, kw_only=True):
    """A decision as stored, and every figure that came out otherwise."""

    decision: DecisionDocument
    num_folds: int
    num_records: int
    num_runs: int
    num_figures: int
    differences: Sequence[Difference]


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
    tests, config = list(map(_test, decision.tests)), asdict(decision.config)
    return public(DecisionDocument, decision, speculation_config=config, tests=tests, current_verdict=current)


def _test(test: TestResult) -> TestDocument:
    shown: dict[str, Any] = plain(test_document(test))
    return TestDocument(num_clusters=shown.pop("num_units"), **shown)


def gate_document(run: GateResults, *, dry_run: bool) -> GateDocument:
    """The results of gate runs, made or only rehearsed."""
    return GateDocument(
        decisions=[
            public_decision(decision, current.verdict)
            for decision, current in zip(run.decisions, run.current, strict=True)
        ],
        loads=[loads.document() for loads in run.loads],
        rehearsal=run.is_rehearsal or UNSET,
        dry_run=dry_run or UNSET,
        rollouts=UNSET if dry_run else [_rollout(step) for step in run.steps],
        audits=UNSET
        if dry_run
        else [{"endpoint": name, **audit_document(row)} for name, rows in run.audits.items() for row in rows],
    )


def explain_document(explanation: Explanation) -> ExplainDocument:
    """The recomputation of a decision."""
    return ExplainDocument(
        explanation=public(ExplanationDocument, explanation, decision=public_decision(explanation.stored))
    )


def _rollout(step: RolloutStep) -> RolloutDocument:
    return public(RolloutDocument, step.rollout, step, max_num_speculative_tokens=dict(step.rollout.depth_caps))
