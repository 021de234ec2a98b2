"""The formats of a report on a span of time, by the ending of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from shadowspec.reports.period.document import render_period_json
from shadowspec.reports.period.html import render_period_html
from shadowspec.reports.period.markdown import render_period_markdown
from shadowspec.reports.period.model import PeriodReport

RENDERERS: Final[Mapping[str, Callable[[PeriodReport], str]]] = {
    "html": render_period_html,
    "md": render_period_markdown,
    "json": render_period_json,
}
