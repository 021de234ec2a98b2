"""Charts: what is kept, and what each carries for those who save it."""

from __future__ import annotations

from typing import Any

import altair as alt
import pyarrow as pa
import pytest

from dashboards.parts import charts


def test_a_kept_chart_is_drawn_once_for_each_value_and_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    @charts.keep_drawn
    def line(height: int) -> Any:
        calls.append(height)
        return alt.Chart(charts.frame([{"x": 1, "y": height}])).mark_line().encode(x="x:Q", y="y:Q")

    first = line(3)
    assert line(3) is first
    assert line(4) is not first
    monkeypatch.setattr(charts, "viewer_zone", lambda: "Europe/Berlin")
    assert line(3) is not first
    assert calls == [3, 4, 3]
    assert first.spec["height"] == charts.HEIGHT


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
