"""The evidence page: of which hypothesis it speaks, and that its figures are the stored ones."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, func, insert, make_url, select, update
from streamlit.testing.v1 import AppTest

from dashboards.parts import source
from shadowspec.reports.content.explanation import explained
from shadowspec.store import Histogram, RunFilter, Store
from shadowspec.store import table_definitions as tables
from shadowspec.types import Decision, Verdict
from tests.dashboards.pages import said

Open = Callable[..., AppTest]
Configure = Callable[..., Path]


@pytest.fixture
def decision(filled_url: str) -> Decision:
    """Of a slice, with a sequence of several looks."""
    with Store.open(filled_url) as store:
        return next(decision for decision in store.latest_decisions() if decision.slice_key and decision.num_blocks)


def opened(open_page: Open, decision: Decision) -> AppTest:
    return open_page(
        "evidence",
        endpoint=decision.endpoint,
        slice=decision.slice_key,
        load=str(decision.concurrency),
        config=decision.fingerprint[:12],
    )


def test_the_address_names_the_hypothesis(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision
) -> None:
    configured(filled_url)
    app = opened(open_page, decision)
    assert not app.exception
    assert app.selectbox(key="evidence.endpoint").value == decision.endpoint
    assert app.selectbox(key="evidence.slice").value == decision.slice_key
    assert app.selectbox(key="evidence.config").value == decision.fingerprint
    text = said(app)
    assert decision.verdict.value in text
    assert decision.reason in text
    for test in decision.tests:
        assert f"{test.num_units:,} {test.unit}" in text
    (speedup,) = (test for test in decision.tests if test.name == "speedup")
    assert f"Speedup {speedup.estimate:.2f}\u00d7" in text


def test_the_page_explains_in_the_words_of_the_command_and_when_tests_crossed(
    filled_url: str, configured: Configure, open_page: Open
) -> None:
    configured(filled_url)
    with Store.open(filled_url) as store:
        decision = next(row for row in store.latest_decisions() if row.verdict is Verdict.ENABLE)
    app = opened(open_page, decision)
    policy = source.config().endpoints[decision.endpoint].policy
    shown = said(app)
    for line in explained(decision, policy):
        assert f"{line.lead}:  {line.text}" in shown
    crossed = [test for test in decision.tests if test.outcome != "open" and test.betting and test.is_required]
    assert "crossed at" not in shown
    app.toggle(key="crossed").set_value(True).run()
    assert not app.exception
    assert said(app).count("crossed at") == len(crossed) > 0


@pytest.mark.all
def test_choosing_another_slice_changes_the_address(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision
) -> None:
    configured(filled_url)
    app = opened(open_page, decision)
    app.selectbox(key="evidence.slice").set_value("").run()
    assert app.query_params["slice"] == ""
    assert "whole endpoint" in said(app)
    assert not app.exception


def test_every_chart_has_a_title_and_words_for_those_who_cannot_see_it(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision
) -> None:
    configured(filled_url)
    app = opened(open_page, decision)
    drawn = app.get("vega_lite_chart")
    text = said(app)
    assert len(drawn) >= 10
    for title in (
        "Speedup, with bounds",
        "Acceptance by position",
        "Accepted tokens per step",
        "TTFT (ms)",
        "TPOT (ms)",
    ):
        assert title in text
    assert all(chart.proto.alt for chart in drawn)
    assert "within a bin: \u00b12.5%" in " ".join(block.proto.body for block in app.get("html"))


def html_of(app: AppTest) -> str:
    return " ".join(block.proto.body for block in app.get("html"))


def test_failures_are_the_stored_counts(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision
) -> None:
    configured(filled_url)
    app = open_page(
        "evidence",
        endpoint=decision.endpoint,
        slice=decision.slice_key,
        load=str(decision.concurrency),
        config=decision.fingerprint[:12],
        measured="all",
    )
    with Store.open(filled_url) as store:
        counts = store.failure_counts(decision.endpoint)[decision.slice_key, decision.fingerprint, decision.concurrency]
    assert counts["looked_at"] > 0
    table = html_of(app)
    assert "Failures of measured requests" in table
    for title, name, of in (
        ("Early rejection", "early_rejections", "early_known"),
        ("Beyond the draft&#x27;s context", "beyond_draft_context", "looked_at"),
        ("Filtered behind the model", "filtered", "looked_at"),
    ):
        row = table[table.index(f">{title}<") :].partition("</tr>")[0]
        assert f'data-label="Requests">{counts[name]:,}<' in row
        assert f'data-label="Of">{counts[of]:,}<' in row
        assert "<small>" in row, "its definition"
    assert "Failures" in said(app)


def test_the_realised_concurrency_of_both_arms_stands_below_their_latency(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision
) -> None:
    configured(filled_url)
    rows = html_of(opened(open_page, decision)).split("Requests in progress, mean")[1:]
    shown = [float(row.split('data-label="Value"')[1].partition(">")[2].partition("<")[0]) for row in rows]
    assert shown == pytest.approx([0.97 * decision.concurrency, 0.95 * decision.concurrency], abs=0.006)


@pytest.mark.all
def test_the_share_of_prompts_that_servers_had_cached_is_below_the_latency(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision, tmp_path: Path
) -> None:
    configured(filled_url)
    assert "Prompt tokens cached" not in html_of(opened(open_page, decision)), "the in-process engine has no such cache"
    copy = tmp_path / "copy.db"
    shutil.copyfile(make_url(filled_url).database or "", copy)
    engine = create_engine(f"sqlite:///{copy}")
    sums = {"num_cached_prompt_tokens": 1_000, "baseline_cached_tokens": 600, "speculative_cached_tokens": 150}
    with engine.begin() as connection:
        connection.execute(update(tables.rollups).values(sums))
    engine.dispose()
    configured(f"sqlite:///{copy}")
    rows = html_of(opened(open_page, decision)).split("Prompt tokens cached")[1:]
    assert [row.split('data-label="Value"')[1].partition(">")[2].partition("<")[0] for row in rows] == [
        "60.0%",
        "15.0%",
    ]


def test_what_nobody_looked_at_and_what_is_suspected_are_said(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    shutil.copyfile(make_url(filled_url).database or "", copy)
    engine = create_engine(f"sqlite:///{copy}")
    rollups, counts = tables.rollups.c, tables.rollup_failures
    with engine.begin() as connection:
        names = ("slice_key", "fingerprint", "concurrency")
        of_slice = (rollups[name] == getattr(decision, name) for name in names)
        newest = connection.scalar(select(func.max(rollups.rollup_id)).where(*of_slice))
        connection.execute(delete(counts))
    configured(f"sqlite:///{copy}")
    app = opened(open_page, decision)
    assert not app.exception
    assert any("No failures were counted here" in caption.value for caption in app.caption)
    rows = {"looked_at": 100, "beyond_draft_context": 50, "rewritten": 10, "intervened_drafts": 1}
    with engine.begin() as connection:
        connection.execute(
            insert(counts), [{"rollup_id": newest, "name": name, "total": total} for name, total in rows.items()]
        )
    engine.dispose()
    sys.modules["shadowspec._dashboards.parts.source"].forget()
    app = open_page(
        "evidence",
        endpoint=decision.endpoint,
        slice=decision.slice_key,
        load=str(decision.concurrency),
        config=decision.fingerprint[:12],
        measured="all",
    )
    assert any("**long context**" in warning.value for warning in app.warning)
    assert any("No output here had a contract" in caption.value for caption in app.caption)
    assert any("10 requests whose production output" in caption.value for caption in app.caption)


def test_what_the_address_asks_for_and_does_not_exist_is_not_chosen(
    filled_url: str, configured: Configure, open_page: Open
) -> None:
    configured(filled_url)
    app = open_page("evidence", endpoint="no such", slice="a=b", load="99", config="zz")
    assert not app.exception
    assert app.selectbox(key="evidence.endpoint").value == app.selectbox(key="evidence.endpoint").options[0]


def test_an_empty_store_and_stale_evidence_are_said(
    filled_url: str, blank: str, configured: Configure, open_page: Open
) -> None:
    configured(filled_url, "stale_after_s = 0.001")
    assert any("Stale" in warning.value for warning in open_page("evidence").warning)
    path = configured(blank)
    assert "Why: No request of it was measured yet." in " ".join(said(open_page("evidence")).split())
    path.write_text(f'[database]\nurl = "{blank}"\n', encoding="utf-8")
    assert "No evidence yet" in said(open_page("evidence"))


def test_a_database_that_is_away_is_said(configured: Configure, open_page: Open) -> None:
    configured("postgresql+psycopg://nobody@127.0.0.1:9/none")
    app = open_page("evidence")
    assert not app.exception
    assert "cannot be reached" in said(app)


@pytest.mark.all
def test_units_are_drawn_only_where_the_endpoints_records_are_few(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(filled_url)
    opened(open_page, decision)
    page = sys.modules["shadowspec._dashboards.views.evidence"]
    for limit, is_offered in ((10**9, True), (0, False)):
        monkeypatch.setattr(page, "MAX_UNIT_RECORDS", limit)
        assert ("by_unit" in {item.key for item in opened(open_page, decision).toggle}) is is_offered


def test_prompt_lengths_are_read_when_they_are_asked_for(
    filled_url: str, configured: Configure, open_page: Open
) -> None:
    configured(filled_url)
    with Store.open(filled_url) as store:
        newest = store.run_page(RunFilter("assistant"), limit=1).rows[0]
    entry = {"load": str(newest["concurrency"]), "config": newest["fingerprint"]}
    app = open_page("evidence", endpoint="assistant", slice="", measured="all", **entry)
    assert not any("Prompt tokens" in item.value for item in app.dataframe)
    app.toggle(key="by_context").set_value(True).run()
    assert not app.exception
    table = next(item.value for item in app.dataframe if "Prompt tokens" in item.value)
    assert (table["Requests"] > 0).all()
    assert table["Tokens per step"].str.match(r"\d\.\d\d").all()
    assert table["Cache, speculative"].str.contains("B").all()
    assert f"The newest {table['Requests'].sum():,} runs of the window." in said(app)


@pytest.mark.representative("window1")
@pytest.mark.parametrize("window", [{}, {"measured": "28 days"}])
def test_what_was_measured_is_read_once_while_the_page_above_it_is_drawn(
    filled_url: str,
    configured: Configure,
    open_page: Open,
    decision: Decision,
    monkeypatch: pytest.MonkeyPatch,
    window: dict[str, str],
) -> None:
    configured(filled_url)
    readers = []
    histograms = Store.histograms

    def noted(*given: Any) -> dict[str, Histogram]:
        readers.append(threading.current_thread().name)
        return histograms(*given)

    monkeypatch.setattr(Store, "histograms", noted)
    app = open_page("evidence", endpoint=decision.endpoint, load=str(decision.concurrency), **window)
    assert not app.exception
    assert readers == [source.READER]
