"""Hours of live evidence are the sums of the windows that were kept, each counted once, and outlive them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from shadowspec.live.watch import take_scrapes
from shadowspec.store import Store
from shadowspec.store.evidence.live_rows import counts_document, read_counts
from shadowspec.types import (
    COUNTS,
    END_TO_END,
    Buckets,
    LiveCounts,
    LiveHour,
    LiveReplica,
    LiveScrape,
    LiveWindow,
    Pool,
)
from tests.store.live_traffic import windows

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def keep(store: Store, windows: Sequence[LiveWindow]) -> int:
    with store.live_session("chat") as session:
        return session.keep([], windows)


def hours(store: Store) -> list[LiveHour]:
    return store.live_hours("chat", NOON - timedelta(days=9), NOON + timedelta(days=9))


def window(start: float, minutes: float = 1, **counts: object) -> LiveWindow:
    began = NOON + start * MINUTE
    return LiveWindow("a", "s", began, began + minutes * MINUTE, False, 0, LiveCounts(**counts))


def test_an_hour_is_what_its_windows_say(store: Store) -> None:
    """Two keeps into the same hour, by hand: what is unknown stays so, what some know is theirs."""
    bins = Buckets((0.1,), (2, 1))
    first = window(57, num_drafts=10, num_accepted_tokens_per_pos=(7, 2), num_accepted_tokens=9, num_output_tokens=50)
    second = replace(
        window(58, 2, num_output_tokens=30, num_requests=4, num_drafts=0, latencies={END_TO_END: bins}), is_reset=True
    )
    third = replace(window(61, num_requests=5, latencies={END_TO_END: bins}), num_failed_scrapes=2)
    keep(store, [first])
    assert keep(store, [first, second]) == 1, "the first was kept before"
    keep(store, [third])
    early, late = hours(store)
    assert early == LiveHour(
        replica="a",
        series="s",
        hour=NOON,
        began_at=first.began_at,
        ended_at=first.ended_at,
        drafted_at=first.began_at,
        num_windows=1,
        num_resets=0,
        num_failed_scrapes=0,
        counts=first.counts,
        requests_us=0,
        output_tokens_us=60_000_000,
        num_first_accepted_tokens=7,
        num_first_drafts=10,
        num_known_accepted_tokens=9,
        num_known_drafts=10,
    )
    assert late == LiveHour(
        replica="a",
        series="s",
        hour=NOON + HOUR,
        began_at=second.began_at,
        ended_at=third.ended_at,
        drafted_at=None,
        num_windows=2,
        num_resets=1,
        num_failed_scrapes=2,
        counts=LiveCounts(
            num_drafts=0, num_output_tokens=30, num_requests=9, latencies={END_TO_END: Buckets((0.1,), (4, 2))}
        ),
        requests_us=180_000_000,
        output_tokens_us=120_000_000,
        num_first_accepted_tokens=0,
        num_first_drafts=0,
        num_known_accepted_tokens=0,
        num_known_drafts=0,
    )


def test_hours_add_up_to_the_windows_however_they_came(store: Store) -> None:
    live_windows = windows(1, NOON, timedelta(hours=20), NOON + 10 * HOUR)
    for start in range(0, len(live_windows), 40):
        keep(store, live_windows[max(start - 15, 0) : start + 40])  # some of them once more
    found = hours(store)
    assert sum(each.num_windows for each in found) == len(live_windows)
    for name in COUNTS:
        reported = [value for each in live_windows if (value := getattr(each.counts, name)) is not None]
        assert sum(getattr(each.counts, name) or 0 for each in found) == sum(reported)
    for each in found:
        inside = [
            one
            for one in live_windows
            if (one.replica, one.series) == (each.replica, each.series) and each.hour <= one.ended_at < each.hour + HOUR
        ]
        assert each.num_windows == len(inside)
        assert (each.began_at, each.ended_at) == (
            min(one.began_at for one in inside),
            max(one.ended_at for one in inside),
        )
        totals = {name: bins.total for name, bins in each.counts.latencies.items()}
        assert totals == {name: sum(one.counts.latencies[name].total for one in inside) for name in totals}
        for name, bins in each.counts.latencies.items():
            sums = [one.counts.latencies[name].sum_us for one in inside]
            assert bins.sum_us == (None if None in sums else sum(value for value in sums if value is not None))
        assert {one.pool for one in inside} == {each.pool}
    assert {each.pool for each in found} == set(Pool)
    assert any(each.counts.num_failed_requests for each in found)
    assert store.live_windows("chat") == live_windows
    assert len({(each.replica, each.series) for each in found}) == 6
    assert len(found) > 50
    some = store.live_hours("chat", NOON + 2 * HOUR, NOON + 4 * HOUR)
    assert some == [each for each in found if NOON + 2 * HOUR <= each.hour < NOON + 4 * HOUR]
    assert store.live_hours("other", NOON, NOON + 30 * HOUR) == []


def test_counts_of_an_older_scheduler_are_read(store: Store) -> None:
    """What it kept has no sums, no failures and no pool: they are unknown, and the pool is the only one there was."""
    document = counts_document(windows(1, NOON, HOUR, None)[0].counts)
    del document["num_failed_requests"]
    document["latencies"] = {name: bins[:2] for name, bins in document["latencies"].items()}
    counts = read_counts(document)
    assert counts.num_failed_requests is None
    assert all(bins.sum_us is None for bins in counts.latencies.values())
    keep(store, [replace(window(3), counts=counts)])
    assert store.live_windows("chat")[0].pool is Pool.SPECULATIVE


def test_readers_at_once_lose_no_count(store: Store) -> None:
    """Eight readers of growing counters into one hour."""
    errors: list[BaseException] = []

    def read(place: int) -> None:
        counts = LiveCounts(num_drafts=100 * place, num_output_tokens=300 * place)
        try:
            take_scrapes(store, "chat", [LiveScrape("a", "s", NOON + place * MINUTE, None, counts)])
        except BaseException as error:
            errors.append(error)

    read(0)
    threads = [threading.Thread(target=read, args=(place,)) for place in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    (found,) = hours(store)
    assert (found.counts.num_drafts, found.counts.num_output_tokens) == (800, 2_400)
    assert found.num_windows == len(store.live_windows("chat"))


def test_a_session_that_fails_adds_nothing(store: Store) -> None:
    try:
        with store.live_session("chat") as session:
            session.keep([LiveReplica("a", None)], [window(1, num_drafts=1)])
            raise RuntimeError
    except RuntimeError:
        pass
    assert (hours(store), store.live_windows("chat")) == ([], [])


def test_hours_outlive_their_windows(store: Store) -> None:
    keep(store, windows(2, NOON, timedelta(hours=5), None))
    before = hours(store)
    store.retain(timedelta(days=1), now=NOON + timedelta(days=10))
    assert store.live_windows("chat") == []
    assert hours(store) == before != []
