"""Charts under their titles, and none where there is nothing to see."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from dashboards.app import PACKAGE, load_package
from tests.dashboards.pages import said

SCRIPT = f"""
from {PACKAGE}.parts import charts
from shadowspec.reports.content.chart_values import Axis, Chart, Mark, Point, Shape
for place, points in enumerate([(), (Point(1.0, None), Point(None, 2.0)), (Point(1.0, None), Point(2.0, 3.0))]):
    marks = (Mark(Shape.LINE, points, "baseline"),)
    charts.show(Chart("of something", Axis("x"), Axis("y"), marks), f"title {{place}}", key=str(place))
charts.show(Chart("of nothing", Axis("x"), Axis("y"), ()), "title 3", key="3")
"""


def test_an_empty_chart_is_not_drawn() -> None:
    load_package()
    app = AppTest.from_string(SCRIPT, default_timeout=60).run()
    assert not app.exception
    assert len(app.get("vega_lite_chart")) == 1
    assert [place for place in range(4) if f"title {place}" in said(app)] == [2], "nor is its title"
