"""Live evidence through a real store, and the order that the guard sets: once, and anew after it was cleared."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from shadowspec.live.guard import windows_to_alarm
from shadowspec.live.watch import alarm_words, take_scrapes, watch
from shadowspec.store import Store
from shadowspec.types import GUARD, Buckets, Clearing, FailedScrape, LiveCounts, LiveScrape, Override, Verdict
from shadowspec.types.settings import GuardPolicy
from tests.store import examples

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POLICY = GuardPolicy(run_length=1_000)
PROMISE = 0.6


def scrape(minutes: float, drafts: int, first: int, *, replica: str = "a", series: str = "s") -> LiveScrape:
    latencies = {"end_to_end_s": Buckets((0.5, 1.0), (drafts, 1, 0))}
    counts = LiveCounts(drafts, 2 * drafts, first, (first, 0), 3 * drafts, drafts // 10, None, None, latencies)
    return LiveScrape(replica, series, NOW + minutes * MINUTE, NOW - MINUTE, counts)


def enable(store: Store, at: datetime = NOW) -> None:
    store.save_fingerprints([examples.config()])
    watch = examples.watched(drift_acceptance=0.4, advisory_acceptance=PROMISE)
    decision = replace(examples.decision(Verdict.ENABLE), decided_at=at, verdict_since=at, watch=watch)
    store.append_decisions([decision])


def fill(store: Store, rates: list[float], start: int = 0, drafts: int = 1_000) -> None:
    """A scrape a minute: each window with so many drafts and this rate; counters go on from what is stored."""
    known = store.live_replicas("chat").get("a")
    counts = LiveCounts(0, 0, 0, (0, 0)) if known is None or known.scrape is None else known.scrape.counts
    done, accepted = counts.num_drafts or 0, counts.num_accepted_tokens_per_pos[0]
    if known is None:
        take_scrapes(store, "chat", [scrape(start, 0, 0)])
    for place, rate in enumerate(rates, start=start + 1):
        done, accepted = done + drafts, accepted + round(drafts * rate)
        take_scrapes(store, "chat", [scrape(place, done, accepted)])


def look(store: Store, minutes: float = 500) -> int | None:
    return watch(store, "chat", ["a"], None, POLICY, NOW + minutes * MINUTE).ordered


def test_a_reading_that_is_too_coarse_makes_the_window_longer(store: Store) -> None:
    """Of an engine that prints six digits: 1,200,100 drafted tokens, and 1,200,000 before."""
    for minutes, drafts in ((0, 600_000), (1, 600_050), (2, 601_000)):
        (taken,) = take_scrapes(store, "chat", [replace(scrape(minutes, drafts, drafts // 2), num_digits=6)])
        assert (taken.window is not None) is (minutes == 2)
    assert taken.window is not None
    assert (taken.window.began_at, taken.window.ended_at) == (NOW, NOW + 2 * MINUTE)
    assert taken.window.counts.num_drafts == 1_000


def test_two_processes_behind_one_address_are_named_and_never_mixed(store: Store) -> None:
    """Two replicas answer in turn: the windows are those of the newer one, and every other reading fails by name."""
    codes = []
    for turn in range(8):
        life, begun = ((9_000, -500), (100, -50))[turn % 2]
        counted = scrape(turn, life + 10 * turn, life // 2 + turn)
        (taken,) = take_scrapes(store, "chat", [replace(counted, started_at=NOW + begun * MINUTE)])
        codes.append(taken.scraped.code if isinstance(taken.scraped, FailedScrape) else None)
    assert codes == [None, None, *["several_processes", None] * 3]
    assert [(each.counts.num_drafts, each.is_reset) for each in store.live_windows("chat")] == [(20, False)] * 3


def test_counters_that_fell_begin_anew_after_they_were_refused_twice(store: Store) -> None:
    """A page without the process's start: nothing is counted of what the old and the new process had in their lives."""
    take_scrapes(store, "chat", [replace(scrape(0, 100, 70), samples={"drafts": 100})])
    outcomes = []
    for minutes in range(1, 6):
        now = replace(scrape(minutes, 10 * minutes, 7 * minutes), samples={"drafts": 10 * minutes}, started_at=None)
        (taken,) = take_scrapes(store, "chat", [now])
        outcomes.append(taken.scraped.code if isinstance(taken.scraped, FailedScrape) else taken.window)
    assert outcomes[:3] == ["counters_fell", "counters_fell", None]
    assert [window.counts.num_drafts for window in store.live_windows("chat")] == [10, 10]


