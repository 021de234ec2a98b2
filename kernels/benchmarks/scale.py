"""A store of 100 million runs and 2,000 slices on one Postgres: seconds of gate and board, and what a writer stores.

    python -m kernels.benchmarks.scale [--endpoints 10] [--runs 10000000] [--slices 200] [--url URL]

`--runs` and `--slices` are of each endpoint.  Rows are made in SQL (`gate_rows`).  The product folds the first
endpoint.  The others get a copy of its evidence, because the same rows under another name would fold for hours to the
same sums; from then on the product folds new runs of each.  Measured on that store:

1. a gate run of each endpoint, with nothing new and with a minute's new runs;
2. the board's first and later visits, in a browser;
3. a writer as fast as it can, alone and beside gates that run one after the other and fold what it writes;
4. retention of a month (half of the runs) beside the writer and the gates: how long each batch waits at most.

The store needs 1.5 kB a run: 150 GB of files for 100 million.  With `--url` it stays on that server, and
rows and evidence that are there are reused.  Nothing else may run meanwhile.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import sqlalchemy
from rich.console import Console
from sqlalchemy import text

from kernels.benchmarks import harness, store_writer
from kernels.benchmarks.gate import endpoint_table, machine
from kernels.benchmarks.gate_rows import (
    CONFIG,
    Traffic,
    fill,
    fill_rollups,
    is_filled,
    kept_database,
    make_months,
    num_folded,
)
from kernels.benchmarks.harness import options
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.store import Store, upgrade

RUNS_A_MINUTE = 240
BATCH_SIZE = 5_000
REST_S = 15.0  # processes beside a measurement start before it, and continue after it
DROPPED_BEFORE = datetime(2026, 2, 1, tzinfo=UTC)
COPIED = ("evidence", "evidence_endpoints", "evidence_keys", "evidence_cursors")

Batch = tuple[float, float]  # when it began and when it was committed, in seconds of the monotonic clock

WRITTEN = Traffic(0, len(store_writer.SLICES), "chat-new")  # what the writer measures

console = Console(stderr=True)


def prepare(url: str, endpoints: Sequence[Traffic]) -> dict[str, Any]:
    """Fill the endpoints without rows, fold the first endpoint, and give the others its evidence."""
    upgrade(url)
    make_months(url)
    with Store.open(url) as store:
        store.save_fingerprints([CONFIG, store_writer.CONFIG])
    filled_s, folded_s = 0.0, 0.0
    for traffic in endpoints:
        if not is_filled(url, traffic):
            console.print(f"filling {traffic.num_runs:,} runs of {traffic.endpoint}")
            started = time.perf_counter()
            fill(url, traffic, 0, traffic.num_runs)
            fill_rollups(url, traffic)
            filled_s += time.perf_counter() - started
    first, *others = endpoints
    with Store.open(url) as store:
        if num_folded(url, first) < first.num_runs:
            console.print(f"folding {first.endpoint}")
            folded_s = gate(store, first)
        for traffic in others:
            if not num_folded(url, traffic):
                copy_evidence(url, first, traffic)
                gate(store, traffic)
    return {"fill_s": round(filled_s, 1) or None, "first_fold_s": round(folded_s, 1) or None}


def copy_evidence(url: str, first: Traffic, other: Traffic) -> None:
    """Give an endpoint another's evidence, cursors and last fold, under its names; open blocks have other ids there."""
    names = {"first": first.endpoint, "other": other.endpoint, "topic": first.source, "other_topic": other.source}
    with harness.connected(url) as connection:
        fold = connection.scalar(
            text(
                "INSERT INTO folds (endpoint, spans, closed_by, num_records, num_runs, parameters, begins, folded_at) "
                "SELECT :other, replace(max(spans::text), :topic, :other_topic)::json, max(closed_by), "
                "sum(num_records), sum(num_runs), max(parameters::text)::json, max(begins::text)::json, max(folded_at) "
                "FROM folds WHERE endpoint = :first RETURNING fold_id"
            ),
            names,
        )
        for name in COPIED:
            columns = [row.name for row in connection.execute(text(
                "SELECT attname AS name FROM pg_attribute "
                "WHERE attrelid = cast(:table AS regclass) AND attnum > 0 AND NOT attisdropped"
            ), {"table": name})]  # fmt: skip
            values = [_copied(column) for column in columns]
            connection.execute(
                text(
                    f"INSERT INTO {name} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {name} "  # noqa: S608
                    "WHERE endpoint = :first"
                ),
                names | {"fold": fold},
            )


