"""The report on a span of time as one JSON document; an undefined figure is null."""

from __future__ import annotations

from typing import Any, Final

from shadowspec.reports.content.changes import Change
from shadowspec.reports.period.period_model import SCHEMA_VERSION, Need, PeriodReport, PeriodRow
from shadowspec.reports.render.json_trees import fields_of, funnel_document, placed, plain
from shadowspec.types.codec import encode

HEAD_FIELDS: Final = (
    *("report_id", "title", "data_note", "since", "until", "generated_at"),
    *("summary", "gate_outcome", "has_left_out"),
)
INTERVAL_FIELDS: Final = ("estimate", "lower", "upper", "threshold", "num_units", "unit")  # of a test
TESTS: Final = ("speedup", "total_time", "acceptance")  # of a row


def render_period_json(report: PeriodReport) -> str:
    """The whole report; `schema_version` changes when a name or a meaning does."""
    return encode(period_document(report)).decode()


def period_document(report: PeriodReport) -> dict[str, Any]:
    """The report as plain JSON values."""
    tree: dict[str, Any] = plain(
        {
            "schema_version": SCHEMA_VERSION,
            **fields_of(report, *HEAD_FIELDS),
            "verdicts": report.tally,
            "changes": [_change(report, change) for change in report.changes],
            "board": [_row(row) for row in report.board],
            "undecided": [_need(need) for need in report.needs],
            "evidence": report.quality,
            "funnel": funnel_document(report.total_funnel),
        }
    )
    return tree


def _change(report: PeriodReport, change: Change) -> dict[str, Any]:
    url = report.evidence_url(change)
    return placed(change, "who") | ({} if url is None else {"evidence_url": url})


def _row(row: PeriodRow) -> dict[str, Any]:
    """Of its tests the interval alone: the decision has the rest."""
    tests = {name: getattr(row, name) for name in TESTS}
    intervals = {name: test and fields_of(test, *INTERVAL_FIELDS) for name, test in tests.items()}
    return placed(row, *TESTS) | intervals


def _need(need: Need) -> dict[str, Any]:
    needed = need.needed
    return {
        **placed(need, "needed"),
        "clusters_needed": None if needed is None else needed.sessions,
        "seconds_needed": None if needed is None else needed.seconds,
        "open_tests": [
            {"name": name, "unit": unit, "units_needed": units_needed} for name, unit, units_needed in need.open_tests
        ],
    }
