"""The answer as one JSON document; names carry their units, an undefined figure is null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shadowspec.rollout.check.answer import Answer, Finding, LoadFinding
from shadowspec.rollout.check.outcome import OnHold, exit_code
from shadowspec.types import parse_slice_key


def answer_document(answer: Answer, on_hold: OnHold) -> dict[str, Any]:
    """The document without its `schema_version`."""
    question = answer.question
    return {
        "endpoint": question.endpoint,
        "slice": dict(question.slice_labels),
        "load": None if question.concurrency is None else {"concurrency": question.concurrency},
        "outcome": answer.outcome.value,
        "exit_code": exit_code(answer.outcome, on_hold),
        "on_hold": on_hold.value,
        "config": answer.config_name,
        "fingerprints": list(answer.fingerprints),
        "engines": list(answer.engines),
        "serving_engine": answer.serving_engine,
        "verdict_engine": None if answer.config_name is None else answer.verdict_engine,
        "other_candidates": [{"config": name, "outcome": outcome.value} for name, outcome in answer.others],
        "remarks": list(answer.remarks),
        "accepts_schedule": question.accepts_schedule,
        "schedule_limit": answer.schedule_limit,
        "loads": None if answer.loads is None else answer.loads.document(),
        "findings": [_finding(finding) for finding in answer.findings],
        "checked_at": answer.checked_at.isoformat(),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "slice": parse_slice_key(finding.slice_key),
        "outcome": finding.outcome.value,
        "role": finding.role.value,
        "is_blocking": finding.is_blocking,
        "reason": finding.reason,
        "override_id": finding.override_id,
        "on_up_to": finding.on_up_to,
        "traffic_share": finding.traffic_share,
        "speedup": None if finding.speedup is None else asdict(finding.speedup),
        "since": None if finding.since is None else finding.since.isoformat(),
        "evidence_age_s": None if finding.age is None else finding.age.total_seconds(),
        "loads": [_load(load) for load in finding.loads],
    }


def _load(load: LoadFinding) -> dict[str, Any]:
    decision = load.decision
    return {
        "concurrency": load.concurrency,
        "share": load.share,
        "outcome": load.outcome.value,
        "problem": load.problem,
        "decision_id": None if decision is None else decision.decision_id,
        "verdict": None if decision is None else decision.verdict.value,
        "reason_code": None if decision is None else decision.reason_code,
        "reason": None if decision is None else decision.reason,
        "fingerprint": None if decision is None else decision.fingerprint,
        "engine": None if decision is None else decision.engine,
        "clusters_needed": None if decision is None else decision.clusters_needed,
        "decided_at": None if decision is None else decision.decided_at.isoformat(),
        "evidence_age_s": None if load.age is None else load.age.total_seconds(),
    }
