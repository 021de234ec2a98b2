"""What a chart shows, with no trace of how it is drawn: axes, marks in data units, limits, and words beside them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

Place = float | str | datetime  # a number, the name of a band, or a moment


class Shape(StrEnum):
    """How a mark's points are drawn."""

    LINE = "line"
    STEPS = "steps"  # a line that moves along x first
    BAND = "band"  # the area between y and y2
    BARS = "bars"  # from 0 to y over the names of x
    BOXES = "boxes"  # from 0 to y between x and x2
    SPANS = "spans"  # a line from x to x2 on the band y, or from y to y2 on the band x
    STRIPS = "strips"  # a bar from x to x2 on the band y
    DOTS = "dots"
    CELLS = "cells"  # the whole of a band of x and one of y, coloured by `heat`


class Form(StrEnum):
    """How the values of an axis are written."""

    NUMBER = "number"
    SHARE = "share"
    TIMES = "times"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.  With `names` it has a band for each, in this order; else it is continuous."""

    title: str
    form: Form = Form.NUMBER
    is_log: bool = False
    low: float | None = None  # None: as the values have it
    high: float | None = None
    names: tuple[str, ...] = ()
    at: tuple[float, ...] = ()  # where it is marked; (): at round values


@dataclass(frozen=True, slots=True)
class Heat:
    """What a cell says: its place on the scale of colours (0 to 1), two lines of words, and whether it is pale."""

    place: float | None
    words: tuple[str, str]
    is_pale: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One place of a mark.  A span or a band without a bound reaches to the end of its axis.

    `text` is what hovering shows.
    """

    x: Place | None
    y: Place | None
    x2: Place | None = None
    y2: float | None = None
    text: str = ""
    tone: str = ""  # of this point, instead of the mark's
    heat: Heat | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Points of one kind.  `name` is in the legend; `tone` names a colour; `symbol` is the form of its dots.

    On a band, marks with different names stand beside each other.
    """

    shape: Shape
    points: tuple[Point, ...]
    tone: str
    name: str = ""
    symbol: str = "circle"  # "circle", "square", "diamond", "cross", "triangle-up", "triangle-down", "triangle-right"


@dataclass(frozen=True, slots=True)
class Limit:
    """A labelled line across the chart at a value of y, or of x."""

    value: float | datetime
    text: str
    is_of_x: bool = False
    tone: str = "threshold"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; `said` tells those who cannot see it what it shows."""

    said: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    limits: tuple[Limit, ...] = ()
    words: tuple[tuple[str, str], ...] = ()  # band of y, word at its end

    @property
    def is_empty(self) -> bool:
        """Whether no mark has a place: there is nothing to see but axes."""
        return all(point.x is None or point.y is None for mark in self.marks for point in mark.points)


@dataclass(frozen=True, slots=True)
class IntervalPicture:
    """The small picture of an estimate with its bounds within a table, on an axis from `low` to `high`."""

    estimate: float
    lower: float | None
    upper: float | None
    threshold: float | None
    low: float
    high: float
    is_log: bool
    said: str

    @property
    def tone(self) -> str:
        """On which side of the threshold the bounds lie: "above", "below", or "across" it."""
        return side(self.lower, self.upper, self.threshold)


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of one bar: name, number, tone."""

    parts: tuple[tuple[str, int, str], ...]
    said: str


def side(lower: float | None, upper: float | None, threshold: float | None) -> str:
    """On which side of a threshold bounds lie: "above", "below", or "across" where neither is shown."""
    if threshold is None:
        return "across"
    if lower is not None and lower > threshold:
        return "above"
    return "below" if upper is not None and upper < threshold else "across"
