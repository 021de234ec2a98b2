"""The gating report: what was measured and decided at every endpoint.

In: committed rows and the latest decisions.
Out: the report as HTML, Markdown, JSON and terminal tables.
Imports: rollout, planning, gate, servers, store, metrics, text, types, errors.
"""

from shadowspec.reports.report.report_build import build_report
from shadowspec.reports.report.report_document import render_json, report_document
from shadowspec.reports.report.report_html import render_html
from shadowspec.reports.report.report_markdown import render_markdown
from shadowspec.reports.report.report_model import Report
from shadowspec.reports.report.terminal import terminal_tables, verdict_tables

__all__ = [
    "Report",
    "build_report",
    "render_html",
    "render_json",
    "render_markdown",
    "report_document",
    "terminal_tables",
    "verdict_tables",
]
