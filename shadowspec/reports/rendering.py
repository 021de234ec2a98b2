"""What the JSON documents of every report share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from shadowspec.reports.figures.funnel import Funnel
from shadowspec.reports.figures.replay_rows import AuditRow, ReplayRow
from shadowspec.types import Decision, TestResult, parse_slice_key
from shadowspec.types.decision_documents import TEST_FIELDS, shown_test_details

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def plain(value: object) -> Json:
    """Values of the report as JSON knows them; a bound at infinity is no bound, hence null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"a report holds no {type(value).__name__}")


def verdict_document(decision: Decision) -> dict[str, Json]:
    """What a decision says, without where: verdict, reason, evidence in numbers, and its tests."""
    return {
        "verdict": decision.verdict.value,
        "reason_code": decision.reason_code,
        "reason": decision.reason,
        "num_clusters": decision.num_clusters,
        "num_blocks": decision.num_blocks,
        "clusters_needed": decision.clusters_needed,
        "recording_only": decision.recording_only,
        "tests": [test_document(test) for test in decision.tests],
        "decided_at": plain(decision.decided_at),
    }


def decision_document(decision: Decision) -> dict[str, Json]:
    """A decision as the JSON document that CI and cron rely on; the names carry the units."""

    def with_clusters(test: dict[str, Json]) -> dict[str, Json]:
        return {"num_clusters" if name == "num_units" else name: value for name, value in test.items()}

    return {
        "decision_id": decision.decision_id,
        "endpoint": decision.endpoint,
        "slice": plain(decision.slice_labels),
        "load": {"concurrency": decision.concurrency},
        "speculation_config": plain(dataclasses.asdict(decision.config)),
        "fingerprint": decision.fingerprint,
        "engine": decision.engine,
        "serving_engine": decision.serving_engine,
        "verdict_engine": decision.verdict_engine,
        **verdict_document(decision),
        "tests": [with_clusters(test_document(test)) for test in decision.tests],
    }


def test_document(result: TestResult) -> dict[str, Json]:
    """A test's fields, and the details that are shown with it."""
    return {name: plain(getattr(result, name)) for name in TEST_FIELDS} | {"details": plain(shown_test_details(result))}


def replay_document(row: ReplayRow) -> dict[str, Json]:
    """Replay's figures of one slice, way of drafting and K, and the loop's beside them."""
    return {
        "source": "replay",
        "slice": dict[str, Json](parse_slice_key(row.slice_key)),
        "config": row.config_name,
        "verify_rule": row.verify_rule,
        "num_speculative_tokens": row.num_speculative_tokens,
        "fingerprint": row.fingerprint,
        "num_requests": row.num_requests,
        "mean_acceptance_length": row.mean_acceptance_length,
        "first_position_acceptance_rate": row.first_position_acceptance_rate,
        "draft_acceptance_rate": row.draft_acceptance_rate,
        "loop_num_requests": row.loop_num_requests,
        "loop_mean_acceptance_length": row.loop_mean_acceptance_length,
    }


def audit_document(row: AuditRow) -> dict[str, Json]:
    """The audit of loop against replay for one slice and config."""
    state = row.state
    return {
        "slice": dict[str, Json](parse_slice_key(row.slice_key)),
        "config": row.config_name,
        "fingerprint": row.fingerprint,
        "num_units": state.num_units,
        "num_refused": state.num_refused,
        "difference": state.difference,
        "log10_capital": state.log10_peak,
        "log10_threshold": state.log10_threshold,
        "level": 2.0 * state.level,
        "is_alarm": state.has_alarmed,
        "alarmed_at": plain(state.alarmed_at),
    }


def funnel_document(funnel: Funnel) -> dict[str, Json]:
    """All counters, and the reasons of those that have any."""
    return {
        "num_records": funnel.num_records,
        "counters": {row.counter.value: row.num_records for row in funnel.rows},
        "reasons": {row.counter.value: dict[str, Json](row.reasons) for row in funnel.rows if row.reasons},
    }
