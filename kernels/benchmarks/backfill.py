"""`shadowspec backfill` against `shadowspec replay`: the same rows, with actors killed, in how much time and memory.

    python -m kernels.benchmarks.backfill [--responses N] [--files N] [--actors N]
    python -m kernels.benchmarks.backfill --node [--responses 3000] [--files 6]

The bundled traffic is written again and again under new ids until there are so many responses, in files of the same
size.  One process replays them (`replay --store`, as many threads as there are processors); then a local cluster does
(one thread an actor), with an actor killed by SIGKILL at a third and at two thirds of the rows, each into a Postgres
database of its own; then the cluster once more, which is to find everything done.  Rows are compared one by one, but
for the fingerprint: threads are part of a device's name.  Memory is what each process of the backfill holds by itself
(private, `smaps_rollup`), looked at every two seconds.  Nothing else may run meanwhile.

With `--node` a backfill joins a cluster that is there: two nodes of one processor each, started by `ray start`.  When
some blocks are finished, the second node's raylet and its workers get SIGKILL: nothing is to be lost, and nothing
written twice.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
from rich.console import Console
from sqlalchemy import make_url

from kernels.benchmarks.engines.servers import free_port
from kernels.benchmarks.harness import RESULTS, connected, machine, options, write
from shadowspec import demo
from shadowspec.store import upgrade

DEPTHS = "1..8"
ACTOR = "_JudgingActor"  # in the title of an actor that replays
KINDS = ("driver", "readers", "actors", "ray")
LOOK_S = 2.0
BLOCKS_BEFORE = 5  # that are finished when a node dies
RAY = str(Path(sys.executable).parent / "ray")


def write_logs(folder: Path, num_responses: int, num_files: int) -> int:
    """Files of the bundled traffic, every copy under ids of its own; how many responses."""
    lines = [line for line in gzip.decompress(demo.TRAFFIC.read_bytes()).splitlines() if line.startswith(b"{")]
    documents = [document for line in lines if "response" in (document := _document(line))]
    written = 0
    for number in range(num_files):
        with gzip.open(folder / f"log-{number:03}.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as file:
            for _ in range(num_responses // num_files):
                copy, place = divmod(written, len(documents))
                file.write(json.dumps(_renamed(documents[place], copy)) + "\n")
                written += 1
    return written


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _renamed(document: dict[str, Any], copy: int) -> dict[str, Any]:
    names = ("session_id", "user", "request_id")
    changed: dict[str, Any] = {
        name: f"{document[name]}-{copy}" for name in names if isinstance(document.get(name), str)
    }
    response = document["response"]
    if isinstance(response, dict) and isinstance(response.get("id"), str):
        changed["response"] = {**response, "id": f"{response['id']}-{copy}"}
    return {**document, **changed}


class Watch:
    """Looks at the processes of a command every two seconds, and kills actors as it is told."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, kill_at: list[int]) -> None:
        self._process, self._url, self._kill_at = process, url, sorted(kill_at)
        self.looks: list[dict[str, float]] = []  # MiB by kind, and rows
        self.killed_at_rows: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._process.poll() is None:
            rows = count_rows(self._url)
            held = held_mib(self._process.pid)
            self.looks.append({**held, "rows": rows})
            if self._kill_at and rows >= self._kill_at[0]:
                actors = [pid for pid, title in children(self._process.pid) if ACTOR in title]
                if actors:
                    os.kill(actors[0], signal.SIGKILL)
                    self.killed_at_rows.append(rows)
                    self._kill_at.pop(0)
            time.sleep(LOOK_S)

    def peaks(self, since: float, until: float) -> dict[str, float]:
        """The most that each kind held while that share of the looks was taken."""
        looks = self.looks[int(since * len(self.looks)) : max(1, int(until * len(self.looks)))]
        return {kind: round(max((look[kind] for look in looks), default=0.0), 1) for kind in KINDS}


def children(pid: int) -> Iterator[tuple[int, str]]:
    """The processes below one, with their titles."""
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                yield process.pid, " ".join(process.cmdline()).strip()


def held_mib(pid: int) -> dict[str, float]:
    """Private memory of a process and of what it has started, by kind."""
    held = dict.fromkeys(KINDS, 0.0)
    held["driver"] = _private_mib(pid)
    for child, title in children(pid):
        is_actor, is_reader = ACTOR in title, title.startswith("ray::") and ACTOR not in title
        held["actors" if is_actor else "readers" if is_reader else "ray"] += _private_mib(child)
    return held


