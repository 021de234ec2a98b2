"""Charts: what is kept, and what each carries for those who save it."""

from __future__ import annotations

import altair as alt
import pyarrow as pa
import pytest

from dashboards.parts import charts
from dashboards.parts.vega import specification
from shadowspec.reports.content.chart_values import Axis, Chart, Limit, Mark, Point, Shape
from tests.builders.content_shapes import SHAPES


def chart_of(value: float) -> Chart:
    mark = Mark(Shape.LINE, (Point(1.0, value, text=f"at {value}"), Point(2.0, value)), "speculative", "a name")
    return Chart("said", Axis("x"), Axis("y"), (mark,), (Limit(2.0, "limit 2"),))


def test_a_chart_is_specified_once_for_each_value() -> None:
    first = specification(chart_of(3.0))
    assert specification(chart_of(3.0)) is first
    assert specification(chart_of(4.0)) is not first
    assert first.spec["height"] == charts.HEIGHT


@pytest.mark.parametrize("shape", list(Shape))
def test_every_shape_has_its_layer_with_its_words(shape: Shape) -> None:
    x, point = SHAPES[shape]
    y = Axis("", names=("row",)) if point.y == "row" else Axis("y")
    mark = Mark(shape, (Point(point.x, point.y, point.x2, point.y2, "hovered"), point), "speculative", "a name")
    found = specification(Chart("said", x, y, (mark,), (Limit(1.0, "limit 1", is_of_x=not x.names),)))
    rows = [
        row for written in found.spec["datasets"].values() for row in pa.ipc.open_stream(written).read_all().to_pylist()
    ]
    assert {"hovered", "limit 1"} <= {row["text"] for row in rows}
    assert len(found.spec["layer"]) == 3, "the mark, the line of the limit and its words"
    assert {"x", "y"} <= set(found.spec["layer"][0]["encoding"])


def test_a_chart_carries_its_words() -> None:
    chart = alt.Chart(charts.frame([{"x": 1}])).mark_point().encode(x="x:Q")
    found = charts.specification(charts.layer(chart, *charts.threshold(2.0, "limit 2")), 200)
    labels = [
        row.get("text")
        for rows in found["datasets"].values()
        for row in pa.ipc.open_stream(rows).read_all().to_pylist()
    ]
    assert "limit 2" in labels


def test_rows_that_several_layers_draw_are_sent_once() -> None:
    rows = charts.frame([{"x": 1, "y": 2.5, "name": "a"}, {"x": 2, "y": None, "name": "b"}])
    lines = alt.Chart(rows).mark_line().encode(x="x:Q", y="y:Q")
    points = alt.Chart(charts.frame([{"x": 1, "y": 2.5, "name": "a"}, {"x": 2, "y": None, "name": "b"}])).mark_point()
    found = charts.specification(charts.layer(lines, points.encode(x="x:Q"), *charts.threshold(2.0, "limit 2")), 200)
    assert len(found["datasets"]) == 2
    first = pa.ipc.open_stream(found["datasets"]["rows_0"]).read_all()
    assert first.to_pylist() == [{"x": 1, "y": 2.5, "name": "a"}, {"x": 2, "y": None, "name": "b"}]
    assert [each["data"]["name"] for each in found["layer"]] == ["rows_0", "rows_0", "rows_1", "rows_1"]


def test_layers_share_their_scales_unless_told_otherwise() -> None:
    cells = alt.Chart(charts.frame([{"x": 1}])).mark_rect().encode(x="x:Q")
    assert charts.specification(charts.layer(cells, cells), 200)["resolve"] == {"scale": {}}
    specification = charts.specification(charts.layer(cells, cells, independent=("color",)), 200)
    assert specification["resolve"] == {"scale": {"color": "independent"}}
    assert [each["mark"]["type"] for each in specification["layer"]] == ["rect", "rect"]
