"""A fleet of endpoints, each with servers of its own, a mirror with their traffic, and workers that measure them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shadowspec.store import Store
from shadowspec.types import FunnelKey
from tests.faults.casts import SECRET
from tests.kafka_topics import Message, Topics
from tests.services import PATIENCE_S, free_port

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


@dataclass
class Fleet:
    """A mirror, some endpoints with servers of their own, and the workers that measure them.

    `value`: the message of a place in an endpoint's traffic.
    """

    folder: Path
    store: Store
    topics: Topics
    topic: str
    letters: str
    config: Path
    names: tuple[str, ...]
    value: Callable[[str, int], bytes]
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
            for name in (*self.names, "nobody"):
                place = self.sent[name] + index
                messages.append(Message(self.value(name, place), f"{name}-{place}".encode(), partition=place % 2))
            messages.append(Message(b"{", f"bad-{self.sent['bad'] + index}".encode(), partition=index % 2))
        self.topics.write(self.topic, messages)
        self.sent.update(dict.fromkeys((*self.names, "nobody", "bad"), number))

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
        assert len(children) >= len(self.names) - 1
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


def by_counter(store: Store, *names: str | None) -> dict[FunnelKey, int]:
    return {key: number for key, number in store.funnel().items() if key[0] in names}
