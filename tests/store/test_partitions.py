"""Months are made on demand, by whoever comes first, and what had to wait for one loses nothing."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from sqlalchemy import Engine, text

from shadowspec.store import Store, check, session
from shadowspec.store.admin.month_partitions import AHEAD, FIRST_MONTH, Partitions, bounds_ms, month_of, partition_names
from shadowspec.types import RecordKey, StoredRecord, WriteBatch
from tests.store import examples

NOW = datetime(2026, 3, 15, tzinfo=UTC)


@given(timestamp_ms=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2 * 10**12))
def test_a_time_lies_within_its_month(timestamp_ms: int) -> None:
    month = month_of(timestamp_ms, NOW)
    if month is not None:
        low, high = bounds_ms(month)
        assert low <= timestamp_ms < high
        assert FIRST_MONTH <= month <= (NOW + AHEAD).date()
    else:
        first, _ = bounds_ms(FIRST_MONTH)
        assert timestamp_ms < first or timestamp_ms >= (NOW + AHEAD).timestamp() * 1000


def test_months_touch() -> None:
    months = [date(year, month, 1) for year in (2023, 2024) for month in range(1, 13)]
    for month, following in itertools.pairwise(months):
        assert bounds_ms(month)[1] == bounds_ms(following)[0]


@pytest.fixture
def url(new_database: Callable[[str], str]) -> str:
    return new_database("postgres")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = session.create_engine(session.parse_url(url))
    yield made
    made.dispose()


def at(*times: datetime | int) -> tuple[StoredRecord, ...]:
    keys = [time if isinstance(time, int) else int(time.timestamp() * 1000) for time in times]
    return tuple(
        structs.replace(examples.record(line), key=RecordKey("topic", 0, line, key))
        for line, key in enumerate(keys, start=1)
    )


def rows_by_partition(engine: Engine, table: str = "records") -> dict[str, int]:
    with session.read(engine) as connection:
        found = connection.execute(text(f"SELECT tableoid::regclass::text, count(*) FROM {table} GROUP BY 1"))
        return {row[0]: row[1] for row in found}


@pytest.mark.integration
def test_each_record_goes_to_its_month(url: str, engine: Engine) -> None:
    now = datetime.now(UTC)
    far = int((now + timedelta(days=400)).timestamp() * 1000)
    records = at(now, datetime(2024, 2, 29, 23, 59, 59, 999000, UTC), datetime(2024, 3, 1, tzinfo=UTC), 0, -5, 1, far)
    with Store.open(url) as store:
        assert store.save_batch(WriteBatch(records), "group").num_new_records == 7
        assert store.save_batch(WriteBatch(records), "group").num_new_records == 0
        assert {record.key for record in store.records("chat")} == {record.key for record in records}
    assert rows_by_partition(engine) == {
        f"records_{now:%Y_%m}": 1,
        "records_2024_02": 1,
        "records_2024_03": 1,
        "records_timeless": 2,
        "records_default": 2,
    }
    assert check(url) == []


@pytest.mark.integration
def test_runs_lie_beside_their_records(url: str, engine: Engine) -> None:
    (record,) = at(datetime(2025, 5, 5, tzinfo=UTC))
    result = examples.block("b", range(1))
    moved = replace(result, runs=(replace(result.runs[0], key=record.key),))
    with Store.open(url) as store:
        store.save_fingerprints([examples.config()])
        store.save_batch(WriteBatch((), ((moved, (record,)),)), "group")
    assert rows_by_partition(engine, "runs") == {"runs_2025_05": 1}
    assert rows_by_partition(engine, "records") == {"records_2025_05": 1}


@pytest.mark.integration
def test_many_workers_make_the_same_months(url: str, engine: Engine) -> None:
    months = [datetime(2024, month, 3, tzinfo=UTC) for month in range(1, 13)]
    barrier, errors = threading.Barrier(4), list[Exception]()

    def make() -> None:
        other_engine = session.create_engine(session.parse_url(url))
        try:
            barrier.wait()
            Partitions(other_engine).ensure(int(month.timestamp() * 1000) for month in months)
        except Exception as exc:  # reported by the assertion below
            errors.append(exc)
        finally:
            other_engine.dispose()

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with session.read(engine) as connection:
        names = partition_names(connection)
    assert {f"{table}_2024_{month:02}" for table in ("records", "runs") for month in range(1, 13)} <= names


@pytest.mark.integration
def test_a_month_that_cannot_be_made_delays_nothing(url: str, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows wait in the default partition, and the month takes them when it is made."""
    first, second = at(datetime(2025, 5, 5, tzinfo=UTC), datetime(2025, 5, 6, tzinfo=UTC))
    with session.read(engine) as reader:
        reader.execute(text("SELECT count(*) FROM records_default"))  # as a long report would hold it
        with Store.open(url) as store:
            started = time.monotonic()
            assert store.save_batch(WriteBatch((first,)), "group").num_new_records == 1
            assert time.monotonic() - started < 5
            assert rows_by_partition(engine) == {"records_default": 1}
    assert "2025-05-01 could not be made yet" in caplog.text
    with Store.open(url) as store:
        assert store.save_batch(WriteBatch((first, second)), "group").num_new_records == 1
        assert store.records("chat") == [first, second]
    assert rows_by_partition(engine) == {"records_2025_05": 2}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("table", "month"),
    [("records", "2025-05-02"), ("records", "2019-12-01"), ("records", "2999-01-01"), ("decisions", "2025-05-01")],
)
def test_the_function_makes_nothing_else(engine: Engine, table: str, month: str) -> None:
    with engine.connect() as connection, pytest.raises(sqlalchemy.exc.DBAPIError, match="no partition may be made"):
        connection.execute(text("SELECT shadowspec_create_partition(:table, :month)"), {"table": table, "month": month})


@pytest.mark.integration
def test_making_a_month_stops_no_writer_of_another(url: str, engine: Engine) -> None:
    with Store.open(url) as store, session.write(engine) as other:
        store.save_batch(WriteBatch(at(datetime(2025, 5, 5, tzinfo=UTC))), "group")
        insert = text(
            "INSERT INTO records (source, source_partition, source_offset, timestamp_ms, source_item, counter, labels)"
            " VALUES ('held', 0, 0, 1746403200000, 0, 'shed', '{}')"
        )
        other.execute(insert)  # a transaction that is open while the next month is made
        started = time.monotonic()
        store.save_batch(WriteBatch(at(datetime(2025, 6, 5, tzinfo=UTC))), "group")
        assert time.monotonic() - started < 2
    assert set(rows_by_partition(engine)) == {"records_2025_05", "records_2025_06"}
