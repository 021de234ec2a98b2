"""The report on a span of time as one self-contained HTML file: no network, no script, every value escaped."""

from __future__ import annotations

from shadowspec import words
from shadowspec.reports.charts import interval_text
from shadowspec.reports.html import environment_of
from shadowspec.reports.period import words as meanings
from shadowspec.reports.period.model import PeriodReport


def render_period_html(report: PeriodReport) -> str:
    """The whole page.  Safe to open and to send anywhere: it loads nothing and holds no prompt text."""
    environment = environment_of(
        {
            **{f.__name__: f for f in (words.times, words.percent, words.moment, words.plural, words.figure)},
            **{f.__name__: f for f in (words.slice_title, interval_text, meanings.wanted_text, meanings.tests_text)},
            **{f.__name__: f for f in (meanings.days_text, meanings.ends_text, meanings.before_text)},
            "simulated_text": meanings.simulated_text,
            "kind_title": meanings.KIND_TITLE,
        }
    )
    return environment.get_template("period.html.j2").render(report=report, gate_failed=report.has_gate_failed)
