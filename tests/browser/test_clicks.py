"""A reader at work: filters, drills down, shares a link, downloads, and pulls the kill switch."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page

from dashboards.parts import trial_charts
from dashboards.views import board
from shadowspec.config import load_config
from shadowspec.store import Store
from shadowspec.types import Verdict
from tests.browser.looking import Reader
from tests.browser.serving import Served
from tests.browser.stores import CANARIES

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def site(dashboards: Callable[[str], Served]) -> Served:
    return dashboards("small")


@pytest.fixture
def reader(new_reader: Callable[..., Reader]) -> Reader:
    return new_reader()


def rows(page: Page) -> list[str]:
    """The names of the board's rows, those folded away included."""
    return [each.text_content() or "" for each in page.locator("table.ss-board tbody .ss-go").all()]


def test_a_filter_narrows_the_board_and_stays_in_the_address(
    site: Served, reader: Reader, new_reader: Callable[..., Reader]
) -> None:
    reader.open(site.address())
    every = rows(reader.page)
    reader.act(lambda: reader.page.get_by_role("button", name="HOLD").first.click())
    some = rows(reader.page)
    assert 0 < len(some) < len(every)
    other = new_reader()
    other.open(reader.page.url)
    assert rows(other.page) == some


def test_the_board_is_found_by_its_name_as_well(
    site: Served, reader: Reader, new_reader: Callable[..., Reader]
) -> None:
    reader.open(site.address(verdict="HOLD"))
    named = new_reader()
    named.open(site.address("board", verdict="HOLD"))
    assert rows(named.page) == rows(reader.page) != []
    assert "verdict=HOLD" in named.page.url
    assert not named.page.get_by_text("Page not found").is_visible()


def test_the_board_fetches_what_other_pages_need(site: Served, reader: Reader) -> None:
    wanted = board.scripts_ahead()
    assert {name.split(".")[0] for name in wanted} == set(board.AHEAD)  # Streamlit may name its scripts anew
    reader.open(site.address())
    reader.page.wait_for_function(
        """wanted => {
            const fetched = performance.getEntriesByType("resource").map(each => each.name.split("/").pop());
            return wanted.every(name => fetched.includes(name));
        }""",
        arg=wanted,
    )
    assert reader.errors == []


def test_the_board_tries_charts_that_nobody_sees(site: Served, reader: Reader) -> None:
    """So that the browser knows the library that draws them when a page with charts is asked for."""
    reader.open(site.address())
    reader.page.wait_for_function(
        "number => [...document.querySelectorAll('.ss-host')].some((host) => host.tried === number)",
        arg=len(trial_charts.TRIALS),
    )
    assert reader.page.locator("canvas, svg.marks").count() == 0
    assert reader.errors == []


def test_a_search_finds_by_name(site: Served, reader: Reader) -> None:
    reader.open(site.address())
    every = rows(reader.page)
    reader.page.get_by_label("Search").first.fill("completion")
    reader.act(lambda: reader.page.keyboard.press("Enter"))
    found = rows(reader.page)
    assert 0 < len(found) < len(every)
    assert found[0] == "code-completion"


def test_from_the_board_to_the_evidence_and_on_by_link(
    site: Served, reader: Reader, new_reader: Callable[..., Reader]
) -> None:
    reader.open(site.address())
    first = reader.page.locator("table.ss-board tbody .ss-go").first
    name = first.inner_text()
    reader.act(first.click)
    reader.page.wait_for_url("**/evidence*")
    reader.expect("Confidence sequences")
    assert name in reader.words
    other = new_reader(width=390, theme="dark")
    other.open(reader.page.url)
    assert name in other.words
    assert "Confidence sequences" in other.words


def test_the_first_screen_is_that_of_the_owner_in_the_address(site: Served, reader: Reader) -> None:
    reader.open(site.address(owner="search", severity="decided"))
    headings = [part.inner_text() for part in reader.page.locator(".ss-today h2").all()]
    assert headings == ["Changed since yesterday", "Needs somebody", "Costs, last 7 days of traffic"]
    assert "owner=search" in reader.page.url
    assert rows(reader.page)
    assert reader.violations() == []


def test_the_board_is_come_back_to_as_it_was_left(site: Served, reader: Reader) -> None:
    page = reader.page

    def look() -> tuple[list[str], str, int]:
        reader.expect("Rollout board")
        shown = page.locator("tr.ss-child").locator("visible=true").count()
        return rows(page), page.get_by_label("Search").first.input_value(), shown

    reader.open(site.address())
    every = rows(page)
    reader.act(lambda: page.get_by_role("button", name="ENABLE").first.click())
    page.get_by_label("Search").first.fill("c")
    reader.act(lambda: page.keyboard.press("Enter"))
    reader.act(lambda: page.locator(".ss-toggle").first.click())
    kept, address = look(), page.url
    assert 0 < len(kept[0]) < len(every)
    assert kept[2] > 0
    for how in (page.go_back, page.get_by_role("link", name="Board", exact=True).first.click):
        reader.act(page.locator("table.ss-board tbody .ss-go").first.click)
        reader.expect("Confidence sequences")
        evidence = page.url
        reader.act(how)
        assert look() == kept
        assert sorted(page.url.split("?")[1].split("&")) == sorted(address.split("?")[1].split("&"))
    reader.act(page.get_by_role("link", name="Evidence", exact=True).first.click)
    reader.expect("Confidence sequences")
    assert page.url == evidence


