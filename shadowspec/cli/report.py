"""`shadowspec report`: the gating report of everything stored, or what changed within a span of time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shadowspec.app.progress_bar import notes
from shadowspec.app.stored_evidence import require_measured
from shadowspec.app.written_reports import ReportFormat, changes_report, span_of, whole_report, written_report
from shadowspec.cli.console import (
    STANDARD_OUTPUT,
    require_folder_of,
    results,
    write_file,
)
from shadowspec.cli.options import ConfigOption
from shadowspec.cli.screen_view import print_screen
from shadowspec.config import find_config, load_config
from shadowspec.reports.report import report_screen, terminal_tables
from shadowspec.store import Store

DEFAULT_OUT, DEFAULT_CHANGES_OUT = Path("report.html"), Path("report-changes.html")


def report(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File to write, - for standard output. Default: report.html or report-changes.html for HTML, else -.",
        ),
    ] = None,
    form: Annotated[ReportFormat, typer.Option("--format", "-f", help="What to write.")] = ReportFormat.HTML,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Report changes from this date or time on (ISO 8601).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End of the changes, exclusive; default: now.")
    ] = None,
    period: Annotated[
        str | None,
        typer.Option(
            "--period",
            metavar="<day|week|JOB>",
            help="Report changes of the last whole day or week, or of a scheduled job's last period.",
        ),
    ] = None,
    config_path: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write the gating report: verdicts, their evidence, latency, acceptance, output equivalence, memory and records.

    With --since or --period it is the report that `schedule` sends: changes in that time, verdicts at its end, and the
    evidence still needed. A date without an offset is in the schedule's time zone.
    """
    require_folder_of(out)
    form = ReportFormat.JSON if as_json else form
    config = load_config(find_config(config_path))
    with Store.open(config.database_url) as store:
        require_measured(store)
        span = span_of(config, store, since, until, period)
        whole = whole_report(config, store) if span is None else None
        text = changes_report(config, store, form, *span) if span is not None else ""
    if whole is not None:
        text = written_report(whole, form)
    if (out is None and form is not ReportFormat.HTML) or str(out) == STANDARD_OUTPUT:
        results.out(text, highlight=False)
        return
    path = out or (DEFAULT_OUT if span is None else DEFAULT_CHANGES_OUT)
    write_file(path, text)
    if whole is not None and form is not ReportFormat.JSON:
        print_screen(report_screen(whole, more=f"More: open {path}."), lambda: terminal_tables(whole))
    notes.print(f"written: {path}", highlight=False)
