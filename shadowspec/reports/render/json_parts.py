"""What the JSON documents of reports and gate runs share: values as trees, by the codec.

They differ from the values only where readers rely on other names: a slice is named by its labels, a load by its
concurrency, and a bound at infinity is no bound, hence null.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from shadowspec.reports.figures.funnel import Funnel
from shadowspec.reports.figures.replay_rows import AuditRow
from shadowspec.types import Decision, TestResult, parse_slice_key
from shadowspec.types.codec import decode, encode
from shadowspec.types.decision_documents import TEST_FIELDS, shown_test_details

VERDICT_FIELDS = (
    *("verdict", "reason_code", "reason", "num_clusters", "num_blocks", "clusters_needed", "recording_only"),
    "decided_at",
)


def plain(value: Any) -> Any:
    """The tree of any value, with null for what is not finite."""
    return decode(encode(value), Any)


def fields_of(value: Any, *names: str) -> dict[str, Any]:
    """Those fields and properties."""
    return {name: getattr(value, name) for name in names}


def placed(row: Any, *left_out: str) -> dict[str, Any]:
    """All fields of a row but those left out, with its slice and its load as every document has them."""
    values = {field.name: getattr(row, field.name) for field in fields(row) if field.name not in left_out}
    document: dict[str, Any] = {"slice": parse_slice_key(values.pop("slice_key"))}
    if "concurrency" in values:
        document["load"] = load(values.pop("concurrency"))
    return document | values


def load(concurrency: int | None) -> dict[str, int] | None:
    """A load; None is every load."""
    return None if concurrency is None else {"concurrency": concurrency}


def verdict_document(decision: Decision) -> dict[str, Any]:
    """What a decision says, without where: verdict, reason, evidence in numbers, and its tests."""
    return fields_of(decision, *VERDICT_FIELDS) | {"tests": [test_document(test) for test in decision.tests]}


def test_document(result: TestResult) -> dict[str, Any]:
    """A test's fields, and the details that are shown with it."""
    return fields_of(result, *TEST_FIELDS) | {"details": shown_test_details(result)}


def audit_document(row: AuditRow) -> dict[str, Any]:
    """The audit of loop against replay for one slice and config; its state is folded on, and shown by what it says."""
    state = row.state
    return {
        "slice": parse_slice_key(row.slice_key),
        "config": row.config_name,
        "fingerprint": row.fingerprint,
        **fields_of(state, "num_units", "num_refused", "difference", "log10_threshold", "alarmed_at"),
        "log10_capital": state.log10_peak,
        "level": 2.0 * state.level,
        "is_alarm": state.has_alarmed,
    }


def funnel_document(funnel: Funnel) -> dict[str, Any]:
    """All counters, and the reasons of those that have any."""
    return {
        "num_records": funnel.num_records,
        "counters": {row.counter: row.num_records for row in funnel.rows},
        "reasons": {row.counter: dict(row.reasons) for row in funnel.rows if row.reasons},
    }
