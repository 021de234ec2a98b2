"""Several devices side by side: rows that reach the real store as each device finishes, and the real gate over them.

Every device has a partition and a consumer and measures one block at a time.  A block is committed when
it is done, so that a slow one comes after fast ones that began with it.  Nothing is skipped here: the ledger, the
folding and the decisions are those of the store, in a file of SQLite.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import merge
from itertools import pairwise
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np
from msgspec import structs

from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.verdict.required_tests import waits_for_independence
from shadowspec.simulate.effects import Outcomes, draw_outcomes
from shadowspec.simulate.gate_under_test import HypothesisOutcome, is_verdict
from shadowspec.simulate.rows import CONFIG, SimulatedRows, rows_of
from shadowspec.simulate.traffic import ENDPOINT, NEVER, SECOND, START, Ints, Requests, draw_requests, event_time
from shadowspec.simulate.world import FleetWorld
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.types import (
    Advance,
    Block,
    BlockResult,
    Decision,
    FunnelKey,
    PartitionId,
    RecordKey,
    Run,
    StoredRecord,
    Verdict,
    WriteBatch,
)

TOPIC = "simulated"
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - where there is one, thousands of small commits wait for no disk


@dataclass(frozen=True, slots=True, eq=False)
class DeviceDraw:
    """One device's records and blocks; its sessions have one request each, so that every block is a run of offsets.

    `done_us` is by block: when it is measured, and committed.
    """

    device: int
    requests: Requests
    outcomes: Outcomes
    rows: SimulatedRows
    done_us: Ints


def draw_fleet(world: FleetWorld, seed: np.random.SeedSequence) -> list[DeviceDraw]:
    """One draw of the world: its traffic is split evenly over the devices."""
    arrivals, fleet = world.arrivals, world.fleet
    assert not arrivals.mean_extra, "a session is one request"
    assert not arrivals.lengths, "a session is one request"
    device_arrivals = replace(
        arrivals, num_sessions=arrivals.num_sessions // fleet.num_devices, gap_s=arrivals.gap_s * fleet.num_devices
    )
    draws = []
    for device, child in enumerate(seed.spawn(fleet.num_devices)):
        traffic_seed, effects_seed = child.spawn(2)
        requests = draw_requests(device_arrivals, np.random.default_rng(traffic_seed), world.regime)
        outcomes = draw_outcomes(world.effects, requests, np.random.default_rng(effects_seed))
        rows = _of_device(rows_of(requests, outcomes, world.regime, world.releases), device)
        draws.append(DeviceDraw(device, requests, outcomes, rows, _done_us(world, requests, outcomes)))
    return draws


def watch_fleet(world: FleetWorld, draws: Sequence[DeviceDraw]) -> list[HypothesisOutcome]:
    """The outcome of the endpoint's hypothesis, looked at after every `look_every` blocks and at the end."""
    with _empty_store() as store:
        store.save_fingerprints([CONFIG])
        was_dependent, num_blocks, decision = False, 0, None
        for moment in merge(*(_commits(draw) for draw in draws), key=lambda commit: commit.at_us):
            store.save_batch(moment.batch, moment.consumer)
            num_blocks += len(moment.batch.blocks)
            if moment.batch.blocks and num_blocks % world.fleet.look_every == 0:
                decision = _look(store, world, input_ended=False)
                was_dependent |= waits_for_independence(decision)
                if is_verdict(decision):
                    break
        if decision is None or not is_verdict(decision):
            decision = _look(store, world, input_ended=True)
    return [_outcome(decision, was_dependent=was_dependent)]


@dataclass(frozen=True, slots=True)
class _Commit:
    """One transaction of a device: a block, or the notice that a record has come that is not measured yet."""

    at_us: int
    consumer: str
    batch: WriteBatch