def test_what_is_kept_comes_back(store: Store) -> None:
    read = replace(scrape(0, 100, 70), samples={"drafts": 100}, has_end_mark=True)
    taken = take_scrapes(store, "chat", [read, scrape(0, 5, 1, replica="b")])
    assert [each.window for each in taken] == [None, None]
    take_scrapes(store, "chat", [FailedScrape("a", NOW + MINUTE, "unreachable", "a: away")])
    held = store.live_replicas("chat")["a"]
    assert (held.num_failed, held.error, held.failed_at) == (1, "unreachable", NOW + MINUTE)
    assert held.scrape == read, "what was read before is kept"
    (taken,) = take_scrapes(store, "chat", [replace(scrape(2, 160, 100), has_end_mark=True)])
    assert taken.window is not None
    assert taken.window.num_failed_scrapes == 1
    assert store.live_windows("chat") == [taken.window]
    assert store.live_replicas("chat")["a"].num_failed == 0
    assert store.live_windows("other") == []
    assert store.live_windows("chat", since=NOW + 3 * MINUTE) == []
    assert store.live_windows("chat", until=NOW + 2 * MINUTE) == []
    assert store.live_windows("chat", replicas=["b"]) == []
    (light,) = store.live_windows("chat", limit=5)
    assert light == replace(taken.window, counts=replace(taken.window.counts, latencies={}))


def test_the_same_scrape_again_changes_nothing(store: Store) -> None:
    fill(store, [0.7, 0.7])
    before = store.live_windows("chat")
    known = store.live_replicas("chat")["a"].scrape
    assert known is not None
    for again in (known, replace(known, scraped_at=known.scraped_at - MINUTE / 2)):
        (taken,) = take_scrapes(store, "chat", [again])
        assert taken.window is None
    assert store.live_windows("chat") == before
    assert store.live_replicas("chat")["a"].scrape == known


def test_a_failure_told_again_is_one_and_an_old_scrape_ends_it_not(store: Store) -> None:
    take_scrapes(store, "chat", [scrape(0, 100, 70)])
    failed = FailedScrape("a", NOW + MINUTE, "unreachable", "a: away")
    for again in (failed, failed, scrape(0, 100, 70)):
        take_scrapes(store, "chat", [again])
        assert store.live_replicas("chat")["a"].num_failed == 1
    take_scrapes(store, "chat", [replace(failed, scraped_at=NOW + 2 * MINUTE)])
    assert store.live_replicas("chat")["a"].num_failed == 2


def test_readings_at_once_count_nothing_twice(store: Store) -> None:
    """Eight readers of growing counters: the windows together hold what was counted, whoever came first."""
    take_scrapes(store, "chat", [scrape(0, 0, 0)])
    errors: list[BaseException] = []

    def read(place: int) -> None:
        try:
            take_scrapes(store, "chat", [scrape(place, 100 * place, 70 * place)])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(place,)) for place in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = store.live_windows("chat")
    known = store.live_replicas("chat")["a"].scrape
    assert known is not None
    assert sum(window.counts.num_drafts or 0 for window in found) == known.counts.num_drafts == 800
    assert all(first.ended_at == second.began_at for first, second in pairwise(found))


