"""What tests of failing servers share: a batch, a store that knows its config, and the error that is expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy
from sqlalchemy import NullPool

from shadowspec.errors import ServiceUnavailableError
from shadowspec.store import Store
from shadowspec.types import Advance, FunnelCounter, PartitionId, WriteBatch
from tests.store import examples

MEASURED = ("chat", FunnelCounter.MEASURED, None)
FILE = PartitionId("file")


def batch(number: int = 0) -> WriteBatch:
    lines = range(number * 4, number * 4 + 4)
    records = tuple(examples.record(line) for line in lines)
    moved = Advance(FILE, lines.start or None, lines.stop, 4, {MEASURED: 4}, None)
    return WriteBatch((), ((examples.block(f"b{number}", lines, sequence=number), records),), (moved,))


@contextmanager
def opened(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        store.save_fingerprints([examples.config()])
        yield store


@contextmanager
def administrator(url: str) -> Iterator[sqlalchemy.Connection]:
    engine = sqlalchemy.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection


def unavailable(call: Callable[[], object]) -> ServiceUnavailableError:
    with pytest.raises(ServiceUnavailableError) as caught:
        call()
    assert caught.value.exit_code == 5
    return caught.value


def lose_locks(store: Store) -> None:
    """End the sessions that hold this Postgres database's advisory locks."""
    with store.engine.begin() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
            "WHERE locktype = 'advisory' AND datname = current_database()"
        )
