"""One leads on a real database, another takes over, and what is due is done once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy

from shadowspec.errors import InputError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import EndpointGateRun
from shadowspec.rollout import endpoint_run as app_gate
from shadowspec.rollout.endpoint_run import GatePolicies
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.scheduler import leader
from shadowspec.scheduler.jobs import run_measured_gates
from shadowspec.scheduler.leader import LeaderTerm
from shadowspec.store import Store
from shadowspec.types import DeliveryState
from tests.builders.waiting import wait_for
from tests.scheduler.receivers import mail_server
from tests.scheduler.worlds import FOLDER, config_of, email, fill, make_due, scheduler_of
from tests.services import PATIENCE_S

EVERY_TWO_SECONDS = 'cron = "*/2 * * * * *"\nreceivers = ["team"]\n[schedule]\ncatch_up = 1000'


@contextmanager
def running(url: str, folder: Path, *parts: str) -> Iterator[tuple[Store, threading.Event]]:
    """A scheduler in a thread of its own, on a store of its own."""
    stopped = threading.Event()
    with Store.open(url) as store:
        scheduler = scheduler_of(config_of(folder, url, *parts), store)
        thread = threading.Thread(target=scheduler.run, args=(stopped,))
        thread.start()
        try:
            yield store, stopped
        finally:
            stopped.set()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def num_sent(store: Store) -> int:
    return sum(each.state is DeliveryState.SENT for each in store.deliveries(limit=1_000))


@pytest.mark.integration
def test_two_at_once_send_one_report_per_period_and_one_takes_over(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("postgres")
    with Store.open(url) as store, mail_server() as mailbox:
        fill(store)
        parts = (EVERY_TWO_SECONDS, email("team", mailbox.port))
        with running(url, tmp_path, *parts) as (_, first_stopped), running(url, tmp_path, *parts):
            wait_for(lambda: num_sent(store) >= 2)
            first_stopped.set()
            before = num_sent(store)
            wait_for(lambda: num_sent(store) >= before + 2)
        found = store.deliveries(limit=1_000)
    sent = [each for each in found if each.state is DeliveryState.SENT]
    due = sorted(each.due_at for each in found)
    assert {later - earlier for earlier, later in pairwise(due)} == {timedelta(seconds=2)}
    # A leader that is stopped between claiming a delivery and sending it leaves an attempt; no mail is sent twice.
    ids = Counter(mail["Message-ID"] for mail in mailbox.mails)
    assert ids == Counter(each.message_id for each in sent)


@pytest.mark.integration
def test_a_leader_that_loses_its_session_steps_down_and_leads_again(
    new_database: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = new_database("postgres")
    end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    engine = sqlalchemy.create_engine(url)
    with mail_server() as mailbox, running(url, tmp_path, EVERY_TWO_SECONDS, email("team", mailbox.port)) as (store, _):
        fill(store)
        wait_for(lambda: num_sent(store) >= 1)
        with engine.connect() as connection:
            assert connection.exec_driver_sql(end).scalar_one() is True
        wait_for(lambda: "leadership was lost" in caplog.text)
        before = num_sent(store)
        wait_for(lambda: num_sent(store) >= before + 1)
    engine.dispose()
    assert len({mail["Message-ID"] for mail in mailbox.mails}) == len(mailbox.mails)


def test_what_was_missed_is_caught_up_and_the_rest_is_in_the_first(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("sqlite")
    with Store.open(url) as store:
        fill(store)
        hour = make_due(store, ago=timedelta(hours=30))
        job = 'cron = "0 * * * *"\nreceivers = ["folder"]\n[schedule]\ncatch_up = 3'
        config = config_of(tmp_path, url, job, FOLDER.format(tmp_path / "reports"))
        assert scheduler_of(config, store).run_once()
        assert scheduler_of(config, store).run_once()
        assert num_sent(store) == 3
    spans = [json.loads(path.read_text()) for path in sorted((tmp_path / "reports").glob("*.json"))]
    ends = [(datetime.fromisoformat(each["since"]), datetime.fromisoformat(each["until"])) for each in spans]
    one = timedelta(hours=1)
    assert ends == [(hour - 30 * one, hour - 2 * one), (hour - 2 * one, hour - one), (hour - one, hour)]


def test_a_job_that_was_never_scheduled_begins_with_the_next_time(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("sqlite")
    with Store.open(url) as store:
        job = 'cron = "0 * * * *"\nreceivers = ["folder"]'
        config = config_of(tmp_path, url, job, FOLDER.format(tmp_path / "reports"))
        assert scheduler_of(config, store).run_once()
        last = store.last_period("often")
        assert last is not None
        assert last.since == last.until == last.due_at <= datetime.now(UTC)
        assert store.deliveries() == []


def test_a_second_one_leaves_what_is_due_to_the_leader(new_database: Callable[[str], str], tmp_path: Path) -> None:
    url = new_database("sqlite")
    with Store.open(url) as store, Store.open(url) as other:
        make_due(store)
        config = config_of(tmp_path, url, 'cron = "0 * * * *"\nreceivers = ["folder"]', FOLDER.format(tmp_path))
        lead = other.leadership(leader.LEADERSHIP)
        assert lead.try_acquire()
        assert not scheduler_of(config, store).run_once()
        assert store.deliveries() == []
        lead.release()
        assert scheduler_of(config, store).run_once()
        assert num_sent(store) == 3


def test_a_stopped_process_finds_that_its_term_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    term = LeaderTerm({})
    assert term.is_on()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + leader.TRUST_S + 1)
    assert not term.is_on()
    term.confirm()
    assert term.is_on()
    term.end()
    assert not term.is_on()


def test_nothing_is_sent_once_the_term_is_over(new_database: Callable[[str], str], tmp_path: Path) -> None:
    url = new_database("sqlite")
    with Store.open(url) as store:
        make_due(store)
        job = 'cron = "0 * * * *"\nreceivers = ["folder"]'
        config = config_of(tmp_path, url, job, FOLDER.format(tmp_path / "reports"))
        scheduler = scheduler_of(config, store)
        assert scheduler._prepare_due(config.schedule.jobs["often"], LeaderTerm({})) == 3
        (deliverer,) = scheduler._deliverers(lambda: False).values()
        deliverer.run()
        assert not (tmp_path / "reports").exists()
        assert {each.state for each in store.deliveries()} == {DeliveryState.PENDING}


def test_an_endpoint_whose_gate_fails_holds_up_neither_the_others_nor_the_report(
    new_database: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, decided = new_database("sqlite"), []

    def gate(_store: Store, endpoint: str, policy: GatePolicy, **_: object) -> EndpointGateRun:
        if endpoint == "bad":
            raise InputError("rows contradict each other")
        decided.append(endpoint)
        return EndpointGateRun(endpoint, policy, None, datetime.now(UTC))

    monkeypatch.setattr(app_gate, "run_endpoint_gate", gate)
    names = ("bad", "chat", "unseen")
    policies = GatePolicies(dict.fromkeys(names, GatePolicy(window_s=0.0)), dict.fromkeys(names, RolloutPolicy()))
    with Store.open(url) as store:
        monkeypatch.setattr(store, "endpoints", lambda: ["bad", "chat"])
        assert run_measured_gates(store, policies) == "bad: InputError"
        assert decided == ["chat"]
        make_due(store, ago=timedelta(hours=2))
        job = 'cron = "0 * * * *"\ndoes = ["gate", "report"]\nreceivers = ["folder"]'
        config = config_of(tmp_path, url, job, FOLDER.format(tmp_path / "reports"))
        scheduler = scheduler_of(config, store)
        monkeypatch.setattr(scheduler, "_policies", policies)
        assert scheduler.run_once()
        assert decided == ["chat", "chat"], "it runs for the newest period alone"
    outcomes = [json.loads(path.read_text())["gate_outcome"] for path in sorted((tmp_path / "reports").glob("*.json"))]
    assert outcomes == [None, "bad: InputError"]


def test_a_gate_that_was_interrupted_is_run_again(new_database: Callable[[str], str], tmp_path: Path) -> None:
    url = new_database("sqlite")
    with Store.open(url) as store:
        hour = make_due(store, ago=timedelta(hours=1))
        last = store.last_period("often")
        assert last is not None
        store.begin_periods([replace(last, due_at=hour, since=last.due_at, until=None)])
        config = config_of(tmp_path, url, 'cron = "0 * * * *"\ndoes = ["gate"]')
        assert scheduler_of(config, store).run_once()
        done = store.period("often", hour)
        assert done is not None
        assert done.gate_outcome == "done"
        assert store.unprepared_periods("often") == []