def _commits(draw: DeviceDraw) -> Iterator[_Commit]:
    """A device's transactions, in its order.

    The ledger marks a partition as behind as soon as a message comes to it: in the commit of a block if one has come by
    then, and else in a separate commit.
    """
    consumer, partition = f"device-{draw.device}", PartitionId(TOPIC, draw.device)
    at_us = draw.requests.at_us
    records = {record.key.offset: record for record in draw.rows.records}
    runs: dict[str, list[Run]] = {block.block_id: [] for block in draw.rows.blocks}
    for run in draw.rows.runs:
        runs[run.block_id].append(run)
    expected = None
    for stored, done in zip(draw.rows.blocks, draw.done_us.tolist(), strict=True):
        block_runs = runs[stored.block_id]
        used = tuple(records[run.key.offset] for run in block_runs)
        first, stop = block_runs[0].key.offset, block_runs[-1].key.offset + 1
        block = Block(
            *(stored.block_id, stored.sequence, ENDPOINT, stored.slice_key, stored.concurrency, (), ()),
            stored.first_arm,
        )
        result = BlockResult(block, stored.started_at, tuple(block_runs), stored.memory)
        is_behind = stop < len(at_us) and int(at_us[stop]) <= done
        newest = event_time(int(at_us[stop - 1]))
        advance = Advance(partition, expected, stop, stop - first, _funnel(used), newest, is_behind)
        yield _Commit(done, consumer, WriteBatch((), ((result, used),), (advance,)))
        if not is_behind and stop < len(at_us):
            fallen = Advance(partition, stop, stop, 0, {}, newest, is_behind=True)
            yield _Commit(int(at_us[stop]), consumer, WriteBatch((), (), (fallen,)))
        expected = stop


def _funnel(records: Sequence[StoredRecord]) -> dict[FunnelKey, int]:
    counted: dict[FunnelKey, int] = {}
    for record in records:
        key = record.endpoint, record.counter, record.reason
        counted[key] = counted.get(key, 0) + 1
    return counted


def _look(store: Store, world: FleetWorld, *, input_ended: bool) -> Decision:
    """The gate's current verdict on the whole endpoint, the only hypothesis with a level in such a world."""
    decisions = run_endpoint_gate(store, ENDPOINT, world.policy, input_ended=input_ended, now=START).decisions
    return next(decision for decision in decisions if not decision.slice_key)


def _outcome(decision: Decision, *, was_dependent: bool) -> HypothesisOutcome:
    return HypothesisOutcome(
        slice_key="",
        fingerprint=decision.fingerprint,
        num_restarts=0,
        start_blocks=0,
        level=decision.level or 0.0,
        verdict=decision.verdict if is_verdict(decision) else Verdict.HOLD,
        reason_code=decision.reason_code if is_verdict(decision) else "",
        num_blocks=decision.num_blocks,
        num_clusters=decision.num_clusters,
        was_dependent=was_dependent,
        tests={},
    )


def _done_us(world: FleetWorld, requests: Requests, outcomes: Outcomes) -> Ints:
    """When each block is measured: one after the other, a slow one for `slow_factor` times as long."""
    counts = np.bincount(requests.block, minlength=len(requests.blocks))
    means = np.bincount(requests.block, outcomes.log_speedup, len(requests.blocks)) / counts
    fleet = world.fleet
    takes = np.where(means < fleet.slow_below, fleet.slow_factor, 1.0) * fleet.block_s * SECOND
    done, free = [], 0
    for started, duration in zip(requests.started_us.tolist(), takes.tolist(), strict=True):
        begins = int(requests.at_us[-1]) if started == NEVER else started
        free = max(free, begins) + round(duration)
        done.append(free)
    assert all(before <= after for before, after in pairwise(done)), "a device does one block after the other"
    return np.array(done, dtype=np.int64)


def _of_device(rows: SimulatedRows, device: int) -> SimulatedRows:
    """The rows as of that device's partition, with separate sessions and blocks."""

    def key_of(key: RecordKey) -> RecordKey:
        return key._replace(source=TOPIC, partition=device)

    return replace(
        rows,
        records=[
            structs.replace(record, key=key_of(record.key), session_hash=f"{device}-{record.session_hash}")
            for record in rows.records
        ],
        blocks=[replace(block, block_id=f"{device}-{block.block_id}"[:64]) for block in rows.blocks],
        runs=[replace(run, key=key_of(run.key), block_id=f"{device}-{run.block_id}"[:64]) for run in rows.runs],
    )


@contextmanager
def _empty_store() -> Iterator[Store]:
    """The process's store without rows; its statements, compiled once, outlive the repetitions."""
    empty, path, store = _open_reused_store()
    shutil.copy(empty, path)
    try:
        yield store
    finally:
        store.close()  # its connections: the next repetition opens another file of the same name


@lru_cache(maxsize=1)
def _open_reused_store() -> tuple[Path, Path, Store]:
    """An empty database, made once to a process, the file that is a copy of it, and the store on that file."""
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-fleet-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)  # atexit is not called in a pool's processes
    empty, path = folder / "empty.db", folder / "fleet.db"
    schema.upgrade(f"sqlite:///{empty}")
    shutil.copy(empty, path)
    return empty, path, Store.open(f"sqlite:///{path}")
