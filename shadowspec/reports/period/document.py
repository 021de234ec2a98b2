"""The report on a span of time as one JSON document; an undefined figure is null."""

from __future__ import annotations

import dataclasses
import json

from shadowspec.reports.document import Json, funnel_document, plain
from shadowspec.reports.period.model import SCHEMA_VERSION, BoardRow, Change, Need, PeriodReport
from shadowspec.types import parse_slice_key


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
        "changes": [_placed(own) for own in report.changes],
        "has_left_out": report.has_left_out,
        "board": [_placed(own) for own in report.board],
        "undecided": [
            _placed(own)
            | {"open_tests": [{"name": n, "unit": u, "units_needed": wanted} for n, u, wanted in own.open_tests]}
            for own in report.needs
        ],
        "evidence": [plain(own) for own in report.quality],
        "funnel": funnel_document(report.total_funnel),
    }


def _placed(own: Change | BoardRow | Need) -> dict[str, Json]:
    """All fields, with slice and load in the shape of every other document."""
    values = {field.name: plain(getattr(own, field.name)) for field in dataclasses.fields(own)}
    values["slice"] = dict[str, Json](parse_slice_key(own.slice_key))
    values["load"] = None if own.concurrency is None else {"concurrency": own.concurrency}
    del values["slice_key"], values["concurrency"]
    return values
