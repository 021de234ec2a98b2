"""Charts to take away: Streamlit saves them as PNG; a script of ours adds SVG to each chart's tools."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import streamlit.components.v2 as components


def offer() -> None:
    """Add it to every chart of the page, those that come later included; once for a page."""
    _registered()(key="chart_files")


@cache
def _registered() -> Any:
    """Registered once for the process: a second registration of the same name is warned of."""
    script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    return components.component("shadowspec_chart_files", js=script, isolate_styles=False)
