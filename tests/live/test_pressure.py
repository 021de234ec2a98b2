"""Memory pressure after ENABLE: what fires, how soon and how seldom falsely, and what is stored and shown of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from shadowspec.live.pressure import (
    Measure,
    PressureLimits,
    pressure_limits,
    watch_pressure,
    windows_to_pressure,
)
from shadowspec.live.watch import alarm_words, take_scrapes, watch
from shadowspec.reports.pages.live_production import around, live_period
from shadowspec.store import Store
from shadowspec.store.evidence.live_rows import hour_of_window, sum_windows
from shadowspec.types import GUARD, LiveCounts, LiveScrape, LiveWindow
from shadowspec.types.memory_pressure import MemoryPressure
from shadowspec.types.settings import GuardPolicy
from tests.live.test_stored_windows import enable

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
POLICY = GuardPolicy(run_length=1_000)
LIMITS = PressureLimits(0.01, 0.95)


def window(place: int, counts: LiveCounts, kv_use: float | None = None, waiting: int | None = None) -> LiveWindow:
    began = NOW + place * MINUTE
    return LiveWindow("a", "s", began, began + MINUTE, False, 0, counts, num_waiting=waiting, kv_use=kv_use)


def preempting(pairs: Iterable[Sequence[int]]) -> list[LiveWindow]:
    """A window a minute with so many preemptions, and so many requests that ended."""
    return [
        window(place, LiveCounts(num_requests=ended, num_preemptions=preempted))
        for place, (preempted, ended) in enumerate(pairs)
    ]


def filling(uses: Iterable[float]) -> list[LiveWindow]:
    """Of an engine that counts no preemptions."""
    return [window(place, LiveCounts(num_requests=100), use) for place, use in enumerate(uses)]


def alarmed_after(windows: Sequence[LiveWindow], policy: GuardPolicy = POLICY) -> int | None:
    """How many windows had passed when it fired."""
    found = watch_pressure("a", windows, NOW, LIMITS, policy)
    assert found is not None
    return None if found.alarmed_at is None else (found.alarmed_at - NOW) // MINUTE


def test_preemptions_fire_within_the_stated_delay() -> None:
    stated = windows_to_pressure(0.05, Measure.PREEMPTED, 0.01, POLICY)
    assert stated is not None
    assert alarmed_after(preempting([(5, 100)] * 30)) == stated <= 15
    assert alarmed_after(preempting([(1, 100)] * 500)) is None, "as much as is tolerated"
    late = alarmed_after(preempting([(0, 100)] * 50 + [(5, 100)] * 30))
    assert late is not None
    assert 50 < late <= 50 + stated, "good windows before it win no delay"


def test_a_server_that_only_preempts_is_seen() -> None:
    """No request ends there; where nothing happens at all there is no unit."""
    assert alarmed_after(preempting([(30, 0)] * 30)) is not None
    idle = watch_pressure("a", preempting([(0, 0)] * 30), NOW, LIMITS, POLICY)
    assert idle is not None
    assert (idle.detector.num_units, idle.share, idle.alarmed_at) == (0, None, None)


def test_a_full_cache_fires_only_where_no_preemptions_are_counted() -> None:
    stated = windows_to_pressure(1.0, Measure.KV_USE, 0.95, POLICY)
    assert alarmed_after(filling([1.0] * 40)) == stated
    assert alarmed_after(filling([0.95] * 500)) is None
    assert alarmed_after(filling([0.91, 0.99] * 200)) is None, "on average as much as is tolerated"
    assert alarmed_after(filling([0.1, 1.0, 1.0, 1.0] * 50)) is not None, "an empty cache makes up for no full ones"
    counted = [replace(each, kv_use=1.0) for each in preempting([(0, 100)] * 400)]
    assert alarmed_after(counted) is None, "a full cache that preempts nobody is well used"
    silent = [replace(each, kv_use=None) for each in filling([1.0] * 40)]
    assert watch_pressure("a", silent, NOW, LIMITS, POLICY) is None


def test_what_was_so_before_enable_is_tolerated() -> None:
    """Hours without drafts, before it; 1 switches a measure off."""
    before = [
        replace(each, began_at=each.began_at - HOUR, ended_at=each.ended_at - HOUR)
        for each in (
            window(0, LiveCounts(num_requests=100, num_preemptions=4), 0.99),
            window(1, LiveCounts(num_requests=100, num_preemptions=0), 0.97),
        )
    ]
    drafted = replace(before[0], counts=LiveCounts(num_requests=100, num_preemptions=90, num_drafts=5))
    later = window(0, LiveCounts(num_requests=100, num_preemptions=90), 1.0)
    found = pressure_limits(map(hour_of_window, [*before, drafted, later]), NOW, POLICY)
    assert found.preempted == pytest.approx(0.02 + 0.01)
    assert found.kv_use == pytest.approx(0.98)
    assert pressure_limits([], NOW, POLICY) == LIMITS
    off = pressure_limits([], NOW, replace(POLICY, max_preempted_share=1.0, max_kv_use=1.0))
    assert watch_pressure("a", preempting([(100, 100)] * 40), NOW, off, POLICY) is None
    assert watch_pressure("a", filling([1.0] * 40), NOW, off, POLICY) is None


@pytest.mark.parametrize("shape", ["requests", "bursts", "few", "cache"])
def test_false_alarms_are_as_rare_as_the_run_length(shape: str) -> None:
    """At the boundary itself, where exactly as much as tolerated is preempted, or in use.

    As for the acceptance: within 400 windows at most 400 / 20,000 = 2% of runs alarm (Doob's inequality); three
    standard errors of 300 runs are added.
    """
    drawn, number, num_runs, length = np.random.default_rng(11), 0, 300, 400
    policy = GuardPolicy(run_length=20_000)
    for _ in range(num_runs):
        if shape == "cache":
            uses = np.where(drawn.random(length) < 0.5, 0.9, 1.0)
            number += alarmed_after(filling(uses.tolist()), policy) is not None
            continue
        ended = drawn.integers(1, 4 if shape == "few" else 300, size=length)
        chance = np.full(length, 0.01)
        if shape == "bursts":  # a full cache preempts every tenth request of its window, and nine windows of ten none
            chance = np.where(drawn.random(length) < 0.1, 0.1, 0.0)
        pairs = zip(drawn.binomial(ended, chance).tolist(), ended.tolist(), strict=True)
        number += alarmed_after(preempting(pairs), policy) is not None
    assert number <= 0.02 * num_runs + 3 * np.sqrt(0.02 * 0.98 * num_runs)


def test_the_delays_that_the_documentation_states() -> None:
    text = (Path(__file__).parents[2] / "docs" / "live.md").read_text(encoding="utf-8")
    (stated,) = re.findall(r"fires after (\d+), (\d+) and (\d+) full windows with 2%, 5%\s+and 20%", text)
    policy = GuardPolicy()
    assert [int(each) for each in stated] == [
        windows_to_pressure(share, Measure.PREEMPTED, policy.max_preempted_share, policy) for share in (0.02, 0.05, 0.2)
    ]
    (full,) = re.findall(r"full cache fires after (\d+) windows", text)
    assert int(full) == windows_to_pressure(1.0, Measure.KV_USE, policy.max_kv_use, policy)


def read(store: Store, place: int, preemptions: int, use: float, waiting: int) -> None:
    """The reading of minute `place`: counters as they stand, a hundred requests and a thousand good drafts a minute."""
    minutes = max(place, 0)
    counts = LiveCounts(
        num_drafts=1_000 * minutes,
        num_accepted_tokens_per_pos=(900 * minutes,),
        num_requests=100 * (place + 20),
        num_preemptions=preemptions,
    )
    moment = NOW + place * MINUTE
    scrape = LiveScrape("a", "s", moment, NOW - 50 * HOUR, counts, 0, 3, num_waiting=waiting, kv_use=use)
    take_scrapes(store, "chat", [scrape])


def test_an_alarm_of_memory_orders_disable_and_both_sides_are_kept(store: Store) -> None:
    """Quiet before ENABLE; from then on a tenth is preempted, and the draft accepts what was promised."""
    for place in range(-20, 1):
        read(store, place, 0, 0.4, 0)
    enable(store)
    stated = windows_to_pressure(0.1, Measure.PREEMPTED, 0.01, POLICY)
    assert stated is not None
    for place in range(1, stated + 1):
        read(store, place, 10 * place, 0.98, 7)
        found = watch(store, "chat", ["a"], None, POLICY, NOW + place * MINUTE)
        assert (found.ordered is not None) is (place == stated)
    assert found.alarms == (), "the acceptance holds"
    (record,) = store.overrides("chat")
    assert record.override.author == GUARD
    words = alarm_words(found)
    assert record.override.reason == words
    assert words == (
        f"live alarm: memory pressure since ENABLE; a: 10.0% of its requests preempted in {stated} windows, "
        "1.0% tolerated"
    )
    production = around(store, "chat", NOW, timedelta(days=1))
    assert production is not None
    before, after = production.before.pressure, production.after.pressure
    assert before is not None
    assert after is not None
    assert (before.kv_use_median, before.waiting_p95, before.preemptions_per_thousand) == (0.4, 0, 0.0)
    assert (after.kv_use_p95, after.kv_use_highest, after.waiting_highest) == (0.98, 0.98, 7)
    assert after.preemptions_per_thousand == pytest.approx(100.0)
    hours = store.live_hours("chat", NOW - HOUR, NOW + HOUR)
    store.retain(timedelta(days=1), now=NOW + timedelta(days=3))
    assert store.live_windows("chat") == []
    assert store.live_hours("chat", NOW - HOUR, NOW + HOUR) == hours, "they outlive their windows"
    assert MemoryPressure.of(hours) == MemoryPressure(
        {40: 20, 98: stated}, {0: 20, 7: stated}, 10 * stated, 100 * (20 + stated)
    )


def test_what_an_engine_does_not_report_stays_unknown(store: Store) -> None:
    bare = [window(0, LiveCounts(num_requests=3)), window(1, LiveCounts(num_requests=4))]
    assert live_period(sum_windows(bare)).pressure is None
    with store.live_session("chat") as session:
        session.keep([], bare)
    assert [(each.num_waiting, each.kv_use) for each in store.live_windows("chat")] == [(None, None)] * 2
    (hour,) = store.live_hours("chat", NOW - HOUR, NOW + HOUR)
    assert (hour.waiting, hour.kv_use, hour.counts.num_preemptions) == ({}, {}, None)


def test_quantiles_of_readings() -> None:
    uses = [0.1] * 10 + [0.5] * 9 + [0.954]
    found = MemoryPressure.of(map(hour_of_window, filling(uses)))
    assert found is not None
    assert (found.kv_use_median, found.kv_use_p95, found.kv_use_highest) == (0.1, 0.5, 0.95)
    assert found.kv_use_mean == pytest.approx((1 + 4.5 + 0.95) / 20)
    assert (found.waiting_p95, found.preempted_share, found.preemptions_per_thousand) == (None, None, None)
