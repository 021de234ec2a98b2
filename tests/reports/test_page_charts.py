"""Charts of the dashboard's pages: what they say, where their marks lie, and that they can be drawn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.content.chart_values import Chart, Heat, Mark, Shape
from shadowspec.reports.pages import page_charts
from shadowspec.reports.pages.before_after import HourPoint
from shadowspec.reports.pages.explorer import ExplorerGrid, GridCell
from shadowspec.reports.render.vega import chart_svg
from shadowspec.types import Decision, Verdict
from tests.store import examples

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def berlin(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None) + timedelta(hours=1)


def drawn(chart: Chart | None) -> Chart:
    assert chart is not None
    assert "undefined" not in chart_svg(chart)
    return chart


def marks_of(chart: Chart, shape: Shape) -> list[Mark]:
    return [mark for mark in chart.marks if mark.shape is shape and mark.points]


def grid(figure: str, *cells: GridCell) -> ExplorerGrid:
    return ExplorerGrid(figure, "load", "prompt_class", ("1", "4"), ("chat", "code"), cells, 90)


def test_hours_lie_on_the_readers_clock_with_the_moment_between_them() -> None:
    points = [HourPoint(NOON, 40.0, 200.0, 150.0, 1.3), HourPoint(NOON + timedelta(hours=1), 60.0, None, 160.0, None)]
    latency = drawn(page_charts.latency_by_hour(points, NOON, berlin))
    assert [(mark.name, len(mark.points)) for mark in marks_of(latency, Shape.LINE)] == [
        ("baseline", 1),
        ("speculative", 2),
    ]
    assert latency.marks[0].points[0].text == "02 Jan 13:00, baseline: 200 ms"
    assert latency.limits[0].value == datetime(2026, 1, 2, 13)
    (box, _) = drawn(page_charts.rate_by_hour(points, NOON, berlin)).marks[0].points
    assert (box.x, box.x2, box.y) == (datetime(2026, 1, 2, 13), datetime(2026, 1, 2, 14), 40.0)


def at(load: int, verdict: Verdict, lower: float | None, name: str = "ngram-k2") -> Decision:
    base = examples.decision(verdict)
    config = replace(base.config, name=name)
    test = replace(base.tests[0], name="speedup", estimate=1.2, lower=lower, upper=1.9)
    return replace(base, concurrency=load, config=config, tests=(test,))


def test_verdicts_are_symbols_beside_the_other_configs_of_a_load() -> None:
    cells = [at(16, Verdict.HOLD, None), at(2, Verdict.ENABLE, 1.1), at(2, Verdict.DISABLE, 0.9, "other")]
    chart = drawn(page_charts.speedup_by_load("chat", cells, 0.05))
    assert chart.x.names == ("2", "16")
    assert [(m.symbol, m.points[0].x) for m in marks_of(chart, Shape.DOTS)] == [
        ("circle", "2"),
        ("diamond", "16"),
        ("square", "2"),
    ]
    assert [point.y for point in marks_of(chart, Shape.SPANS)[0].points] == [None, 1.1]
    assert [limit.value for limit in chart.limits] == [1.05, 1.0]
    assert page_charts.speedup_by_load("chat", [], 0.05) is None


def test_changes_have_the_symbol_of_their_kind() -> None:
    changes = [
        Change(NOON, kind, endpoint, "", None, "HOLD to ENABLE", "proven", who="the gate")
        for kind, endpoint in ((ChangeKind.ALARM, "chat"), (ChangeKind.VERDICT, "search"))
    ]
    chart = drawn(page_charts.changes_by_endpoint(changes, berlin))
    assert [(mark.name, mark.symbol) for mark in chart.marks] == [("verdict", "circle"), ("alarm", "triangle-up")]
    assert chart.marks[1].points[0].text.endswith("HOLD to ENABLE, by the gate. proven")
    assert chart.said == "Timeline of 2 changes at 2 endpoints"


@pytest.mark.parametrize(
    ("figure", "values", "places", "tone"),
    [
        ("speedup", (0.8, 1.1), (0.0, 0.75), "diverging"),
        ("requests", (10.0, 30.0), (0.0, 1.0), "sequential"),
        ("requests", (10.0, 10.0), (1.0, 1.0), "sequential"),
        ("speedup", (None, 1.0), (None, 0.5), "diverging"),
    ],
)
def test_cells_are_coloured_by_their_place(
    figure: str, values: tuple[float | None, float], places: tuple[float | None, float], tone: str
) -> None:
    cells = [GridCell(x, "chat", value, 29 + place) for place, (x, value) in enumerate(zip("14", values, strict=True))]
    (mark,) = drawn(page_charts.heat_map(grid(figure, *cells))).marks
    heats = [point.heat for point in mark.points]
    assert mark.tone == tone
    assert [heat.place for heat in heats if isinstance(heat, Heat)] == [
        None if place is None else pytest.approx(place) for place in places
    ]
    assert [heat.is_pale for heat in heats if isinstance(heat, Heat)] == [True, False]


def test_curves_have_a_line_for_every_value() -> None:
    cells = [GridCell(x, y, 1.2, 40) for y in ("chat", "code") for x in ("1", "4")]
    chart = drawn(page_charts.curves(grid("speedup", *cells)))
    assert [(mark.name, len(mark.points)) for mark in marks_of(chart, Shape.LINE)] == [("chat", 2), ("code", 2)]
    assert chart.limits[0].value == 1.0
    assert chart.marks[0].points[0].text == "load 1, prompt_class chat: 1.20\u00d7, 40 requests"
    assert not page_charts.curves(grid("requests", *cells)).limits
