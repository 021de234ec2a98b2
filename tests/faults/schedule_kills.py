"""Kills the leading scheduler at random moments: every period must reach every receiver.

    python -m tests.faults.schedule_kills --periods 30 --out tests/faults/results/schedule-30-kills.json

Two schedulers run as processes on one Postgres.  In every period whoever leads is killed, at a moment drawn at random,
half of the time within a second of the time that is due, and another process is started in its place.  A mail server,
a web server and a folder get the reports.  Then what they got is held against the log: no period is missing, what
came twice came with the same Message-ID or idempotency key, and a kill fell between the one and the other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy

from shadowspec.scheduler.cron import Cron
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.types import Delivery, DeliveryState, Verdict
from tests.faults.outcome import conclude
from tests.scheduler.receivers import Hook, Mailbox, mail_server, web_server
from tests.services import PATIENCE_S, postgres_server
from tests.store import examples

PERIOD_S = 4
ANSWER_S = 0.15  # that a receiver takes to say that it has a report: the moment in which a kill makes a repeat
RECEIVERS = ("folder", "mail", "hook")
DRAIN_TIMEOUT_S = 120.0  # without any delivery

CONFIG = """
[schedule]
catch_up = 1000
retry_first_s = 1.0
[schedule.jobs.often]
cron = "*/{period} * * * * *"
receivers = ["folder", "mail", "hook"]
[schedule.receivers.folder]
kind = "folder"
folder = "{folder}"
formats = ["json"]
[schedule.receivers.mail]
kind = "email"
host = "127.0.0.1"
port = {mail_port}
security = "none"
sender = "shadowspec@example.org"
to = ["team@example.org"]
[schedule.receivers.hook]
kind = "webhook"
url_variable = "HOOK_URL"
"""
_LEADER = """
SELECT activity.application_name FROM pg_locks AS own JOIN pg_stat_activity AS activity ON activity.pid = own.pid
WHERE own.locktype = 'advisory' AND own.granted AND activity.datname = current_database()
"""


class Schedulers:
    """The processes, each under a name by which Postgres knows its connections."""

    def __init__(self, config: Path, environment: Mapping[str, str]) -> None:
        self._config, self._environment = config, environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._number = 0

    def start(self) -> None:
        self._number += 1
        name = f"scheduler-{self._number}"
        with (self._config.parent / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "shadowspec", "--verbose", "schedule", "--config", str(self._config)],
                env={**os.environ, **self._environment, "PGAPPNAME": name},
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all that run."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            process.wait(60)

    @property
    def names(self) -> set[str]:
        return set(self._running)


def run(url: str, folder: Path, num_periods: int, seed: int) -> dict[str, Any]:
    """That many periods; what came of them."""
    rng = random.Random(seed)
    _fill(url)
    with mail_server() as mailbox, web_server() as hook:
        mailbox.delay_s = hook.delay_s = ANSWER_S
        reports = folder / "reports"
        config = folder / "shadowspec.toml"
        config.write_text(CONFIG.format(period=PERIOD_S, folder=reports, mail_port=mailbox.port), encoding="utf-8")
        environment = {"SHADOWSPEC_DATABASE_URL": url, "HOOK_URL": f"json://127.0.0.1:{hook.port}/report"}
        schedulers = Schedulers(config, environment)
        cron = Cron(f"*/{PERIOD_S} * * * * *", ZoneInfo("UTC"))
        engine = sqlalchemy.create_engine(url)
        try:
            schedulers.start()
            schedulers.start()
            _leader(engine, schedulers)
            kills: list[float] = []
            with Store.open(url) as store:
                while (first := store.last_period("often")) is None:
                    time.sleep(0.1)
                for _ in range(num_periods):
                    due_at = cron.next_after(datetime.now(UTC))
                    assert due_at is not None
                    _sleep_until(due_at + timedelta(seconds=rng.uniform(0, 1 if rng.random() < 0.5 else PERIOD_S)))
                    schedulers.kill(_leader(engine, schedulers))
                    kills.append(time.time())
                    schedulers.start()
                last_due = cron.last_until(datetime.now(UTC))
                _drain(store, last_due)
                found = store.deliveries("often", limit=100_000)
        finally:
            engine.dispose()
            schedulers.stop()
        wanted = cron.due_within(first.due_at, last_due, at_most=10_000)
        wrong = differences(found, wanted, mailbox, hook, reports, kills)
    receipts = Counter(len(times) for times in _receipts(mailbox, hook).values())
    return {
        "seed": seed,
        "kills": len(kills),
        "periods": len(wanted),
        "deliveries": len(found),
        "attempts": sum(each.attempts for each in found),
        "times_received": {str(number): count for number, count in sorted(receipts.items())},
        "wrong": wrong,
    }


def differences(
    found: list[Delivery], wanted: list[datetime], mailbox: Mailbox, hook: Hook, reports: Path, kills: list[float]
) -> list[str]:
    """What of the promise was not kept."""
    log = {(each.due_at, each.receiver): each for each in found}
    wrong = [
        f"{receiver} did not get {due_at:%H:%M:%S}"
        for due_at in wanted
        for receiver in RECEIVERS
        if (due_at, receiver) not in log or log[due_at, receiver].state is not DeliveryState.SENT
    ]
    receipts = _receipts(mailbox, hook)
    for each in found:
        if each.receiver == "folder":
            if each.due_at in wanted and not (reports / f"often-{each.due_at:%Y%m%dT%H%M%SZ}.json").is_file():
                wrong.append(f"no file of {each.due_at:%H:%M:%S}")
            continue
        times = receipts.get(_key(each), [])
        if each.state is DeliveryState.SENT and not times:
            wrong.append(f"{each.receiver} {each.due_at:%H:%M:%S}: logged and not received")
        if len(times) > each.attempts:
            wrong.append(f"{each.receiver} {each.due_at:%H:%M:%S}: {len(times)} times, {each.attempts} attempts")
        for earlier, later in itertools.pairwise(times):
            if not any(earlier <= kill <= later for kill in kills):
                wrong.append(f"{each.receiver} {each.due_at:%H:%M:%S}: repeated without a kill in between")
    strangers = receipts.keys() - {_key(each) for each in found}
    wrong += [f"received and not logged: {key}" for key in sorted(strangers)]
    spans = [json.loads(path.read_text()) for path in sorted(reports.glob("*.json"))]
    wrong += [
        f"a gap before {after['since']}"
        for before, after in itertools.pairwise(spans)
        if before["until"] != after["since"]
    ]
    return wrong


def _key(delivery: Delivery) -> str:
    """By what a receiver tells repeats."""
    return str(delivery.message_id or delivery.idempotency_key)


def _receipts(mailbox: Mailbox, hook: Hook) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for mail, at in zip(mailbox.mails, mailbox.times, strict=True):
        found[str(mail["Message-ID"])].append(at)
    for (_, headers, _), at in zip(hook.posts, hook.times, strict=True):
        found[headers["Idempotency-Key"]].append(at)
    return found


def _fill(url: str) -> None:
    """Something to report on."""
    with Store.open(url) as store:
        store.save_fingerprints([examples.config()])
        store.append_decisions([examples.decision(Verdict.ENABLE)])


def _leader(engine: sqlalchemy.Engine, schedulers: Schedulers) -> str:
    """Who holds the lock, once somebody who still runs does."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with engine.connect() as connection:
            names = set(connection.scalars(sqlalchemy.text(_LEADER)))
        if held := names & schedulers.names:
            return held.pop()
        time.sleep(0.05)
    raise TimeoutError("no scheduler leads")


def _drain(store: Store, last_due: datetime) -> None:
    """Wait until everything up to that time is sent, or nothing has been for too long: a busy machine has much left."""
    num_sent, deadline = 0, time.monotonic() + DRAIN_TIMEOUT_S
    while time.monotonic() < deadline:
        deliveries = [each for each in store.deliveries("often", limit=100_000) if each.due_at <= last_due]
        sent = sum(each.state is DeliveryState.SENT for each in deliveries)
        if any(each.due_at == last_due for each in deliveries) and sent == len(deliveries):
            return
        if sent > num_sent:
            num_sent, deadline = sent, time.monotonic() + DRAIN_TIMEOUT_S
        time.sleep(0.2)


def _sleep_until(moment: datetime) -> None:
    time.sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--periods", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    with postgres_server() as server, tempfile.TemporaryDirectory() as folder:
        schema.upgrade(server.url)
        figures = run(server.url, Path(folder), arguments.periods, arguments.seed)
    figures["seconds"] = round(time.monotonic() - started)
    conclude(figures, arguments.out)


if __name__ == "__main__":
    main()
