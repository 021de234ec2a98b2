"""The storm: workers at work while everything around them breaks, and the count afterwards.

    python -m tests.faults.storm --seed 1 --faults 40        (or: make test-faults SEED=1 FAULTS=40)

Two workers consume 5,000 messages on six partitions; meanwhile faults are drawn at random: workers, engines
and servers are killed, stopped, frozen and started again.  Once the last message is written, the rows must be
those of the sampled messages, each once, and the funnel must add up to what was consumed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import sqlalchemy
from sqlalchemy import make_url

from shadowspec.config import load_config
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.tap.kafka.partitions import topic_source
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, RecordKey
from tests.faults.casts import SECRET, Cast, fakes, real_pair
from tests.faults.outcome import conclude
from tests.faults.poison import poisoned
from tests.faults.traffic import Expected, expected
from tests.kafka_server import KafkaServer, kafka_server
from tests.kafka_topics import Message, Topics, read_topic
from tests.services import PostgresServer, free_port, postgres_server

NUM_PARTITIONS = 6
SESSION_TIMEOUT_S = 10.0
SETTLE_TIMEOUT_S = 240.0  # after the last fault: a rebalance, a backlog and a few restarts
DIED = "engine_died"  # the failure of a block whose engine was killed
Produce = Callable[[list[Message]], None]
# Drained; gave a service up that was away for too long; killed; asked to stop before it had begun.
EXPECTED_EXITS = {0, 5, -signal.SIGKILL, -signal.SIGTERM}


@dataclass
class Worker:
    """One worker process, started again after each of its ends."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: IO[bytes]
    process: subprocess.Popen[bytes] | None = None
    is_wanted: bool = True
    exits: Counter[int] = field(default_factory=Counter)

    def look_after(self) -> None:
        """Note an end, and start it (again)."""
        if self.process is not None and self.process.poll() is not None:
            self.exits[self.process.returncode] += 1
            if self.process.returncode not in EXPECTED_EXITS:
                raise RuntimeError(f"worker {self.name} ended with {self.process.returncode}; see its log")
            self.process = None
        if self.process is None and self.is_wanted:
            self.process = subprocess.Popen(
                self.command, env=os.environ | self.environment, stdin=subprocess.DEVNULL,
                stdout=self.log, stderr=self.log, start_new_session=True,
            )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill_engine(self) -> None:
        """Kill the engine processes and leave the worker."""
        if self.process is None:
            return
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue  # it was quicker

    def end(self) -> None:
        self.is_wanted = False
        if self.process is not None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.look_after()


