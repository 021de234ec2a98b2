"""The report on a span of time as Markdown: what a chat shows, and the plain half of an e-mail."""

from __future__ import annotations

from shadowspec.reports.charts import interval_text
from shadowspec.reports.markdown import table
from shadowspec.reports.period.model import BoardRow, Change, Need, PeriodReport
from shadowspec.reports.period.words import (
    KIND_TITLE,
    before_text,
    days_text,
    ends_text,
    simulated_text,
    tests_text,
    wanted_text,
)
from shadowspec.words import DASH, figure, moment, percent, plural, slice_title, times
from shadowspec.words import markdown_text as _text

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
        "## Undecided, and what it waits for",
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
        *(f"- {_line(change)}" for change in report.changes[:SHORT_CHANGES]),
    ]
    left = len(report.changes) - SHORT_CHANGES
    lines += [f"- and {left:,} more"] if left > 0 else []
    lines += [_gate(report)] if report.has_gate_failed else []
    return "\n".join([*lines, "", f"Report {report.report_id}"]) + "\n"


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
            moment(own.at),
            KIND_TITLE[own.kind],
            _place(own),
            _text(own.what),
            _text(own.why),
            DASH if own.decision_id is None else str(own.decision_id),
        ]
        for own in report.changes
    )
    return table(head, rows) + ("\n\nMore changed than is listed here." if report.has_left_out else "")


def _board(report: PeriodReport) -> str:
    if not report.board:
        return "Nothing had been decided by then."
    head = [
        "Endpoint",
        "Slice",
        "Config, load, measured on",
        "Verdict",
        "Since",
        "Speedup",
        "Acceptance",
        "Evidence",
        "Why",
        "Decision",
    ]
    return table(
        head,
        (
            [
                _text(row.endpoint),
                _text(slice_title(row.slice_key)),
                _text(f"{row.config_name}, {row.concurrency}, {row.engine}")
                + (f"; rollout: {row.stage}" if row.stage else ""),
                _verdict(row),
                moment(row.since),
                _text(interval_text(row.speedup, times)) if row.speedup else DASH,
                _text(interval_text(row.acceptance, percent)) if row.acceptance else DASH,
                plural(row.num_blocks, "block"),
                _text(row.reason),
                DASH if row.decision_id is None else str(row.decision_id),
            ]
            for row in report.board
        ),
    )


def _verdict(row: BoardRow) -> str:
    return f"**{row.verdict.value}**" + (f" (override; measured {row.measured_verdict.value})" * row.is_overridden)


def _needs(report: PeriodReport) -> str:
    if not report.needs:
        return "Nothing is undecided."
    return table(
        ["Where", "Why it is open", "Still wanted", "Open tests", "Decided in", "Ends in"],
        (
            [_place(n), _text(n.reason), wanted_text(n), _text(tests_text(n)), days_text(n), ends_text(n)]
            for n in report.needs
        ),
    )


def _quality(report: PeriodReport) -> str:
    if not report.quality:
        return "No endpoint is configured or measured."
    head = ["Endpoint", "Measured", "Failed", "Last look", "Newest evidence", "Traffic known up to", "Late", "Missing"]
    return table(
        [*head, "False ENABLEs of its policy, simulated"],
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
    ended = ", ".join(
        f"{row.counter.value.replace('_', ' ')} {row.num_records:,}" for row in funnel.rows if row.num_records
    )
    return (
        f"Where all records ended, as counted by {moment(report.generated_at)}: {ended}; {funnel.num_records:,} read."
    )


def _place(own: Change | Need) -> str:
    load = "" if own.concurrency is None else f", load {own.concurrency}"
    config = f", {own.config_name}" if own.config_name else ""
    return _text(f"{own.endpoint}, {slice_title(own.slice_key)}{load}{config}")
