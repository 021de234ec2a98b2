"""Scales and elements of the charts.  Text is escaped here, once; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup


def element(tag: str, *children: Markup | str, **attributes: str | float | None) -> Markup:
    """One SVG element; `class_` is class, `_` in a name is `-`, None is left out, plain text is escaped."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = "".join(str(child) if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>")  # noqa: S704 escaped above


def svg(width: float, height: float, label: str, *children: Markup, class_: str = "chart") -> Markup:
    """A picture with a name for those who cannot see it; scales with its box."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {_attribute(width)} {_attribute(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_=class_,
    )


def tooltip(text: str) -> Markup:
    """What hovering over the parent element shows."""
    return element("title", text)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] to [start, end] pixels, on a line or on a logarithm; values outside are clamped."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def ticks(low: float, high: float, wanted: int = 5) -> tuple[float, ...]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    step = _nice((high - low) / max(1, wanted))
    first = math.ceil(low / step - 1e-9)
    return tuple(round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1))


def log_ticks(low: float, high: float, wanted: int = 6) -> tuple[float, ...]:
    """1, 2, 5 of each decade within [low, high]; even steps where the range is narrower than a few of these."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        chosen = tuple(d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high)
        if len(chosen) <= wanted:
            break
    return chosen if len(chosen) >= 3 else ticks(low, high, wanted)


def path(points: Sequence[tuple[float, float]], *, steps: bool = False) -> str:
    """The `d` of a line through points; with `steps` it moves horizontally first."""
    if not points:
        return ""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}")
    return "".join(parts)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(digit for digit in (1, 2, 5, 10) if digit * power >= step * (1 - 1e-9))


def _attribute(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value, quote=True)
    return f"{value:.2f}".rstrip("0").rstrip(".")
