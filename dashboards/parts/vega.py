"""Charts of the content as Vega-Lite, which the browser draws: the twin of `shadowspec.reports.render.svg`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from shadowspec.reports.content.chart_values import Axis, Chart, Form, Limit, Mark, Place, Point, Shape

from . import charts

COLOURS: Final[Mapping[str, str]] = {
    "baseline": charts.GREY,
    "speculative": charts.BLUE,
    "band": charts.BLUE,
    "soft": charts.SKY,
    "above": charts.GREEN,
    "below": charts.VERMILION,
    "across": charts.GREY,
    "slower": charts.VERMILION,
    "faster": charts.GREEN,
    "threshold": charts.VERMILION,
    "moment": charts.PURPLE,
    "best": charts.BLUE,
    "part-prefill": charts.PURPLE,
    "part-decode": charts.GREY,
    "part-draft": charts.ORANGE,
    "part-verify": charts.BLUE,
    "part-other": charts.SKY,
    **{f"series-{place}": colour for place, colour in enumerate(charts.SERIES)},
}
NUM_KEPT: Final = 128  # specifications; some tens of kB each
_MARKS: Final[Mapping[Shape, Mapping[str, Any]]] = {
    Shape.LINE: {"type": "line", "strokeWidth": 2},
    Shape.STEPS: {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
    Shape.BAND: {"type": "area", "opacity": 0.18},
    Shape.BARS: {"type": "bar"},
    Shape.BOXES: {"type": "rect", "stroke": "white", "strokeWidth": 0.5, "strokeOpacity": 0.6},
    Shape.SPANS: {"type": "rule", "strokeWidth": 3},
    Shape.STRIPS: {"type": "bar", "height": {"band": 0.7}},
    Shape.DOTS: {"type": "point", "filled": True, "size": 65, "opacity": 1},
}


@lru_cache(maxsize=NUM_KEPT)
def specification(chart: Chart) -> charts.Drawn:
    """The chart as Vega-Lite takes it, its rows as Arrow's bytes by name; made once for each chart."""
    rows: dict[str, bytes] = {}
    names = [(mark.name, _colour(mark.tone)) for mark in chart.marks if mark.name]
    layers = [_mark(chart, mark, names, rows) for mark in chart.marks if mark.points]
    for place, limit in enumerate(chart.limits):
        layers += _limit(chart, limit, is_below=place > 0, rows=rows)
    return charts.Drawn(
        {"layer": layers, "datasets": rows, "height": charts.HEIGHT, "config": charts.CONFIG, "resolve": {"scale": {}}}
    )


def _mark(chart: Chart, mark: Mark, names: Sequence[tuple[str, str]], rows: dict[str, bytes]) -> dict[str, Any]:
    x, y = _channel(chart, "x"), _channel(chart, "y")
    encoding: dict[str, Any] = {"x": x, "y": y}
    spec = dict(_MARKS[mark.shape])
    if mark.shape is Shape.BAND:
        if len(mark.points) == 1:  # an area of one point would not be seen
            spec = {"type": "rule", "strokeWidth": 3}
        encoding["y2"] = {"field": "y2"}
    elif mark.shape in (Shape.BOXES, Shape.SPANS, Shape.STRIPS):
        encoding["x2"] = {"field": "x2"}
    if mark.shape is Shape.BOXES:
        encoding["y2"] = {"datum": 0}
    bars = [other.name for other in chart.marks if other.shape is Shape.BARS]
    if mark.shape is Shape.BARS and len(bars) > 1:
        encoding["xOffset"] = {"field": "series", "type": "nominal", "scale": {"domain": bars}}
    if any(point.tone for point in mark.points):
        encoding["color"] = {"field": "colour", "type": "nominal", "scale": None}
    elif mark.name:
        legend = {"orient": "bottom" if chart.y.names or len(names) > 3 else "top", "title": None, "columns": 3}
        scale = {"domain": [name for name, _ in names], "range": [colour for _, colour in names]}
        encoding["color"] = {"field": "series", "type": "nominal", "scale": scale, "legend": legend}
    else:
        spec["color"] = _colour(mark.tone)
    if any(point.text for point in mark.points):
        encoding["tooltip"] = [{"field": "text", "type": "nominal", "title": "figures"}]
    known = [_row(chart, mark, point) for point in mark.points if point.y is not None or mark.shape is Shape.BAND]
    return {"mark": spec, "encoding": encoding, "data": charts.named_rows(charts.frame(known), rows)}


