"""Small charts that the browser draws once, unseen, while the board is read.

The library that draws charts is most of a megabyte of script, which a browser translates as it is first run: without a
trial the first visit of the evidence page takes a fifth longer (docs/dashboard.md).  They have the marks, scales, axes
and legends of the real ones, and no data of anyone's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_AT = {"field": "at", "type": "temporal", "axis": {"format": "%d %b", "labelOverlap": True}, "title": "at"}
_TOOLTIP = [{"field": "text", "type": "nominal"}, {"field": "at", "type": "temporal", "format": "%Y-%m-%d"}]
_KINDS = {"domain": ["a", "b"], "range": ["#0072B2", "#8A949E"]}
_LEGEND = {"orient": "top", "title": None}
_LOG = {"type": "log", "nice": False}

_PATH = {
    "data": {
        "values": [
            {"at": f"2026-01-0{day}", "estimate": 1.0 + day / 10, "lower": 0.9, "upper": 2.0, "text": "x"}
            for day in range(1, 6)
        ]
    },
    "layer": [
        {
            "mark": {"type": "area", "opacity": 0.2},
            "encoding": {"x": _AT, "y": {"field": "lower", "type": "quantitative"}, "y2": {"field": "upper"}},
        },
        {
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": _AT,
                "y": {"field": "estimate", "type": "quantitative", "scale": {"zero": False}},
                "tooltip": _TOOLTIP,
            },
        },
        {"mark": {"type": "rule", "strokeDash": [5, 4]}, "encoding": {"y": {"field": "lower", "type": "quantitative"}}},
        {
            "mark": {"type": "text", "align": "left", "dx": 4},
            "encoding": {"x": _AT, "y": {"value": 12}, "text": {"field": "text", "type": "nominal"}},
        },
    ],
}
_BARS = {
    "data": {"values": [{"position": p, "of": of, "share": p / 5} for p in range(1, 5) for of in "ab"]},
    "mark": {"type": "bar"},
    "encoding": {
        "x": {"field": "position", "type": "ordinal", "axis": {"labelAngle": 0}},
        "xOffset": {"field": "of", "type": "nominal"},
        "y": {"field": "share", "type": "quantitative", "axis": {"format": ".0%"}, "scale": {"domain": [0, 1]}},
        "color": {"field": "of", "type": "nominal", "scale": _KINDS, "legend": _LEGEND},
        "tooltip": [{"field": "share", "type": "quantitative", "format": ".1%"}],
    },
}
_CURVES = {
    "data": {"values": [{"ms": 2.0**step, "share": step / 6, "arm": arm} for step in range(1, 6) for arm in "ab"]},
    "layer": [
        {
            "mark": {"type": "line", "interpolate": "step-after"},
            "encoding": {
                "x": {"field": "ms", "type": "quantitative", "scale": _LOG, "axis": {"format": "~s", "tickCount": 6}},
                "y": {"field": "share", "type": "quantitative", "axis": {"format": ".0%"}},
                "color": {"field": "arm", "type": "nominal", "scale": _KINDS, "legend": _LEGEND},
                "strokeDash": {"field": "arm", "type": "nominal", "legend": None},
            },
        },
        {
            "mark": {"type": "rect", "stroke": "white"},
            "encoding": {
                "x": {"field": "ms", "type": "quantitative"},
                "x2": {"field": "ms"},
                "y": {"field": "share", "type": "quantitative"},
                "y2": {"datum": 0},
            },
        },
    ],
}

TRIALS: Final[tuple[Mapping[str, Any], ...]] = tuple(
    {"width": 400, "height": 200, "autosize": {"type": "fit", "contains": "padding"}, **part}
    for part in (_PATH, _BARS, _CURVES)
)