def _private_mib(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    rows = [int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")]
    return sum(rows) / 1024


def count_rows(url: str) -> int:
    """Rows of expected counts."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT count(*) FROM replays").fetchone()
    return int(row[0]) if row else 0


def compared(one: str, other: str) -> dict[str, Any]:
    """The rows of two databases, one by one."""
    names = (
        "num_drafts, num_draft_tokens, num_accepted_tokens, num_plain_steps, num_cut_steps, num_cut_draft_tokens, "
        "drafts_variance, accepted_variance, drafts_accepted_covariance"
    )
    exact = "endpoint, slice_key, unit_key, event_time, num_output_tokens, num_prompt_tokens"
    key = "source, source_partition, source_offset, timestamp_ms, source_item, num_speculative_tokens"
    query = f"SELECT {key}, {exact}, {names} FROM replays ORDER BY {key}"  # noqa: S608 - names of ours
    same = num_rows = 0
    largest = 0.0
    with (
        psycopg.connect(one.replace("+psycopg", "")) as left,
        psycopg.connect(other.replace("+psycopg", "")) as right,
        left.cursor("left") as ours,
        right.cursor("right") as theirs,
    ):
        ours.execute(query)
        theirs.execute(query)
        for mine, its in zip(ours, theirs, strict=True):
            num_rows += 1
            if mine[:12] != its[:12]:
                raise SystemExit(f"row {num_rows} is of another record")
            same += mine == its
            largest = max(largest, *(abs(a - b) for a, b in zip(mine[12:], its[12:], strict=True)))
    return {"rows": num_rows, "rows_bit_for_bit": same, "largest_difference": largest}


@contextmanager
def databases(names: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """A Postgres server of its own with these databases, at the head revision."""
    from tests.services import postgres_server

    with postgres_server(is_durable=True) as server:
        urls = {name: str(make_url(server.url).set(database=name)) for name in names}
        with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
            for name in names:
                connection.execute(f"CREATE DATABASE {name}")
        for url in urls.values():
            upgrade(url)
        yield urls


class Commands:
    """The command line, on one folder of logs."""

    def __init__(self, folder: Path, logs: Path, num_actors: int) -> None:
        config = folder / "shadowspec.toml"
        config.write_text(demo.demo_config(folder, 0), encoding="utf-8")
        (folder / "demo.secret").write_text(demo.DEMO_SECRET, encoding="utf-8")
        self._command = [sys.executable, "-m", "shadowspec"]
        self._environment = os.environ | {"SHADOWSPEC_CONFIG": str(config)}
        self._logs, self._num_actors = logs, num_actors

    def replay(self, url: str) -> dict[str, Any]:
        """In one process, with as many threads as torch takes."""
        began = time.monotonic()
        files = sorted(str(path) for path in self._logs.iterdir())
        document = self.finished(self._started(url, "replay", *files, "--k", DEPTHS, "--store", "--json"))
        seconds = time.monotonic() - began
        return {"seconds": round(seconds, 1), "responses": document["requests_replayed"]}

    def backfill(self, url: str, kill_at: list[int]) -> dict[str, Any]:
        """On a cluster of this machine."""
        began = time.monotonic()
        process = self.started_backfill(url, "--k", DEPTHS)
        watch = Watch(process, url, kill_at)
        document = self.finished(process)
        return {
            "seconds": round(time.monotonic() - began, 1),
            "responses": document["requests_replayed"],
            "records": document["records"],
            "blocks": document["blocks"],
            "blocks_found": document["blocks_found"],
            "new_rows": document["new_rows"],
            "killed_at_rows": watch.killed_at_rows,
            "peak_mib_by_fifth": [watch.peaks(part / 5, (part + 1) / 5) for part in range(5)],
        }

    def started_backfill(self, url: str, *arguments: str) -> subprocess.Popen[bytes]:
        """The process of one."""
        arguments = (*arguments, "--actors", str(self._num_actors), "--json")
        return self._started(url, "backfill", str(self._logs), *arguments)

    def _started(self, url: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = self._environment | {"SHADOWSPEC_DATABASE_URL": url}
        return subprocess.Popen([*self._command, *arguments], stdout=subprocess.PIPE, env=environment)  # noqa: S603

    @staticmethod
    def finished(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """What a command says at its end."""
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"the command ended with {process.returncode}")
        document: dict[str, Any] = json.loads(out)
        return document


def against_replay(commands: Commands) -> dict[str, Any]:
    """Both commands on databases that are compared, and the backfill once more."""
    with databases(("one", "many")) as urls:
        replayed = commands.replay(urls["one"])
        rows = count_rows(urls["one"])
        filled = commands.backfill(urls["many"], [rows // 3, 2 * rows // 3])
        again = commands.backfill(urls["many"], [])
        compared_rows = compared(urls["one"], urls["many"])
    share = round(replayed["seconds"] / filled["seconds"], 3)
    document = {"replay": replayed, "backfill": filled, "again": again, "rows": compared_rows}
    return document | {"replay_s_to_backfill_s": share}


def started_by_ray(cluster: Path, program: str = "") -> set[int]:
    """The processes of the cluster in a folder."""
    commands = {process.pid: process.info["cmdline"] or [""] for process in psutil.process_iter(["cmdline"])}
    return {pid for pid, words in commands.items() if str(cluster) in " ".join(words) and program in words[0]}


def kill(*pids: int) -> int:
    """End processes that may have ended already; how many there are."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def on_two_nodes(commands: Commands, folder: Path) -> dict[str, Any]:
    """The backfill on two nodes, one of which is killed in the middle of it."""
    url, address = f"sqlite:///{folder}/shadow.db", f"127.0.0.1:{free_port()}"
    upgrade(url)
    start, port = (RAY, "start", "--num-cpus=1", "--disable-usage-stats"), address.rpartition(":")[2]
    run = partial(subprocess.run, stdout=subprocess.DEVNULL, check=True)
    killed = blocks = 0
    try:
        run([*start, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}/ray"])
        first = started_by_ray(folder / "ray", "raylet")
        run([*start, f"--address={address}"])
        (victim,) = started_by_ray(folder / "ray", "raylet") - first
        began, process = time.monotonic(), commands.started_backfill(url, "--k", "1..4", "--ray-address", address)
        while process.poll() is None and not killed:
            with connected(url) as connection:
                blocks = int(connection.exec_driver_sql("SELECT count(*) FROM backfill_blocks").scalar() or 0)
            if blocks >= BLOCKS_BEFORE:
                killed = kill(victim, *(pid for pid, _ in children(victim)))
            time.sleep(0.2)
        document = commands.finished(process)
    finally:
        kill(*started_by_ray(folder / "ray"))
    names = ("records", "requests_replayed", "blocks", "new_rows", "unfinished_files")
    figures = {name: document[name] for name in names} | {"seconds": round(time.monotonic() - began, 1)}
    return figures | {"processes_killed": killed, "blocks_finished_then": blocks}


def main() -> None:
    """Measure, compare, and write the results."""
    parser = options(__doc__)
    parser.add_argument("--out", type=Path, help="(default: among the committed results)")
    parser.add_argument("--node", action="store_true", help="kill one of two nodes")
    parser.add_argument("--responses", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--actors", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    console, out = Console(), arguments.out or RESULTS / f"backfill{'_node' if arguments.node else ''}.json"
    with tempfile.TemporaryDirectory(prefix="bf-", dir="/tmp") as scratch:  # Ray's sockets want a short path
        folder = Path(scratch)
        logs = folder / "logs"
        logs.mkdir()
        written = write_logs(logs, arguments.responses, arguments.files)
        document: dict[str, Any] = {"responses": written, "files": arguments.files}
        if arguments.node:
            os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
            document |= on_two_nodes(Commands(folder, logs, 2), folder)
            is_whole = document["records"] == written and document["processes_killed"]
        else:
            document |= {"actors": arguments.actors, "machine": machine("ray", "torch")}
            document |= against_replay(Commands(folder, logs, arguments.actors))
            is_whole = len(document["backfill"]["killed_at_rows"]) == 2 and not document["again"]["new_rows"]
    console.print(document)
    write(out, document)
    if not is_whole:
        raise SystemExit("something was to be killed, and nothing to be lost or left to do")


if __name__ == "__main__":
    main()
