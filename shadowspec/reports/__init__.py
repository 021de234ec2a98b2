"""Gating reports: build the values once, then write them as HTML, Markdown, JSON or tables for a terminal."""

from shadowspec.reports.build import build_report
from shadowspec.reports.document import render_json, report_document
from shadowspec.reports.html import render_html
from shadowspec.reports.markdown import render_markdown
from shadowspec.reports.model import Report
from shadowspec.reports.source import ReportSource
from shadowspec.reports.terminal import terminal_tables, verdict_tables

__all__ = [
    "Report",
    "ReportSource",
    "build_report",
    "render_html",
    "render_json",
    "render_markdown",
    "report_document",
    "terminal_tables",
    "verdict_tables",
]
