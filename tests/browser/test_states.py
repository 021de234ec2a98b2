"""Every page in every state, light and dark, at the width of a desk and of a phone."""

from __future__ import annotations

import re
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
    "": ("Rollout board", "ENABLE", "HOLD", "Next:"),
    "evidence": (
        "Why:",
        "Next:",
        "required test",
        "Confidence sequences",
        "Acceptance by position",
        "Latency of both arms",
        "Parity",
    ),
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
    "": ("no records read yet",),
    "evidence": ("no records read yet",),
    "explorer": ("no records read yet",),
    "loads": ("no records read yet",),
    "changes": ("no records read yet",),
    "before-after": ("no records read yet",),
    "audit": ("Audit and kill switch",),
}
# What the early states say of themselves, by page; a page that is not named says nothing of it.
EARLY = {
    "unconfigured": {
        "": ("No data yet", "shadowspec try", "shadowspec run"),
        "evidence": ("No evidence yet", "shadowspec gate"),
        "explorer": ("No requests yet", "shadowspec init"),
        "loads": ("No endpoint yet", "shadowspec init"),
        "changes": ("No changes in this time", "shadowspec gate"),
        "before-after": ("No ENABLE yet",),
        "audit": ("You have read access", "No endpoint is configured"),
    },
    "empty": {
        "": ("No data yet", "Configured: chat", "shadowspec run"),
        "evidence": ("No request of it was measured yet", "Next: Measure its traffic", "No evidence yet"),
        "explorer": ("No requests yet", "shadowspec run"),
        "loads": ("No decision yet", "shadowspec gate"),
    },
    "measured": {
        "": ("undecided", "Next: Run shadowspec gate"),
        "evidence": ("The gate has not decided on it yet", "Next: Run shadowspec gate"),
        "explorer": ("Requests",),
        "loads": ("No decision yet", "shadowspec gate"),
    },
    "first": {
        "": ("HOLD", "Next: Send traffic", "Still needed: at least 17 more sessions"),
        "evidence": ("Still needed: at least 17 more sessions", "no data yet", "no bounds yet"),
        "loads": ("No speedup yet",),
    },
}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("state", list(EARLY))
def test_an_early_state_explains_itself(
    dashboards: Callable[[str], Served], new_reader: Callable[..., Reader], state: str, page: str
) -> None:
    site = dashboards(state)
    for theme, width in zip(THEMES, WIDTHS, strict=True):
        reader = new_reader(width=width, theme=theme)
        reader.open(site.address(page))
        where = f"{page or 'board'} on {state}, {theme}, {width} px"
        assert reader.exceptions() == [], f"{where}: {site.said}"
        assert reader.errors == [], where
        assert reader.overflow() == [], where
        shown = " ".join(reader.words.split())
        for word in EARLY[state].get(page, ()):
            assert word in shown, f"{where}: {word!r} is not said"
        assert reader.violations() == [], where
        reader.page.context.close()


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


def test_a_long_name_in_a_sentence_is_no_wider_than_a_phone(
    dashboards: Callable[[str], Served], new_reader: Callable[..., Reader]
) -> None:
    reader = new_reader(width=390)
    reader.open(dashboards("small").address("evidence"))
    sentences = reader.page.locator(".ss-reason, .ss-notes li")
    assert sentences.count() >= 2
    sentences.evaluate_all("(found, name) => found.forEach((each) => each.append(name))", " " + "a_long_name=" * 10)
    assert reader.overflow() == []


@pytest.mark.parametrize("theme", THEMES)
def test_a_screen_reader_gets_the_board_and_the_evidence(
    dashboards: Callable[[str], Served], new_reader: Callable[..., Reader], theme: str
) -> None:
    site, reader = dashboards("small"), new_reader(theme=theme)
    reader.open(site.address())
    tree = reader.tree
    assert headings(tree)[0] == ("Rollout board", 1)
    assert 'table "Rollout board: one row per endpoint' in tree
    assert 'columnheader "Verdict' in tree
    name = reader.page.locator("table.ss-board tbody .ss-go").first.inner_text()
    assert re.search(rf'rowheader "Show \d+ more rows? of {name}', tree)
    assert re.search(r'cell "Next: \w+', tree), "the next step is a row of the table"
    reader.open(site.address("evidence", endpoint=name))
    tree = reader.tree
    levels = [level for _, level in headings(tree)]
    assert headings(tree)[0] == (f"{name} whole endpoint", 1)
    assert set(levels[1:]) == {2}, "one title, and its sections below it"
    assert 'figure "Required tests with their bounds and limits"' in tree
    line = re.search(r"- listitem: (.*Speedup.*)", tree)
    assert line is not None
    assert re.search(r"(passes|open|fails).*\[.*\].*limit >", line[1]), "the picture in words"
    assert tree.index("Why:") < tree.index("Next:") < tree.index("Required tests") < tree.index("table")


def headings(tree: str) -> list[tuple[str, int]]:
    """Text and level of each heading, in the order in which they are read."""
    found = re.findall(r"""heading "(.+?)(?: Help)?" \[level=(\d)\]""", tree)
    return [(text, int(level)) for text, level in found]


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
