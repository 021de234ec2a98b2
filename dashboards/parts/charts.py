"""Charts under their titles, each with a way to save it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
import streamlit.components.v2 as components

from shadowspec.reports.content.chart_values import Chart
from shadowspec.reports.render.vega import specification

HEIGHT = 260
Rows = Sequence[dict[str, Any]]


def frame(rows: Rows) -> pd.DataFrame:
    """Rows as a table takes them."""
    return pd.DataFrame(list(rows))


def show(chart: Chart, title: str, *, key: str, help_text: str | None = None, height: int | None = None) -> None:
    """Draw a chart under its title, which carries the unit; tools at its corner save it as PNG or (`offer_files`) SVG.

    `height` is in pixels; None as its rows and legend need it, `HEIGHT` without rows.  An empty chart is not drawn.
    """
    if chart.is_empty:
        return
    st.markdown(f"**{title}**", help=help_text)
    st.vega_lite_chart(
        specification(chart, height or (None if chart.y.names else HEIGHT)), width="stretch", key=key, alt=chart.said
    )


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
