"""Each renderer shows every text of the content; charts are drawn from what they describe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from shadowspec.reports.content.content_blocks import (
    Block,
    Cell,
    ContentDocument,
    Facts,
    Figure,
    Heading,
    HeadNumbers,
    Lines,
    Note,
    Section,
    Table,
)
from shadowspec.reports.content.definitions import DEFINITIONS
from shadowspec.reports.figures.by_turn import ProductionCache
from shadowspec.reports.render.html import render_html
from shadowspec.reports.render.markdown import render_markdown
from shadowspec.reports.render.terminal import render_terminal
from shadowspec.reports.report import Report
from shadowspec.reports.report.report_content import report_content
from shadowspec.text import markdown_text
from tests.builders.pages import STATES, Page, evil_report, reports


def texts_of(blocks: Iterable[Block]) -> Iterator[str]:
    """Every text that a reader of these blocks must find."""
    for block in blocks:
        match block:
            case Section():
                yield from (block.title, *block.facts)
                yield from texts_of(block.blocks)
            case Table():
                yield from (cell for row in block.rows for part in row for cell in (part.text, *part.notes))
                yield from [column.title for column in block.columns] if block.rows else [block.empty]
            case Note():
                yield from (block.lead, block.text)
            case Lines():
                yield from block.lines
            case HeadNumbers():
                yield from (text for number, word, _ in block.numbers for text in (number, word))
            case Heading():
                yield block.title
            case Figure():
                yield from (block.title, block.note, *block.lines)
            case Facts():
                yield from (text for name, value, _ in block.pairs for text in (name, value))


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.fixture(params=["evil", *STATES])
def document(request: pytest.FixtureRequest) -> ContentDocument:
    return report_content(evil_report() if request.param == "evil" else reports()[request.param])


def test_every_renderer_shows_every_text(document: ContentDocument) -> None:
    page, markdown = squeezed(Page(render_html(document)).text), squeezed(render_markdown(document))
    console = Console(file=StringIO(), width=4_000, color_system=None)
    for drawn in render_terminal(document.blocks):
        console.print(drawn)
    assert isinstance(console.file, StringIO)
    printed = squeezed(console.file.getvalue())
    for text in filter(None, texts_of(document.blocks)):
        assert squeezed(text) in page
        assert squeezed(markdown_text(text)) in markdown
        for line in text.replace(" [", "\n[").split("\n"):  # a terminal sets the lines of a row's cells side by side
            assert squeezed(line) in printed


def test_every_chart_is_said_in_words(document: ContentDocument) -> None:
    def figures(blocks: Iterable[Block]) -> Iterator[Figure]:
        for block in blocks:
            if isinstance(block, Figure):
                yield block
            elif isinstance(block, Section):
                yield from figures(block.blocks)

    markdown = squeezed(render_markdown(document))
    for figure in figures(document.blocks):
        assert squeezed(markdown_text(figure.chart.said)) in markdown


def test_what_production_cached_is_said_before_anything_is_measured() -> None:
    report = next(report for state in STATES for report in [reports()[state]] if unmeasured(report))
    cache = ProductionCache(3, 100, 40)
    told = replace(report, endpoints=tuple(replace(e, production_cache=cache) for e in report.endpoints))
    assert cache.text not in render_markdown(report_content(report))
    assert cache.text in render_markdown(report_content(told))
    assert cache.text in Page(render_html(report_content(told))).text


def unmeasured(report: Report) -> bool:
    return bool(report.endpoints) and not report.hypotheses


def test_hovering_shows_thresholds_whole_details_and_what_a_measure_is() -> None:
    report = reports()["full"]
    details = {"target": "0123456789abcdef" * 2}
    configs = tuple(replace(config, details=details) for config in report.configs)
    page = render_html(report_content(replace(report, configs=configs)))
    assert details["target"] in page
    strips = re.findall(r'<svg [^>]*class="strip"><title>([^<]*)</title>', page)
    assert strips
    assert all(re.fullmatch(r".+ \[.+\], threshold .+", strip) for strip in strips)
    assert re.search(f'<td [^>]*title="{re.escape(DEFINITIONS["ttft"][1])}"', page)


def test_a_cell_in_one_line() -> None:
    assert Cell("a", ("b", "c")).line == "a; b; c"
