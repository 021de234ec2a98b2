"""The report on a span of time as HTML, Markdown (a chat, the plain half of an e-mail) and JSON.

The HTML is one self-contained file: no network, no script, every value escaped.  In JSON an undefined figure is null.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from shadowspec import text as words
from shadowspec.reports.definitions import acceptance_title, interval_text, title_of_test, total_time_text
from shadowspec.reports.period.period_model import SCHEMA_VERSION, Need, PeriodReport, PeriodRow, SimulatedRate
from shadowspec.reports.rendering import Json, funnel_document, markdown_table, plain
from shadowspec.reports.report.report_html import template_environment
from shadowspec.reports.shared_values import Change, ChangeKind
from shadowspec.text import DASH, age, figure, moment, number, percent, plural, slice_title, times
from shadowspec.text import markdown_text as _text
from shadowspec.types import parse_slice_key

KIND_TITLE = {
    ChangeKind.ALARM: "Alarm",
    ChangeKind.OVERRIDE_SET: "Override",
    ChangeKind.VERDICT: "Verdict",
    ChangeKind.ALARM_CLEARED: "Alarm over",
    ChangeKind.OVERRIDE_CLEARED: "Override cleared",
    ChangeKind.OVERRIDE_EXPIRED: "Override expired",
    ChangeKind.ROLLOUT: "Rollout",
    ChangeKind.FINGERPRINT: "Config",
    ChangeKind.ADVICE: "Advice",
    ChangeKind.NEW: "New",
}
INTERVAL_FIELDS = ("estimate", "lower", "upper", "threshold", "num_units", "unit")  # of a test, in JSON


def wanted_text(need: Need) -> str:
    """The evidence still needed, in sessions and time."""
    return DASH if need.needed is None else need.needed.text


def tests_text(need: Need) -> str:
    """The open tests, each with the units that it still needs."""
    return ", ".join(
        f"{title_of_test(name)}: " + ("unknown" if wanted is None else f"about {plural(wanted, unit)}")
        for name, unit, wanted in need.open_tests
    )


def days_text(need: Need) -> str:
    """Days until half and 90% of its simulated futures are decided, at the current rate of sessions."""
    if need.days_median is None:
        return DASH
    late = DASH if need.days_late is None else f"{number(need.days_late, 1)}"
    return f"{number(need.days_median, 1)} / {late} days"


def ends_text(need: Need) -> str:
    """The shares of the simulated futures that end in either verdict."""
    if need.enable_share is None or need.disable_share is None:
        return DASH
    return f"ENABLE {percent(need.enable_share, 0)}, DISABLE {percent(need.disable_share, 0)}"


def before_text(value: datetime | None, end: datetime) -> str:
    """A moment, and how long before the end it was."""
    return DASH if value is None else f"{moment(value)} ({age(end - value)} before)"


def simulated_text(rate: SimulatedRate | None) -> str:
    """The simulated rate of false ENABLEs against what the policy promises."""
    if rate is None:
        return "not simulated"
    outdated = f"; {plural(rate.num_outdated, 'world')} changed since" if rate.num_outdated else ""
    return (
        f"{rate.num_false:,} of {rate.num_repetitions:,} in {plural(rate.num_worlds, 'world')} "
        f"(at most {percent(rate.upper, 2)}; promised {percent(rate.alpha, 0)}); worst {percent(rate.worst_rate)}: "
        f"{rate.worst_world}{outdated}"
    )


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


def render_period_html(report: PeriodReport) -> str:
    """The whole page.  Safe to open and to send anywhere: it loads nothing and holds no prompt text."""
    environment = template_environment(
        {
            **{f.__name__: f for f in (words.times, words.percent, words.moment, words.plural, words.figure)},
            **{
                f.__name__: f
                for f in (words.slice_title, interval_text, wanted_text, tests_text, acceptance_title, total_time_text)
            },
            **{f.__name__: f for f in (days_text, ends_text, before_text)},
            "simulated_text": simulated_text,
            "kind_title": KIND_TITLE,
        }
    )
    return environment.get_template("period.html.j2").render(report=report, gate_failed=report.has_gate_failed)


SHORT_CHANGES = 12  # that a chat message lists


def render_period_markdown(report: PeriodReport) -> str:
    """GitHub-flavoured Markdown; text from traffic is escaped, so that it can neither link nor mark up."""
    parts = [
        f"# {_text(report.title)}",
        f"{moment(report.since)} to {moment(report.until)}: {report.summary}. Written {moment(report.generated_at)}.",
        f"> {_text(report.data_note)}",
        _gate(report),
        "## What changed",
        _changes(report),
        f"## Verdicts at {moment(report.until)}",
        _board(report),
        "## Undecided, and the evidence still needed",
        _needs(report),
        "## Evidence",
        _quality(report),
        _funnel(report),
        f"Report {report.report_id}. Bounds in brackets are anytime-valid.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_period_summary(report: PeriodReport) -> str:
    """A few lines for a chat: verdicts in numbers and what changed first; the report itself goes elsewhere."""
    tally = ", ".join(f"{verdict.value} {number}" for verdict, number in report.tally.items())
    lines = [
        f"**{moment(report.since)} to {moment(report.until)}**: {report.summary}. {tally}.",
        *(f"- {_line(change)}{_link(report, change)}" for change in report.changes[:SHORT_CHANGES]),
    ]
    left = len(report.changes) - SHORT_CHANGES
    lines += [f"- and {left:,} more"] if left > 0 else []
    lines += [_gate(report)] if report.has_gate_failed else []
    return "\n".join([*lines, "", f"Report {report.report_id}"]) + "\n"


def _link(report: PeriodReport, change: Change) -> str:
    url = report.evidence_url(change)
    return "" if url is None else f" ([evidence]({url}))"


def _gate(report: PeriodReport) -> str:
    if not report.has_gate_failed:
        return ""
    return f"**The gate run before this report failed** ({_text(str(report.gate_outcome))})."


def _line(change: Change) -> str:
    where = f"{change.endpoint}, {slice_title(change.slice_key)}"
    load = "" if change.concurrency is None else f", load {change.concurrency}"
    return f"**{KIND_TITLE[change.kind]}** {_text(where + load)}: {_text(change.what)}"


def _changes(report: PeriodReport) -> str:
    if not report.changes:
        return "Nothing changed: no verdict, alarm, override, rollout stage or config."
    head = ["When", "What", "Where", "Change", "Why", "Decision"]
    rows = (
        [
            moment(change.at),
            KIND_TITLE[change.kind],
            _place(change),
            _text(change.what),
            _text(change.why),
            _decision(report, change),
        ]
        for change in report.changes
    )
    return markdown_table(head, rows) + ("\n\nMore changed than is listed here." if report.has_left_out else "")


def _decision(report: PeriodReport, change: Change) -> str:
    number = DASH if change.decision_id is None else str(change.decision_id)
    url = report.evidence_url(change)
    return number if url is None else f"[{number if change.decision_id else 'evidence'}]({url})"


def _board(report: PeriodReport) -> str:
    if not report.board:
        return "Nothing was decided by then."
    head = [
        "Endpoint",
        "Slice",
        "Config, load, measured on",
        "Verdict",
        "Since",
        "Speedup, geometric mean",
        "Total times",
        acceptance_title(row.acceptance for row in report.board),
        "Evidence",
        "Why",
        "Decision",
    ]
    return markdown_table(
        head,
        (
            [
                _text(row.endpoint),
                _text(slice_title(row.slice_key)),
                _text(f"{row.config_name}, {row.concurrency}, {row.engine}, for {row.verdict_engine}")
                + (f"; rollout: {row.stage}" if row.stage else ""),
                _verdict(row),
                moment(row.since),
                _text(interval_text(row.speedup, times)) if row.speedup else DASH,
                total_time_text(row.total_time),
                _text(interval_text(row.acceptance, percent)) if row.acceptance else DASH,
                plural(row.num_blocks, "block"),
                _text(row.reason),
                DASH if row.decision_id is None else str(row.decision_id),
            ]
            for row in report.board
        ),
    )


def _verdict(row: PeriodRow) -> str:
    return f"**{row.verdict.value}**" + (f" (override; measured {row.measured_verdict.value})" * row.is_overridden)


def _needs(report: PeriodReport) -> str:
    if not report.needs:
        return "Nothing is undecided."
    return markdown_table(
        ["Where", "Reason", "Still needed", "Open tests", "Decided in (median / 90% of simulated outcomes)", "Ends in"],
        (
            [_place(n), _text(n.reason), wanted_text(n), _text(tests_text(n)), days_text(n), ends_text(n)]
            for n in report.needs
        ),
    )


def _quality(report: PeriodReport) -> str:
    if not report.quality:
        return "No endpoint is configured or measured."
    head = ["Endpoint", "Measured", "Failed", "Last gate run", "Newest evidence", "Traffic complete until", "Late"]
    return markdown_table(
        [*head, "Never timed", "Missing", "False ENABLEs of its policy, simulated"],
        (
            [
                _text(q.endpoint),
                f"{q.num_measured:,}",
                f"{q.num_failed:,}",
                before_text(q.last_look, report.until),
                before_text(q.newest_evidence, report.until),
                before_text(q.watermark, report.until)
                + (f"; held back by {_text(q.watermark_held_by)}" if q.watermark_held_by else ""),
                figure(q.num_late),
                percent(q.beyond_share),
                percent(q.missing_share),
                _text(simulated_text(q.simulated)),
            ]
            for q in report.quality
        ),
    )


def _funnel(report: PeriodReport) -> str:
    funnel = report.total_funnel
    if not funnel.num_records:
        return "No record has been read."
    ended = ", ".join(f"{row.title} {row.num_records:,}" for row in funnel.rows if row.num_records)
    return (
        f"Where all records ended, as counted by {moment(report.generated_at)}: {ended}; {funnel.num_records:,} read."
    )


def _place(row: Change | Need) -> str:
    load = "" if row.concurrency is None else f", load {row.concurrency}"
    config = f", {row.config_name}" if row.config_name else ""
    return _text(f"{row.endpoint}, {slice_title(row.slice_key)}{load}{config}")


RENDERERS: Final[Mapping[str, Callable[[PeriodReport], str]]] = {
    "html": render_period_html,
    "md": render_period_markdown,
    "json": render_period_json,
}