def _row(chart: Chart, mark: Mark, point: Point) -> dict[str, Any]:
    """A point; a span without a bound reaches to the end of the axis."""
    is_span = mark.shape is Shape.SPANS
    return {
        "x": chart.x.low if point.x is None and is_span else point.x,
        "y": point.y,
        "x2": chart.x.high if point.x2 is None and is_span else point.x2,
        "y2": point.y2,
        "text": point.text,
        "series": mark.name,
        "colour": _colour(point.tone or mark.tone),
    }


def _channel(chart: Chart, name: str) -> dict[str, Any]:
    axis: Axis = getattr(chart, name)
    title = axis.title or None
    if axis.names:
        settings = {"labelAngle": 0, "labelLimit": 220, "labelFlush": False}
        return {"field": name, "type": "nominal", "sort": list(axis.names), "title": title, "axis": settings}
    if _moments(chart, name):
        return {"field": name, "type": "temporal", "title": title, "axis": _time_axis(chart, name)}
    scale: dict[str, Any] = {"zero": axis.low == 0.0} | ({"type": "log", "nice": False} if axis.is_log else {})
    if axis.low is not None and axis.high is not None:
        scale["domain"] = [axis.low, axis.high]
    return {"field": name, "type": "quantitative", "title": title, "scale": scale, "axis": _axis(axis)}


def _axis(axis: Axis) -> dict[str, Any]:
    values = {"values": list(axis.at)} if axis.at else {}
    match axis.form:
        case Form.SHARE:
            return {"format": ".0%", **values}
        case Form.TIMES:
            return {"format": ".2~f", **values}
        case Form.COUNT:
            return {"format": "d", "tickMinStep": 1, **values}
        case Form.NUMBER:
            return {**({"format": "~s", "tickCount": 6} if axis.is_log and not axis.at else {}), **values}


def _moments(chart: Chart, name: str) -> list[datetime]:
    places: list[Place | None] = [getattr(point, name) for mark in chart.marks for point in mark.points]
    return [place for place in places if isinstance(place, datetime)]


def _time_axis(chart: Chart, name: str) -> dict[str, Any]:
    moments = _moments(chart, name)
    if max(moments) - min(moments) > timedelta(days=3):
        return {"format": "%d %b", "labelOverlap": True, "tickMinStep": charts.DAY_MS}  # no day twice
    return {"format": "%d %b %H:%M", "labelOverlap": True}


def _limit(chart: Chart, limit: Limit, *, is_below: bool, rows: dict[str, bytes]) -> list[dict[str, Any]]:
    """A labelled line; its words are above a level line, or below it, and above the drawing of an upright one."""
    data = charts.named_rows(charts.frame([{"value": limit.value, "text": limit.text}]), rows)
    kind = "temporal" if isinstance(limit.value, datetime) else "quantitative"
    place = {"x" if limit.is_of_x else "y": {"field": "value", "type": kind}}
    colour, words = _colour(limit.tone), {"text": {"field": "text", "type": "nominal"}}
    rule = {"type": "rule", "strokeDash": [5, 4], "color": colour, "strokeWidth": 1.5}
    if not limit.is_of_x:
        text = {"type": "text", "align": "left", "dx": 4, "dy": 8 if is_below else -7, "color": colour}
        label = {**place, "x": {"value": 0}, **words}
    elif kind == "temporal":
        text, label = (
            {"type": "text", "align": "left", "dx": 4, "color": colour},
            {**place, "y": {"value": 12}, **words},
        )
    else:
        text, label = {"type": "text", "baseline": "bottom", "color": colour}, {**place, "y": {"value": -4}, **words}
    return [{"mark": rule, "encoding": place, "data": data}, {"mark": text, "encoding": label, "data": data}]


def _colour(tone: str) -> str:
    return COLOURS[tone.partition(" ")[0]]