@pytest.mark.representative("sqlite")
def test_no_alarm_without_a_promise_or_while_it_holds(store: Store) -> None:
    fill(store, [0.0] * 40)
    assert look(store) is None, "nothing is enabled"
    enable(store, NOW + 40 * MINUTE)
    assert look(store) is None, "what came before ENABLE does not testify"
    fill(store, [0.7] * 40, start=40)
    assert look(store) is None


@pytest.mark.representative("sqlite")
def test_an_alarm_orders_disable_once_and_anew_after_it_was_cleared(store: Store) -> None:
    enable(store)
    stated = windows_to_alarm(PROMISE, 0.1, POLICY)
    assert stated is not None
    fill(store, [0.7] * 10 + [0.1] * stated)
    ordered = look(store)
    assert ordered is not None
    (record,) = store.overrides("chat")
    assert record.override == Override(
        ordered, "chat", "", None, Verdict.DISABLE, record.override.reason, GUARD, NOW + 500 * MINUTE, None
    )
    assert record.override.reason.startswith("live alarm: at least 60.0% was promised at ENABLE; a accepts")
    fill(store, [0.1] * 20, start=10 + stated)
    assert look(store) is None, "an order is in force: no second one"
    store.clear_override(Clearing(ordered, "mended", "ada", NOW + 400 * MINUTE))
    assert look(store) is None, "what sounded before the clearing does not sound again"
    fill(store, [0.1] * (stated + 1), start=450)
    assert look(store, 900) is not None, "but what comes after it does"


def test_an_operators_order_that_was_cleared_wipes_out_no_evidence(store: Store) -> None:
    enable(store)
    stated = windows_to_alarm(PROMISE, 0.1, POLICY)
    assert stated is not None
    fill(store, [0.1] * stated)
    add_override = store.add_override(replace(examples.override(), author="ada", created_at=NOW + 400 * MINUTE))
    assert look(store) is None, "everything is off"
    store.clear_override(Clearing(add_override, "back", "ada", NOW + 450 * MINUTE))
    assert look(store) is not None, "what the replica counted before it was cleared testifies"


def test_every_replicas_newest_windows_are_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("shadowspec.live.guard", "shadowspec.live.watch"):
        monkeypatch.setattr(f"{module}.MAX_UNITS", 3)
    enable(store)
    for place in range(6):
        take_scrapes(store, "chat", [scrape(place, 10 * place, 7 * place, replica=name) for name in "ab"])
    watched = watch(store, "chat", ["a", "b"], None, POLICY, NOW + 500 * MINUTE)
    assert [(replica.replica, replica.detector.num_units) for replica in watched.replicas] == [("a", 3), ("b", 3)]


def test_another_order_keeps_the_guard_quiet(store: Store) -> None:
    enable(store)
    fill(store, [0.1] * 30)
    store.add_override(replace(examples.override(Verdict.HOLD), created_at=NOW))
    assert watch(store, "chat", ["a"], None, POLICY, NOW + MINUTE).promise is None


def test_one_bad_replica_among_good_ones_is_named(store: Store) -> None:
    enable(store)
    for place in range(31):
        good = scrape(place, 1_000 * place, 700 * place, replica="good")
        take_scrapes(store, "chat", [good, scrape(place, 1_000 * place, 50 * place, replica="bad")])
    found = watch(store, "chat", ["good", "bad"], None, replace(POLICY, num_replicas=2), NOW + 31 * MINUTE)
    assert [alarm.replica for alarm in found.alarms] == ["bad"]
    assert "bad accepts 5.0% in its newest window, 5.0% in the 30 windows since then" in alarm_words(found)
    assert "good" not in alarm_words(found)


@pytest.mark.parametrize("kept_days", [1, 30])
def test_retention_removes_old_windows(store: Store, kept_days: int) -> None:
    fill(store, [0.7] * 5)
    store.retain(timedelta(days=kept_days), now=NOW + timedelta(days=10))
    assert len(store.live_windows("chat")) == (0 if kept_days == 1 else 5)
