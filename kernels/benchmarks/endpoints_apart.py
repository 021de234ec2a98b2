"""Whether endpoints are measured apart while llama.cpp's servers of some are killed at random and come back.

    make bench NAME=endpoints_apart ARGS="--server PATH/llama-server --model FILE.gguf --target DIR --minutes 30"

Two fleets of four endpoints read the same traffic at the same time, each through eight `llama-server` of its own, from
a real Kafka into a real Postgres, with one worker a fleet.  Servers of two endpoints of the one fleet are killed
(SIGKILL) at random, the baseline's, the speculative one or both, and started again after a random time.  Nobody touches
the other fleet.  Wanted: the healthy endpoints' measured counts are within 5% of the other fleet's, and every message
has one end.
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from kernels.benchmarks.engines.servers import EngineServer
from kernels.benchmarks.harness import machine, options, show, write
from shadowspec.store import Store, upgrade
from tests.builders.databases import temporary_database
from tests.faults.fleet import CONFIG, Fleet, by_counter
from tests.kafka_server import kafka_server
from tests.kafka_topics import Topics
from tests.services import free_port, postgres_server

NAMES: Final = ("chat", "code", "sql", "mail")
FAULTY: Final = ("code", "sql")
AWAY_S: Final = (5.0, 60.0)  # how long killed servers stay away
BETWEEN_S: Final = (10.0, 60.0)  # from the return of one endpoint's servers to its next kill
OUTPUT_TOKENS: Final = 12
ENDPOINT: Final = """
[endpoints.{name}]
engine = "openai"
target = "{target}"
served_models = ["{name}"]
match = {{ model = "{name}" }}
loads = [{{ concurrency = 1 }}]
[[endpoints.{name}.candidates]]
name = "ngram"
method = "ngram-simple"
num_speculative_tokens = 4
speculative_config = {{ "spec-ngram-simple-size-n" = 3 }}
[endpoints.{name}.servers]
baseline_url = "{baseline}"
speculative_url = "{speculative}"
model = "served"
device = "cpu"
dtype = "float32"
max_model_len = 1024
"""
# "What NOUN does PLACE have?": every request is another one.
QUESTIONS: Final = tuple(
    f"What {noun} does {place} have?"
    for place in ("a harbour", "a library", "a mountain village", "an airport", "a vineyard", "a railway station")
    for noun in ("history", "traffic", "costs", "visitors", "rules", "weather", "food", "music", "noise", "light")
)


@dataclass
class Pair:
    """One endpoint's two servers, by place: 0 is the baseline's."""

    server: Sequence[str]
    folder: Path
    name: str
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    running: dict[int, EngineServer] = field(default_factory=dict)

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def start(self, place: int) -> None:
        drafts = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "4"]
        own = ["--port", str(self.ports[place]), *(drafts if place else [])]
        log = self.folder / f"{self.name}-{place}.log"
        self.running[place] = EngineServer([*self.server, *own], self.ports[place], log)

    def kill(self, place: int) -> None:
        self.running.pop(place).kill()

    def close(self) -> None:
        for server in self.running.values():
            server.close()


@dataclass(frozen=True, slots=True)
class Kill:
    """Servers that were killed, by place, and seconds after the start until they came back."""

    endpoint: str
    places: tuple[int, ...]
    at_s: float
    until_s: float


def kills(seed: int, seconds: float) -> list[Kill]:
    """Drawn for each faulty endpoint on its own; all of them are back a minute before the end."""
    drawn = []
    for name in FAULTY:
        draw, now = random.Random(f"{seed} {name}"), 0.0  # noqa: S311
        while True:
            at = now + draw.uniform(*BETWEEN_S)
            now = at + draw.uniform(*AWAY_S)
            if now > seconds - AWAY_S[1]:
                break
            drawn.append(Kill(name, draw.choice([(0,), (1,), (0, 1)]), at, now))
    return drawn


@contextmanager
def fleet_of(stack: ExitStack, topics: Topics, database: str, folder: Path, given: Any) -> Iterator[tuple[Any, Any]]:
    """A fleet with its worker and its pairs of servers, all of which end with the block."""
    folder.mkdir()
    command = [str(given.server), *shlex.split(given.server_options), "--model", given.model, "--alias", "served"]
    command += [
        "--host",
        "127.0.0.1",
        "--ctx-size",
        "1024",
        "--parallel",
        "1",
        "--threads",
        "1",
        "--metrics",
        "--slots",
    ]
    pairs = {name: Pair(command, folder, name) for name in NAMES}
    for pair in pairs.values():
        stack.callback(pair.close)
        for place in (0, 1):
            pair.start(place)
    for pair in pairs.values():
        for server in pair.running.values():
            server.await_ready()
    topic, letters = topics.create(2, retention_ms=-1), topics.create(1, retention_ms=-1)
    text = CONFIG.format(
        database=database, bootstrap=topics.bootstrap, topic=topic, letters=letters, port="{port}"
    )  # fmt: skip
    for name, pair in pairs.items():
        baseline, speculative = pair.urls
        text += ENDPOINT.format(name=name, target=given.target, baseline=baseline, speculative=speculative)
    config = folder / "fleet.toml"
    config.write_text(text)
    start = datetime.now(UTC)

    def value(name: str, place: int) -> bytes:
        question = QUESTIONS[place % len(QUESTIONS)]
        body = {
            "model": name,
            "messages": [{"role": "user", "content": f"{question} ({place})"}],
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0.0,
        }
        time_of = start + timedelta(seconds=place * given.every_s)
        return json.dumps({"timestamp": time_of.isoformat(), "session_id": f"{name}-{place}", "request": body}).encode()

    with Store.open(database) as store:
        fleet = Fleet(folder, store, topics, topic, letters, config, NAMES, value)
        try:
            fleet.start()
            yield fleet, pairs
        finally:
            for worker in fleet.workers:
                worker.kill()
                worker.wait()


def drive(fleets: Sequence[Fleet], pairs: dict[str, Pair], planned: Sequence[Kill], given: Any) -> float:
    """Send the traffic, kill and start servers; seconds that it took."""
    events = [(kill.at_s, False, kill) for kill in planned] + [(kill.until_s, True, kill) for kill in planned]
    events.sort(key=lambda event: event[0])
    began, sends = time.monotonic(), 0
    while (now := time.monotonic() - began) < given.minutes * 60.0:
        while events and events[0][0] <= now:
            _, is_return, kill = events.pop(0)
            for place in kill.places:
                if is_return:
                    pairs[kill.endpoint].start(place)
                else:
                    pairs[kill.endpoint].kill(place)
        if sends * given.every_s <= now:
            sends += 1
            for fleet in fleets:
                fleet.send(1)
            print(f"\r{now / 60:.1f} of {given.minutes} minutes, {sends} requests an endpoint", end="", file=sys.stderr)
        time.sleep(0.2)
    print(file=sys.stderr)
    return time.monotonic() - began


def counted(fleet: Fleet) -> dict[str, Any]:
    """What became of each endpoint's messages."""
    rows = {}
    for name in NAMES:
        ends = by_counter(fleet.store, name)
        runs = fleet.store.runs(name)
        rows[name] = {
            "sent": fleet.sent[name],
            "measured": len([run for run in runs if run.failure is None]),
            "ends": {" ".join(filter(None, key[1:])): number for key, number in sorted(ends.items(), key=str)},
            "ended": sum(ends.values()),
            "measured_twice": len(runs) - len({run.key for run in runs}),
        }
    return rows


