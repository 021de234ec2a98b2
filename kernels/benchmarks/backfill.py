"""`shadowspec backfill` against `shadowspec replay`: the same rows, with actors killed, in how much time and memory.

    python -m kernels.benchmarks.backfill [--responses N] [--files N] [--actors N]

The bundled traffic is written again and again under new ids until there are so many responses, in files of the same
size.  One process replays them (`replay --store`, as many threads as there are processors); then a local cluster does
(one thread an actor), with an actor killed by SIGKILL at a third and at two thirds of the rows, each into a Postgres
database of its own; then the cluster once more, which is to find everything done.  Rows are compared one by one, but
for the fingerprint: threads are part of a device's name.  Memory is what each process of the backfill holds by itself
(private, `smaps_rollup`), looked at every two seconds.  Nothing else may run meanwhile.
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
from pathlib import Path
from typing import Any

import psutil
import psycopg
from rich.console import Console
from sqlalchemy import make_url

from kernels.benchmarks.harness import machine, options, write
from shadowspec import demo
from shadowspec.store import upgrade

DEPTHS = "1..8"
ACTOR = "_JudgingActor"  # in the title of an actor that replays
KINDS = ("driver", "readers", "actors", "ray")
LOOK_S = 2.0


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
        document = self._finished(self._started(url, "replay", *files, "--k", DEPTHS, "--store", "--json"))
        seconds = time.monotonic() - began
        return {"seconds": round(seconds, 1), "responses": document["requests_replayed"]}

    def backfill(self, url: str, kill_at: list[int]) -> dict[str, Any]:
        """On a cluster of this machine."""
        began = time.monotonic()
        process = self._started(
            url, "backfill", str(self._logs), "--k", DEPTHS, "--actors", str(self._num_actors), "--json"
        )
        watch = Watch(process, url, kill_at)
        document = self._finished(process)
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

    def _started(self, url: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = self._environment | {"SHADOWSPEC_DATABASE_URL": url}
        return subprocess.Popen([*self._command, *arguments], stdout=subprocess.PIPE, env=environment)  # noqa: S603

    @staticmethod
    def _finished(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"the command ended with {process.returncode}")
        document: dict[str, Any] = json.loads(out)
        return document


def main() -> None:
    """Measure, compare, and write the results."""
    parser = options(__doc__, "backfill.json")
    parser.add_argument("--responses", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--actors", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as scratch, databases(("one", "many")) as urls:
        folder = Path(scratch)
        logs = folder / "logs"
        logs.mkdir()
        written = write_logs(logs, arguments.responses, arguments.files)
        commands = Commands(folder, logs, arguments.actors)
        document: dict[str, Any] = {"responses": written, "files": arguments.files, "actors": arguments.actors}
        document["machine"] = machine("ray", "torch")
        document["replay"] = commands.replay(urls["one"])
        console.print(document["replay"])
        rows = count_rows(urls["one"])
        document["backfill"] = commands.backfill(urls["many"], [rows // 3, 2 * rows // 3])
        console.print(document["backfill"])
        document["again"] = commands.backfill(urls["many"], [])
        document["rows"] = compared(urls["one"], urls["many"])
        document["replay_s_to_backfill_s"] = round(document["replay"]["seconds"] / document["backfill"]["seconds"], 3)
        console.print(document)
    write(arguments.out, document)
    if len(document["backfill"]["killed_at_rows"]) != 2 or document["again"]["new_rows"]:
        raise SystemExit("two actors were to be killed, and nothing to be left to do")


if __name__ == "__main__":
    main()
