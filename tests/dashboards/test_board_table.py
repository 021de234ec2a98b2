"""The board's HTML: what comes from traffic is text, never mark-up; intervals lie where they should."""

from __future__ import annotations

import re
from datetime import timedelta
from xml.etree import ElementTree

import pytest

from dashboards.parts.board_columns import COLUMNS
from dashboards.parts.board_table import TableContext, coarse_age, speedup_range, table_html
from dashboards.parts.formats import text
from shadowspec.reports.content.charts import interval
from shadowspec.reports.content.explanation import explained
from shadowspec.reports.pages.board import build_board
from shadowspec.reports.render.svg import STRIP_HEIGHT, STRIP_WIDTH, picture_svg
from shadowspec.types import Override, TestResult, Verdict
from tests.builders.board_values import decision, values
from tests.reports.worlds import NOW
from tests.store.examples import in_traffic

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def table(sort: str = "verdict") -> str:
    rows = [decision(), in_traffic(decision(slice_key=f"tier={HOSTILE}"), 0.4)]
    order = Override(1, "chat", f"tier={HOSTILE}", None, Verdict.DISABLE, f'"{HOSTILE}', HOSTILE, NOW)
    board = build_board(values(rows), (order,), NOW)
    context = TableContext(NOW, timedelta(days=1), "USD", speedup_range(board.rows))
    return table_html(board.endpoints, context, sort)


def test_labels_reasons_and_authors_are_text() -> None:
    html = table().replace("<wbr/>", "")  # a place to break a line
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;\ufffd" in html
    root = ElementTree.fromstring(html)  # every tag is closed, every attribute quoted
    assert {element.tag for element in root.iter()} <= {
        "table", "caption", "thead", "tbody", "tr", "th", "td", "div", "span", "small", "b", "br", "a", "button", "svg",
        "line", "circle", "polyline", "title", "p", "code", "details", "summary", "ul", "li",
    }  # fmt: skip


def test_the_board_explains_in_the_words_of_the_command() -> None:
    row = decision()
    html = table()
    lines = explained(row)
    assert lines
    for line in lines:
        assert f"<b>{text(line.lead)}:</b> {text(line.text)}" in html


def test_every_cell_names_its_column_for_narrow_screens() -> None:
    root = ElementTree.fromstring(table())
    for row in root.iter("tr"):
        labels = [cell.get("data-label") for cell in row.findall("td") if cell.get("colspan") is None]
        assert not labels or labels == [column.title for column in COLUMNS[1:]]
    hidden = [row.get("class") for row in root.iter("tr") if row.get("hidden") is not None]
    assert len(hidden) == 2  # why, and the slice
    (button,) = (each for each in root.iter("button") if each.get("class") == "ss-toggle")
    assert button.get("aria-expanded") == "false"
    assert button.get("aria-label") == "Show 1 more row of chat"


def test_the_column_that_it_is_sorted_by_says_so() -> None:
    root = ElementTree.fromstring(table("speedup"))
    assert [head.findtext("button") for head in root.iter("th") if head.get("aria-sort")] == ["Speedup \u25be"]


@pytest.mark.parametrize(
    ("lower", "upper", "wanted"),
    [(1.1, 1.5, "above"), (0.6, 0.9, "below"), (0.9, 1.2, "across"), (None, None, "across")],
)
def test_intervals_lie_on_their_axis_and_on_a_side(lower: float | None, upper: float | None, wanted: str) -> None:
    result = TestResult("speedup", "open", 1.0, lower, upper, 1.05, 0.05, "block", 10, 5)
    picture = interval(result, 0.5, 2.0, is_log=True)
    assert picture
    assert picture.tone == wanted
    svg = picture_svg(picture)
    places = [float(place) for place in re.findall(r'(?:x1|x2|cx)="([\d.]+)"', svg)]
    assert all(0.0 <= place <= STRIP_WIDTH for place in places)
    middle = float(re.findall(r'cx="([\d.]+)"', svg)[0])
    assert middle == pytest.approx(STRIP_WIDTH / 2)  # 1 is half-way from 0.5 to 2 on a log scale
    assert f'cy="{STRIP_HEIGHT // 2}"' in svg


def test_ages_change_by_the_hour_at_most() -> None:
    assert coarse_age(timedelta(minutes=3)) == coarse_age(timedelta(minutes=59)) == "under 1 h"
    assert (coarse_age(timedelta(hours=5)), coarse_age(timedelta(days=2))) == ("5 h", "2 days")
