"""The call that opens a page of the dashboard."""

from __future__ import annotations

from collections.abc import Callable

from streamlit.testing.v1 import AppTest

Open = Callable[..., AppTest]