def _copied(column: str) -> str:
    """A column's value under the other endpoint's names."""
    changed = {
        "endpoint": ":other",
        "fold_id": ":fold",
        "source": ":other_topic",
        "arrivals": "replace(arrivals::text, :topic, :other_topic)::json",
    }
    return changed.get(column, column)


def gate(store: Store, traffic: Traffic) -> float:
    """Run the product's gate over one endpoint; seconds."""
    policy = GatePolicy(max_hypotheses=traffic.num_slices + 1)
    started = time.perf_counter()
    run_endpoint(store, traffic.endpoint, policy, RolloutPolicy())
    return time.perf_counter() - started


def look(url: str, endpoints: Sequence[Traffic]) -> dict[str, Any]:
    """Seconds of a gate run of each endpoint, with nothing new and with a minute's new runs, in one process."""
    busy = []
    with Store.open(url) as store:
        idle = [gate(store, traffic) for traffic in endpoints]
        for traffic in endpoints:
            fill(url, traffic, traffic.num_runs, traffic.num_runs + RUNS_A_MINUTE)
            busy.append(gate(store, traffic))
    return {**_summed("gate_idle_s", idle), **_summed(f"gate_{RUNS_A_MINUTE}_new_runs_s", busy)}


def board(url: str, endpoints: Sequence[Traffic], visits: int = 5) -> dict[str, Any]:
    """Seconds until the board is drawn in a browser: the first visit after the server's start, and later ones."""
    from kernels.benchmarks.dashboard import PAGES, Statements, server, visit
    from tests.browser.looking import browser

    with tempfile.TemporaryDirectory() as folder, browser() as opened:
        config, log = Path(folder) / "shadowspec.toml", Path(folder) / "statements"
        tables = "".join(endpoint_table(traffic.endpoint) for traffic in endpoints)
        config.write_text(
            f'[database]\nurl = "{url}"\n[privacy]\nhash_secret_file = "secret"\n'
            f"[gate]\nmax_hypotheses = {endpoints[0].num_slices + 1}\n{tables}",
            encoding="utf-8",
        )
        with server(config, log) as base:
            Statements(log).at_rest()
            first, marks = visit(opened, f"{base}/", PAGES[0].words)
            again = [visit(opened, f"{base}/", PAGES[0].words)[0] for _ in range(visits)]
    return {"board_first_paint_s": marks["first_contentful_paint_s"], "board_first_visit_s": round(first, 3)} | _summed(
        "board_again_s", again
    )


def write(url: str, seed: int, seconds: float, stop: Event | None = None) -> list[Batch]:
    """Write batches of new runs as fast as it goes, for so long or until `stop`."""
    traffic = store_writer.WrittenTraffic(seed, WRITTEN.endpoint)
    batches = deque(traffic.batch(BATCH_SIZE) for _ in range(20))
    written = []
    with Store.open(url) as store:
        store.save_batch(batches.popleft(), "writer")
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (stop is not None and stop.is_set()):
            batch = batches.popleft() if batches else traffic.batch(BATCH_SIZE)
            started = time.monotonic()
            outcome = store.save_batch(batch, "writer")
            written.append((started, time.monotonic()))
            if outcome.num_new_runs != BATCH_SIZE:
                raise SystemExit("a run was lost or there before")
    return written


def rate(written: Sequence[Batch]) -> dict[str, Any]:
    """What a writer stored: runs per second while it wrote, and seconds of a batch."""
    took = [ended - started for started, ended in written]
    figures = {"runs_per_s": round(BATCH_SIZE * len(took) / sum(took), 1), "num_batches": len(took)}
    return figures | _summed("batch_s", took)


def keep_gating(url: str, endpoints: Sequence[Traffic], stop: Event) -> dict[str, Any]:
    """Gate one endpoint after the other until `stop`, the writer's last."""
    stored: list[float] = []
    written: list[float] = []
    with Store.open(url) as store:
        while not stop.is_set():
            stored += [gate(store, traffic) for traffic in endpoints]
            written.append(gate(store, WRITTEN))
    return _summed("gate_beside_writer_s", stored) | _summed("gate_of_written_s", written)


