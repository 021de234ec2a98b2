"""Explorer, loads, changes, before-and-after: each on a store with a history, an empty one, and one that is away."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from dashboards.parts import downloads
from shadowspec.reports.figures.predictions import NOT_PROFILED
from shadowspec.store import RunFilter, Store
from shadowspec.store.read.run_pages import COLUMNS
from shadowspec.text import DASH
from shadowspec.types import CostKey, ProfiledCosts, StepCost
from tests.builders.dashboard_apps import Open
from tests.dashboards.pages import said

COST = r"[\d.,]+ \([\d.,]+\)"  # with speculation, and without it
VIEWS = ("explorer", "loads", "changes", "before_after")
Configure = Callable[..., Path]


def words(app: AppTest) -> str:
    """All that the page says outside of charts and tables."""
    assert not app.exception, app.exception
    return said(app)


@pytest.mark.representative("explorer")
@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_store_says_what_to_do(configured: Configure, blank: str, open_page: Open, view: str) -> None:
    configured(blank)
    assert ":material/inbox:" in words(open_page(view))


def test_a_database_that_is_away_is_said(configured: Configure, open_page: Open) -> None:
    configured("sqlite:////nowhere/at/all.db")
    app = open_page("loads")
    assert ":material/error:" in words(app)
    assert app.button(key=next(item.key for item in app.button if str(item.key).startswith("retry")))


@pytest.fixture
def filled(configured: Configure, filled_url: str) -> str:
    configured(filled_url)
    return filled_url


def test_explorer_draws_what_the_address_asks_for(filled: str, open_page: Open) -> None:
    app = open_page("explorer", figure="acceptance length", x="load", y="K", view="curves", window="all")
    text = words(app)
    assert "Mean acceptance length (tokens per step) by load and K" in text
    assert "requests measured" in text
    assert "decide nothing" in text
    assert app.dataframe[-1].value.shape[0] > 0  # single requests


def test_explorer_by_a_label_says_that_only_the_newest_runs_are_in(filled: str, open_page: Open) -> None:
    app = open_page("explorer")
    labelled = [option for option in app.selectbox(key="x").options if "newest runs" in option]
    assert labelled
    app.selectbox(key="x").set_value(labelled[0].removesuffix(" (newest runs)").replace(" ", "_")).run()
    assert "newest" in words(app)
    assert "rollups do not have this label" in words(app)


def test_explorer_filters(filled: str, open_page: Open) -> None:
    app = open_page("explorer", window="all")
    before = words(app)
    box = app.multiselect(key="only_prompt_class")
    box.set_value([box.options[0]]).run()
    assert words(app) != before
    assert box.options[0] in app.multiselect(key="only_prompt_class").value


def test_downloads_hold_every_run_page_by_page(filled: str) -> None:
    with Store.open(filled) as store:
        endpoint = max(store.endpoints(), key=lambda text: len(store.run_page(RunFilter(text), limit=1000).rows))
        wanted = RunFilter(endpoint)
        rows = store.run_page(wanted, limit=1000).rows
        assert len(rows) > 2
        read = list(csv.DictReader(io.StringIO(downloads.as_csv(downloads.pages(store, wanted)).decode())))
        table = pq.read_table(io.BytesIO(downloads.as_parquet(downloads.pages(store, wanted))))
        few = list(downloads.pages(store, wanted, max_rows=2))
    assert [row["source_offset"] for row in read] == [str(row["source_offset"]) for row in rows]
    assert tuple(read[0]) == COLUMNS
    assert table.to_pylist() == [{name: row[name] for name in COLUMNS} for row in rows]
    assert [len(page) for page in few] == [2]


def test_a_label_is_no_formula() -> None:
    row = dict.fromkeys(COLUMNS) | {"slice_key": "=HYPERLINK(1)"}
    assert "'=HYPERLINK(1)" in downloads.as_csv(iter([[row]])).decode()


def test_explorer_divides_by_the_length_of_the_prompt(filled: str, open_page: Open) -> None:
    app = open_page(
        "explorer", figure="acceptance length", x="prompt tokens (newest runs)", y="K", view="curves", window="all"
    )
    assert "by prompt tokens and K" in words(app)


def test_loads_show_verdict_break_even_and_cost(filled: str, open_page: Open) -> None:
    app = open_page("loads", endpoint="assistant")
    text = words(app)
    assert "**Not a decision.**" in text
    assert "Break-even" in text
    assert "Speedup by load" in text
    costs = {item.label: item.value for item in app.metric}
    assert set(costs) == {"Baseline", "Speculative", "Saved", "Saved per month"}  # the store's file names a price
    assert app.slider(key="margin").value == 5.0


def test_without_profiled_costs_it_says_what_to_run(filled: str, open_page: Open) -> None:
    assert "shadowspec profile-device" in words(open_page("loads", endpoint="assistant"))


def test_loads_show_what_the_cost_model_predicts(
    configured: Configure, filled_url: str, tmp_path: Path, open_page: Open
) -> None:
    shutil.copy(filled_url.removeprefix("sqlite:///"), tmp_path / "costs.db")
    url = f"sqlite:///{tmp_path / 'costs.db'}"
    with Store.open(url) as store:
        fingerprints = {decision.fingerprint for decision in store.latest_decisions("assistant")}
        fingerprinted = next(config for name, config in store.fingerprints().items() if name in fingerprints)
        points = tuple(
            StepCost(b, k, c, prefill_ms=0.1 * c, draft_ms=1.0 * k, verify_ms=9.0 + 0.2 * b * (k + 1), other_ms=0.1)
            for b in (1, 4, 16)
            for k in (0, 2, 8)
            for c in (16, 16_384)
        )
        store.append_costs(ProfiledCosts(CostKey.of(fingerprinted, is_greedy=True), datetime.now(UTC), points))
    configured(url)
    app = open_page("loads", endpoint="assistant")
    text = words(app)
    assert "Predictions, not evidence." in text
    assert "median absolute error against the measured figures" in text
    table = next(each.value for each in app.dataframe if "Pays from" in each.value)
    is_known = table["Predicted"].str.endswith("\u00d7")
    assert is_known.any()
    assert set(table["Predicted"][~is_known]) == {NOT_PROFILED}  # sampled requests were not profiled
    predicted, measured = (table[f"Cost {kind} (baseline)"] for kind in ("predicted", "measured"))
    assert predicted[is_known].str.fullmatch(COST).all()
    assert (predicted[~is_known] == DASH).all()
    assert measured.str.fullmatch(COST).all()
    assert "per device-hour" in text  # the store's file names a price
    assert "load 16: " in text
    pools = next(each.value for each in app.dataframe if "All accepted" in each.value)
    assert len(pools)
    assert (pools["As measured"] == pools["As tried"]).all()
    app.slider(key="acceptance").set_value(300).run()
    assert not app.exception
    moved = next(each.value for each in app.dataframe if "All accepted" in each.value)
    assert (moved["As measured"] == pools["As measured"]).all()
    assert (moved["As tried"] != pools["As tried"]).any()


def test_a_slider_changes_what_is_tried_and_nothing_else(filled: str, open_page: Open) -> None:
    app = open_page("loads", endpoint="assistant")
    before = app.dataframe[-1].value
    app.slider(key="margin").set_value(50.0).run()
    after = app.dataframe[-1].value
    speedup = before["Test"] == "Speedup"
    assert list(after[speedup]["Tried"]) == ["1.50\u00d7"]
    assert list(after[speedup]["In force"]) == list(before[speedup]["In force"]) == ["1.05\u00d7"]
    assert list(after["Bounds"]) == list(before["Bounds"])


def test_without_a_price_there_is_device_time(filled: str, open_page: Open) -> None:
    app = open_page("loads", endpoint="assistant", price="0")
    assert [item.value.endswith(" s") for item in app.metric] == [True, True, True]
    assert "no price is set" in words(app)


def test_changes_say_who_and_why(filled: str, open_page: Open) -> None:
    app = open_page("changes", window="all")
    assert "verdict" in words(app)
    table = app.dataframe[0].value
    assert {"the gate"} <= set(table["Who"])
    assert table["When"].is_monotonic_decreasing
    linked = table["Evidence"].dropna()
    assert linked.str.startswith("evidence?endpoint=").all()
    orders = table[table["Kind"].str.endswith("override")]
    assert set(orders["Who"]) == {"on-call (synthetic)", "its expiry"}


def test_changes_of_one_kind_and_endpoint(filled: str, open_page: Open) -> None:
    app = open_page("changes", window="all", endpoint="assistant", kinds="override")
    assert "verdict" in words(app)  # that there are others is said all the same
    table = app.dataframe[0].value
    assert set(table["Where"].str.split(":").str[0]) == {"assistant"}
    assert set(table["Kind"]) == {"\u25a0 override"}


def test_before_and_after_marks_the_moment_or_says_that_there_is_none(filled: str, open_page: Open) -> None:
    app = open_page("before_after")
    text = words(app)
    with Store.open(filled) as store:
        enabled = [change for change in store.verdict_changes(limit=500) if change.verdict.value == "ENABLE"]
    if enabled:
        last = open_page("before_after", decision=str(enabled[-1].decision_id))
        assert last.selectbox(key="enabling").value == str(enabled[-1].decision_id)
        assert "Mean end-to-end time by hour" in text
        assert "**Production**" in text
    else:
        assert "No ENABLE yet" in text
