"""Stores to look at, and pages opened without a browser."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboards.app import PACKAGE, load_package
from kernels.benchmarks.large_store.config import config_text
from kernels.benchmarks.large_store.filling import Size, fill
from kernels.benchmarks.large_store.world import make_world
from shadowspec.config import CONFIG_VARIABLE, DATABASE_VARIABLE
from tests.builders.dashboard_apps import Open
from tests.builders.databases import made_once
from tests.services import PATIENCE_S

SIZE = Size(
    num_slices=24, num_days=20, num_runs=5_000, num_looks=6, live_interval_s=1_800.0
)  # three endpoints, all three verdicts

APP = Path(__file__).parents[2] / "dashboards" / "app.py"
# What `app.py` draws around a page whose address is not the root's, which AppTest cannot be sent to.
_SCRIPT = """
import importlib
from {package}.parts import header, source, states
with states.show_errors():
    header.header(source.config().dashboard)
    importlib.import_module("{package}.views.{page}").page()
"""


@pytest.fixture(scope="session")
def filled_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with rollups, decisions of several looks, overrides and rollouts, up to now."""

    def make(folder: Path) -> None:
        fill(f"sqlite:///{folder / 'store.db'}", SIZE, datetime.now(UTC), workers=1)

    folder = tmp_path_factory.mktemp("dashboard")
    shutil.copytree(made_once(tmp_path_factory, "dashboard", make), folder, dirs_exist_ok=True)
    return f"sqlite:///{folder / 'store.db'}"


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a configuration for a database, with further keys of [dashboard], the one that is found."""

    def configure(url: str, dashboard: str = "") -> Path:
        text = config_text(make_world(SIZE.num_slices, SIZE.seed), url)
        path = tmp_path / "shadowspec.toml"
        path.write_text(text.replace("[dashboard]\n", f"[dashboard]\n{dashboard}\n", 1), encoding="utf-8")
        monkeypatch.setenv(CONFIG_VARIABLE, str(path))
        monkeypatch.delenv(DATABASE_VARIABLE, raising=False)
        return path

    return configure


@pytest.fixture
def blank(new_database: Callable[[str], str]) -> str:
    """A database with a schema and nothing in it."""
    return new_database("sqlite")


@pytest.fixture
def open_page(filled_url: str) -> Iterator[Open]:
    """Draws one page, with what stands above it: the board as `app.py` does, any other by its module's name."""
    # `filled_url` is made first: its worker processes find no main module once AppTest has put its own there.
    load_package()

    def opened(page: str = "board", **parameters: str) -> AppTest:
        script = _SCRIPT.format(package=PACKAGE, page=page)
        app = AppTest.from_file(str(APP)) if page == "board" else AppTest.from_string(script)
        app.default_timeout = PATIENCE_S
        for name, value in parameters.items():
            app.query_params[name] = value
        return app.run()

    yield opened
    importlib.import_module(f"{PACKAGE}.parts.source").forget()
    st.cache_resource.clear()
