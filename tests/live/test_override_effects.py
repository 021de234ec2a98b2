"""Whether production obeys an override: off, still on, or unknown, each said once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from shadowspec.live.override_effects import effects_of, observe_overrides
from shadowspec.live.watch import take_scrapes
from shadowspec.reports.period.period_changes import events_within
from shadowspec.rollout.orders import state_words
from shadowspec.store import Store
from shadowspec.types import GUARD, Clearing, LiveCounts, LiveScrape, Override, OverrideRecord, Verdict
from shadowspec.types.settings import GuardPolicy

NOW = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
SECOND = timedelta(seconds=1)
POLICY = GuardPolicy(off_within_s=60.0)


def read(store: Store, replica: str, *steps: tuple[int, int | None, int]) -> None:
    """Readings of a replica at these seconds, with so many drafted tokens and output tokens in all."""
    for second, drafted, tokens in steps:
        counts = LiveCounts(drafted, drafted, 0 if drafted else None, (), tokens, tokens // 10)
        take_scrapes(store, "chat", [LiveScrape(replica, "s", NOW + second * SECOND, None, counts)])


def order(store: Store, second: int = 0, *, slice_key: str = "") -> int:
    at = NOW + second * SECOND
    return store.add_override(Override(0, "chat", slice_key, None, Verdict.DISABLE, "acceptance fell", GUARD, at))


def record(store: Store) -> OverrideRecord:
    return store.overrides("chat")[-1]


def shown(store: Store, replicas: Sequence[str] = ("a",)) -> list[bool]:
    effects, _ = observe_overrides(store, "chat", replicas, POLICY)
    return [effect.is_off for effect in effects]


def test_requests_without_drafts_after_the_order_confirm_it_once(store: Store) -> None:
    order(store)
    read(store, "a", (-5, 100, 1_000), (5, 120, 1_100))  # it began before the order
    assert shown(store) == []
    read(store, "a", (10, 130, 1_200))  # answers that had begun still draft
    assert shown(store) == []
    read(store, "a", (15, 130, 1_300))
    assert shown(store) == [True]
    (effect,) = record(store).effects
    assert effect.observed_at == NOW + 15 * SECOND
    assert effect.reason.endswith("10 s after the override; 100 tokens were served")
    assert "in force; off in production" in state_words(record(store), NOW)
    assert shown(store) == []


def test_a_window_that_began_before_the_order_confirms_nothing(store: Store) -> None:
    order(store)
    read(store, "a", (-5, 100, 1_000), (5, 100, 1_100))
    assert shown(store) == []


def test_without_requests_nothing_is_confirmed(store: Store) -> None:
    order(store)
    read(store, "a", (1, 100, 1_000), (5, 100, 1_000), (500, 100, 1_000))
    assert observe_overrides(store, "chat", ["a"], POLICY) == ([], True)


def test_every_replica_has_to_be_read_and_the_plain_pool_s_requests_count(store: Store) -> None:
    """After the routes have moved the speculative pool is idle, and the plain pool counts no drafts at all."""
    order(store)
    read(store, "plain", (1, None, 0), (9, None, 500))
    assert shown(store, ("a", "plain")) == []
    read(store, "a", (1, 100, 1_000), (9, 100, 1_000))
    assert shown(store, ("a", "plain")) == [True]


def test_drafts_after_the_time_that_an_export_takes_are_an_alarm(store: Store) -> None:
    order(store)
    read(store, "a", (10, 0, 0), (50, 400, 500), (70, 800, 1_000))
    assert shown(store) == [], "the last window began within the time"
    read(store, "a", (80, 900, 1_100))
    assert shown(store) == [False]
    assert "a drafted 100 tokens" in record(store).effects[0].reason
    read(store, "a", (90, 1_000, 1_200))
    assert shown(store) == [], "one alarm for one order"
    read(store, "a", (100, 1_000, 1_300))
    assert shown(store) == [True]


def test_drafts_after_it_was_off_are_an_alarm_at_once(store: Store) -> None:
    order(store)
    read(store, "a", (1, 0, 0), (5, 0, 100))
    assert shown(store) == [True]
    read(store, "a", (10, 50, 200))
    assert shown(store) == [False]


def test_an_order_of_a_slice_and_one_that_is_cleared_are_not_observed(store: Store) -> None:
    order(store, slice_key="prompt_class=code")
    number = order(store)
    store.clear_override(Clearing(number, "mended", "ada", NOW + SECOND))
    read(store, "a", (1, 0, 0), (5, 0, 100))
    assert observe_overrides(store, "chat", ["a"], POLICY) == ([], False)


@pytest.mark.parametrize(("event", "is_off"), [("confirmed", True), ("alarm", False)])
def test_what_is_seen_is_an_event(store: Store, event: str, is_off: bool) -> None:
    order(store, second=-200)
    read(store, "a", (1, 0, 0), (5, 0 if is_off else 50, 100))
    assert shown(store) == [is_off]
    (change,) = events_within(store, NOW, NOW + 10 * SECOND, [event])
    assert ("off in production" if is_off else "still on") in change.what
    assert change.why.endswith("acceptance fell")


def test_effects_need_no_windows(store: Store) -> None:
    order(store)
    assert effects_of(record(store), [], ["a"], POLICY) == []
