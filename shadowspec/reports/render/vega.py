"""Charts of the content as Vega-Lite: the dashboard's browser draws the specification, pages without a script embed it
as SVG.

Out: `specification`, `chart_svg`.  In: `Chart`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from xml.etree import ElementTree as ET

import vl_convert
from markupsafe import Markup

from shadowspec.reports.content.chart_values import Axis, Chart, Form, Limit, Mark, Place, Point, Shape

# Okabe and Ito; readable on white and on near-black.
BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8A949E",
)  # fmt: skip
COLOURS: Final[Mapping[str, str]] = {
    "baseline": GREY,
    "speculative": "#2B8CCB",
    "band": BLUE,
    "soft": SKY,
    "above": GREEN,
    "below": VERMILION,
    "across": GREY,
    "slower": VERMILION,
    "faster": GREEN,
    "threshold": VERMILION,
    "moment": PURPLE,
    "best": BLUE,
    "part-prefill": PURPLE,
    "part-decode": GREY,
    "part-draft": ORANGE,
    "part-verify": BLUE,
    "part-other": SKY,
    **{f"series-{p}": colour for p, colour in enumerate((BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, GREY))},
}
HEATS: Final[Mapping[str, Mapping[str, Any]]] = {  # by the tone of cells; the words of a dark one are white
    "sequential": {"domain": [0, 1], "scheme": "viridis"},  # even in lightness: read by the colour-blind and in grey
    "diverging": {"domain": [0, 0.5, 1], "range": [VERMILION, "#F7F7F7", BLUE]},
}
WIDTH, WIDE = 360, 540  # of a chart in a page without a script: a third of it, half of it where rows have names
HEIGHT, ROW, LEGEND_ROW = 200, 26, 18
LABEL_CHARACTER_PX = 7  # of an axis, about
MAX_NUMBERED = 10  # bars that have room for their numbers
MAX_SLANTED = 16  # labels that find room beside each other on a phone
DAY_MS = 86_400_000

# Legends are below each other: side by side, a phone would cut the second off.  Close to the drawing, whose height
# they take from.
CONFIG: Final[Mapping[str, Any]] = {
    "view": {"strokeWidth": 0},
    "legend": {"layout": {"bottom": {"anchor": "start", "direction": "vertical"}}, "padding": 2, "offset": 8},
}
# The page's ink on the page's ground, in light and dark.
_INK: Final[dict[str, Any]] = {"labelColor": "currentColor", "titleColor": "currentColor", "titleFontWeight": "normal"}
_STATIC: Final = {
    "background": None,
    "view": {"stroke": None},
    "axis": _INK | {"gridColor": "currentColor", "gridOpacity": 0.2, "domain": False, "ticks": False},
    "legend": _INK | CONFIG["legend"],
}
_MARKS: Final[Mapping[Shape, Mapping[str, Any]]] = {
    Shape.LINE: {"type": "line", "strokeWidth": 2},
    Shape.STEPS: {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
    Shape.BAND: {"type": "area", "opacity": 0.18},
    Shape.BARS: {"type": "bar"},
    Shape.BOXES: {"type": "rect", "stroke": "white", "strokeWidth": 0.5, "strokeOpacity": 0.6},
    Shape.SPANS: {"type": "rule", "strokeWidth": 3},
    Shape.STRIPS: {"type": "bar", "height": {"band": 0.7}},
    Shape.DOTS: {"type": "point", "filled": True, "size": 80, "opacity": 1},
    Shape.CELLS: {"type": "rect", "cornerRadius": 3},
}


def specification(chart: Chart, height: int | None = None) -> dict[str, Any]:
    """The chart as Vega-Lite takes it, its rows within it; `height` in pixels, by its rows and legend if None."""
    layers = [layer for mark in chart.marks if mark.points for layer in _mark(chart, mark)]
    for place, limit in enumerate(chart.limits):
        layers += _limit(limit, is_below=place > 0)
    if chart.words:
        rows = [{"y": name, "word": word} for name, word in chart.words]
        text = {"type": "text", "aria": False, "align": "left", "dx": 6, "color": "currentColor"}
        place_of_word = {"x": {"value": "width"}, "y": _channel(chart, "y"), "text": {"field": "word"}}
        layers.append({"mark": text, "encoding": place_of_word, "data": {"values": rows}})
    return {"layer": layers, "height": height or _height(chart), "config": CONFIG}


def chart_svg(chart: Chart) -> Markup:
    """The chart as a part of a page: named, in the page's font and ink, with its texts for who hovers."""
    width = WIDE if chart.y.names else WIDTH
    fit = {"autosize": {"type": "fit", "contains": "padding"}, "width": width, "padding": 4, "config": _STATIC}
    drawn = ET.fromstring(vl_convert.vegalite_to_svg(specification(chart) | fit, allowed_base_urls=[]))  # noqa: S314 ours
    _shorten(drawn)
    size = {name: value for name, value in drawn.attrib.items() if name in ("viewBox", "width", "height")}
    drawn.attrib = size | {"role": "img", "aria-label": chart.said, "class": "chart"}
    return Markup(ET.tostring(drawn, encoding="unicode"))  # noqa: S704 escaped by it


