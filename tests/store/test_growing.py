"""Migrating a database that is full and in use: writers go on, what is stored stays, and back again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, inspect, text

from shadowspec.store import Store, check, current, head, session
from shadowspec.store.admin import schema
from shadowspec.store.admin.month_partitions import Partitions
from shadowspec.types import FunnelCounter, LedgerEntry, PartitionId
from tests.conftest import temporary_database
from tests.store import examples
from tests.store.saving import save_block
from tests.store.volume import fill

NUM_ROWS = 1_000_000
MAX_STALL_S = 1.0
START = datetime(2025, 3, 1, tzinfo=UTC)


class Writer(threading.Thread):
    """Inserts a record and a run at a time, as a worker of the first revision would; keeps the longest wait."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine, self._is_done = engine, threading.Event()
        self._copies = [_copy_of_first(engine, table) for table in ("records", "runs")]
        self.longest_s, self.num_written = 0.0, 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._is_done.is_set():
                started = time.monotonic()
                with session.write(self._engine) as connection:
                    for copy in self._copies:
                        connection.execute(text(copy), {"offset": NUM_ROWS + self.num_written})
                self.longest_s = max(self.longest_s, time.monotonic() - started)
                self.num_written += 1
        except Exception as exc:  # reported by the test
            self.error = exc

    def stop(self) -> None:
        self._is_done.set()
        self.join()


def _copy_of_first(engine: Engine, table: str) -> str:
    """A statement that inserts the first row again at another offset, by the columns that there are now."""
    columns = [column["name"] for column in inspect(engine).get_columns(table)]
    values = [":offset" if name == "source_offset" else name for name in columns]
    first = "source = 'topic' AND source_partition = 0 AND source_offset = 0"
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {table} WHERE {first}"


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.integration
def test_writers_go_on_while_a_million_rows_are_migrated(postgres_url: str) -> None:
    with temporary_database(postgres_url) as url:
        first, *_ = schema.revisions()
        schema.migrate(url, first)
        engine = session.create_engine(session.parse_url(url))
        months = [START + timedelta(days=31 * number) for number in range(3)]
        Partitions(engine).ensure(int(month.timestamp() * 1000) for month in months)
        fill(engine, num_rows=NUM_ROWS, start=START, days=90, is_first_revision=True)
        writer = Writer(engine)
        writer.start()
        time.sleep(1)
        before = writer.num_written
        schema.upgrade(url)
        during = writer.num_written - before
        writer.stop()
        assert writer.error is None
        assert during > 0
        assert writer.longest_s < MAX_STALL_S
        with Store.open(url) as store:
            counted = store.funnel()
            assert NUM_ROWS <= sum(counted.values()) <= NUM_ROWS + writer.num_written
        assert check(url) == []
        schema.migrate(url, first)
        with session.read(engine) as connection:
            for table in ("records", "runs"):
                kept = connection.scalar(text(f"SELECT count(*) FROM {table}"))
                assert kept == NUM_ROWS + writer.num_written
        engine.dispose()


def _save_as_of_the_first_revision(url: str) -> None:
    """Rows as the first revision holds them: all that was consumed, in records."""
    engine = session.create_engine(session.parse_url(url))
    values = "'file', 0, {offset}, 0, 0, '{counter}', {endpoint}, '{{}}', {time}"
    rows = [
        values.format(offset=1, counter="measured", endpoint="'chat'", time="'2026-01-02 12:00:00.000000'"),
        values.format(offset=2, counter="measured", endpoint="'chat'", time="'2026-01-02 11:00:00.000000'"),
        values.format(offset=7, counter="malformed", endpoint="NULL", time="NULL"),
    ]
    names = "source, source_partition, source_offset, timestamp_ms, source_item, counter, endpoint, labels, event_time"
    with session.write(engine) as connection:
        for row in rows:
            connection.execute(text(f"INSERT INTO records ({names}) VALUES ({row})"))
        connection.execute(text("UPDATE records SET reason = 'not_json' WHERE counter = 'malformed'"))
    engine.dispose()


def test_what_was_stored_before_the_ledger_is_counted_in_it(blank_url: str) -> None:
    first, *_ = schema.revisions()
    schema.migrate(blank_url, first)
    _save_as_of_the_first_revision(blank_url)
    expected = {("chat", FunnelCounter.MEASURED, None): 2, (None, FunnelCounter.MALFORMED, "not_json"): 1}
    for _ in range(2):  # up, down, up again
        schema.upgrade(blank_url)
        with Store.open(blank_url) as store:
            assert store.funnel() == expected
            entry = LedgerEntry("", PartitionId("file"), 8, 3, 3, examples.NOON, False, True)
            assert store.ledger("") == [entry]
            assert store.watermark("chat").is_ended
            assert len(store.records("chat")) == 2
            assert store.rollups("chat") == []
        schema.migrate(blank_url, first)
        assert current(blank_url) == first


def test_going_down_keeps_what_the_first_revision_knows(new_database: Callable[[str], str]) -> None:
    for dialect in ("sqlite", "postgres"):
        url = new_database(dialect)
        with Store.open(url) as store:
            store.save_fingerprints([examples.config()])
            save_block(store, examples.block("b", range(4)), [examples.record(line) for line in range(4)])
            store.append_decisions([examples.decision()])
            runs = [examples.without_gaps(run) for run in store.runs("chat")]
            kept = store.records("chat"), runs, store.blocks("chat"), store.latest_decisions()
        schema.migrate(url, schema.revisions()[0])
        schema.upgrade(url)
        assert current(url) == head()
        with Store.open(url) as store:
            assert (store.records("chat"), store.runs("chat"), store.blocks("chat"), store.latest_decisions()) == kept
            assert sum(store.funnel().values()) == 4


def test_what_was_folded_before_ranges_is_a_range(blank_url: str) -> None:
    """And back: the greatest end of a partition's ranges."""
    schema.migrate(blank_url, "0005")
    engine = session.create_engine(session.parse_url(blank_url))
    with session.write(engine) as connection:
        connection.execute(text("INSERT INTO evidence_cursors VALUES ('chat', 'topic', 3, 70)"))
    schema.migrate(blank_url, "0006")
    with session.write(engine) as connection:
        found = connection.execute(text("SELECT source_partition, start_offset, folded_offset FROM evidence_cursors"))
        assert [tuple(row) for row in found] == [(3, 0, 70)]
        connection.execute(text("INSERT INTO evidence_cursors VALUES ('chat', 'topic', 3, 80, 90)"))
    schema.migrate(blank_url, "0005")
    with session.read(engine) as connection:
        assert [tuple(row) for row in connection.execute(text("SELECT * FROM evidence_cursors"))] == [
            ("chat", "topic", 3, 90)
        ]
    engine.dispose()