@dataclass
class Storm:
    """What is running, and the faults that happened to it."""

    broker: KafkaServer
    postgres: PostgresServer
    database: str
    workers: list[Worker]
    extra: Worker
    draw: random.Random
    happened: Counter[str] = field(default_factory=Counter)

    def fault(self) -> None:
        """One fault, drawn at random."""
        kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self.kill_worker),
            (2, self.stop_worker),
            (2, self.freeze_worker),
            (4, self.kill_engine),
            (2, self.kill_broker),
            (1, self.restart_broker),
            (3, self.crash_postgres),
            (1, self.restart_postgres),
            (2, self.cut_connections),
            (3, self.rebalance),
        ]
        chosen = self.draw.choices([each for _, each in kinds], [weight for weight, _ in kinds])[0]
        self.happened[chosen.__name__] += 1
        chosen()

    @property
    def everybody(self) -> list[Worker]:
        return [*self.workers, self.extra]

    def rage(self, num_faults: int, traffic: list[Message], produce: Produce, say: Callable[[str], None]) -> None:
        """The traffic in portions, a fault after each."""
        portion = -(-len(traffic) // max(1, num_faults))
        for number in range(num_faults):
            produce(traffic[number * portion : (number + 1) * portion])
            self.wait(self.draw.uniform(0.2, 4.0))
            self.fault()
            say(f"fault {number + 1}: {dict(self.happened)}")
        produce(traffic[num_faults * portion :])

    def last_steadily(
        self, minutes: float, traffic: list[Message], produce: Produce, say: Callable[[str], None]
    ) -> None:
        """The traffic at a steady rate; every few seconds a worker is asked to stop, or started again."""
        began = time.monotonic()
        next_change, sent = 5.0, 0
        while sent < len(traffic):
            self.wait(0.5)
            passed = time.monotonic() - began
            due = min(len(traffic), int(len(traffic) * passed / (60.0 * minutes)))
            produce(traffic[sent:due])
            sent = due
            if passed >= next_change:
                worker = self._any()
                worker.is_wanted = not worker.is_wanted
                self.happened["started" if worker.is_wanted else "stopped"] += 1
                if not worker.is_wanted:
                    worker.send(signal.SIGTERM)
                next_change = passed + self.draw.uniform(1.0, 15.0)
                say(f"{passed:.0f} s, {sent} messages: {dict(self.happened)}")
        for worker in self.workers:
            worker.is_wanted = True

    def _any(self) -> Worker:
        return self.draw.choice(self.workers)

    def wait(self, seconds: float) -> None:
        """Let time pass; dead workers are started again, as a supervisor does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for worker in self.everybody:
                worker.look_after()
            time.sleep(0.05)

    def kill_worker(self) -> None:
        self._any().send(signal.SIGKILL)

    def stop_worker(self) -> None:
        self._any().send(signal.SIGTERM)

    def freeze_worker(self) -> None:
        """Longer than the session timeout: its partitions go to the other one, and it wakes up without knowing."""
        worker = self._any()
        worker.send(signal.SIGSTOP)
        self.wait(SESSION_TIMEOUT_S + 3.0)
        worker.send(signal.SIGCONT)

    def kill_engine(self) -> None:
        self._any().kill_engine()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.wait(self.draw.uniform(0.0, 4.0))
        self.broker.start()

    def restart_broker(self) -> None:
        self.broker.restart()

    def crash_postgres(self) -> None:
        self.postgres.stop("immediate")
        self.wait(self.draw.uniform(0.0, 4.0))
        self.postgres.start()

    def restart_postgres(self) -> None:
        self.postgres.stop("fast")
        self.postgres.start()

    def cut_connections(self) -> None:
        engine = sqlalchemy.create_engine(self.postgres.url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
            connection.execute(sqlalchemy.text(cut), {"name": make_url(self.database).database})

    def rebalance(self) -> None:
        """A third worker comes, or goes."""
        if self.extra.is_wanted:
            self.extra.end()
        else:
            self.extra.is_wanted = True


def finished_offsets(database: str, topic_id: str) -> dict[int, int]:
    with Store.open(database) as store:
        return {e.partition.partition: e.next_offset for e in store.ledger("storm") if e.partition.source == topic_id}


def compare(
    database: str, topic_id: str, wanted: Expected, num_messages: int, endpoints: Sequence[str], num_killed: int
) -> list[str]:
    """What is wrong with the rows; [] if nothing is.

    A block whose engine was killed fails, each of its requests with a run of its own: `num_killed` blocks may.
    """
    wrong: list[str] = []
    with Store.open(database) as store:
        funnel = Counter(store.funnel())
        ledger = [entry for entry in store.ledger("storm") if entry.partition.source == topic_id]
        runs = [run for endpoint in endpoints for run in store.runs(endpoint)]
        blocks = {block.block_id: block for endpoint in endpoints for block in store.blocks(endpoint)}
        records = [record for endpoint in endpoints for record in store.records(endpoint)]
    died = [run for run in runs if run.failure == DIED]
    if (num_failed := len({run.block_id for run in died})) > num_killed:
        wrong.append(f"{num_failed} blocks failed, and {num_killed} engines were killed")
    for endpoint in endpoints:  # without its death a request of such a block would have been measured
        number = len({run.key for run in died if blocks[run.block_id].endpoint == endpoint})
        if number and funnel.get((endpoint, FunnelCounter.FAILED, DIED)) == number:  # another number shows below
            funnel[endpoint, FunnelCounter.MEASURED, None] += funnel.pop((endpoint, FunnelCounter.FAILED, DIED))
    if sum(funnel.values()) != sum(entry.num_records for entry in ledger):
        wrong.append(f"the funnel holds {sum(funnel.values())} records, the ledger another number")
    if sum(entry.num_messages for entry in ledger) != num_messages:
        wrong.append(f"the ledger counts {sum(entry.num_messages for entry in ledger)} messages")
    if funnel != dict(wanted.funnel):
        keys = sorted({*funnel, *wanted.funnel}, key=str)
        differing = {key: (funnel.get(key, 0), wanted.funnel.get(key, 0)) for key in keys}
        wrong.append(f"funnel (is, should be): { ({k: v for k, v in differing.items() if v[0] != v[1]}) }")
    keys_of_runs = Counter((run.key, run.fingerprint) for run in runs)
    if repeated := [key for key, count in keys_of_runs.items() if count > 1]:
        wrong.append(f"{len(repeated)} runs stand twice")
    measured = {key for key, _ in keys_of_runs}
    if measured != wanted.measured:
        wrong.append(
            f"{len(wanted.measured - measured)} runs are missing, {len(measured - wanted.measured)} are too many"
        )
    if failed := [run for run in runs if run.failure not in (None, DIED)]:
        wrong.append(f"{len(failed)} runs failed: {Counter(run.failure for run in failed)}")
    sizes = Counter(run.block_id for run in runs)
    if over := [block for block, size in sizes.items() if size > blocks[block].n_max]:
        wrong.append(f"{len(over)} blocks hold more runs than they can")
    if stray := measured - {record.key for record in records}:
        wrong.append(f"{len(stray)} runs have no record")
    return wrong


def dead_letters(broker: KafkaServer, topic: str) -> set[tuple[int, int]]:
    """Coordinates of the dead letters; one may stand there more than once."""
    found = set()
    for headers in read_topic(broker.bootstrap, topic, "%h"):
        named = dict(part.split("=", 1) for part in headers.split(",") if "=" in part)
        found.add((int(named["__connect.errors.partition"]), int(named["__connect.errors.offset"])))
    return found


def run(
    cast: Cast, seed: int, num_faults: int, folder: Path, say: Callable[[str], None], minutes: float = 0.0
) -> dict[str, Any]:
    """One storm; its figures, with what went wrong under "wrong".

    With `minutes`, traffic comes steadily for so long and workers are only stopped and started, at random.  Poison of
    clients is among the messages: the fates of the healthy ones must be those that they have without it.
    """
    draw = random.Random(seed)
    traffic, poison = poisoned(cast.traffic, seed)
    started = time.monotonic()
    with ExitStack() as stack:
        broker = stack.enter_context(kafka_server())
        postgres = stack.enter_context(postgres_server(is_durable=True))
        database = make_database(postgres)
        topics = stack.enter_context(Topics(broker.bootstrap))
        # The messages carry the past's timestamps, by which the broker would delete them.
        topic = topics.create(NUM_PARTITIONS, name="mirror", retention_ms=-1)
        letters = topics.create(1, name="dead-letters", retention_ms=-1)
        topic_id = topic_source(topics.topic_id(topic))
        places: list[tuple[int, int]] = []

        def worker(name: str) -> Worker:
            config = folder / f"{name}.toml"
            config.write_text(
                cast.config.format(
                    database=database, bootstrap=broker.bootstrap, topic=topic, dead_letters=letters, port=free_port(),
                    session_timeout_ms=int(1000 * SESSION_TIMEOUT_S),
                )
            )  # fmt: skip
            log = stack.enter_context((folder / f"{name}.log").open("ab"))
            return Worker(name, cast.command(config, f"{seed}{name}"), {"SHADOWSPEC_HASH_SECRET": SECRET}, log)

        storm = Storm(broker, postgres, database, [worker("one"), worker("two")], worker("three"), draw)
        storm.extra.is_wanted = False
        for each in storm.everybody:
            stack.callback(each.end)

        def produce(share: list[Message]) -> None:
            with Topics(broker.bootstrap) as storm_topics:
                places.extend(storm_topics.write(topic, share))

        say(f"seed {seed}: {len(traffic)} messages of {cast.name}, {num_faults} faults, {minutes} minutes")
        storm.wait(5.0)
        if minutes:
            storm.last_steadily(minutes, traffic, produce, say)
        else:
            storm.rage(num_faults, traffic, produce, say)
        ends = Counter(partition for partition, _ in places)
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline and finished_offsets(database, topic_id) != dict(ends):
            storm.wait(1.0)
        lag_s = time.monotonic() - deadline + SETTLE_TIMEOUT_S
        for each in storm.everybody:
            each.end()
        rules = [endpoint.rule for endpoint in load_config(folder / "one.toml").endpoints.values()]
        delivered = [
            RawRecord(
                RecordKey(topic_id, partition, offset, message.timestamp_ms or 0), message.value,
                message_key=message.key, headers=message.headers,
            )
            for (partition, offset), message in zip(places, traffic, strict=True)
        ]  # fmt: skip
        tokenizers = {rule.name: cast.tokenizer for rule in rules}
        wanted = expected(delivered, rules, tokenizers, SECRET.encode())
        healthy = [raw for place, raw in enumerate(delivered) if place not in poison]
        alone = expected(healthy, rules, tokenizers, SECRET.encode()).measured
        keys = {raw.key for raw in healthy}
        wrong = compare(
            database, topic_id, wanted, len(delivered), [rule.name for rule in rules], storm.happened["kill_engine"]
        )
        if changed := alone ^ {key for key in wanted.measured if key._replace(item=0) in keys}:
            wrong.append(f"poison changed the fate of {len(changed)} healthy messages")
        letters_found = dead_letters(broker, letters)
        if letters_found != wanted.malformed:
            wrong.append(f"dead letters: {len(letters_found)} places, {len(wanted.malformed)} malformed records")
        if finished_offsets(database, topic_id) != dict(ends):
            wrong.append(f"not at the end: {finished_offsets(database, topic_id)} of {dict(ends)}")
        produced = len(read_topic(broker.bootstrap, topic, "%o"))
        if produced != len(delivered):
            wrong.append(f"the mirrored topic holds {produced} messages")
        return {
            "cast": cast.name,
            "seed": seed,
            "messages": len(delivered),
            "poison": len(poison),
            "measured": len(wanted.measured),
            "malformed": len(wanted.malformed),
            "faults": dict(sorted(storm.happened.items())),
            "worker_exits": dict(sum((each.exits for each in storm.everybody), Counter())),
            "seconds": round(time.monotonic() - started),
            "seconds_to_lag_zero": round(lag_s, 1),
            "wrong": wrong,
        }


def make_database(postgres: PostgresServer) -> str:
    """A migrated database on the server; its URL."""
    engine = sqlalchemy.create_engine(postgres.url, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE storm")
    database = make_url(postgres.url).set(database="storm").render_as_string(hide_password=False)
    schema.upgrade(database)
    return database


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--minutes", type=float, default=0.0, help="steady traffic; workers stopped and started")
    parser.add_argument("--real-pair", action="store_true", help="the bundled models and traffic")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the workers' logs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="storm-") as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        cast = (real_pair if arguments.real_pair else fakes)(arguments.messages, arguments.seed)
        figures = run(cast, arguments.seed, arguments.faults, folder,
                      lambda line: print(line, file=sys.stderr, flush=True), arguments.minutes)  # fmt: skip
    conclude(figures, arguments.out)


if __name__ == "__main__":
    main()
