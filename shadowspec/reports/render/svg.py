"""Elements of a page, and the small pictures within its tables as SVG.

A small picture is made by hand: a board draws hundreds of them, and a library takes 30 ms for a chart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from shadowspec.reports.content.chart_values import IntervalPicture, Shares

STRIP_WIDTH, STRIP_HEIGHT = 120, 16  # of an interval within a table


def element(tag: str, *children: Markup | str, **attributes: str | float | None) -> Markup:
    """One element; `class_` is class, `_` in a name is `-`, None is left out, plain text is escaped.

    Without children it is closed at once, as SVG allows and HTML does not.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = "".join(str(child) if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>" if children else f"<{tag}{written}/>")  # noqa: S704 escaped above


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


def picture_svg(picture: IntervalPicture | Shares) -> Markup:
    """The small picture of a cell; hovering over it says what it shows."""
    if isinstance(picture, Shares):
        return _shares(picture)
    scale, middle = Scale(picture.low, picture.high, 3, STRIP_WIDTH - 3, picture.is_log), STRIP_HEIGHT / 2
    left = scale(scale.low if picture.lower is None else picture.lower)
    right = scale(scale.high if picture.upper is None else picture.upper)
    kind = f"t-{picture.tone}"
    drawn = [
        element("line", x1=left, x2=right, y1=middle, y2=middle, class_=f"line {kind}"),
        element("circle", cx=scale(picture.estimate), cy=middle, r=3.5, class_=f"dot {kind}"),
    ]
    if picture.threshold is not None:
        at = scale(picture.threshold)
        drawn.append(element("line", x1=at, x2=at, y1=0, y2=STRIP_HEIGHT, class_="threshold"))
    return svg(STRIP_WIDTH, STRIP_HEIGHT, picture.said, tooltip(picture.said), *drawn, class_="strip")


def _shares(picture: Shares) -> Markup:
    total = sum(number for _, number, _ in picture.parts) or 1
    at, drawn = 0.0, []
    for name, number, tone in picture.parts:
        width = 240 * number / total
        if number:
            box = {"x": at, "y": 0.0, "width": max(width, 1.0), "height": 10.0}
            drawn.append(element("rect", tooltip(f"{name}: {number:,} of {total:,}"), class_=f"f-{tone}", **box))
        at += width
    return svg(240, 10, picture.said, *drawn, class_="funnelbar")


def _attribute(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value, quote=True)
    return f"{value:.2f}".rstrip("0").rstrip(".")
