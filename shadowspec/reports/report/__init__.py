"""The gating report: what was measured and decided at every endpoint.

In: committed rows and the latest decisions.
Out: the report's values, and the report as HTML, Markdown, JSON and terminal tables.
Imports: rollout, planning, gate, store, metrics, text, types, errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shadowspec.reports.content.explanation import explanation
from shadowspec.reports.content.verdict_lines import decisions_content, tests_content
from shadowspec.reports.render.html import render_html as _html
from shadowspec.reports.render.markdown import render_markdown as _markdown
from shadowspec.reports.render.terminal import render_terminal
from shadowspec.reports.report.report_build import build_report
from shadowspec.reports.report.report_content import report_content, report_screen, terminal_content
from shadowspec.reports.report.report_document import render_json
from shadowspec.reports.report.report_model import Report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shadowspec.gate.policy import GatePolicy
    from shadowspec.gate.run.run_units import Crossings
    from shadowspec.types import Decision

__all__ = [
    "Report",
    "build_report",
    "explanation_tables",
    "render_html",
    "render_json",
    "render_markdown",
    "report_screen",
    "tables_of_tests",
    "terminal_tables",
    "verdict_tables",
]


def render_html(report: Report) -> str:
    """One self-contained page, which loads nothing."""
    return _html(report_content(report))


def render_markdown(report: Report) -> str:
    """The same for pull requests and chat, without the definitions of its terms."""
    return _markdown(report_content(report))


def terminal_tables(report: Report) -> list[RenderableType]:
    """The report's first page for a terminal."""
    return render_terminal(terminal_content(report))


def verdict_tables(decisions: Sequence[Decision]) -> list[RenderableType]:
    """The verdicts of each endpoint, only of these decisions: a gate run prints them."""
    return render_terminal(decisions_content(decisions))


def tables_of_tests(decisions: Sequence[Decision]) -> list[RenderableType]:
    """Every test and what is watched since ENABLE: what a verdict rests on."""
    return render_terminal(tests_content(decisions))


def explanation_tables(
    decision: Decision, policy: GatePolicy | None, crossings: Crossings | None, *, has_all_figures: bool
) -> list[RenderableType]:
    """Why a decision has its verdict, on one screen unless it has all figures."""
    return render_terminal([explanation(decision, policy, crossings, has_all_figures=has_all_figures)])
