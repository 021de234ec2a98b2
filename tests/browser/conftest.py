"""Fixtures of the browser tests: one browser, and a dashboard for each state, started when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser import looking, stores
from tests.browser.looking import Reader
from tests.browser.serving import Served, served
from tests.builders.databases import temporary_database
from tests.services import free_port


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser that all tests open windows of."""
    with looking.browser() as opened:
        yield opened


@pytest.fixture
def new_reader(chromium: Browser) -> Iterator[Callable[..., Reader]]:
    """Opens windows, which are closed after the test."""
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(looking.reader(chromium, **how))


@pytest.fixture(scope="session")
def dashboards(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Served]]:
    """The dashboard on a state: empty, unconfigured, measured, first, demo, small, large, stale, behind, away."""
    folder = tmp_path_factory.mktemp("dashboards")
    with ExitStack() as stack:
        known: dict[str, Served] = {}

        def make(name: str) -> stores.State:
            if name == "away":
                return stores.away(free_port(), folder)
            url = stack.enter_context(temporary_database(postgres_url))
            if name == "empty":
                return stores.empty(url, folder)
            if name == "unconfigured":
                return stores.unconfigured(url, folder)
            if name == "measured":
                return stores.measured(url, folder)
            if name == "first":
                return stores.first_blocks(url, folder)
            if name == "demo":
                return stores.demo(url, folder)
            if name == "behind":
                return stores.behind(url, folder)
            size = stores.LARGE if name == "large" else stores.SMALL
            return stores.synthetic(name, url, folder, size=size, days_ago=9 if name == "stale" else 0)

        def get(name: str) -> Served:
            if name not in known:
                known[name] = stack.enter_context(served(make(name).config))
            return known[name]

        yield get


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a test leaves what it saw."""
    return tmp_path_factory.mktemp("shots")
