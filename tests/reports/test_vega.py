"""Charts as Vega-Lite, and as the SVG that pages embed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from shadowspec.reports.content.chart_values import Axis, Chart, Form, Heat, Limit, Mark, Point, Shape
from shadowspec.reports.render.vega import chart_svg, specification
from tests.builders.content_shapes import SHAPES


def chart_of(shape: Shape) -> Chart:
    x, point = SHAPES[shape]
    y = Axis("", names=("row",)) if point.y == "row" else Axis("y", Form.SHARE, low=0.0, high=4.0)
    tone = "sequential" if shape is Shape.CELLS else "speculative"
    mark = Mark(shape, (replace(point, text="hovered <&>"), point), tone, "" if shape is Shape.CELLS else "a name")
    limits = () if y.names else (Limit(1.0, "limit 1"),)
    return Chart("what it shows", x, y, (mark,), limits)


def rows(spec: dict[str, Any], layer: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["layer"][layer]["data"]["values"]
    return found


def words(picture: str, tag: str) -> set[str]:
    return {found.text or "" for found in ET.fromstring(picture).iter(tag)}


@pytest.mark.parametrize("shape", list(Shape))
def test_every_shape_is_drawn_with_its_hover_and_limit(shape: Shape) -> None:
    chart = chart_of(shape)
    picture = chart_svg(chart)
    root = ET.fromstring(picture)
    assert (root.tag, root.get("role"), root.get("aria-label")) == ("svg", "img", "what it shows")
    assert any("hovered <&>" in title for title in words(picture, "title"))
    assert ("limit 1" in words(picture, "text")) is bool(chart.limits)
    assert "NaN" not in picture
    assert {"x", "y"} <= set(specification(chart)["layer"][0]["encoding"])


def test_a_picture_says_nothing_of_who_draws_it_and_is_the_same_again() -> None:
    chart = chart_of(Shape.DOTS)
    assert chart_svg(chart) == chart_svg(chart)
    assert not re.search(r"xmlns|font-family|aria-hidden|<g>|fill=\"#000\"|white", chart_svg(chart))


def test_a_moment_stays_on_the_clock_that_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    dots = tuple(Point(datetime(2026, 1, 1, hour, tzinfo=UTC), 2.0) for hour in (9, 15))
    chart = Chart("said", Axis("x"), Axis("y"), (Mark(Shape.DOTS, dots, "soft"),))
    assert rows(specification(chart))[0]["x"] == "2026-01-01T09:00:00"
    assert "01 Jan 12:00" in words(chart_svg(chart), "text")


def test_a_bound_that_is_missing_lies_at_the_end_of_its_axis() -> None:
    span = Mark(Shape.SPANS, (Point(None, "row", 1.5),), "across")
    wide = Chart("said", Axis("x", low=0.5, high=2.0), Axis("", names=("row",)), (span,))
    assert (rows(specification(wide))[0]["x"], rows(specification(wide))[0]["x2"]) == (0.5, 1.5)
    upright = Mark(Shape.SPANS, (Point("1", 0.9), Point("2", 1.1, y2=1.4)), "across")
    tall = Chart("said", Axis("x", names=("1", "2")), Axis("y"), (upright,), (Limit(1.8, "limit"),))
    assert (rows(specification(tall))[0]["y"], rows(specification(tall))[0]["y2"]) == (0.9, 1.8)


def test_an_axis_is_marked_within_its_ends_alone() -> None:
    dots = Mark(Shape.DOTS, (Point(1.0, 1.0),), "soft")
    chart = Chart("said", Axis("x", Form.TIMES, low=0.5, high=2.0, at=(0.25, 1.0, 4.0)), Axis("y"), (dots,))
    assert words(chart_svg(chart), "text") >= {"1"}
    assert not words(chart_svg(chart), "text") & {"0.25", "4"}


def test_names_have_a_legend_and_stand_beside_each_other_on_a_band() -> None:
    points = (Point("a", 1.0), Point("b", 2.0))
    marks = tuple(Mark(Shape.DOTS, points, tone, name, symbol) for tone, name, symbol in (
        ("series-0", "one", "circle"), ("series-1", "two", "square"),
    ))  # fmt: skip
    chart = Chart("said", Axis("x", names=("a", "b")), Axis("y"), marks, words=())
    encoding = specification(chart)["layer"][0]["encoding"]
    assert encoding["xOffset"]["scale"]["domain"] == ["one", "two"]
    assert encoding["shape"]["scale"]["range"] == ["circle", "square"]
    assert {"one", "two"} <= words(chart_svg(chart), "text")


@pytest.mark.parametrize(
    ("tone", "place", "ink"),
    [("sequential", 0.1, "#FFFFFF"), ("sequential", 0.9, "#17202A"), ("diverging", 1.0, "#FFFFFF"),
     ("diverging", 0.5, "#17202A"), ("diverging", None, "#17202A")],
)  # fmt: skip
def test_words_of_a_cell_stand_out_from_its_colour(tone: str, place: float | None, ink: str) -> None:
    cell = Point("a", "b", text="hovered", heat=Heat(place, ("1.20x", "n 3"), is_pale=True))
    chart = Chart("said", Axis("x", names=("a",)), Axis("y", names=("b",)), (Mark(Shape.CELLS, (cell,), tone),))
    picture = chart_svg(chart)
    assert {"1.20x", "n 3"} <= words(picture, "text")
    assert {text.get("fill") for text in ET.fromstring(picture).iter("text") if text.text == "n 3"} == {ink}


def test_words_stand_at_the_ends_of_rows() -> None:
    dots = Mark(Shape.DOTS, (Point(1.0, "row"),), "soft")
    chart = Chart("said", Axis("x"), Axis("", names=("row",)), (dots,), words=(("row", "ENABLE"),))
    assert {"row", "ENABLE"} <= words(chart_svg(chart), "text")


def test_a_specification_is_json() -> None:
    for shape in Shape:
        json.dumps(specification(chart_of(shape)), allow_nan=False)


def test_few_bars_have_their_numbers() -> None:
    y = Axis("y", Form.SHARE, low=0.0, high=1.0, at=(0.0, 1.0))
    for number, is_numbered in ((4, True), (20, False)):
        names = tuple(map(str, range(number)))
        bars = Mark(Shape.BARS, tuple(Point(name, 0.544) for name in names), "soft")
        assert ("54%" in words(chart_svg(Chart("said", Axis("x", names=names), y, (bars,))), "text")) is is_numbered
