"""Migrating a database that is full and in use: writers go on, what is stored stays, and back again."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, inspect, text

from shadowspec.store import Store, current, head, session
from shadowspec.store.admin import schema
from shadowspec.store.admin.month_partitions import Partitions
from shadowspec.types import Advance, FunnelCounter, PartitionId, RunFlags, WriteBatch
from tests.builders.databases import temporary_database
from tests.services import PATIENCE_S
from tests.store import examples
from tests.store.later_revision import LATER, add_revision
from tests.store.volume import fill

NUM_ROWS = 20_000
COUNT_AND_ADD = """
op.execute("SELECT count(*) FROM records")
op.add_column("records", sa.Column("note", sa.Text))
op.execute("SELECT count(*) FROM runs")
op.add_column("runs", sa.Column("note", sa.Text))
"""
CHANGE_IN_ANOTHER_ORDER = """
for table in ("rollups", "runs", "records", "ledger"):
    op.add_column(table, sa.Column("note", sa.Text))
"""
START = datetime(2025, 3, 1, tzinfo=UTC)
READS_ROWS = re.compile(r"\bFROM (records|runs)\b")


class Writer(threading.Thread):
    """Inserts a record and a run at a time, as a worker would that does not know the new columns."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine, self._is_done = engine, threading.Event()
        self._copies = [_copy_of_first(engine, table) for table in ("records", "runs")]
        self.num_written = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._is_done.is_set():
                with session.write(self._engine) as connection:
                    for copy in self._copies:
                        connection.execute(text(copy), {"offset": NUM_ROWS + self.num_written})
                self.num_written += 1
        except Exception as exc:  # reported by the test
            self.error = exc

    def wait_for_more(self) -> None:
        """Return when it has written what it had not begun before."""
        enough, until = self.num_written + 2, time.monotonic() + PATIENCE_S
        while self.num_written < enough:
            assert self.is_alive(), self.error
            assert time.monotonic() < until, "the writer waits"
            time.sleep(0.01)

    def stop(self) -> None:
        self._is_done.set()
        self.join()


def _copy_of_first(engine: Engine, table: str) -> str:
    """A statement that inserts the first row again at another offset, by the columns that there are now."""
    columns = [column["name"] for column in inspect(engine).get_columns(table)]
    values = [":offset" if name == "source_offset" else name for name in columns]
    first = "source = 'topic' AND source_partition = 0 AND source_offset = 0"
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {table} WHERE {first}"


def _files_of(engine: Engine) -> set[tuple[str, int]]:
    """The tables that hold records and runs, each with the file that it is in: a rewritten one gets another."""
    statement = "SELECT relname, relfilenode FROM pg_class WHERE relkind = 'r' AND relname ~ '^(records|runs)_'"
    with session.read(engine) as connection:
        return {tuple(row) for row in connection.execute(text(statement))}


def _has_locked(cursor: Any) -> bool:
    """Whether the cursor's transaction keeps all others from records or runs."""
    cursor.execute(
        "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation WHERE pid = pg_backend_pid() "
        "AND mode = 'AccessExclusiveLock' AND relname IN ('records', 'runs')"
    )
    return bool(cursor.fetchone()[0])


