"""The page before and after: production's own figures where they were read, and the reason where they were not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kernels.benchmarks.large_store.production import SPAN
from shadowspec.live.watch import take_scrapes
from shadowspec.reports.pages.before_after import enablings
from shadowspec.reports.pages.live_production import live_period
from shadowspec.store import Store
from shadowspec.store.evidence.live_rows import hour_of_window
from shadowspec.text import DASH, number
from shadowspec.types import END_TO_END, QUEUE, Buckets, LiveCounts, LiveScrape, LiveWindow, Verdict
from tests.builders.dashboard_apps import Open
from tests.dashboards.pages import said
from tests.store import examples

HOUR = timedelta(hours=1)


@pytest.fixture
def enabled(blank: str, configured: Callable[..., Path]) -> str:
    """A store whose endpoint chat was enabled four hours ago."""
    configured(blank)
    with Store.open(blank) as store:
        store.save_fingerprints([examples.config()])
        store.append_decisions([replace(examples.decision(Verdict.ENABLE), decided_at=datetime.now(UTC) - 4 * HOUR)])
    return blank


def read(url: str, *, drafts: bool) -> None:
    """Eight hours of production, read once an hour; from an hour after the enabling on it drafts, and is faster."""
    begun = datetime.now(UTC) - 8 * HOUR
    tokens = requests = slow = fast = drafted = 0
    with Store.open(url) as store:
        for hour in range(9):
            is_on = drafts and hour > 5
            tokens, requests = tokens + (7_200 if is_on else 3_600), requests + 100
            slow, fast = slow + (0 if is_on else 100), fast + (100 if is_on else 0)
            drafted += 1_000 if is_on else 0
            counts = LiveCounts(
                num_drafts=drafted,
                num_accepted_tokens=drafted,
                num_accepted_tokens_per_pos=(drafted // 2,),
                num_output_tokens=tokens,
                num_requests=requests,
                num_prompt_tokens=1_000 * requests,
                num_cached_tokens=250 * requests,
                num_preemptions=max(0, requests - 600) // 50,
                latencies={
                    END_TO_END: Buckets((1.0, 2.0), (fast, slow, 0)),
                    QUEUE: Buckets((0.5, 1.0), (requests, 0, 0)),
                },
            )
            take_scrapes(
                store,
                "chat",
                [LiveScrape("a", "s", begun + hour * HOUR, None, counts, num_waiting=hour, kv_use=hour / 10)],
            )


def test_production_stands_beside_the_mirror(enabled: str, open_page: Open) -> None:
    read(enabled, drafts=True)
    app = open_page("before_after")
    assert not app.exception
    table = next(each.value for each in app.dataframe if "Production" in each.value.columns)
    rows = {row["Production"]: (row["Before"], row["After"]) for _, row in table.iterrows()}
    assert rows["Output tokens per second"] == ("1.00", "2.00")
    assert rows["Prefix-cache hit rate"] == ("25.0%", "25.0%")
    assert rows["KV cache in use, median"] == ("30%", "70%")
    assert rows["KV cache in use, highest"] == ("50%", "80%")
    assert rows["Requests waiting, 95% of readings"] == ("5", "8")
    assert rows["Preemptions per thousand requests"] == ("0.00", "20.00")
    assert rows["End to end, p95"] == ("1.95 s", "950 ms")
    assert rows["Queue, a part of it, p95"] == ("475 ms", "475 ms")
    assert rows["Compute, a part of it, p95"] == (DASH, DASH), "this engine counts no such time"
    assert rows["Acceptance at the first position"] == (DASH, "50.0%")
    assert "No counters of production yet" not in said(app)
    assert "counted its first draft" in said(app)


def test_production_that_never_drafted_is_said(enabled: str, open_page: Open) -> None:
    read(enabled, drafts=False)
    assert "Production has counted no draft since ENABLE" in said(open_page("before_after"))


def test_a_week_on_either_side_is_read_by_the_hour(
    filled_url: str, configured: Callable[..., Path], open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of all windows of two weeks, of which the page reads those of a few hours."""
    configured(filled_url)
    with Store.open(filled_url) as store:
        found = enablings(store.verdict_changes(limit=1_000), store.fingerprints())
        windows = {name: store.live_windows(name) for name in store.endpoints()}
    enabling = max(
        (enabling for enabling in found if enabling.decided_at < datetime.now(UTC) - SPAN),
        key=lambda enabling: enabling.decided_at,
    )
    live_windows = [each for each in windows[enabling.endpoint] if each.ended_at < enabling.decided_at + SPAN]
    on = min(each.began_at for each in live_windows if each.counts.num_drafts)
    before = live_period(hour_of_window(each) for each in live_windows if each.ended_at <= on)
    after = live_period(hour_of_window(each) for each in live_windows if each.began_at >= on)
    assert before.num_windows + after.num_windows > 1_000
    read: list[int] = []
    whole = Store.live_windows

    def counted(*asked: Any, **named: Any) -> list[LiveWindow]:
        rows = whole(*asked, **named)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(Store, "live_windows", counted)
    app = open_page("before_after", endpoint=enabling.endpoint, decision=str(enabling.decision_id), around="7 days")
    assert not app.exception
    table = next(each.value for each in app.dataframe if "Production" in each.value.columns)
    rows = {row["Production"]: (row["Before"], row["After"]) for _, row in table.iterrows()}
    for name, field in (
        ("Output tokens per second", "output_tokens_per_s"),
        ("Requests per second", "requests_per_s"),
        ("Mean acceptance length", "mean_acceptance_length"),
    ):
        assert rows[name] == (number(getattr(before, field)), number(getattr(after, field)))
    assert f"{before.num_windows:,} windows with {before.num_requests:,} requests before" in said(app)
    assert 0 < sum(read) < 30


def test_without_readings_the_reason_is_said(enabled: str, open_page: Open) -> None:
    text = said(open_page("before_after"))
    assert "No counters of production yet" in text
    assert "prefix-cache hit rate" in text
    assert "[endpoints.NAME.live]" in text
