"""Endpoints are measured apart: servers of some are killed and come back, and the others go on meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shadowspec.store import Store
from shadowspec.types import FunnelCounter, FunnelKey
from tests.builders.workspace import record
from tests.faults.casts import SECRET
from tests.kafka_topics import Message, Topics, read_topic
from tests.servers.fake_server import FakeServer, running
from tests.services import PATIENCE_S, free_port
from tests.small_models import save_pair

pytestmark = pytest.mark.integration

NAMES = ("chat", "code", "sql", "mail")
FAULTY = ("code", "sql")
CONFIG = """
[database]
url = "{database}"
[kafka]
bootstrap_servers = ["{bootstrap}"]
topics = ["{topic}"]
dead_letter_topic = "{letters}"
session_timeout_ms = 10000
heartbeat_interval_ms = 2000
[worker]
health_address = "127.0.0.1:{port}"
flush_interval_s = 0.2
max_queued_blocks = 2
[gate]
min_span_s = 0.0
window_s = 0.0
timed_positions = 1
block_max_wait_s = 1.0
[engine]
warmup_blocks = 0
"""
ENDPOINT = """
[endpoints.{name}]
engine = "openai"
target = "{target}"
served_models = ["{name}"]
match = {{ model = "{name}" }}
loads = [{{ concurrency = 4 }}]
[[endpoints.{name}.candidates]]
name = "draft"
proposer = "draft_model"
draft = "draft"
num_speculative_tokens = 3
[endpoints.{name}.servers]
baseline_url = "{baseline}"
speculative_url = "{speculative}"
device = "a fake"
dtype = "float32"
max_attempts = 1
max_model_len = 64
prefix_cache = "off"
"""


@dataclass
class Fleet:
    """A mirror, four endpoints with a pair of servers each, and the workers that measure them."""

    folder: Path
    store: Store
    topics: Topics
    topic: str
    letters: str
    servers: dict[str, tuple[FakeServer, FakeServer]]
    config: Path
    ports: list[int] = field(default_factory=list)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)  # by endpoint; "" has none

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        self.ports.append(free_port())
        config = self.folder / f"worker-{len(self.ports)}.toml"
        config.write_text(self.config.read_text().replace("{port}", str(self.ports[-1])))
        with (self.folder / "worker.log").open("ab") as log:
            command = [sys.executable, "-m", "shadowspec", "worker", "--config", str(config), *options]
            environment = os.environ | {"SHADOWSPEC_HASH_SECRET": SECRET}
            worker = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[-1]}{path}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, "{}"

    def waiting(self) -> list[str] | None:
        """The endpoints that wait, by a worker that is ready; else None."""
        status, body = self.get("/readyz")
        return json.loads(body)["waiting"] if status == 200 else None

    def send(self, number: int) -> None:
        """So many requests of each endpoint, interleaved with others of none, evenly over the partitions."""
        messages = []
        for index in range(number):
            for name in (*NAMES, "nobody"):
                place = self.sent[name] + index
                value = json.dumps(record(5 * place, model=name)).encode()
                messages.append(Message(value, f"{name}-{place}".encode(), partition=place % 2))
            messages.append(Message(b"{", f"bad-{self.sent['bad'] + index}".encode(), partition=index % 2))
        self.topics.write(self.topic, messages)
        self.sent.update(dict.fromkeys((*NAMES, "nobody", "bad"), number))

    def measured(self, *names: str) -> bool:
        """Whether every request of these endpoints was measured, once, and none of them failed."""
        runs = {name: self.store.runs(name) for name in names}
        assert all(len({run.key for run in of_name}) == len(of_name) for of_name in runs.values())
        assert not [run for of_name in runs.values() for run in of_name if run.failure is not None]
        return all(len(runs[name]) == self.sent[name] for name in names)

    def is_read(self, *groups: str) -> bool:
        """Whether each group's ledger is behind the last message."""
        return all(
            sum(entry.num_messages for entry in self.store.ledger(group)) == sum(self.sent.values()) for group in groups
        )

    def maps_of_children(self, library: str) -> list[str]:
        """The worker's processes that have loaded a library."""
        children = subprocess.run(
            ["pgrep", "-P", str(self.workers[-1].pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        assert len(children) >= len(NAMES) - 1
        maps = {}
        for pid in children:
            with suppress(OSError):  # it has just ended
                maps[pid] = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        return [pid for pid, text in maps.items() if library in text]

    def wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            text = (self.folder / "worker.log").read_text()[-3000:]
            assert all(worker.poll() in (None, -signal.SIGKILL) for worker in self.workers), text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)

    def end(self) -> list[int]:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        return [worker.wait(PATIENCE_S) for worker in self.workers]


def be_there(pair: Sequence[FakeServer], *, is_there: bool) -> None:
    for server in pair:
        server.is_away = False
        if not is_there:
            server.leave()


@pytest.fixture
def fleet(tmp_path: Path, kafka_bootstrap: str, new_database: Callable[[str], str]) -> Iterator[Fleet]:
    servers = {name: (FakeServer(model=name), FakeServer(3, model=name)) for name in NAMES}
    with ExitStack() as stack:
        stack.enter_context(running(*(server for pair in servers.values() for server in pair)))
        topics = stack.enter_context(Topics(kafka_bootstrap))
        topic, letters = topics.create(2, retention_ms=-1), topics.create(1, retention_ms=-1)
        database = new_database("postgres")
        target, _ = save_pair(tmp_path)
        text = CONFIG.format(
            database=database, bootstrap=kafka_bootstrap, topic=topic, letters=letters, port="{port}"
        )  # fmt: skip
        for name, (baseline, speculative) in servers.items():
            text += ENDPOINT.format(name=name, target=target, baseline=baseline.url, speculative=speculative.url)
        config = tmp_path / "fleet.toml"
        config.write_text(text)
        store = stack.enter_context(Store.open(database))
        made = Fleet(tmp_path, store, topics, topic, letters, servers, config)
        yield made
        for worker in made.workers:
            worker.kill()
            worker.wait()


def by_counter(store: Store, *names: str | None) -> dict[FunnelKey, int]:
    return {key: number for key, number in store.funnel().items() if key[0] in names}


@pytest.mark.slow
def test_servers_that_are_killed_hold_only_their_endpoint_back(fleet: Fleet) -> None:
    """Two endpoints' servers come and go, the worker is killed; the other two are measured as if nothing happened."""
    draw, healthy = random.Random(3), [name for name in NAMES if name not in FAULTY]
    be_there(fleet.servers["code"], is_there=False)  # from the start
    fleet.start()
    fleet.send(10)
    fleet.wait_for(lambda: fleet.measured(*healthy, "sql"))
    assert fleet.waiting() == ["code"]
    assert 'shadowspec_endpoint_ready{endpoint="code"} 0.0' in fleet.get("/metrics")[1]
    assert not fleet.maps_of_children("libtorch"), "a process for servers is small"
    for number in range(4):
        gone = draw.sample(FAULTY, draw.randint(1, 2)) if number else FAULTY
        for name in FAULTY:
            be_there(fleet.servers[name], is_there=name not in gone)
        fleet.send(10)
        if number == 2:
            fleet.workers[-1].kill()
            fleet.start()
        fleet.wait_for(lambda: fleet.measured(*healthy))
    for name in FAULTY:
        be_there(fleet.servers[name], is_there=True)
    fleet.send(10)
    fleet.wait_for(lambda: fleet.is_read("shadowspec") and fleet.waiting() == [])
    assert fleet.end() == [-signal.SIGKILL, 0]

    assert fleet.measured(*healthy)
    assert by_counter(fleet.store, *healthy) == {(name, FunnelCounter.MEASURED, None): 60 for name in healthy}
    for name in FAULTY:
        ends = by_counter(fleet.store, name)
        assert sum(ends.values()) == 60
        assert ends.keys() <= {
            (name, FunnelCounter.MEASURED, None),
            (name, FunnelCounter.SHED, "server_away"),
            *((name, FunnelCounter.FAILED, reason) for reason in failures(fleet.store, name)),
        }
        assert ends[name, FunnelCounter.SHED, "server_away"] > 0
        runs = fleet.store.runs(name)
        assert len({run.key for run in runs}) == len(runs) == 60 - ends[name, FunnelCounter.SHED, "server_away"]
    nobody = {(None, FunnelCounter.UNSUPPORTED, "no_endpoint"): 60, (None, FunnelCounter.MALFORMED, "not_json"): 60}
    assert by_counter(fleet.store, None) == nobody
    assert len(set(letters(fleet))) == 60


def failures(store: Store, name: str) -> set[Any]:
    return {run.failure for run in store.runs(name) if run.failure is not None}


def letters(fleet: Fleet) -> list[tuple[str, str]]:
    """Where the dead letters came from."""
    headers = [
        dict(part.split("=", 1) for part in each.split(",") if "=" in part)
        for each in read_topic(fleet.topics.bootstrap, fleet.letters, "%h")
    ]
    return [(each["__connect.errors.partition"], each["__connect.errors.offset"]) for each in headers]


@pytest.mark.all
@pytest.mark.slow
def test_workers_of_some_endpoints_each_make_one_whole_together(fleet: Fleet) -> None:
    """Each reads the whole topic in a separate group; one of them counts what belongs to no endpoint."""
    fleet.start("--endpoints", "chat,code")
    fleet.start("--endpoints", "mail, sql")
    fleet.send(10)
    groups = "shadowspec.chat+code", "shadowspec.sql+mail"
    fleet.wait_for(lambda: fleet.measured(*NAMES) and fleet.is_read(*groups))
    assert fleet.end() == [0, 0]
    assert by_counter(fleet.store, *NAMES) == {(name, FunnelCounter.MEASURED, None): 10 for name in NAMES}
    nobody = {(None, FunnelCounter.UNSUPPORTED, "no_endpoint"): 10, (None, FunnelCounter.MALFORMED, "not_json"): 10}
    assert by_counter(fleet.store, None) == nobody
    assert len(letters(fleet)) == 10
    for endpoint in NAMES:
        assert fleet.store.watermark(endpoint).held_by is None
