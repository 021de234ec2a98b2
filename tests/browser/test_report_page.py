"""The report in a browser without scripts: two screens, parts that a link opens, and all of them in print."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from shadowspec.reports.report import Report, build_report, render_html
from shadowspec.reports.report.report_content import MAX_ROWS
from tests.builders.pages import reports
from tests.builders.report_worlds import POLICY, judged
from tests.reports.worlds import NOW, MemorySource, add_slice

pytestmark = pytest.mark.integration

WIDTH = 1280
TWO_SCREENS = 2_000  # pixels


def fleet(number: int) -> Report:
    source = MemorySource()
    for place in range(number):
        add_slice(
            source,
            f"endpoint-{place:02d}",
            "prompt_class=code,sampling_regime=greedy",
            num_blocks=8,
            speedup=1.3,
            rate=0.6,
        )
    policies = {f"endpoint-{place:02d}": POLICY for place in range(number)}
    return build_report(judged(source), policies, NOW, data_note="Made up.")


def opened(chromium: Browser, report: Report, folder: Path) -> Page:
    path = folder / "report.html"
    path.write_text(render_html(report), encoding="utf-8")
    page = chromium.new_context(viewport={"width": WIDTH, "height": 1_000}, java_script_enabled=False).new_page()
    page.goto(path.as_uri())
    return page


def height(page: Page) -> float:
    box = page.locator("main").bounding_box()
    assert box is not None
    return box["height"]


@pytest.mark.parametrize("number", [1, 6, 50])
def test_it_fits_two_screens(chromium: Browser, tmp_path: Path, number: int) -> None:
    page = opened(chromium, fleet(number), tmp_path)
    shown = min(number, MAX_ROWS)
    assert page.locator("table.board >> nth=0").locator("tbody tr").count() == shown
    ends = page.locator("figure >> nth=0").bounding_box()
    assert ends is not None
    assert ends["y"] + ends["height"] < TWO_SCREENS
    assert height(page) <= TWO_SCREENS
    if number > MAX_ROWS:
        assert page.locator("summary", has_text=f"{number - MAX_ROWS} more endpoints: ").count() == 1
    page.context.close()


def test_of_many_endpoints_a_link_opens_a_part_within_a_folded_part(chromium: Browser, tmp_path: Path) -> None:
    page = opened(chromium, fleet(MAX_ROWS + 2), tmp_path)
    row = page.locator("table.board tbody a.to >> nth=0")
    part = page.locator(str(row.get_attribute("href")))
    assert not part.is_visible()
    row.click()
    part.wait_for(state="visible", timeout=10_000)
    page.context.close()


def test_a_link_opens_the_part_that_it_leads_to(chromium: Browser, tmp_path: Path) -> None:
    page = opened(chromium, reports()["full"], tmp_path)
    folded = page.locator("main > details")
    assert folded.count() >= 4
    assert all(folded.nth(place).get_attribute("open") is None for place in range(folded.count()))
    row = page.locator("table.board tbody a.to >> nth=0")
    part = page.locator(str(row.get_attribute("href")))
    assert not part.is_visible()
    row.click()
    part.wait_for(state="visible", timeout=10_000)
    assert not page.locator("#definitions").is_visible()
    page.locator("a.term >> nth=0").click()
    page.locator("#definitions").wait_for(state="visible", timeout=10_000)
    page.context.close()


def test_print_opens_every_part(chromium: Browser, tmp_path: Path) -> None:
    page = opened(chromium, reports()["full"], tmp_path)
    on_screen = height(page)
    assert not page.locator("#definitions dl").is_visible()
    page.emulate_media(media="print")
    assert page.locator("#definitions dl").is_visible()
    assert height(page) > 2 * on_screen
    page.context.close()
