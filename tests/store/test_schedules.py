"""Periods and deliveries are kept by their keys; decisions are read as they stood; one process leads."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy

from shadowspec.errors import StoreError
from shadowspec.store import Store
from shadowspec.types import Decision, Delivery, DeliveryState, Period, Verdict
from tests.services import PATIENCE_S
from tests.store import examples

NOON = examples.NOON
HOUR = timedelta(hours=1)
PERIOD = Period("daily", NOON, NOON - timedelta(days=1))


def delivery(receiver: str = "team", due_at: Any = NOON) -> Delivery:
    return Delivery("daily", due_at, receiver, f"key-{receiver}", "<key@shadowspec>", due_at)


def test_a_period_is_begun_once_and_prepared_with_its_deliveries(store: Store) -> None:
    assert store.last_period("daily") is None
    assert [store.begin_periods([PERIOD]), store.begin_periods([PERIOD])] == [1, 0]
    assert store.unprepared_periods("daily") == [PERIOD]
    done = replace(PERIOD, until=NOON + HOUR, gate_outcome="done")
    store.prepare_period(done, [delivery(), delivery("board")])
    assert store.unprepared_periods("daily") == []
    assert store.last_period("daily") == store.period("daily", NOON) == done
    assert store.deliveries() == [delivery("board"), delivery()]
    store.prepare_period(replace(done, until=NOON + 2 * HOUR), [delivery()])
    assert store.period("daily", NOON) == done, "what a report speaks of is fixed once"
    assert store.deliveries("weekly") == []


def test_a_delivery_needs_its_period(store: Store) -> None:
    with pytest.raises(StoreError):
        store.prepare_period(PERIOD, [delivery()])


def test_deliveries_wait_for_their_time_and_leave_when_sent(store: Store) -> None:
    store.begin_periods([PERIOD])
    store.prepare_period(replace(PERIOD, until=NOON), [delivery(), delivery("board")])
    assert store.open_deliveries("team", NOON - HOUR) == []
    (first_delivery,) = store.open_deliveries("team", NOON)
    begun = replace(first_delivery, state=DeliveryState.SENDING, attempts=1)
    store.keep_delivery(begun)
    assert store.open_deliveries("team", NOON) == [begun], "whoever began it may be dead"
    later = replace(begun, state=DeliveryState.PENDING, next_attempt_at=NOON + HOUR, last_error="TimeoutError")
    store.keep_delivery(later)
    assert store.open_deliveries("team", NOON) == []
    assert store.open_deliveries("team", NOON + HOUR) == [later]
    store.keep_delivery(replace(later, state=DeliveryState.SENT, sent_at=NOON + HOUR, last_error=None))
    assert store.open_deliveries("team", NOON + HOUR) == []
    assert store.abandon_deliveries(["team"], "NotConfigured") == 1
    assert {each.receiver: each.state for each in store.deliveries()} == {
        "team": DeliveryState.SENT,
        "board": DeliveryState.FAILED,
    }


def decided(hours: int, verdict: Verdict, slice_key: str = "", **changes: Any) -> Decision:
    return replace(examples.decision(verdict), slice_key=slice_key, decided_at=NOON + hours * HOUR, **changes)


def test_decisions_are_read_as_they_stood(store: Store) -> None:
    store.save_fingerprints([examples.config(), examples.config("other")])
    first, second = decided(0, Verdict.HOLD), decided(2, Verdict.ENABLE)
    other = decided(1, Verdict.HOLD, "prompt_class=code")
    third = decided(1, Verdict.DISABLE, fingerprint="other")
    for decision in (first, other, third, second):
        store.append_decisions([decision])
    assert store.decisions_at(NOON) == []
    assert store.decisions_at(NOON + HOUR) == [first]
    assert store.decisions_at(NOON + 2 * HOUR) == [first, third, other]
    assert store.decisions_at(NOON + 3 * HOUR) == store.latest_decisions() == [second, third, other]


def test_one_leads_and_another_follows_when_it_lets_go(database_url: str) -> None:
    with Store.open(database_url) as one, Store.open(database_url) as other:
        first, second, unrelated = one.leadership("a"), other.leadership("a"), other.leadership("b")
        assert first.try_acquire()
        assert first.try_acquire()
        assert not second.try_acquire()
        assert unrelated.try_acquire()
        assert [first.is_held(), second.is_held()] == [True, False]
        first.release()
        first.release()
        assert not first.is_held()
        assert second.try_acquire()
        second.release()
        unrelated.release()


def _lead(url: str, started: Any) -> None:
    with Store.open(url) as store:
        lead = store.leadership("a")
        assert lead.try_acquire()
        started.set()
        signal.pause()


@pytest.mark.representative("postgres")
def test_a_dead_leader_leads_no_more(database_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=_lead, args=(database_url, started))
    process.start()
    assert started.wait(PATIENCE_S)
    with Store.open(database_url) as store:
        lead = store.leadership("a")
        assert not lead.try_acquire()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        for _ in range(500):
            if lead.try_acquire():
                break
        assert lead.is_held()
        lead.release()


@pytest.mark.integration
def test_a_leader_whose_session_ends_learns_it(new_database: Callable[[str], str]) -> None:
    url = new_database("postgres")
    with Store.open(url) as store, Store.open(url) as other:
        lead, follower = store.leadership("a"), other.leadership("a")
        assert lead.try_acquire()
        engine = sqlalchemy.create_engine(url)
        with engine.connect() as connection:
            holder = "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'"
            assert connection.exec_driver_sql(holder).scalar_one() is True
        engine.dispose()
        assert not lead.is_held()
        assert follower.try_acquire()
        assert not lead.try_acquire()
        lead.release()
        follower.release()
