"""The queries that workers, gate and dashboard repeat use indexes, whatever has piled up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from shadowspec.store import Store, session
from shadowspec.store.admin.month_partitions import Partitions
from shadowspec.types import PartitionId
from tests.store.volume import fill

pytestmark = pytest.mark.integration

START = datetime(2025, 3, 1, tzinfo=UTC)
LARGE = (
    "records",
    "runs",
    "rollups",
    "rollup_bins",
    "rollup_positions",
    "decisions",
    "test_snapshots",
    "funnel_counts",
)
NUM_ROWS = 120_000  # over three months


@pytest.fixture(scope="module")
def filled(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with rows in every table that grows."""
    from tests.builders.databases import temporary_database

    server, template = (request.getfixturevalue(name) for name in ("postgres_url", "migrated_postgres"))
    with temporary_database(server, template) as url:
        engine = session.create_engine(session.parse_url(url))
        months = [START + timedelta(days=31 * number) for number in range(3)]
        Partitions(engine).ensure(int(month.timestamp() * 1000) for month in months)
        fill(engine, num_rows=NUM_ROWS, start=START, days=90)
        engine.dispose()
        yield url


@pytest.fixture
def plans(filled: str) -> Callable[[Callable[[Store], object]], list[str]]:
    """Runs a call on the store; the plan of each statement that it sent."""

    def explain(call: Callable[[Store], object]) -> list[str]:
        sent: list[tuple[str, Any]] = []

        def keep(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
            sent.append((statement, parameters))

        with Store.open(filled) as store:
            engine: Engine = store.engine
            event.listen(engine, "before_cursor_execute", keep)
            call(store)
            event.remove(engine, "before_cursor_execute", keep)
            found = []
            with session.read(engine) as connection:
                for statement, parameters in sent:
                    lines = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars()
                    found.append("\n".join(lines))
        return found

    return explain


def _hours_ago(number: int) -> datetime:
    return datetime.now(UTC) - timedelta(hours=number)


AT = START + timedelta(days=88)
QUERIES: dict[str, Callable[[Store], object]] = {
    "finished_records": lambda store: store.finished_records(PartitionId("topic", 2), NUM_ROWS // 6 - 100),
    "unit_memories": lambda store: store.unit_memories("endpoint3", AT),
    "unit_memories of a partition": lambda store: store.unit_memories(
        "endpoint3", AT, partition=PartitionId("topic", 2), before_offset=NUM_ROWS // 6
    ),
    "recent_request_ids": lambda store: store.recent_request_ids("endpoint3", AT),
    "rollups": lambda store: store.rollups("endpoint3", AT),
    "traffic": lambda store: store.traffic("endpoint3", _hours_ago(2)),
    "histogram": lambda store: store.histogram("endpoint3", "speedup", since=AT),
    "latest_decisions": lambda store: store.latest_decisions("endpoint3"),
    "current_verdicts": lambda store: store.current_verdicts("endpoint3"),
    "verdict_changes": lambda store: store.verdict_changes(None, _hours_ago(2), limit=100),
    "verdict_changes of an endpoint": lambda store: store.verdict_changes("endpoint3", _hours_ago(2), limit=100),
    "advice_changes": lambda store: store.advice_changes(None, _hours_ago(2), limit=100),
    "watermark": lambda store: store.watermark("endpoint3"),
    "ledger_entry": lambda store: store.ledger_entry("group", PartitionId("topic", 2)),
}


@pytest.mark.parametrize("name", QUERIES)
def test_no_large_table_is_scanned(plans: Callable[[Callable[[Store], object]], list[str]], name: str) -> None:
    found = plans(QUERIES[name])
    assert found
    for plan in found:
        scanned = re.findall(r"Seq Scan on (\w+)", plan)
        large = [
            table for table in scanned if table.startswith(LARGE) and not table.endswith(("_default", "_timeless"))
        ]
        assert large == [], plan
    assert any("Index" in plan for plan in found)


def test_a_plan_without_an_index_is_seen(plans: Callable[[Callable[[Store], object]], list[str]]) -> None:
    """The test above could fail: this query has no index and must scan."""

    def scan(store: Store) -> object:
        with session.read(store.engine) as connection:
            return connection.scalar(text("SELECT count(*) FROM records WHERE num_prompt_tokens = 7"))

    (plan,) = plans(scan)
    assert "Seq Scan on records_2025_03" in plan