def main() -> None:
    """Measure and write."""
    parser = options(__doc__, "endpoints_apart.json")
    parser.add_argument("--server", type=Path, required=True, help="llama.cpp's server")
    parser.add_argument("--server-options", default="", help="further ones of every server")
    parser.add_argument("--model", required=True, help="the target as a GGUF file")
    parser.add_argument("--target", type=Path, required=True, help="the folder with its tokenizer")
    parser.add_argument("--minutes", type=float, default=30.0, help="(default: %(default)s)")
    parser.add_argument("--every-s", type=float, default=6.0, help="of an endpoint's requests (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (default: %(default)s)")
    parser.add_argument("--logs", type=Path, help="a folder for the logs of workers and servers")
    given = parser.parse_args()
    seconds = given.minutes * 60.0
    planned = kills(given.seed, seconds)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(kafka_server())
        topics = stack.enter_context(Topics(broker.bootstrap))
        server = stack.enter_context(postgres_server(is_durable=True))
        made = []
        for which in ("with_kills", "without"):
            database = stack.enter_context(temporary_database(server.url))
            upgrade(database)
            made.append(stack.enter_context(fleet_of(stack, topics, database, folder / which, given)))
        (fleet, pairs), (control, _) = made
        took_s = drive([fleet, control], pairs, planned, given)
        for each in (fleet, control):
            each.wait_for(lambda each=each: each.is_read("shadowspec") and each.waiting() == [])
            codes = each.end()
            if given.logs is not None:
                shutil.copytree(each.folder, given.logs / each.folder.name, dirs_exist_ok=True)
            if codes != [0]:
                raise SystemExit(f"a worker ended with {codes}; its log is in {each.folder}")
        found = {"with_kills": counted(fleet), "without": counted(control)}
    document = {
        "machine": machine(),
        "options": {"minutes": given.minutes, "every_s": given.every_s, "seed": given.seed},
        "took_s": round(took_s, 1),
        "kills": Counter(kill.endpoint for kill in planned),
        "away_s": {name: round(sum(k.until_s - k.at_s for k in planned if k.endpoint == name), 1) for name in FAULTY},
        "endpoints": found,
        "healthy_ratio": {
            name: found["with_kills"][name]["measured"] / max(1, found["without"][name]["measured"])
            for name in NAMES
            if name not in FAULTY
        },
    }
    write(given.out, document)
    rows = [
        {"fleet": which, "endpoint": name, **{key: row[key] for key in ("sent", "measured", "ended", "measured_twice")}}
        for which, of_fleet in found.items()
        for name, row in of_fleet.items()
    ]
    show("endpoints apart", rows)


if __name__ == "__main__":
    main()
