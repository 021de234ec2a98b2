"""Endpoints are measured apart: servers of some are killed and come back, and the others go on meanwhile."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shadowspec.store import Store
from shadowspec.types import FunnelCounter
from tests.builders.workspace import record
from tests.faults.fleet import CONFIG, Fleet, by_counter
from tests.kafka_topics import Topics, read_topic
from tests.servers.fake_server import FakeServer, running
from tests.small_models import save_pair

pytestmark = pytest.mark.integration

NAMES = ("chat", "code", "sql", "mail")
FAULTY = ("code", "sql")
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


def be_there(pair: Sequence[FakeServer], *, is_there: bool) -> None:
    for server in pair:
        server.is_away = False
        if not is_there:
            server.leave()


@dataclass
class FakeFleet(Fleet):
    """One that is measured through test servers."""

    servers: dict[str, tuple[FakeServer, FakeServer]] = field(default_factory=dict)


def request(name: str, place: int) -> bytes:
    return json.dumps(record(5 * place, model=name)).encode()


@pytest.fixture
def fleet(tmp_path: Path, kafka_bootstrap: str, new_database: Callable[[str], str]) -> Iterator[FakeFleet]:
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
        made = FakeFleet(tmp_path, store, topics, topic, letters, config, NAMES, request, servers=servers)
        yield made
        for worker in made.workers:
            worker.kill()
            worker.wait()


@pytest.mark.slow
def test_servers_that_are_killed_hold_only_their_endpoint_back(fleet: FakeFleet) -> None:
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


def letters(fleet: FakeFleet) -> list[tuple[str, str]]:
    """Where the dead letters came from."""
    headers = [
        dict(part.split("=", 1) for part in each.split(",") if "=" in part)
        for each in read_topic(fleet.topics.bootstrap, fleet.letters, "%h")
    ]
    return [(each["__connect.errors.partition"], each["__connect.errors.offset"]) for each in headers]


@pytest.mark.all
@pytest.mark.slow
def test_workers_of_some_endpoints_each_make_one_whole_together(fleet: FakeFleet) -> None:
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
