"""What a reader gets: one file that loads nothing, says every word, escapes every name, and is well formed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from io import StringIO
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.render.svg import Scale, element, svg
from shadowspec.reports.report import (
    Report,
    build_report,
    render_html,
    render_json,
    render_markdown,
    terminal_tables,
)
from shadowspec.types import Verdict, parse_slice_key
from tests.builders.pages import STATES, Page, evil_report, reports
from tests.builders.report_worlds import CHAT, CODE, POLICY, judged, world
from tests.builders.workspace import require_valid_document
from tests.reports.worlds import NOW, MemorySource, add_slice


@cache
def html_of(state: str) -> str:
    return render_html(reports()[state])


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def report(state: str) -> Report:
    return reports()[state]


@pytest.fixture
def html(state: str) -> str:
    """The page of `report`."""
    return html_of(state)


def test_the_page_is_well_formed_and_its_links_lead_somewhere(html: str) -> None:
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] or "" for tag, a in page.tags if tag == "a"]
    assert all(link.startswith("#") and link[1:] in ids for link in links)


def test_the_page_loads_nothing(html: str) -> None:
    page = Page(html)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|srcset|\bfetch\(|XMLHttp", html)
    assert not any(tag in ("link", "img", "iframe", "object", "embed") for tag, _ in page.tags)
    assert not any("src" in attributes for _, attributes in page.tags)


def test_every_picture_is_xml_with_a_name(report: Report, html: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", html, flags=re.S)
    assert bool(pictures) is bool(report.total_funnel.num_records)
    for picture in pictures:
        root = ET.fromstring(picture)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert "nan" not in picture
        assert "inf" not in picture.replace("info", "")


def test_the_page_says_what_was_found(report: Report, html: str) -> None:
    text = Page(html).text
    assert report.data_note in text
    for h in report.hypotheses:
        assert h.endpoint in text
        if h.decision:
            assert h.decision.verdict.value in text
            assert h.decision.reason in text
    for number in (report.total_funnel.num_records, *(row.num_records for row in report.total_funnel.rows)):
        assert f"{number:,}" in text
    for endpoint in report.endpoints:
        assert endpoint.name in text


def test_states_without_evidence_say_so() -> None:
    assert "No record has been read." in Page(html_of("empty")).text
    assert "none measured yet" not in Page(html_of("full")).text
    assert "the gate has not judged it yet" in Page(html_of("not judged")).text
    assert "No record of this endpoint has been read yet." in Page(html_of("nothing measured")).text
    assert "1 record read, whose endpoint could not be determined" in Page(html_of("nothing told")).text
    small = Page(html_of("one block"))
    assert "n < 100" in small.text
    assert any(a.get("title") == "needs 100 requests, has 3" for _, a in small.tags)


def test_every_verdict_is_a_word_and_not_only_a_colour() -> None:
    seen = {h.decision.verdict for name in ("full", "slow") for h in reports()[name].hypotheses if h.decision}
    assert seen == set(Verdict)
    for name in ("full", "slow"):
        chips = re.findall(r'<span class="chip v-(\w+)"[^>]*>([A-Z ]+)</span>', render_html(reports()[name]))
        judged_chips = [(colour, word) for colour, word in chips if colour != "undecided"]
        assert judged_chips
        assert all(colour.upper() == word for colour, word in judged_chips)
        assert {word for colour, word in chips if colour == "undecided"} <= {"NO DATA", "NOT JUDGED"}


def test_names_from_traffic_are_text_and_never_markup() -> None:
    page = Page(render_html(evil_report()))
    assert [tag for tag, _ in page.tags].count("script") == 0
    assert page.text.count("<script>alert(1)</script>") > 8
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_markdown_keeps_its_tables_whole() -> None:
    for text in (render_markdown(evil_report()), *(render_markdown(each) for each in reports().values())):
        assert "<" not in re.sub(r"\\<|&lt;|n < \d+", "", text)
        tables = re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.M)
        for table in tables:
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.strip().split("\n")}
            assert len(widths) == 1
    assert "[x](y)" not in render_markdown(evil_report())


def test_json_is_strict_and_repeats_the_figures(report: Report) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document = json.loads(render_json(report), parse_constant=refuse)
    require_valid_document(["report", "--json"], render_json(report))
    assert document["funnel"]["num_records"] == sum(document["funnel"]["counters"].values())
    found = [h for endpoint in document["endpoints"] for h in endpoint["hypotheses"]]
    held = [h for endpoint in report.endpoints for h in endpoint.hypotheses]
    assert [each["slice"] for each in found] == [dict(parse_slice_key(each.slice_key)) for each in held]
    for written, h in zip(found, held, strict=True):
        assert written["num_requests"] == h.num_requests
        assert (written["decision"] or {}).get("verdict") == (h.decision.verdict.value if h.decision else None)
        assert bool(written["acceptance"]) is bool(h.acceptance)


def test_an_infinite_bound_is_null_in_json() -> None:
    report = reports()["full"]
    first = report.hypotheses[0]
    assert first.decision
    tests = tuple(replace(test, upper=float("inf")) for test in first.decision.tests)
    hypothesis = replace(first, decision=replace(first.decision, tests=tests))
    endpoint = replace(report.endpoints[0], hypotheses=(hypothesis,))
    document = json.loads(render_json(replace(report, endpoints=(endpoint,))))
    written = document["endpoints"][0]["hypotheses"][0]["decision"]["tests"]
    assert [test["upper"] for test in written] == [None] * len(tests)


def terminal_text(report: Report) -> str:
    console = Console(file=StringIO(), width=200, color_system=None)
    for table in terminal_tables(report):
        console.print(table)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_the_terminal_shows_verdict_bounds_and_funnel(report: Report) -> None:
    text = terminal_text(report)
    for h in report.hypotheses:
        if h.decision and h.speedup and h.speedup.estimate is not None:
            assert h.decision.verdict.value in text
            assert f"{h.speedup.estimate:.2f}\u00d7" in text
            assert "Speedup [bounds]" in text
    read = report.total_funnel.num_records
    assert (f"{read:,}" if read else "No record has been read.") in text
    for row in report.total_funnel.rows:  # a counter that is 0 everywhere takes no column
        assert row.num_records == 0 or row.counter.value.replace("_", " ") in text


def test_the_terminal_reads_no_markup_in_names() -> None:
    source = MemorySource()
    add_slice(
        source, "[red]loud[/red]", "prompt_class=[bold]code,sampling_regime=greedy", num_blocks=2, speedup=1, rate=0.5
    )
    add_slice(source, "[red]loud[/red]", "prompt_class=chat,sampling_regime=greedy", num_blocks=2, speedup=1, rate=0.5)
    text = terminal_text(build_report(judged(source), {}, NOW, data_note="x"))
    assert text.count("[red]loud[/red]") == 3  # above its own table, as a key of the configuration and in the funnel
    assert "[bold]code" in text


def test_policies_that_differ_are_told_apart() -> None:
    source = judged(world())
    shared = build_report(source, {"editor": POLICY, "quiet": POLICY}, NOW, data_note="x")
    reported = build_report(
        source, {"editor": POLICY, "quiet": GatePolicy(window_s=0.0, floor=0.123)}, NOW, data_note="x"
    )
    assert "editor, quiet" in Page(render_html(shared)).text
    assert "0.123" in Page(render_html(reported)).text
    assert "0.123" not in Page(render_html(shared)).text


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.floats(-2e6, 2e6))
def test_a_scale_stays_within_its_pixels_and_rises(low: float, span: float, value: float) -> None:
    scale = Scale(low, low + span, 10, 200)
    assert 10 <= scale(value) <= 200 + 1e-9
    assert scale(low) == pytest.approx(10)
    assert scale(low + span) == pytest.approx(200)
    assert scale(value) <= scale(value + span / 3) + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_text_in_a_picture_comes_back_as_it_was(text: str) -> None:
    kept = "".join(c for c in text if c.isprintable())
    root = ET.fromstring(svg(1, 1, kept, element("text", kept, x=1)))
    assert root.get("aria-label") == kept
    assert (root[0].text or "") == kept


def test_slices_are_written_as_everywhere() -> None:
    text = Page(html_of("full")).text
    assert "prompt_class=code, sampling_regime=greedy" in text
    assert "prompt_class=chat, sampling_regime=low" in text
    assert CODE not in text
    assert CHAT not in text
