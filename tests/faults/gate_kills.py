"""Kills gates at random points, and runs several at once: the evidence must be that of one undisturbed gate.

    python -m tests.faults.gate_kills --kills 200 --out tests/faults/results/gate-200-kills.json

A world's rows are written to two databases look by look.  In one, every look is attempted by gates that are
killed after a random time, then by four gates at once; in the other by one gate that nothing disturbs.  At the end both
must hold the same evidence, each unit once, and the same decisions, number by number.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import create_engine, make_url, text

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run import fold_spans as spans
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.recompute import compare, explain
from shadowspec.gate.run.state import decode_evidence
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.types import StoredEvidence
from tests.faults.outcome import conclude
from tests.gate.feeding import Feed
from tests.gate.worlds import ENDPOINT, START, World, noisy_run
from tests.services import PATIENCE_S, postgres_server

FORKSERVER = multiprocessing.get_context("forkserver")
POLICY = GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0, cluster_idle_s=120.0, cluster_reopen_after_s=600.0)
SLICES = ("prompt_class=code", "prompt_class=sql")
OFFSETS_AT_ONCE = 60  # so that a look takes several transactions
BLOCKS_A_LOOK = 8
GATES_AT_ONCE = 4


def one_gate(url: str, started: Any) -> None:
    """A gate run in this process, in small transactions."""
    spans.next_plan.__defaults__ = (OFFSETS_AT_ONCE,)  # type: ignore[attr-defined]
    with Store.open(url) as store:
        started.set()
        run_endpoint_gate(store, ENDPOINT, POLICY, input_ended=False, now=START)


def attempt(url: str, kill_after_s: float) -> int | None:
    """Start a gate, kill it after this time if it still runs; its exit code."""
    started = FORKSERVER.Event()
    process = FORKSERVER.Process(target=one_gate, args=(url, started))
    process.start()
    assert started.wait(PATIENCE_S)
    process.join(kill_after_s)
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    return process.exitcode


def run(disturbed: str, undisturbed: str, num_kills: int, seed: int) -> dict[str, Any]:
    """Both databases, look by look, until so many gates were killed; what came of it."""
    FORKSERVER.set_forkserver_preload(["shadowspec.gate.run.gate_run", "shadowspec.store", "tests.gate.worlds"])
    rng = random.Random(seed)
    num_looks = max(num_kills // 4, 3)
    world = World(num_looks * BLOCKS_A_LOOK, slices=SLICES, make_run=noisy_run()).evidence(seed)
    exits: Counter[str] = Counter()
    begun, by_killed = FORKSERVER.Event(), 0
    with Store.open(disturbed) as one, Store.open(undisturbed) as other:
        feeds = Feed(one, world), Feed(other, world)
        for look in range(num_looks):
            for feed in feeds:
                feed.write_blocks(look * BLOCKS_A_LOOK, (look + 1) * BLOCKS_A_LOOK)
            started = time.monotonic()
            run_endpoint_gate(other, ENDPOINT, POLICY, input_ended=False, now=START)
            longest_s = 2.0 * (time.monotonic() - started)  # a process of its own is slower
            before = counted(disturbed, "folds")
            wanted = exits["killed"] + (num_kills - exits["killed"]) // (num_looks - look)
            while exits["killed"] < wanted:
                code = attempt(disturbed, rng.uniform(0.0, longest_s))
                exits["killed" if code == -signal.SIGKILL else f"exit {code}"] += 1
            by_killed += counted(disturbed, "folds") - before
            gates = [FORKSERVER.Process(target=one_gate, args=(disturbed, begun)) for _ in range(GATES_AT_ONCE)]
            for gate in gates:
                gate.start()
            for gate in gates:
                gate.join(120)
                exits[f"at once: exit {gate.exitcode}"] += 1
        wrong = differences(one, other, len(world.records), len(world.runs))
    return {
        "seed": seed,
        "looks": num_looks,
        "blocks": len(world.blocks),
        "runs": len(world.runs),
        "gates": dict(sorted(exits.items())),
        "folds": counted(disturbed, "folds"),
        "folds_of_killed_gates": by_killed,
        "decisions": counted(disturbed, "decisions"),
        "wrong": wrong,
    }


def differences(one: Store, other: Store, num_records: int, num_runs: int) -> list[str]:
    """What of the disturbed database is not as in the other."""
    wrong = []
    with one.evidence_session(ENDPOINT) as mine, other.evidence_session(ENDPOINT) as theirs:
        first, second = ({_name(each): each for each in session.evidence()} for session in (mine, theirs))
        if first.keys() != second.keys():
            wrong.append(f"hypotheses {sorted(first)} and {sorted(second)}")
        for name in first.keys() & second.keys():
            wrong += [f"{name}: {part}" for part in _unequal(first[name], second[name])]
        assert mine.progress is not None
        assert theirs.progress is not None
        if mine.progress.document != theirs.progress.document or mine.progress.cursors != theirs.progress.cursors:
            wrong.append("progress or cursors")
    folded = {
        figure: counted(str(one.engine.url.render_as_string(False)), "folds", figure)
        for figure in ("num_records", "num_runs")
    }
    if folded != {"num_records": num_records, "num_runs": num_runs}:
        wrong.append(f"folded {folded}, of {num_records} records and {num_runs} runs")
    for a, b in zip(one.latest_decisions(ENDPOINT), other.latest_decisions(ENDPOINT), strict=True):
        wrong += [f"decision on {a.slice_key!r}: {each}" for each in compare(a, b)[0]]
        assert a.decision_id is not None
        wrong += [f"explanation of {a.decision_id}: {each}" for each in explain(one, a.decision_id).differences]
    return wrong


def counted(url: str, table: str, figure: str = "1") -> int:
    """The sum of a figure over a table."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text(f"SELECT coalesce(sum({figure}), 0) FROM {table}")).scalar_one()
    engine.dispose()
    return int(found)


def _name(stored: StoredEvidence) -> tuple[str, int]:
    return stored.slice_key, stored.concurrency


def _unequal(one: StoredEvidence, other: StoredEvidence) -> list[str]:
    first, second = (decode_evidence(each).evidence for each in (one, other))
    counts = [
        (hypothesis_evidence.runs, hypothesis_evidence.latencies.counts) for hypothesis_evidence in (first, second)
    ]
    found = [] if counts[0] == counts[1] else ["counts"]
    for arm, moment in first.latencies.moments.items():
        if not np.allclose(astuple(moment), astuple(second.latencies.moments[arm]), rtol=1e-9, atol=1e-9):
            found.append(f"moments of {arm}")
    for name, test in first.tests.items():
        its = second.tests[name]
        if (test.num_units, test.num_seen) != (its.num_units, its.num_seen):
            found.append(f"{name}: {test.num_units} and {its.num_units} units")
        gap = max(
            float(np.abs(test.lower.logs - its.lower.logs).max()), float(np.abs(test.upper.logs - its.upper.logs).max())
        )
        if gap > 1e-9:
            found.append(f"{name}: log capitals {gap:.1e} apart")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    with postgres_server() as server, tempfile.TemporaryDirectory():
        urls = []
        engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
        for name in ("disturbed", "undisturbed"):
            with engine.connect() as connection:
                connection.exec_driver_sql(f"CREATE DATABASE {name}")
            urls.append(make_url(server.url).set(database=name).render_as_string(hide_password=False))
            schema.upgrade(urls[-1])
        engine.dispose()
        figures = run(urls[0], urls[1], arguments.kills, arguments.seed)
    figures["seconds"] = round(time.monotonic() - started)
    conclude(figures, arguments.out)


if __name__ == "__main__":
    main()
