"""The board in each of its states, its filters, and what its table holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy
from streamlit.testing.v1 import AppTest

from shadowspec.store import Store
from shadowspec.types import Advance, FunnelCounter, Override, PartitionId, Verdict, WriteBatch
from tests.dashboards.pages import board_html, endpoints_shown, said, said_raw, today_html

Open = Callable[..., AppTest]
Configure = Callable[..., Path]

# of each endpoint's first row: its name, and the lower bound of its speedup
HEADS = re.compile(r'data-endpoint="([^"]+)"><tr class="ss-head".*?data-label="Speedup".*?<small>([\d.]+)\u2013')


def test_every_row_with_verdict_bounds_and_what_is_needed(
    filled_url: str, configured: Configure, open_page: Open
) -> None:
    configured(filled_url)
    app = open_page()
    assert not app.exception
    with Store.open(filled_url) as store:
        decisions = store.latest_decisions()
    table = board_html(app)
    assert sorted(endpoints_shown(app)) == sorted({decision.endpoint for decision in decisions})
    rows = re.findall(r'<tr class="ss-(?:head|child)"', table)
    assert len(rows) == len([decision for decision in decisions if decision.supersession is None])
    enabled = next(decision for decision in decisions if decision.verdict is Verdict.ENABLE)
    test = next(test for test in enabled.tests if test.name == "speedup")
    assert f"<b>{test.estimate:.2f}\u00d7</b> <small>{test.lower:.2f}\u2013{test.upper:.2f}</small>" in table
    assert "\u25cf ENABLE" in table
    text = said(app)
    assert "records read" in text
    assert re.search(r"traffic up to\s+\d{4}-\d\d-\d\d", text)
    assert f"latency measured on {enabled.engine} on " in text
    assert f'title="latency measured on {enabled.engine}; the verdict is for {enabled.verdict_engine}' in table


def test_filters_search_and_sort_stand_in_the_address(filled_url: str, configured: Configure, open_page: Open) -> None:
    configured(filled_url)
    app = open_page(verdict="DISABLE")
    assert app.button_group(key="verdict").value == ["DISABLE"]
    assert set(re.findall(r'class="ss-child"[^>]*>.*?class="ss-verdict ss-(\w+)"', board_html(app))) <= {"disable"}
    assert 1 <= len(endpoints_shown(app)) < 3
    by_speedup = endpoints_shown(open_page(sort="speedup"))
    app = open_page()
    lowers = {name: float(figure) for name, figure in HEADS.findall(board_html(app))}
    assert by_speedup == sorted(lowers, key=lambda name: -lowers[name])
    assert app.selectbox(key="sort").value == "verdict"
    app = open_page(q="no such thing anywhere")
    assert "No row matches" in said(app)
    app.text_input(key="q").set_value("").run()
    app.multiselect(key="label.tier").set_value(["pro"]).run()
    slices = re.findall(r"slice=([^&]+)&amp;load", board_html(app))
    assert slices
    assert all("tier%3Dpro" in item for item in slices)


def test_the_first_screen_says_what_changed_what_needs_somebody_and_what_it_costs(
    filled_url: str, configured: Configure, open_page: Open
) -> None:
    configured(filled_url)
    today = today_html(open_page())
    for words in ("Changed since yesterday", "Needs somebody", "of the device time of an output token"):
        assert words in today
    assert re.search(r"Measuring both arms took at least <b>.* of a device, [\d.,]+ USD\.", today)
    assert 'href="evidence?endpoint=' in today, "a change leads to its evidence"
    everybody = open_page()
    owners = everybody.multiselect(key="owner").options
    assert len(owners) > 1
    app = open_page(owner=owners[0])
    assert app.multiselect(key="owner").value == [owners[0]]
    shown = endpoints_shown(app)
    assert 0 < len(shown) < len(endpoints_shown(everybody))
    assert set(re.findall(r"endpoint=([\w-]+)", today_html(app))) <= set(shown), "of that owner alone"
    app = open_page(severity="decided")
    assert app.button_group(key="severity").value == ["decided"]


def test_an_empty_store_says_what_to_do_next(
    blank: str, configured: Configure, open_page: Open, tmp_path: Path
) -> None:
    path = configured(blank)
    assert "Configured: assistant" in said(open_page())
    path.write_text(f'[database]\nurl = "{blank}"\n', encoding="utf-8")
    app = open_page()
    assert not app.exception
    assert "No data yet" in said(app)
    assert "shadowspec gate" in said(app)
    assert "no records read yet" in said(app)


def test_configured_endpoints_that_were_never_measured_are_partial(
    blank: str, configured: Configure, open_page: Open
) -> None:
    configured(blank)
    key = ("assistant", FunnelCounter.SAMPLED_OUT, "not_timed")
    with Store.open(blank) as store:
        advance = Advance(PartitionId("file"), None, 1, 1, {key: 1}, datetime.now(UTC), is_ended=True)
        store.save_batch(WriteBatch(advances=(advance,)), "")
    text = said(open_page())
    assert "without a decision" in text
    assert "\u25cb undecided" in text


@pytest.mark.all
def test_stale_evidence_is_flagged(filled_url: str, configured: Configure, open_page: Open) -> None:
    configured(filled_url, "stale_after_s = 0.001")
    app = open_page()
    assert ">stale<" in board_html(app)
    assert ">stale<" in said_raw(app)
    configured(filled_url, "stale_after_s = 1e9")
    assert ">stale<" not in board_html(open_page())


def test_an_override_stands_before_the_verdict_and_above_every_page(
    configured: Configure, open_page: Open, tmp_path: Path, filled_url: str
) -> None:
    copy = tmp_path / "copy.db"
    with sqlalchemy.create_engine(filled_url).connect() as connection:
        connection.exec_driver_sql("VACUUM INTO ?", (str(copy),))
    url = f"sqlite:///{copy}"
    configured(url)
    with Store.open(url) as store:
        endpoint = store.latest_decisions()[0].endpoint
        now = datetime.now(UTC)
        store.add_override(Override(0, endpoint, "", None, Verdict.DISABLE, "it answers <b>nonsense</b>", "ada", now))
    app = open_page()
    (orders,) = (block.proto.body for block in app.get("html") if 'class="ss-orders"' in block.proto.body)
    assert "it answers &lt;b&gt;nonsense&lt;/b&gt;" in orders
    assert "ada" in orders
    table = board_html(app)
    assert '<small class="ss-flag">override</small>' in table
    assert "<b>nonsense</b>" not in table
    text = table[table.index(f'data-endpoint="{endpoint}"') :].partition("</tbody>")[0]
    assert set(re.findall(r'class="ss-verdict ss-(\w+)"', text)) == {"disable"}


def test_a_database_that_is_away_is_said_and_tried_again(
    filled_url: str, configured: Configure, open_page: Open
) -> None:
    configured("postgresql+psycopg://nobody@127.0.0.1:9/none")
    app = open_page()
    assert not app.exception
    assert "cannot be reached" in said(app)
    configured(filled_url)
    app.button(key="retry-The database cannot be reached").click().run()
    assert endpoints_shown(app)


def test_a_database_behind_this_version_says_the_command(
    tmp_path: Path, configured: Configure, open_page: Open
) -> None:
    configured(f"sqlite:///{tmp_path / 'nothing.db'}")
    text = said(open_page())
    assert "shadowspec db upgrade" in text
