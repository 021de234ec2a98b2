"""The small drawings within tables, as SVG that takes its colours from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from shadowspec.reports.pages.board_values import TrendDay
from shadowspec.text import times
from shadowspec.types import TestResult

WIDTH, HEIGHT, MARGIN = 120, 14, 3
TREND_WIDTH, TREND_HEIGHT = 96, 26


def interval_svg(interval: TestResult, low: float, high: float, *, is_log: bool) -> str:
    """Estimate and bounds on an axis from `low` to `high`, with the threshold; the text beside it says the same."""

    def place(value: float | None, otherwise: float) -> float:
        value = min(max(otherwise if value is None else value, low), high)
        share = math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)
        return MARGIN + share * (WIDTH - 2 * MARGIN)

    middle = HEIGHT / 2
    left, right = place(interval.lower, low), place(interval.upper, high)
    parts = [f'<line class="ss-axis" x1="0" x2="{WIDTH}" y1="{middle}" y2="{middle}"/>']
    if interval.threshold is not None:
        at = place(interval.threshold, low)
        parts.append(f'<line class="ss-limit" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{HEIGHT}"/>')
    parts.append(f'<line class="ss-bounds" x1="{left:.1f}" x2="{right:.1f}" y1="{middle}" y2="{middle}"/>')
    parts.append(f'<circle class="ss-point" cx="{place(interval.estimate, low):.1f}" cy="{middle}" r="3.5"/>')
    return _svg(WIDTH, HEIGHT, f"ss-interval {side(interval)}", "".join(parts))


def side(interval: TestResult) -> str:
    """On which side of the threshold the bounds lie."""
    if interval.threshold is None:
        return "ss-across"
    if interval.lower is not None and interval.lower > interval.threshold:
        return "ss-above"
    return "ss-below" if interval.upper is not None and interval.upper < interval.threshold else "ss-across"


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
    return _svg(TREND_WIDTH, TREND_HEIGHT, "ss-spark", one + line + dot, f"Speedup by day: {text}")


def _svg(width: int, height: int, classes: str, inner: str, label: str | None = None) -> str:
    named = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    return (
        f'<svg class="{classes}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" {named}>{inner}</svg>'
    )