@contextmanager
def at_work(*calls: Callable[[Event], Any]) -> Iterator[Callable[[], list[Any]]]:
    """Calls at work, each in a process of its own; the function that is given ends them and returns their results."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(len(calls), context) as pool:
        stop = manager.Event()
        futures = [pool.submit(call, stop) for call in calls]
        time.sleep(REST_S)

        def end() -> list[Any]:
            stop.set()
            return [future.result() for future in futures]

        try:
            yield end
        finally:
            stop.set()


def ingest(url: str, endpoints: Sequence[Traffic], seconds: float) -> dict[str, Any]:
    """What a writer stores, alone and beside gates; and how much of it is folded when it ends."""
    alone = rate(write(url, 1, seconds))
    with Store.open(url) as store:
        backlog_s = gate(store, WRITTEN)
    with at_work(partial(keep_gating, url, endpoints)) as end:
        beside = rate(write(url, 2, seconds))
        [looks] = end()
    return {
        "writer_alone": alone,
        "gate_of_written_alone_s": round(backlog_s, 1),
        "writer_beside_gates": beside,
        **looks,
        "num_written": BATCH_SIZE * (alone["num_batches"] + beside["num_batches"] + 2),
        "num_folded_of_written": num_folded(url, WRITTEN),
    }


def retire(url: str, endpoints: Sequence[Traffic], before: datetime = DROPPED_BEFORE) -> dict[str, Any]:
    """Drop a month beside a writer and gates; the batches under way at the drop show the pause that a worker sees."""
    drops: list[float] = []
    calls = partial(keep_gating, url, endpoints), partial(write, url, before.toordinal(), math.inf)
    with Store.open(url) as store:
        gate(store, WRITTEN)
    with Store.open(url) as store, at_work(*calls) as end:
        for moment in ("before_cursor_execute", "after_cursor_execute"):
            sqlalchemy.event.listen(store.engine, moment, partial(_note_drop, drops))
        now = datetime.now(UTC)
        started = time.monotonic()
        removal = store.retain(now - before, now=now)
        took = time.monotonic() - started
        time.sleep(REST_S)
        looks, written = end()
    at_drop = [batch for batch in written if batch[0] < max(drops) + 1.0 and batch[1] > min(drops) - 1.0]
    figures = {"partitions": removal.partitions, "num_runs": removal.num_runs, "num_blocks": removal.num_blocks}
    seconds = {"retain_s": round(took, 1), "drop_s": round(max(drops) - min(drops), 2)}
    return {**figures, **seconds, "writer_at_drop": rate(at_drop), "writer": rate(written), **looks}


def _note_drop(drops: list[float], _connection: object, _cursor: object, statement: str, *_: object) -> None:
    if statement.startswith(("TRUNCATE", "DROP TABLE")):
        drops.append(time.monotonic())


def _summed(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """The median and the longest."""
    if not seconds:
        return {}
    return {name: round(statistics.median(seconds), 3), f"{name}_max": round(max(seconds), 3)}


def _held(url: str) -> dict[str, Any]:
    """Sizes of the store, by rollups and folds: to count the runs takes minutes."""
    with harness.connected(url) as connection:
        rows = {
            name: connection.exec_driver_sql(f"SELECT {what}").scalar()
            for name, what in (
                ("num_runs", "sum(num_runs) FROM rollups"),
                ("num_folded", "sum(num_runs) FROM folds"),
                ("num_rollups", "count(*) FROM rollups"),
                ("num_slices", "count(*) FROM (SELECT DISTINCT endpoint, slice_key FROM evidence) AS each"),
                ("num_bytes", "pg_database_size(current_database())"),
            )
        }
    return {name: int(value or 0) for name, value in rows.items()}


def main() -> None:
    """Prepare the store, measure, print a table and write the results."""
    parser = options(__doc__, "scale.json")
    parser.add_argument("--url", help="a Postgres server on which the database `scale` is made, or found")
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--runs", type=int, default=10_000_000, help="of each endpoint")
    parser.add_argument("--slices", type=int, default=200, help="of each endpoint")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each writer")
    parser.add_argument("--storage", default="", help="what the server's files lie on, for the results")
    arguments = parser.parse_args()
    from tests.services import postgres_server

    names = ["chat", *(f"chat-{number:02}" for number in range(1, arguments.endpoints))]
    endpoints = [Traffic(arguments.runs, arguments.slices, name) for name in names]
    with postgres_server(is_durable=True) as own, kept_database(arguments.url or own.url, "scale") as url:
        results: dict[str, Any] = {"machine": machine(url) | {"storage": arguments.storage}}
        parts: tuple[tuple[str, Callable[..., dict[str, Any]]], ...] = (
            ("preparation", prepare),
            ("gate", look),
            ("board", board),
            ("ingest", partial(ingest, seconds=arguments.seconds)),
            ("retention", retire),
        )
        for name, measure in parts:
            console.print(f"{name} …")
            if name == "gate":
                results["store"] = _held(url)
            results[name] = measure(url, endpoints)
            console.print(results[name])
            harness.write(arguments.out, results)
    shown = ("store", "gate", "board", "ingest", "retention")
    rows = [{"part": part, "": name, "value": value} for part in shown for name, value in results[part].items()]
    harness.show("the store", rows)


if __name__ == "__main__":
    main()
