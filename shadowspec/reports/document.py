"""The report as one JSON document; every name carries its unit, an undefined figure is null."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from shadowspec.reports.model import SCHEMA_VERSION, Funnel, Hypothesis, Report
from shadowspec.types import Decision, parse_slice_key

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def render_json(report: Report) -> str:
    """The whole report; `schema_version` changes when a name or a meaning does."""
    return json.dumps(report_document(report), ensure_ascii=False, allow_nan=False)


def report_document(report: Report) -> dict[str, Json]:
    """The report as plain JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "title": report.title,
        "data_note": report.data_note,
        "generated_at": _plain(report.generated_at),
        "last_measured": _plain(report.last_measured),
        "endpoints": [
            {
                "endpoint": endpoint.name,
                "first_event": _plain(endpoint.first_event),
                "last_event": _plain(endpoint.last_event),
                "first_measured": _plain(endpoint.first_measured),
                "last_measured": _plain(endpoint.last_measured),
                "policy": _plain(endpoint.policy),
                "hypotheses": [_hypothesis(h) for h in endpoint.hypotheses],
            }
            for endpoint in report.endpoints
        ],
        "funnel": _funnel(report.total_funnel),
        "funnel_by_endpoint": [{"endpoint": f.endpoint, **_funnel(f)} for f in report.funnels],
        "speculation_configs": [_plain(config) for config in report.configs],
    }


def _hypothesis(h: Hypothesis) -> dict[str, Json]:
    measured = {
        name: _plain(getattr(h, name))
        for name in (
            "num_requests",
            "num_failed",
            "num_blocks",
            "num_short_blocks",
            "acceptance",
            "latency",
            "parity",
            "memory",
            "num_repetition_loops",
            "repetition_loop_share",
            "sequences",
        )
    }
    return {
        "slice": dict[str, Json](parse_slice_key(h.slice_key)),
        "load": {"concurrency": h.concurrency},
        "config": h.config_name,
        "fingerprint": h.fingerprint,
        "decision": None if h.decision is None else _decision(h.decision),
        **measured,
    }


def _decision(decision: Decision) -> dict[str, Json]:
    return {
        "verdict": decision.verdict.value,
        "reason_code": decision.reason_code,
        "reason": decision.reason,
        "num_clusters": decision.num_clusters,
        "num_blocks": decision.num_blocks,
        "clusters_needed": decision.clusters_needed,
        "tests": [_plain(test) for test in decision.tests],
        "decided_at": _plain(decision.decided_at),
        "details": _plain(decision.details),
    }


def _funnel(funnel: Funnel) -> dict[str, Json]:
    return {
        "num_records": funnel.num_records,
        "counters": {row.counter.value: row.num_records for row in funnel.rows},
        "reasons": {row.counter.value: dict[str, Json](row.reasons) for row in funnel.rows if row.reasons},
    }


def _plain(value: object) -> Json:
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
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"a report holds no {type(value).__name__}")