def test_a_phone_shows_every_label_of_a_heat_map(site: Served, new_reader: Callable[..., Reader]) -> None:
    written = {}
    for width in (1280, 390):
        reader = new_reader(width=width)
        reader.open(site.address("explorer"))
        labels = reader.page.locator("svg.marks .role-axis-label text").all()
        written[width] = sorted(label.text_content() or "" for label in labels if label.get_attribute("opacity") != "0")
    assert len(written[1280]) > 4
    assert written[390] == written[1280]


def test_the_whole_board_is_reached_by_keyboard(site: Served, reader: Reader) -> None:
    reader.open(site.address())
    seen = set()
    for _ in range(60):
        reader.page.keyboard.press("Tab")
        seen.add(
            reader.page.evaluate(
                """() => {
                    const own = document.activeElement;
                    return own.className.split(' ')[0] + ' ' + (own.getAttribute('aria-label') || own.innerText || '');
                }"""
            )
        )
    for wanted in ("Evidence", "Search", "Sort by", "ENABLE", "ss-sort Speedup", "ss-toggle", "ss-go"):
        assert any(wanted in each for each in seen), wanted


def test_runs_are_downloaded_without_a_word_of_a_prompt(dashboards: Callable[[str], Served], reader: Reader) -> None:
    reader.open(dashboards("demo").address("explorer", endpoint="code-completion"))
    with reader.page.expect_download() as waiting:
        reader.page.locator(".st-key-runs-csv button").first.click()
    path = waiting.value.path()
    text = Path(path).read_text(encoding="utf-8")
    found = list(csv.DictReader(io.StringIO(text)))
    assert found
    assert not [each for each in CANARIES if each in text]


def test_a_chart_is_downloaded_as_svg_and_as_png(site: Served, reader: Reader) -> None:
    reader.open(site.address("changes"))
    with reader.page.expect_download() as waiting:
        reader.page.get_by_role("button", name=re.compile("^Download as SVG")).first.press("Enter")
    drawn = Path(waiting.value.path()).read_text(encoding="utf-8")
    assert re.fullmatch("Timeline-of-[0-9]+-changes-at-[0-9]+-endpoints.svg", waiting.value.suggested_filename)
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert "time (your clock)" in drawn
    with reader.page.expect_download() as waiting:
        reader.page.get_by_role("button", name=re.compile("^Download as PNG")).first.press("Enter")
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")


def test_the_kill_switch(site: Served, reader: Reader, tmp_path: Path) -> None:
    config = load_config(site.config, environment={})
    with Store.open(config.database_url) as store:
        enabled = [
            decision
            for decision in store.latest_decisions()
            if decision.verdict is Verdict.ENABLE and not decision.slice_key and decision.endpoint != "assistant"
        ]
    endpoint = enabled[0].endpoint
    # The store's units are blocks, whose ENABLE nothing promotes; an override is in force all the same.
    assert "(window_s = 0)" in _check(site.config, endpoint).stderr

    # Off.
    reader.open(site.address("audit"))
    _choose(reader, "Endpoint", endpoint)
    _write(reader, "Reason", "a test pulls the switch")
    _write(reader, "Author", "browser test")
    button = reader.page.get_by_role("button", name=f"Switch off {endpoint}")
    assert button.is_disabled()  # until the name is typed
    _write(reader, re.compile("^Type .* to confirm"), endpoint)
    reader.act(button.click)
    reader.expect("It covers")
    reader.expect("a test pulls the switch")
    refused = _check(site.config, endpoint)
    assert refused.returncode == 1
    assert "a test pulls the switch" in refused.stdout + refused.stderr
    assert _is_off(site.config, endpoint)

    # On again.
    reader.page.get_by_role("tab", name="Clear").click()
    _choose(reader, "Override", endpoint)
    _write(reader, "Reason", "the test is over")
    _write(reader, "Author", "browser test")
    reader.act(reader.page.get_by_role("button", name="Clear it").click)
    reader.expect("is cleared:")
    assert "(window_s = 0)" in _check(site.config, endpoint).stderr
    assert reader.exceptions() == [], site.said


def _write(reader: Reader, label: str | re.Pattern[str], text: str) -> None:
    """Fill the field that is shown and leave it."""
    field = reader.page.get_by_role("textbox", name=label).locator("visible=true").first
    field.fill(text)
    reader.act(lambda: field.press("Tab"))


def _choose(reader: Reader, label: str, option: str) -> None:
    """Pick the option that holds this word in a select box."""
    box = reader.page.get_by_role("combobox", name=label).locator("visible=true").first
    box.click()
    box.fill(option)
    found = reader.page.get_by_role("option").filter(has_text=option).first
    is_chosen = found.get_attribute("aria-selected") == "true"
    if is_chosen:  # the server is not told what does not change
        reader.page.keyboard.press("Escape")
    else:
        reader.act(found.click)


def _check(config: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    return _command("check", "--endpoint", endpoint, "--expect-engine", "synthetic-engine", config=config)


def _is_off(config: Path, endpoint: str) -> bool:
    """Whether what is exported for the serving side turns speculation on nowhere."""
    done = _command("export", "--format", "flagd", "--accept-other-engine", "--endpoint", endpoint, config=config)
    assert done.returncode == 0, done.stderr
    flags = json.loads(done.stdout)["flags"]
    is_off = not any('"on"' in json.dumps(flag.get("targeting", {})) for flag in flags.values())
    assert is_off == (": on, " not in done.stderr)
    return is_off


def _command(*arguments: str, config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shadowspec", *arguments, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=120)
