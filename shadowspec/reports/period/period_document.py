"""The report on a span of time as one JSON document; an undefined figure is null."""

from __future__ import annotations

import dataclasses
import json
from typing import Final

from shadowspec.reports.content.changes import Change
from shadowspec.reports.period.period_model import SCHEMA_VERSION, Need, PeriodReport, PeriodRow
from shadowspec.reports.rendering import Json, funnel_document, plain
from shadowspec.types import parse_slice_key

INTERVAL_FIELDS: Final = ("estimate", "lower", "upper", "threshold", "num_units", "unit")  # of a test


def render_period_json(report: PeriodReport) -> str:
    """The whole report; `schema_version` changes when a name or a meaning does."""
    return json.dumps(period_document(report), ensure_ascii=False, allow_nan=False)


def period_document(report: PeriodReport) -> dict[str, Json]:
    """The report as plain JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "report_id": report.report_id,
        "title": report.title,
        "data_note": report.data_note,
        "since": plain(report.since),
        "until": plain(report.until),
        "generated_at": plain(report.generated_at),
        "summary": report.summary,
        "gate_outcome": report.gate_outcome,
        "verdicts": {verdict.value: number for verdict, number in report.tally.items()},
        "changes": [_change_document(report, change) for change in report.changes],
        "has_left_out": report.has_left_out,
        "board": [_row_document(row) for row in report.board],
        "undecided": [
            _row_document(need)
            | {
                "clusters_needed": None if need.needed is None else need.needed.sessions,
                "seconds_needed": None if need.needed is None else need.needed.seconds,
            }
            | {"open_tests": [{"name": n, "unit": u, "units_needed": wanted} for n, u, wanted in need.open_tests]}
            for need in report.needs
        ],
        "evidence": [plain(quality) for quality in report.quality],
        "funnel": funnel_document(report.total_funnel),
    }


def _change_document(report: PeriodReport, change: Change) -> dict[str, Json]:
    url = report.evidence_url(change)
    return _row_document(change) | ({} if url is None else {"evidence_url": url})


def _row_document(row: Change | PeriodRow | Need) -> dict[str, Json]:
    """All fields, with slice and load in the shape of every other document."""
    values = {field.name: plain(getattr(row, field.name)) for field in dataclasses.fields(row)}
    for name in ("speedup", "total_time", "acceptance"):
        if (test := getattr(row, name, None)) is not None:
            values[name] = {field: plain(getattr(test, field)) for field in INTERVAL_FIELDS}
    values.pop("who", None)
    values.pop("needed", None)
    values["slice"] = dict[str, Json](parse_slice_key(row.slice_key))
    values["load"] = None if row.concurrency is None else {"concurrency": row.concurrency}
    del values["slice_key"], values["concurrency"]
    return values
