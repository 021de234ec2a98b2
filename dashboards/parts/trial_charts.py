"""Small charts that the browser draws once, unseen, while the board is read.

The library that draws charts is most of a megabyte of script, which a browser translates as it is first run: without a
trial the first visit of the evidence page takes a fifth longer (docs/dashboard.md).  They are charts of that page, with
no data of anyone's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from shadowspec.gate.verdict.curves import SequencePoint
from shadowspec.reports.content import charts
from shadowspec.reports.render.vega import specification
from shadowspec.types import Arm

_DAYS = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 6)]
_POINTS = [SequencePoint(day.day, 1.0 + day.day / 10, 0.9, 2.0) for day in _DAYS]
_SHARES = (0.8, 0.6, 0.4, 0.2)
_CURVES = [
    charts.LatencyCurve(arm, tuple((2.0**step, step / 6) for step in range(1, 6)), ((0.5, 8.0),), 5) for arm in Arm
]
TRIALS: Final[tuple[Mapping[str, Any], ...]] = tuple(
    specification(chart) | {"width": 400, "autosize": {"type": "fit", "contains": "padding"}}
    for chart in (
        charts.path("speedup", _POINTS, 1.05, moments=_DAYS, changes=[(_DAYS[2], "x")]),
        charts.positions(_SHARES, _SHARES),
        charts.latency("x", _CURVES),
    )
    if chart is not None
)
