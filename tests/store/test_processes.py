"""Two processes at once give the same evidence as one, and only one of them holds a lock."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from shadowspec.errors import ServiceUnavailableError, StoreError
from shadowspec.store import Store, session
from shadowspec.store.write import batch_writes
from shadowspec.types import WriteBatch
from tests.services import PATIENCE_S
from tests.store import examples
from tests.store.failing import lose_locks

pytestmark = pytest.mark.slow  # all of them together

SPAWN = multiprocessing.get_context("spawn")
ROUNDS = 8
SIZE = 4


def _insert(url: str, barrier: Barrier, is_backwards: bool, results: multiprocessing.Queue[list[int]]) -> None:
    with Store.open(url) as store:
        counts = []
        for number in range(ROUNDS):
            lines = range(number * SIZE, (number + 1) * SIZE)
            records = [examples.record(line) for line in lines]
            if is_backwards:
                records.reverse()
            barrier.wait(PATIENCE_S)
            block = examples.block(f"b{number}", lines, sequence=number)
            batch = WriteBatch(blocks=((block, tuple(records)),))
            counts.append(store.save_batch(batch, "file").num_new_runs)
        results.put(counts)


@pytest.mark.all
@pytest.mark.representative("postgres")
def test_racing_writers_store_each_run_once(database_url: str) -> None:
    with Store.open(database_url) as store:
        store.save_fingerprints([examples.config()])
    barrier, results = SPAWN.Barrier(2), SPAWN.Queue()
    writers = [SPAWN.Process(target=_insert, args=(database_url, barrier, turn, results)) for turn in (False, True)]
    for writer in writers:
        writer.start()
    inserted = [results.get(timeout=PATIENCE_S) for _ in writers]
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert [sum(pair) for pair in zip(*inserted, strict=True)] == [SIZE] * ROUNDS
    with Store.open(database_url) as store:
        assert len(store.runs("chat")) == len(store.records("chat")) == SIZE * ROUNDS
        assert len(store.blocks("chat")) == ROUNDS


@pytest.mark.representative("1")
@pytest.mark.integration
@pytest.mark.parametrize("order", [1, -1])
def test_writers_in_opposite_orders_do_not_deadlock(new_database: Callable[[str], str], order: int) -> None:
    url = new_database("postgres")
    first, second = examples.record(1), examples.record(2)
    batch = WriteBatch((first, second)[::order])
    inserted: list[int] = []
    engine = session.create_engine(session.parse_url(url))
    with Store.open(url) as store:
        other = threading.Thread(target=lambda: inserted.append(store.save_batch(batch, "file").num_new_records))
        with session.write(engine) as connection:
            batch_writes.insert_records(connection, [first])
            other.start()
            _wait_until_blocked(engine)
            # held by the other writer if it did not begin with the first
            batch_writes.insert_records(connection, [second])
        other.join()  # before the store closes: a connection in use then would be closed by nobody
    engine.dispose()
    assert inserted == [0]


def _wait_until_blocked(engine: Engine) -> None:
    deadline = time.monotonic() + PATIENCE_S
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.scalar(waiting):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def _count_up(url: str, barrier: Barrier, path: str) -> None:
    counter = Path(path)
    with Store.open(url) as store:
        barrier.wait(PATIENCE_S)
        for _ in range(ROUNDS):
            with store.endpoint_lock("chat"):
                seen = int(counter.read_text())
                time.sleep(0.002)  # long enough for the other process to read the same number, if it may
                counter.write_text(str(seen + 1))


@pytest.mark.representative("postgres")
def test_the_lock_excludes_another_process(database_url: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    barrier = SPAWN.Barrier(2)
    both = [SPAWN.Process(target=_count_up, args=(database_url, barrier, str(counter))) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert counter.read_text() == str(2 * ROUNDS)


def _hold(url: str, is_held: Event) -> None:
    with Store.open(url) as store, store.endpoint_lock("chat"):
        is_held.set()
        time.sleep(PATIENCE_S)


@pytest.mark.representative("postgres")
def test_a_killed_holder_frees_the_lock(database_url: str) -> None:
    is_held = SPAWN.Event()
    holder = SPAWN.Process(target=_hold, args=(database_url, is_held))
    holder.start()
    assert is_held.wait(PATIENCE_S)
    with Store.open(database_url) as store:
        with pytest.raises(StoreError, match="endpoint chat: another process holds its lock"):
            store.endpoint_lock("chat", timeout_s=0.1).__enter__()
        with store.endpoint_lock("code", timeout_s=0.1):  # another endpoint's lock is free
            pass
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
        with store.endpoint_lock("chat"):
            store.save_batch(WriteBatch((examples.record(1),)), "file")  # the holder itself can write


@pytest.mark.representative("postgres")
def test_steps_under_a_held_lock_share_it(database_url: str) -> None:
    with Store.open(database_url) as store, Store.open(database_url) as other:
        with store.locked("chat") as held:
            with held.endpoint_lock("chat", timeout_s=0.1), held.endpoint_lock("code", timeout_s=0.1):
                for each, endpoint in ((other, "chat"), (store, "chat"), (other, "code"), (store, "code")):
                    with pytest.raises(StoreError, match=f"endpoint {endpoint}: another process holds its lock"):
                        each.endpoint_lock(endpoint, timeout_s=0.1).__enter__()
            with pytest.raises(StoreError, match="endpoint chat: another process holds its lock"):
                other.endpoint_lock("chat", timeout_s=0.1).__enter__()
        with other.endpoint_lock("chat", timeout_s=0.1):
            pass


def test_no_step_begins_after_a_held_lock_was_lost(new_database: Callable[[str], str]) -> None:
    def take_steps() -> None:
        with store.locked("chat") as held:
            lose_locks(store)
            with held.endpoint_lock("chat"):
                pytest.fail("another gate may run")

    with Store.open(new_database("postgres")) as store:
        with pytest.raises(ServiceUnavailableError):
            take_steps()
        with store.endpoint_lock("chat", timeout_s=0.1):
            pass


def test_an_error_inside_frees_the_lock_and_stays_itself(store: Store, database_url: str) -> None:
    with Store.open(database_url) as other:  # Postgres would give it to the same connection a second time
        for error in (ZeroDivisionError, ValueError):
            with pytest.raises(error), store.endpoint_lock("chat"):
                raise error
            with other.endpoint_lock("chat", timeout_s=0.1):
                pass
