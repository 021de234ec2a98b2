"""The report on a span of time as content: what changed, the verdicts at its end, and what is still open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Final

from shadowspec.gate.verdict.figure_texts import title_of_test
from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.content.charts import verdict_tone
from shadowspec.reports.content.content_blocks import (
    Block,
    Cell,
    Column,
    ContentDocument,
    HeadNumbers,
    Note,
    Section,
    Table,
    table,
)
from shadowspec.reports.content.verdict_lines import acceptance_cell, figure_columns, speedup_cell, verdict_cell
from shadowspec.reports.period.period_document import render_period_json
from shadowspec.reports.period.period_model import Need, PeriodReport, PeriodRow, Quality, SimulatedRate
from shadowspec.reports.render.html import render_html
from shadowspec.reports.render.markdown import render_markdown
from shadowspec.text import DASH, age, figure, markdown_text, moment, number, percent, plural, slice_title

KIND_TITLE: Final = {
    ChangeKind.ALARM: "Alarm",
    ChangeKind.OVERRIDE_SET: "Override",
    ChangeKind.VERDICT: "Verdict",
    ChangeKind.CONFIRMED: "Confirmed off",
    ChangeKind.ALARM_CLEARED: "Alarm over",
    ChangeKind.OVERRIDE_CLEARED: "Override cleared",
    ChangeKind.OVERRIDE_EXPIRED: "Override expired",
    ChangeKind.ROLLOUT: "Rollout",
    ChangeKind.FINGERPRINT: "Config",
    ChangeKind.ADVICE: "Advice",
    ChangeKind.NEW: "New",
}
KIND_TONE: Final = {
    ChangeKind.ALARM: "bad",
    ChangeKind.OVERRIDE_SET: "bad",
    ChangeKind.CONFIRMED: "good",
    ChangeKind.ALARM_CLEARED: "good",
    ChangeKind.OVERRIDE_CLEARED: "good",
    ChangeKind.OVERRIDE_EXPIRED: "warn",
    ChangeKind.FINGERPRINT: "warn",
    ChangeKind.ADVICE: "warn",
}
NOTHING_CHANGED: Final = "Nothing changed: no verdict, alarm, override, rollout stage or config."
SHORT_CHANGES: Final = 12  # that a chat message lists


def period_content(report: PeriodReport) -> ContentDocument:
    """The whole report."""
    numbers = (
        *((str(count), verdict.value, verdict_tone(verdict)) for verdict, count in report.tally.items()),
        (str(report.num_of(ChangeKind.VERDICT)), "verdict changes", ""),
        (str(report.num_of(ChangeKind.ALARM)), "new alarms", ""),
        (str(len(report.needs)), "undecided", ""),
    )
    left_out = [Note("More changed than is listed here.")] if report.has_left_out else []
    return ContentDocument(
        report.title,
        (
            f"{moment(report.since)} to {moment(report.until)}",
            report.summary,
            f"written {moment(report.generated_at)}",
        ),
        (
            Note(report.data_note, look="note"),
            *_gate(report),
            HeadNumbers("In numbers", numbers),
            Section("What changed", (_changes(report), *left_out), "changes"),
            Section(f"Verdicts at {moment(report.until)}", (_board(report),), "board"),
            Section("Undecided, and the evidence still needed", (_needs(report),), "open"),
            Section("Evidence", (_quality(report), *_funnel(report)), "quality"),
        ),
        f"Report {report.report_id}. Bounds in brackets are anytime-valid. No prompt text is stored or shown: figures "
        "come from counts, timings and keyed hashes.",
    )


def _gate(report: PeriodReport) -> Iterator[Block]:
    if report.has_gate_failed:
        why = f"({report.gate_outcome}): verdicts are those of the run before it."
        yield Note(why, "The gate run before this report failed", "note")


def _changes(report: PeriodReport) -> Table:
    columns = Column("When"), Column("What"), Column("Where"), Column("Change"), Column("Why"), Column("Decision", True)
    return table(
        "What changed",
        columns,
        (
            [
                moment(change.at),
                Cell(KIND_TITLE[change.kind], tone=KIND_TONE.get(change.kind, "")),
                _place(change),
                change.what,
                change.why,
                _decision(change.decision_id, report.evidence_url(change)),
            ]
            for change in report.changes
        ),
        empty=NOTHING_CHANGED,
        look="plain",
    )


def _decision(decision_id: int | None, url: str | None = None) -> Cell:
    if url is not None:
        return Cell(str(decision_id) if decision_id else "evidence", link=url)
    return Cell(DASH if decision_id is None else str(decision_id))


def _place(row: Change | Need) -> Cell:
    load = "" if row.concurrency is None else f", load {row.concurrency}"
    config = f", {row.config_name}" if row.config_name else ""
    return Cell(row.endpoint, (f"{slice_title(row.slice_key)}{load}{config}",))


def _board(report: PeriodReport) -> Table:
    columns = (
        Column("Endpoint, slice"),
        Column("Verdict"),
        Column("Since"),
        *figure_columns(row.acceptance for row in report.board),
        Column("Why"),
        Column("Decision", True),
    )
    rows = map(_row, report.board)
    return table("Verdicts", columns, rows, empty="Nothing was decided by then.", look="board")


def _row(row: PeriodRow) -> list[Cell | str]:
    if row.slice_key:
        share = () if row.traffic_share is None else (f"{percent(row.traffic_share)} of the traffic",)
        where = Cell(slice_title(row.slice_key), share, is_part=True)
    else:
        stage = f"; rollout: {row.stage}" if row.stage else ""
        engine = f"latency measured on {row.engine}; for {row.verdict_engine}"
        where = Cell(row.endpoint, (f"{row.config_name}, load {row.concurrency}{stage}", engine))
    verdict = verdict_cell(row.verdict, is_overridden=row.is_overridden)
    measured = (f"measured: {row.measured_verdict.value}",) if row.is_overridden else ()
    return [
        where,
        Cell(verdict.text, measured, verdict.tone, verdict.hover),
        moment(row.since),
        speedup_cell(row.speedup, row.total_time),
        acceptance_cell(row.acceptance),
        Cell(plural(row.num_blocks, "block"), (plural(row.num_clusters, "session"),)),
        row.reason,
        _decision(row.decision_id),
    ]


def _needs(report: PeriodReport) -> Table:
    columns = (
        Column("Where"),
        Column("Reason"),
        Column("Still needed"),
        Column("Decided in (median / 90% of simulated outcomes)"),
        Column("Ends in"),
    )
    rows = (
        (
            _place(need),
            need.reason,
            Cell(DASH if need.needed is None else need.needed.text, _open_tests(need)),
            _days(need),
            _ends(need),
        )
        for need in report.needs
    )
    return table("Undecided", columns, rows, empty="Nothing is undecided.", look="plain")


def _open_tests(need: Need) -> tuple[str, ...]:
    """The open tests, each with the units that it still needs."""
    return tuple(
        f"{title_of_test(name)}: " + ("unknown" if wanted is None else f"about {plural(wanted, unit)}")
        for name, unit, wanted in need.open_tests
    )


def _days(need: Need) -> str:
    """Days until half and 90% of its simulated futures are decided, at the current rate of sessions."""
    return DASH if need.days_median is None else f"{number(need.days_median, 1)} / {number(need.days_late, 1)} days"


def _ends(need: Need) -> str:
    """The shares of the simulated futures that end in either verdict."""
    if need.enable_share is None or need.disable_share is None:
        return DASH
    return f"ENABLE {percent(need.enable_share, 0)}, DISABLE {percent(need.disable_share, 0)}"


def _quality(report: PeriodReport) -> Table:
    columns = (
        Column("Endpoint"),
        Column("Measured in this time", True),
        Column("Failed", True),
        Column("Last gate run"),
        Column("Newest evidence"),
        Column("Traffic complete until"),
        Column("Late", True),
        Column("Never timed", True),
        Column("Missing", True),
        Column("False ENABLEs of its policy, simulated"),
    )
    rows = (_quality_row(quality, report.until) for quality in report.quality)
    return table("Evidence", columns, rows, empty="No endpoint is configured or measured.", look="plain")


def _quality_row(quality: Quality, end: datetime) -> list[Cell | str]:
    held = (f"held back by {quality.watermark_held_by}",) if quality.watermark_held_by else ()
    limit = () if quality.max_missing is None else (f"at most {percent(quality.max_missing)}",)
    return [
        quality.endpoint,
        f"{quality.num_measured:,}",
        f"{quality.num_failed:,}",
        _before(quality.last_look, end),
        _before(quality.newest_evidence, end),
        Cell(_before(quality.watermark, end), held),
        figure(quality.num_late),
        percent(quality.beyond_share),
        Cell(percent(quality.missing_share), limit),
        simulated_text(quality.simulated),
    ]


def _before(value: datetime | None, end: datetime) -> str:
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


def _funnel(report: PeriodReport) -> Iterator[Block]:
    funnel = report.total_funnel
    if not funnel.num_records:
        yield Note("No record has been read.")
        return
    ended = ", ".join(f"{row.title} {row.num_records:,}" for row in funnel.rows if row.num_records)
    when = f"Where all records ended, as counted by {moment(report.generated_at)}:"
    yield Note(f"{ended}; {funnel.num_records:,} read.", when)


def render_period_html(report: PeriodReport) -> str:
    """The whole page, to open and to send anywhere."""
    return render_html(period_content(report))


def render_period_markdown(report: PeriodReport) -> str:
    """The whole report for a chat, or the plain half of an e-mail."""
    return render_markdown(period_content(report))


def render_period_summary(report: PeriodReport) -> str:
    """A few lines for a chat: verdicts in numbers and what changed first; the report itself goes elsewhere."""
    tally = ", ".join(f"{verdict.value} {count}" for verdict, count in report.tally.items())
    lines = [
        f"**{moment(report.since)} to {moment(report.until)}**: {report.summary}. {tally}.",
        *(_change_line(report, change) for change in report.changes[:SHORT_CHANGES]),
    ]
    left = len(report.changes) - SHORT_CHANGES
    lines += [f"- and {left:,} more"] if left > 0 else []
    if report.has_gate_failed:
        lines.append(f"**The gate run before this report failed** ({markdown_text(str(report.gate_outcome))}).")
    return "\n".join([*lines, "", f"Report {report.report_id}"]) + "\n"


def _change_line(report: PeriodReport, change: Change) -> str:
    load = "" if change.concurrency is None else f", load {change.concurrency}"
    where = markdown_text(f"{change.endpoint}, {slice_title(change.slice_key)}{load}")
    url = report.evidence_url(change)
    link = "" if url is None else f" ([evidence]({url}))"
    return f"- **{KIND_TITLE[change.kind]}** {where}: {markdown_text(change.what)}{link}"


RENDERERS: Final[Mapping[str, Callable[[PeriodReport], str]]] = {
    "html": render_period_html,
    "md": render_period_markdown,
    "json": render_period_json,
}