def _shorten(parent: ET.Element) -> None:
    """Leave out what says nothing in a page, half of the text; words for a screen reader become those of hovering."""
    kept: list[ET.Element] = []
    for child in parent:
        if child.get("class") in ("background", "foreground"):
            continue
        _shorten(child)
        words, kind = child.attrib.pop("aria-label", ""), child.attrib.pop("aria-roledescription", "")
        for name, default in _SAID_BY_DEFAULT.items():
            if default in (child.get(name), ""):
                child.attrib.pop(name, None)
        for name in {"d", "transform"} & child.attrib.keys():
            child.set(name, re.sub(r"(\.\d\d)\d+", r"\1", child.attrib[name]))
        if words and kind not in ("axis", "legend"):
            ET.SubElement(child, "title").text = words
        kept += child if child.tag == "g" and not child.attrib else [child]
    parent.tag = parent.tag.rpartition("}")[2]
    parent[:] = kept


_SAID_BY_DEFAULT: Final = {  # an attribute with the value that needs no saying; "": any
    "aria-hidden": "",
    "class": "",
    "font-family": "",
    "opacity": "1",
    "pointer-events": "",
    "role": "",
    "stroke-miterlimit": "",
    "stroke-width": "1",
    "transform": "translate(0,0)",
}


def _height(chart: Chart) -> int:
    names = _names(chart)
    legend = LEGEND_ROW * math.ceil(len(names) / _num_columns(names)) if names else 0
    return (64 + ROW * len(chart.y.names) if chart.y.names else HEIGHT) + legend


def _names(chart: Chart) -> dict[str, str]:
    """What the legend names, with its colours."""
    return {mark.name: _colour(mark.tone) for mark in chart.marks if mark.name}