@contextmanager
def _watched(writer: Writer) -> Iterator[tuple[list[str], list[str]]]:
    """Statements of a migration in this thread that read records or runs: without a lock, and under it.

    After each one without a lock the migration goes on when the writer has gone on.
    """
    free: list[str] = []
    locked: list[str] = []
    this = threading.get_ident()

    def after(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if threading.get_ident() != this or not READS_ROWS.search(statement):
            return
        with connection.connection.cursor() as cursor:
            is_locked = _has_locked(cursor)
        (locked if is_locked else free).append(" ".join(statement.split()))
        if not is_locked:
            writer.wait_for_more()

    event.listen(Engine, "after_cursor_execute", after)
    try:
        yield free, locked
    finally:
        event.remove(Engine, "after_cursor_execute", after)


@pytest.mark.integration
def test_writers_go_on_while_a_migration_reads(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for its changes of the tables alone; a new column rewrites nothing that is stored."""
    with ExitStack() as stack:
        url = stack.enter_context(temporary_database(postgres_url))
        schema.upgrade(url)
        engine = session.create_engine(session.parse_url(url))
        stack.callback(engine.dispose)
        months = [START + timedelta(days=31 * number) for number in range(3)]
        Partitions(engine).ensure(int(month.timestamp() * 1000) for month in months)
        fill(engine, num_rows=NUM_ROWS, start=START, days=90)
        files = _files_of(engine)
        assert len(files) >= 2 * len(months)
        writer = Writer(engine)
        writer.start()
        stack.callback(writer.stop)
        writer.wait_for_more()
        add_revision(monkeypatch, tmp_path, COUNT_AND_ADD)
        with _watched(writer) as (free, locked):
            schema.upgrade(url)
        writer.wait_for_more()
        writer.stop()
        assert writer.error is None
        assert (free, locked) == (["SELECT count(*) FROM records"], ["SELECT count(*) FROM runs"])
        assert _files_of(engine) == files
        with session.read(engine) as connection:
            for table in ("records", "runs"):
                stored = connection.scalar(text(f"SELECT count(*) FROM {table}"))
                assert stored == NUM_ROWS + writer.num_written


@pytest.mark.integration
def test_a_migration_and_a_worker_wait_for_each_other_in_one_order(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has written its records when the migration comes: it writes the rest of its batch, and both end."""
    with ExitStack() as stack:
        url = stack.enter_context(temporary_database(postgres_url))
        schema.upgrade(url)
        engine = session.create_engine(session.parse_url(url))
        stack.callback(engine.dispose)
        written = schema.WRITTEN_TABLES.index("records") + 1
        errors: list[Exception] = []
        add_revision(monkeypatch, tmp_path, CHANGE_IN_ANOTHER_ORDER)

        def attempt() -> None:
            try:
                schema.upgrade(url)
            except Exception as exc:  # reported by the assertion below
                errors.append(exc)

        migration = threading.Thread(target=attempt)
        with session.write(engine) as worker:
            for name in schema.WRITTEN_TABLES[:written]:
                worker.execute(text(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE"))  # as an insert does
            migration.start()
            stack.callback(migration.join)
            _wait_until_one_waits(engine)
            for name in schema.WRITTEN_TABLES[written:]:
                worker.execute(text(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE"))
        migration.join()
        assert errors == []
        assert current(url) == head() == LATER


def test_the_order_of_the_locks_is_that_of_a_batch(new_database: Callable[[str], str]) -> None:
    touched: dict[str, None] = {}
    with Store.open(new_database("sqlite")) as store:
        store.save_fingerprints([examples.config()])

        @event.listens_for(store.engine, "before_cursor_execute")
        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            touched.update(dict.fromkeys(re.findall(r"(?:INSERT INTO|UPDATE|FROM) ([a-z_]+)", statement)))

        block = examples.audited(examples.block("b", range(2)))
        runs = tuple(replace(run, flags=RunFlags(is_beyond_draft_context=True)) for run in block.runs)
        records = tuple(examples.record(line) for line in range(2))
        advance = Advance(PartitionId("file"), None, 2, 2, {("chat", FunnelCounter.MEASURED, None): 2}, examples.NOON)
        batch = WriteBatch((), ((replace(block, runs=runs), records),), (advance,))
        store.save_batch(batch, "")
    assert list(touched) == list(schema.WRITTEN_TABLES)


def _wait_until_one_waits(engine: Engine) -> None:
    """Return when a session of the database waits for a lock."""
    until = time.monotonic() + PATIENCE_S
    here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
    waiting = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND database = {here}"
    while True:
        with session.read(engine) as connection:
            if connection.scalar(text(waiting)):
                return
        assert time.monotonic() < until, "the migration waits for nothing"
        time.sleep(0.01)
