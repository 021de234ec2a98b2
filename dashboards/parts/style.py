"""The dashboard's own style sheet, beside the theme in `.streamlit/config.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st


def apply() -> None:
    """Add the style sheet to this run of the page."""
    st.html(f"<style>{_sheet()}</style>")


@cache
def _sheet() -> str:
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
