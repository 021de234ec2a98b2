"""Charts as SVG for pages without a script: one renderer for every chart, colours from the page's style sheet.

Made by hand, not by a library: vl-convert renders Vega-Lite without a browser, but adds 88 MB and a JavaScript engine
to every installation, takes 50 ms of CPU and 21 kB for a figure, and drops the texts that hovering shows.  Here half of
the charts of the test reports take below 0.4 ms and 2.7 kB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Final

from markupsafe import Markup

from shadowspec.reports.content.chart_values import (
    Axis,
    Chart,
    Form,
    IntervalPicture,
    Limit,
    Mark,
    Place,
    Point,
    Shape,
    Shares,
)
from shadowspec.text import DASH, percent

WIDTH, HEIGHT = 340, 190  # a third of the page
WIDE, ROW = 520, 24  # half of the page, and the height of a band
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 12, 30  # room for the words of the axes
STRIP_WIDTH, STRIP_HEIGHT = 120, 16  # of an interval within a table
LABELS, WORDS = 190, 70  # room for the names of bands, and for the words at their ends


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


def chart_svg(chart: Chart) -> Markup:
    """The chart, a third of a page wide; half of one where its rows have names."""
    has_rows = bool(chart.y.names)
    width = WIDE if has_rows else WIDTH
    height = TOP + ROW * len(chart.y.names) + BOTTOM if has_rows else HEIGHT
    right = RIGHT + WORDS if chart.words else RIGHT
    frame = _Frame(
        chart,
        _band(chart.x, LEFT, width - right)
        if chart.x.names
        else _scale(chart, "x", LEFT + LABELS * has_rows, width - right),
        _band(chart.y, TOP, height - BOTTOM) if has_rows else _scale(chart, "y", height - BOTTOM, TOP),
        height - BOTTOM,
    )
    series = [mark for mark in chart.marks if mark.shape is Shape.BARS]
    drawn = [*_x_axis(frame), *_y_axis(frame)]
    for mark in chart.marks:
        drawn += _SHAPES[mark.shape](frame, mark, series)
    drawn += [_limit(frame, limit) for limit in chart.limits]
    for name, word, tone in chart.words:
        drawn.append(element("text", word, x=width, y=frame.y(name) + 4, class_=f"word v-{tone}", text_anchor="end"))
    return svg(width, height, chart.said, *drawn, class_="chart wide" if has_rows else "chart")


@dataclass(frozen=True, slots=True)
class _Frame:
    """A chart with the pixels of its axes."""

    chart: Chart
    scale_x: Scale
    scale_y: Scale
    bottom: float

    def x(self, place: Place) -> float:
        """The pixel of a place of x; of a band its middle."""
        return self.scale_x(_value(self.chart.x, place))

    def y(self, place: Place) -> float:
        """The pixel of a place of y; of a band its middle."""
        return self.scale_y(_value(self.chart.y, place))


def _value(axis: Axis, place: Place) -> float:
    if isinstance(place, str):
        return axis.names.index(place) + 0.5
    return place.timestamp() if isinstance(place, datetime) else place


def _band(axis: Axis, start: float, end: float) -> Scale:
    return Scale(0.0, float(max(1, len(axis.names))), start, end)


def _scale(chart: Chart, name: str, start: float, end: float) -> Scale:
    """An axis that holds every value of its marks and limits."""
    axis: Axis = getattr(chart, name)
    of_x = name == "x"
    places = [
        place
        for mark in chart.marks
        for point in mark.points
        for place in ((point.x, point.x2) if of_x else (point.y, point.y2))
    ] + [limit.value for limit in chart.limits if limit.is_of_x is of_x and (axis.low is None or axis.high is None)]
    values = [_value(axis, place) for place in places if place is not None]
    low = min(values, default=0.0) if axis.low is None else axis.low
    high = max(values, default=1.0) if axis.high is None else axis.high
    if axis.is_log:
        high = max(high, 1.001 * low)
        low, high = (low / 1.05 if axis.low is None else low), (high * 1.05 if axis.high is None else high)
    elif not of_x and axis.low is None:
        margin = (high - low) * 0.06 or 0.05
        low, high = low - margin, high + margin
    return Scale(low, high if high > low else low + 1.0, start, end, axis.is_log)


def _words(axis: Axis) -> Callable[[float], str]:
    if axis.form is Form.SHARE:
        return lambda value: percent(value, 0)
    mark = "\u00d7" if axis.form is Form.TIMES else ""
    return lambda value: f"{value:g}{mark}"


def _places(axis: Axis, scale: Scale, wanted: int) -> tuple[float, ...]:
    if axis.at:
        return tuple(value for value in axis.at if scale.low <= value <= scale.high)
    places = log_ticks(scale.low, scale.high, wanted) if axis.is_log else ticks(scale.low, scale.high, wanted)
    return tuple(value for value in places if value == int(value)) if axis.form is Form.COUNT else places


def _x_axis(frame: _Frame) -> list[Markup]:
    axis, scale = frame.chart.x, frame.scale_x
    middle = (scale.start + scale.end) / 2
    title = element("text", axis.title, x=middle, y=frame.bottom + BOTTOM - 3, class_="caption", text_anchor="middle")
    if axis.names:
        return [title, *(_tick(name, frame.x(name), frame.bottom + 13, "middle") for name in axis.names)]
    drawn, words = [title], _words(axis)
    for value in _places(axis, scale, 5):
        at = scale(value)
        drawn.append(element("line", x1=at, x2=at, y1=TOP, y2=frame.bottom, class_="grid"))
        drawn.append(_tick(words(value), at, frame.bottom + 13, "middle"))
    return drawn


def _y_axis(frame: _Frame) -> list[Markup]:
    axis, scale = frame.chart.y, frame.scale_y
    if axis.names:
        return [element("text", _clip(name), x=0, y=frame.y(name) + 4, class_="row") for name in axis.names]
    drawn, words = [], _words(axis)
    for value in _places(axis, scale, 4):
        at = scale(value)
        drawn.append(element("line", x1=frame.scale_x.start, x2=frame.scale_x.end, y1=at, y2=at, class_="grid"))
        drawn.append(_tick(words(value), frame.scale_x.start - 5, at + 3.5, "end"))
    return drawn


def _tick(text: str, x: float, y: float, anchor: str) -> Markup:
    return element("text", text, x=x, y=y, class_="tick", text_anchor=anchor)


def _limit(frame: _Frame, limit: Limit) -> Markup:
    if limit.is_of_x:
        at = frame.x(limit.value)
        box = {"x1": at, "x2": at, "y1": float(TOP), "y2": frame.bottom}
    else:
        at = frame.y(limit.value)
        box = {"x1": frame.scale_x.start, "x2": frame.scale_x.end, "y1": at, "y2": at}
    return element("line", tooltip(limit.text), class_=limit.tone, **box)


def _line(frame: _Frame, mark: Mark, series: Sequence[Mark]) -> list[Markup]:
    points = [(frame.x(p.x), frame.y(p.y)) for p in mark.points if p.x is not None and p.y is not None]
    if mark.shape is Shape.STEPS and points:
        points = [(points[0][0], frame.scale_y.start), *points]
    d = path(points, steps=mark.shape is Shape.STEPS)
    drawn = [element("path", *_title(mark), d=d, class_=f"line t-{mark.tone}")]
    if mark.tone.startswith("series-") and points:  # its name does not fit beside it: the number of tokens does
        drawn.append(_tick(mark.name.partition(" \u00b7 ")[0], points[-1][0] + 2, points[-1][1] - 4, "end"))
    return drawn


def _title(mark: Mark) -> list[Markup]:
    """What hovering over all of a mark shows: the texts of its points where they are few, else the last."""
    texts = [point.text for point in mark.points if point.text]
    text = "; ".join(texts if len(texts) <= 20 else texts[-1:])
    words = ": ".join(part for part in (mark.name, text) if part)
    return [tooltip(words)] if words else []


def _area(frame: _Frame, mark: Mark, series: Sequence[Mark]) -> list[Markup]:
    low, high = frame.scale_y.low, frame.scale_y.high
    lower = [(frame.x(p.x), frame.y(low if p.y is None else p.y)) for p in mark.points if p.x is not None]
    upper = [(frame.x(p.x), frame.y(high if p.y2 is None else p.y2)) for p in mark.points if p.x is not None]
    classes = " ".join(f"t-{tone}" for tone in mark.tone.split())
    d = path([*upper, *reversed(lower)]) + "Z"
    return [element("path", *_title(mark), d=d, class_=f"area {classes}")]


def _bars(frame: _Frame, mark: Mark, series: Sequence[Mark]) -> list[Markup]:
    slot = (frame.scale_x.end - frame.scale_x.start) / max(1, len(frame.chart.x.names))
    width = min(30.0, slot * 0.8 / len(series))
    place, drawn = [id(other) for other in series].index(id(mark)), []
    for point in mark.points:
        assert point.x is not None, "a bar has its band"
        x = frame.x(point.x) + (place - len(series) / 2) * width
        share = point.y if isinstance(point.y, float) else None
        top = frame.y(share or 0.0)
        box = {"x": x + 1, "y": top, "width": width - 2, "height": frame.bottom - top}
        drawn.append(element("rect", tooltip(point.text), class_=f"bar t-{mark.tone}", **box))
        if width >= 17:
            word = DASH if share is None else f"{100 * share:.0f}"
            drawn.append(element("text", word, x=x + width / 2, y=top - 3, class_="value", text_anchor="middle"))
    return drawn


def _boxes(frame: _Frame, mark: Mark, series: Sequence[Mark]) -> list[Markup]:
    drawn = []
    for point in mark.points:
        assert point.x is not None, "a box has a left edge"
        assert point.x2 is not None, "a box has a right edge"
        is_strip = mark.shape is Shape.STRIPS
        left, right, at = frame.x(point.x), frame.x(point.x2), frame.y(point.y if point.y is not None else 0.0)
        box = {"x": left + 0.5, "width": max(right - left - 1, 0.5)}
        box |= {"y": at - 7, "height": 14.0} if is_strip else {"y": at, "height": frame.bottom - at}
        drawn.append(element("rect", tooltip(point.text), class_=f"bar t-{mark.tone}", **box))
    return drawn


def _spans(frame: _Frame, mark: Mark, series: Sequence[Mark]) -> list[Markup]:
    drawn = []
    for point in mark.points:
        assert point.y is not None, "a span has its band"
        y = frame.y(point.y)
        left = frame.scale_x.start if point.x is None else frame.x(point.x)
        right = frame.scale_x.end if point.x2 is None else frame.x(point.x2)
        ends = [at for at, bound in ((left, point.x), (right, point.x2)) if bound is not None]
        kind = f"line t-{point.tone or mark.tone}"
        drawn.append(
            element(
                "g",
                tooltip(point.text),
                element("line", x1=left, x2=right, y1=y, y2=y, class_=kind),
                *(element("line", x1=at, x2=at, y1=y - 4, y2=y + 4, class_=kind) for at in ends),
            )
        )
    return drawn


def _dots(frame: _Frame, mark: Mark, series: Sequence[Mark]) -> list[Markup]:
    return [
        element("circle", *_hover(p), cx=frame.x(p.x), cy=frame.y(p.y), r=3.5, class_=f"dot t-{p.tone or mark.tone}")
        for p in mark.points
        if p.x is not None and p.y is not None
    ]


def _hover(point: Point) -> list[Markup]:
    return [tooltip(point.text)] if point.text else []


_SHAPES: Final[dict[Shape, Callable[[_Frame, Mark, Sequence[Mark]], list[Markup]]]] = {
    Shape.LINE: _line,
    Shape.STEPS: _line,
    Shape.BAND: _area,
    Shape.BARS: _bars,
    Shape.BOXES: _boxes,
    Shape.STRIPS: _boxes,
    Shape.SPANS: _spans,
    Shape.DOTS: _dots,
}


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


def _clip(text: str, length: int = 36) -> str:
    return text if len(text) <= length else text[: length - 1] + "\u2026"


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(digit for digit in (1, 2, 5, 10) if digit * power >= step * (1 - 1e-9))


def _attribute(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value, quote=True)
    return f"{value:.2f}".rstrip("0").rstrip(".")
