"""The board's small drawing of a trend, as SVG that takes its colours from the style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shadowspec.reports.pages.board_values import TrendDay
from shadowspec.text import times

TREND_WIDTH, TREND_HEIGHT = 96, 26


def trend_svg(trend: Sequence[TrendDay]) -> str:
    """Speedup by day, with a line at 1; a dot where only one day is known."""
    known = [(index, day.speedup) for index, day in enumerate(trend) if day.speedup is not None]
    if not known:
        return ""
    values = [value for _, value in known]
    low, high = min(0.9, *values), max(1.1, *values)

    def x(index: int) -> float:
        return 3 + index / max(1, len(trend) - 1) * (TREND_WIDTH - 6)

    def y(value: float) -> float:
        return 3 + (high - value) / (high - low) * (TREND_HEIGHT - 6)

    one = f'<line class="ss-axis" x1="0" x2="{TREND_WIDTH}" y1="{y(1.0):.1f}" y2="{y(1.0):.1f}"/>'
    points = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in known)
    line = f'<polyline class="ss-line" points="{points}"/>' if len(known) > 1 else ""
    last_index, last = known[-1]
    dot = f'<circle class="ss-dot" cx="{x(last_index):.1f}" cy="{y(last):.1f}" r="2.5"/>'
    first_day, last_day = trend[known[0][0]], trend[last_index]
    text = (
        f"{first_day.day} {times(first_day.speedup)}"
        if len(known) == 1
        else f"{first_day.day} {times(first_day.speedup)} to {last_day.day} {times(last_day.speedup)}"
    )
    size = f'viewBox="0 0 {TREND_WIDTH} {TREND_HEIGHT}" width="{TREND_WIDTH}" height="{TREND_HEIGHT}"'
    label = f'role="img" aria-label="{escape(f"Speedup by day: {text}")}"'
    return f'<svg class="ss-spark" {size} {label}>{one}{line}{dot}</svg>'
