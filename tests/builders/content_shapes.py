"""Reports of every shape."""

from __future__ import annotations

from datetime import UTC, datetime

from shadowspec.reports.content.chart_values import Axis, Heat, Point, Shape

SHAPES = {
    Shape.LINE: (Axis("x"), Point(1.0, 2.0)),
    Shape.STEPS: (Axis("x"), Point(1.0, 2.0)),
    Shape.BAND: (Axis("x"), Point(1.0, None, y2=3.0)),
    Shape.BARS: (Axis("x", names=("a", "b")), Point("a", 2.0)),
    Shape.BOXES: (Axis("x", is_log=True), Point(1.0, 2.0, x2=2.0)),
    Shape.SPANS: (Axis("x"), Point(None, "row", x2=2.0)),
    Shape.STRIPS: (Axis("x"), Point(0.0, "row", x2=2.0)),
    Shape.DOTS: (Axis("x"), Point(datetime(2026, 1, 1, tzinfo=UTC), 2.0)),
    Shape.CELLS: (Axis("x", names=("a",)), Point("a", "row", heat=Heat(0.2, ("1.2", "n 3")))),
}