def _num_columns(names: Mapping[str, str]) -> int:
    """Columns of the legend that a phone has room for."""
    return max(1, 48 // (4 + max(map(len, names))))


def _mark(chart: Chart, mark: Mark) -> list[dict[str, Any]]:
    encoding: dict[str, Any] = {"x": _channel(chart, "x"), "y": _channel(chart, "y")}
    spec, names = {**_MARKS[mark.shape]}, _names(chart)
    texts = [point.text for point in mark.points if point.text]
    if mark.shape in (Shape.BAND, Shape.LINE, Shape.STEPS):  # one piece: all texts where they are few, else the last
        spec["description"] = ": ".join(filter(None, (mark.name, "; ".join(texts if len(texts) <= 20 else texts[-1:]))))
        if mark.shape is not Shape.BAND and mark.tone == "baseline":
            spec["strokeDash"] = [5, 3]  # not only by its colour
    elif texts:
        encoding["description"] = {"field": "text"}
    if mark.shape is Shape.BAND and len(mark.points) == 1:  # an area of one point would not be seen
        spec |= {"type": "rule", "strokeWidth": 3}
    if mark.shape is Shape.BAND or (mark.shape is Shape.SPANS and chart.x.names):
        encoding["y2"] = {"field": "y2"}
    elif mark.shape in (Shape.BOXES, Shape.SPANS, Shape.STRIPS):
        encoding["x2"] = {"field": "x2"}
    if mark.shape is Shape.BOXES:
        encoding["y2"] = {"datum": 0}
    if mark.name and len(names) > 1 and not any(other.shape is Shape.LINE for other in chart.marks):
        beside = {"field": "series", "type": "nominal", "scale": {"domain": list(names)}}
        if chart.x.names:
            encoding["xOffset"] = beside
        elif mark.shape is Shape.DOTS and chart.y.names:
            encoding["yOffset"] = beside
    if texts:
        encoding["tooltip"] = [{"field": "text", "type": "nominal", "title": "figures"}]
    data = {"values": [_row(chart, mark, point) for point in mark.points if _is_drawn(mark, point)]}
    if mark.shape is Shape.CELLS:
        return _cells(mark, spec, encoding, data)
    if mark.shape is Shape.DOTS:
        spec["shape"] = mark.symbol
    if any(point.tone for point in mark.points):
        encoding["color"] = {"field": "colour", "type": "nominal", "scale": None}
    elif mark.name:
        encoding |= _legend(chart, mark, names)
    else:
        spec["color"] = _colour(mark.tone)
    layers = [{"mark": spec, "encoding": encoding, "data": data}]
    if mark.shape is Shape.BARS and len(chart.x.names) * max(1, len(names)) <= MAX_NUMBERED:
        over = {"type": "text", "aria": False, "dy": -6, "fontSize": 10, "color": GREY}
        at = {name: encoding[name] for name in ("x", "y", "xOffset") if name in encoding}
        number = {"field": "y", "type": "quantitative", "format": ".0%" if chart.y.form is Form.SHARE else "~r"}
        layers.append({"mark": over, "encoding": at | {"text": number}, "data": data})
    return layers


def _legend(chart: Chart, mark: Mark, names: Mapping[str, str]) -> dict[str, Any]:
    """The channels that a legend explains: the colour, and the symbol where every name has one of its own."""
    is_low = chart.y.names or chart.x.names or len(names) > 3
    legend = {"orient": "bottom" if is_low else "top", "title": None, "columns": _num_columns(names)}
    legend |= {"symbolOpacity": 1, "labelLimit": 300}
    series = {"field": "series", "type": "nominal", "legend": legend}
    domain = list(names)
    symbols = {(other.name, other.symbol) for other in chart.marks if other.name and other.shape is Shape.DOTS}
    channels: dict[str, Any] = {"color": series | {"scale": {"domain": domain, "range": list(names.values())}}}
    if mark.shape is Shape.DOTS and len(symbols) == len(domain) and len(domain) > 1:
        by_name = dict(symbols)
        channels["shape"] = series | {"scale": {"domain": domain, "range": [by_name[name] for name in domain]}}
    return channels


def _cells(
    mark: Mark, spec: Mapping[str, Any], encoding: Mapping[str, Any], data: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Coloured cells with two lines of words, white on dark ones."""
    white = "datum.heat > 0.925" if mark.tone == "diverging" else "datum.heat <= 0.48"
    ink = {"condition": {"test": f"datum.heat !== null && {white}", "value": "#FFFFFF"}, "value": "#17202A"}
    paint = {
        "color": {
            "condition": {
                "test": "datum.heat !== null",
                "field": "heat",
                "type": "quantitative",
                "scale": HEATS[mark.tone],
                "legend": None,
            },
            "value": "#D0D0D0",
        },
        "opacity": {"condition": {"test": "datum.is_pale", "value": 0.7}, "value": 1},
    }
    lines = (("first", {"fontSize": 14, "fontWeight": 600, "dy": -6}), ("second", {"fontSize": 10.5, "dy": 11}))
    return [
        {"mark": spec, "encoding": {**encoding, **paint}, "data": data},
        *(
            {
                "mark": {"type": "text", **look},
                "encoding": {**encoding, "text": {"field": field}, "color": ink},
                "data": data,
            }
            for field, look in lines
        ),
    ]


def _is_drawn(mark: Mark, point: Point) -> bool:
    return mark.shape in (Shape.BAND, Shape.SPANS) or point.y is not None


def _row(chart: Chart, mark: Mark, point: Point) -> dict[str, Any]:
    """A point, as little of it as is drawn; a bound that is missing lies at the end of the axis."""
    row: dict[str, Any] = {"x": point.x, "y": point.y, "x2": point.x2, "y2": point.y2}
    if mark.shape is Shape.BAND or (mark.shape is Shape.SPANS and chart.x.names):
        row |= dict(zip(("y", "y2"), _within(_ends(chart, "y"), point.y, point.y2), strict=True))
    elif mark.shape is Shape.SPANS:
        row |= dict(zip(("x", "x2"), _within(_ends(chart, "x"), point.x, point.x2), strict=True))
    row |= {"text": point.text, "series": mark.name}
    if point.tone:
        row["colour"] = _colour(point.tone)
    written = {name: _written(value) for name, value in row.items() if value is not None}
    if point.heat is not None:
        first, second = point.heat.words
        written |= {"heat": point.heat.place, "first": first, "second": second, "is_pale": point.heat.is_pale}
    return written


def _within(ends: tuple[float, float], low: Place | None, high: Place | None) -> tuple[Place, Place]:
    return (ends[0] if low is None else low), (ends[1] if high is None else high)


def _ends(chart: Chart, name: str) -> tuple[float, float]:
    """Where a continuous axis begins and ends."""
    axis: Axis = getattr(chart, name)
    values = [value for value in _places(chart, name) if isinstance(value, float | int)]
    low = min(values, default=0.0) if axis.low is None else axis.low
    return low, (max(values, default=1.0) if axis.high is None else axis.high)


def _places(chart: Chart, name: str) -> list[Place | None]:
    points = [point for mark in chart.marks for point in mark.points]
    limits = [limit.value for limit in chart.limits if limit.is_of_x is (name == "x")]
    return [*(getattr(point, end) for point in points for end in (name, f"{name}2")), *limits]


def _written(value: Any) -> Any:
    """A moment as the clock that it is on shows it, wherever the chart is drawn."""
    return value.replace(tzinfo=None).isoformat() if isinstance(value, datetime) else value


def _channel(chart: Chart, name: str) -> dict[str, Any]:
    axis: Axis = getattr(chart, name)
    channel = {"field": name, "title": axis.title or None}
    if axis.names:
        settings = _slanting(axis.names) if name == "x" else {"labelLimit": 220, "labelFlush": False}
        return {**channel, "type": "nominal", "sort": list(axis.names), "axis": settings}
    moments = [place for place in _places(chart, name) if isinstance(place, datetime)]
    if moments:
        is_long = max(moments) - min(moments) > timedelta(days=3)
        settings = {"format": "%d %b", "tickMinStep": DAY_MS} if is_long else {"format": "%d %b %H:%M"}  # no day twice
        return {**channel, "type": "temporal", "axis": {**settings, "labelOverlap": True}}
    scale: dict[str, Any] = {"type": "log", "nice": False} if axis.is_log else {"zero": axis.low == 0.0}
    if axis.low is not None and axis.high is not None:
        scale |= {"domain": [axis.low, axis.high], "clamp": True}
    return {**channel, "type": "quantitative", "scale": scale, "axis": _axis(axis)}


def _slanting(names: Sequence[str]) -> dict[str, Any]:
    """Labels slant where the drawing is too narrow for them side by side: a phone would leave every other one out."""
    is_narrow = f"width < {LABEL_CHARACTER_PX * len(names) * (max(map(len, names)) + 1)}"
    return {
        "labelAngle": {"expr": f"{is_narrow} ? -40 : 0"},
        "labelAlign": {"expr": f"{is_narrow} ? 'right' : 'center'"},
        "labelBaseline": {"expr": f"{is_narrow} ? 'middle' : 'top'"},
        "labelLimit": 110,
        "labelOverlap": len(names) > MAX_SLANTED,
    }


def _axis(axis: Axis) -> dict[str, Any]:
    low, high = (-math.inf if axis.low is None else axis.low), (math.inf if axis.high is None else axis.high)
    values = {"values": [value for value in axis.at if low <= value <= high]} if axis.at else {}
    settings = _FORMATS[axis.form] | ({"tickCount": 5} if axis.is_log else {})
    return settings | ({"format": "~s"} if axis.is_log and axis.form is Form.NUMBER else {}) | values


_FORMATS: Final[Mapping[Form, dict[str, Any]]] = {
    Form.NUMBER: {},
    Form.SHARE: {"format": ".2~%"},
    Form.TIMES: {"format": ".2~f"},
    Form.COUNT: {"format": ",d", "tickMinStep": 1},
}


def _limit(limit: Limit, *, is_below: bool) -> list[dict[str, Any]]:
    """A labelled line; its words are above a level line, or below it, and above the drawing of an upright one."""
    data = {"values": [{"value": _written(limit.value), "text": limit.text}]}
    kind = "temporal" if isinstance(limit.value, datetime) else "quantitative"
    place = {"x" if limit.is_of_x else "y": {"field": "value", "type": kind}}
    colour = _colour(limit.tone)
    look: dict[str, Any]
    at: dict[str, Any]
    if not limit.is_of_x:
        look, at = {"align": "right", "dy": 8 if is_below else -7}, {"x": {"value": "width"}}
    elif kind == "temporal":
        look, at = {"align": "left", "dx": 4}, {"y": {"value": 12}}
    else:
        look, at = {"baseline": "bottom"}, {"y": {"value": -4}}
    rule = {"type": "rule", "strokeDash": [5, 4], "color": colour, "strokeWidth": 1.5}
    words = {**place, **at, "text": {"field": "text", "type": "nominal"}}
    return [
        {"mark": rule, "encoding": {**place, "description": {"field": "text"}}, "data": data},
        {"mark": {"type": "text", "aria": False, "color": colour, **look}, "encoding": words, "data": data},
    ]


def _colour(tone: str) -> str:
    return COLOURS[tone.partition(" ")[0]]
