"""Open keys in the database: each endpoint and clustering has its own, and what is taken is gone and as it was put."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from shadowspec.store import Store, session
from shadowspec.store.evidence.evidence_keys import StoredKeys
from shadowspec.types import OpenKey, RecordKey
from tests.store.examples import NOON

SLICES = ("prompt_class=code", "prompt_class=sql")


def keys_of(clustering: str) -> list[OpenKey]:
    """The same places for every clustering, told apart by when they may open again."""
    at = NOON + timedelta(hours=len(clustering))
    arrivals = ((NOON, RecordKey("topic", 1, 7, 1_700_000_000_000, 2)),)
    return [
        *(OpenKey(SLICES[0], f"session:{i}", arrivals, at, NOON, at, is_full=i == 1) for i in range(3)),
        OpenKey(SLICES[1], "session:1", (), at),
    ]


def test_only_the_keys_of_the_endpoint_and_the_clustering_are_taken(store: Store) -> None:
    places = [("chat", "a"), ("chat", "bb"), ("other", "ccc")]
    for endpoint, clustering in places:
        with store.evidence_session(endpoint) as session:
            session.keys(clustering).add(keys_of(clustering))
    wanted = [(SLICES[0], "session:1"), (SLICES[1], "session:1"), (SLICES[1], "session:0"), (SLICES[0], 'no "one"')]
    with store.evidence_session("chat") as session:
        table = session.keys("a")
        taken = sorted(table.take(wanted), key=lambda open_key: open_key.slice_key)
        assert taken == [keys_of("a")[1], keys_of("a")[3]]
        assert table.take(wanted) == [], "they are gone"
        assert table.take([]) == []
    with store.evidence_session("chat") as session:
        assert len(session.keys("a").take_waiting(None)) == 2
        assert len(session.keys("bb").take(wanted)) == 2
    with store.evidence_session("other") as session:
        assert session.keys("ccc").take(wanted[:1]) == [keys_of("ccc")[1]]


@pytest.mark.integration
def test_a_search_of_absent_keys_reads_no_other_key(new_database: Callable[[str], str]) -> None:
    """The server keeps the plan of a statement that comes again, here one from before the table had rows."""
    stored = [OpenKey(SLICES[0], f"session:{number}", (), NOON, NOON, NOON) for number in range(2_000)]
    absent = [(SLICES[1], f"session:{number}") for number in range(50)]
    read = text(
        "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'evidence_keys'"
    )
    with Store.open(new_database("postgresql")) as store:
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE evidence_keys")
        with session.write(store.engine) as connection:
            table = StoredKeys(connection, "chat", "a")
            for _ in range(20):  # then the server has a plan that it keeps
                assert table.take(absent) == []
            table.add(stored)
            assert table.take(absent) == []
            assert connection.scalar(read) == 0
            assert len(table.take([(SLICES[0], "session:7")])) == 1
            assert connection.scalar(read) > 0, "the server counts what is read"
