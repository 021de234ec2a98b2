"""Every page in every state, light and dark, at the width of a desk and of a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels.benchmarks.large_store import DATA_NOTE
from shadowspec.demo import DATA_NOTE as DEMO_NOTE
from tests.browser.looking import THEMES, WIDTHS, Reader
from tests.browser.serving import Served
from tests.browser.stores import CANARIES

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]

PAGES = ("", "evidence", "explorer", "loads", "changes", "before-after", "audit")

# What each page says where there is something to show, and where there is not.
CONTENT = {
    "": ("Rollout board", "ENABLE", "HOLD"),
    "evidence": ("Confidence sequences", "Acceptance by position", "Latency of both arms", "Parity"),
    "explorer": ("Explorer", "Requests", "prompt class"),
    "loads": ("Speedup by load", "Not a decision."),
    "changes": ("Drift and changes", "verdict"),
    "before-after": ("Before and after", "Production"),
    "audit": ("Audit and kill switch", "Overrides"),
}
TITLES = {
    "": "Rollout board",
    "evidence": "code-completion",
    "explorer": "Requests",
    "loads": "Load and what-if",
    "changes": "Drift and changes",
    "before-after": "Before and after",
    "audit": "Audit and kill switch",
}
DEMO_CHOICE = {"endpoint": "code-completion"}  # which has measured requests, as the first by name has not
EMPTY = {
    "": ("nothing consumed yet",),
    "evidence": ("nothing consumed yet",),
    "explorer": ("nothing consumed yet",),
    "loads": ("nothing consumed yet",),
    "changes": ("nothing consumed yet",),
    "before-after": ("nothing consumed yet",),
    "audit": ("Audit and kill switch",),
}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("state", ["empty", "demo", "large", "stale", "away", "behind"])
def test_a_page_in_a_state(
    dashboards: Callable[[str], Served], new_reader: Callable[..., Reader], state: str, page: str
) -> None:
    site = dashboards(state)
    for theme in THEMES:
        for width in WIDTHS:
            reader = new_reader(width=width, theme=theme)
            reader.open(site.address(page, **(DEMO_CHOICE if state == "demo" else {})))
            where = f"{page or 'board'} on {state}, {theme}, {width} px"
            assert reader.exceptions() == [], f"{where}: {site.said}"
            assert reader.errors == [], where
            assert reader.overflow() == [], where
            assert reader.foreign == [], where
            for word in _expected(state, page):
                assert word in reader.words, f"{where}: {word!r} is not said"
            received = reader.received()
            assert [each for each in CANARIES if each in received] == [], where
            reader.page.context.close()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("state", ["empty", "large", "away"])
def test_axe_finds_nothing_serious(
    dashboards: Callable[[str], Served], new_reader: Callable[..., Reader], state: str, theme: str, page: str
) -> None:
    reader = new_reader(theme=theme, width=1280 if theme == "light" else 390)
    reader.open(dashboards(state).address(page))
    assert reader.violations() == []


def _expected(state: str, page: str) -> tuple[str, ...]:
    if state == "away":
        return ("The database cannot be reached", "Try again")
    if state == "behind":
        return ("shadowspec db upgrade", "Try again")
    if state == "empty":
        return EMPTY[page]
    if state == "demo":  # of so few requests nothing is decided yet
        return (DEMO_NOTE, TITLES[page])
    return (DATA_NOTE, *CONTENT[page], *(("stale",) if state == "stale" and page == "" else ()))
