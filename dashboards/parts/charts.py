"""Charts: one look for all of them, readable in light and dark, each with a title, units and a way to save it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import altair as alt
import pandas as pd
import pyarrow as pa
import streamlit as st
import streamlit.components.v2 as components

from shadowspec.types import Arm

from .formats import in_zone

# Okabe and Ito; readable on white and on near-black.
BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8A949E",
)  # fmt: skip
ARM_COLOUR = {Arm.BASELINE: GREY, Arm.SPECULATIVE: "#2B8CCB"}
HEIGHT = 260
DAY_MS = 86_400_000
DAYS = alt.Axis(format="%d %b", labelOverlap=True, tickMinStep=DAY_MS)  # no day twice
HOURS = alt.Axis(format="%d %b %H:%M", labelOverlap=True)  # as the tables write them
# Beside a chart a legend would leave a phone no width; its symbols are not as pale as the band that they explain.
BELOW = alt.Legend(orient="bottom", labelLimit=260, columns=3, symbolOpacity=1)
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, GREY)

# Legends are below each other: side by side, a phone would cut the second off.  Close to the drawing, whose height
# they take from.
_LEGEND = {"layout": {"bottom": {"anchor": "start", "direction": "vertical"}}, "padding": 2, "offset": 8}
_altair = Lock()  # what is enabled in it is enabled in every thread
CONFIG = {"view": {"strokeWidth": 0}, "legend": _LEGEND}
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart that was drawn before."""

    spec: Mapping[str, Any]


def frame(rows: Rows) -> pd.DataFrame:
    """Rows as a chart takes them."""
    return pd.DataFrame(list(rows))


def show(
    chart: Any, title: str, *, key: str, alt_text: str, help_text: str | None = None, height: int | None = None
) -> None:
    """Draw a chart under its title; the tools at its corner save it as PNG or (`offer_files`) SVG.

    `title` carries the unit; `alt_text` says for those who cannot see it what the chart shows.
    """
    st.markdown(f"**{title}**", help=help_text)
    spec = dict(chart.spec) if isinstance(chart, Drawn) else specification(chart, HEIGHT)
    if height is not None:
        spec["height"] = height
    st.vega_lite_chart(spec, width="stretch", key=key, alt=alt_text)


@dataclass(frozen=True, slots=True)
class Layers:
    """Charts on top of each other, the first at the bottom; `alt.layer` would copy them several times."""

    charts: tuple[Any, ...]
    independent: tuple[str, ...]  # channels whose scales they do not share


def layer(*layers: Any, independent: tuple[str, ...] = ()) -> Layers:
    """These charts on top of each other."""
    return Layers(layers, independent)


def specification(chart: Any, height: int) -> dict[str, Any]:
    """The chart as Vega-Lite takes it, its rows as Arrow's bytes by name: Streamlit sends them as they are."""
    rows: dict[str, bytes] = {}
    with _altair, alt.theme.enable("none"), alt.data_transformers.enable("named_rows", found=rows):
        # Checking against the schema takes most of a second for a page.
        parts = [part.to_dict(validate=False) for part in (chart.charts if isinstance(chart, Layers) else (chart,))]
    document: dict[str, Any] = parts[0]
    if isinstance(chart, Layers):
        scales = dict.fromkeys(chart.independent, "independent")
        document = {
            "$schema": document["$schema"],
            "layer": [_layer(part) for part in parts],
            "resolve": {"scale": scales},
        }
    # Altair would copy the whole chart for each of these.
    return document | {
        "datasets": rows,
        "height": height,
        "config": {**document.get("config", {}), **CONFIG},
    }


def _layer(part: dict[str, Any]) -> dict[str, Any]:
    """A chart as a layer: settings of the whole chart are left out."""
    return {name: value for name, value in part.items() if name not in ("$schema", "config", "datasets")}


def named_rows(data: pd.DataFrame, written: dict[str, bytes]) -> dict[str, str]:
    """Write rows as Arrow's bytes to `written`, once each, and name them; Altair's method takes most of the time."""
    table = pa.Table.from_pandas(data, preserve_index=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    pybytes = sink.getvalue().to_pybytes()
    name = next((name for name, known in written.items() if known == pybytes), f"rows_{len(written)}")
    written[name] = pybytes
    return {"name": name}


alt.data_transformers.register("named_rows", lambda data, **options: named_rows(data, options["found"]))


def pixel_place(channel: Any, pixels: float) -> Any:
    """A place in the drawing: `channel` is `alt.XValue` or `alt.YValue`, in pixels from the left or the top."""
    return channel(pixels)


def threshold(value: float, text: str, *, is_vertical: bool = False, is_below: bool = False) -> list[alt.Chart]:
    """A labelled line at a threshold, as layers of a chart; the words are above a level line, or below it.

    Channels are written out here and everywhere: Altair takes some 5 ms to make one of a mere string.
    """
    data = frame([{"threshold": value, "text": text}])
    line = alt.Chart(data).mark_rule(strokeDash=[5, 4], color=VERMILION, strokeWidth=1.5)
    words = alt.Text("text:N")
    if is_vertical:
        place = alt.X("threshold:Q")
        label = alt.Chart(data).mark_text(color=VERMILION, baseline="bottom")
        # Above the drawing: within it, the words would lie on the first row.
        return [line.encode(x=place), label.encode(x=place, y=pixel_place(alt.YValue, -4), text=words)]
    height = alt.Y("threshold:Q")
    label = alt.Chart(data).mark_text(align="left", dx=4, dy=8 if is_below else -7, color=VERMILION)
    return [line.encode(y=height), label.encode(y=height, x=pixel_place(alt.XValue, 0), text=words)]


def moment_line(at: datetime, text: str) -> list[alt.Chart]:
    """A labelled line at a moment, on the viewer's clock, as layers of a chart."""
    data, place = frame([{"moment": in_zone(at), "text": text}]), alt.X("moment:T")
    line = alt.Chart(data).mark_rule(strokeDash=[5, 4], color=VERMILION, strokeWidth=1.5).encode(x=place)
    label = alt.Chart(data).mark_text(align="right", dx=-5, color=VERMILION, baseline="top")
    return [line, label.encode(x=place, y=pixel_place(alt.YValue, 2), text=alt.Text("text:N"))]


def offer_files() -> None:
    """Add a button for SVG to the tools of every chart of the page, those that come later included; once for a page.

    Streamlit itself saves a chart as PNG.
    """
    _file_component()(key="chart_files")


@cache
def _file_component() -> Any:
    """Registered once for the process: a second registration of the same name is warned of."""
    script = (Path(__file__).parent / "chart_files.js").read_text(encoding="utf-8")
    return components.component("shadowspec_chart_files", js=script, isolate_styles=False)
