"""Workers that write at once: on one partition a single one goes on, on several they share the rollups."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Barrier

import pytest
from msgspec import structs

from shadowspec.errors import FencedError
from shadowspec.store import Store
from shadowspec.types import Advance, PartitionId, RecordKey, WriteBatch
from tests.builders.store_batches import batch
from tests.services import PATIENCE_S
from tests.store import examples
from tests.store.failing import MEASURED

SPAWN = multiprocessing.get_context("spawn")


def _write_batches(url: str, barrier: Barrier, worker: int, results: multiprocessing.Queue[tuple[int, int]]) -> None:
    """Write the same twenty batches as the other worker, each racing for every place in the ledger."""
    written = fenced = 0
    with Store.open(url) as store:
        for number in range(20):
            lines = range(number * 4, number * 4 + 4)
            mine = batch(lines, None if number == 0 else lines.start)
            if worker:
                result, records = mine.blocks[0]
                mine = replace(mine, blocks=((result, records[::-1]),))
            barrier.wait(PATIENCE_S)
            try:
                store.save_batch(mine, "group")
                written += 1
            except FencedError:
                fenced += 1
    results.put((written, fenced))


@pytest.mark.representative("postgres")
def test_of_two_workers_on_a_partition_one_writes_and_one_is_fenced(database_url: str) -> None:
    with Store.open(database_url) as store:
        store.save_fingerprints([examples.config()])
    barrier, results = SPAWN.Barrier(2), SPAWN.Queue()
    workers = [SPAWN.Process(target=_write_batches, args=(database_url, barrier, n, results)) for n in range(2)]
    for worker in workers:
        worker.start()
    counted = [results.get(timeout=PATIENCE_S) for _ in workers]
    for worker in workers:
        worker.join()
    assert (sum(written for written, _ in counted), sum(fenced for _, fenced in counted)) == (20, 20)
    with Store.open(database_url) as store:
        assert store.funnel() == {MEASURED: 80}
        assert [entry.next_offset for entry in store.ledger("group")] == [80]
        assert sum(rollup.sums.num_runs for rollup in store.rollups("chat")) == len(store.runs("chat")) == 80


@pytest.mark.integration
def test_two_workers_on_their_own_partitions_share_rollups(new_database: Callable[[str], str]) -> None:
    url = new_database("postgres")
    errors: list[Exception] = []

    def write(source: str) -> None:
        try:
            with Store.open(url) as opened:
                for number in range(15):
                    lines = range(number * 8, number * 8 + 8)
                    records = tuple(
                        structs.replace(examples.record(line), key=RecordKey(source, 0, line)) for line in lines
                    )
                    result = examples.block(f"{source}{number}", lines)
                    runs = tuple(replace(run, key=RecordKey(source, 0, run.key.offset)) for run in result.runs)
                    moved = Advance(PartitionId(source), lines.start or None, lines.stop, 8, {MEASURED: 8}, None)
                    opened.save_batch(WriteBatch((), ((replace(result, runs=runs), records),), (moved,)), "group")
        except Exception as exc:  # reported by the assertion below
            errors.append(exc)

    with Store.open(url) as store:
        store.save_fingerprints([examples.config()])
        threads = [threading.Thread(target=write, args=(source,)) for source in ("one", "two", "three")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert [rollup.sums.num_runs for rollup in store.rollups("chat")] == [360]
        assert sum(store.histogram("chat", "speedup").num_runs.values()) == 360
        assert store.rollups("chat")[0].acceptance_histogram == (0, 360, 0, 0, 360)
        assert store.funnel() == {MEASURED: 360}
