"""The rows that the benchmarks of the gate and of the store's scale measure over, made in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import text

from kernels.benchmarks.harness import connected
from shadowspec.store import table_definitions as tables
from shadowspec.types import FingerprintedConfig, SpeculationConfig, VerifyRule

FINGERPRINT = "5f" * 32
CONFIG = FingerprintedConfig(
    SpeculationConfig("draft-4", "target", "draft", "draft_model", 1, VerifyRule.REJECTION),
    *("engine/1", "cuda", "bfloat16", {}, FINGERPRINT),
)
NUM_PARTITIONS = 6
BLOCK_SIZE = 4
START = datetime(2026, 1, 1, tzinfo=UTC)
SPAN = timedelta(days=60)  # of event time, whatever the number of runs


@dataclass(frozen=True)
class Traffic:
    """The requests of one endpoint: `num_runs` of them over `num_slices` slices, from a topic of its own."""

    num_runs: int
    num_slices: int
    endpoint: str = "chat"

    @property
    def source(self) -> str:
        """The topic's id."""
        return f"b1Jr0zqYQ5yq3VQd{self.endpoint:_>6}"

    @property
    def step_us(self) -> int:
        """Microseconds of event time from one request to the next."""
        return int(SPAN.total_seconds() * 1e6 / self.num_runs)


# The requests, one row each, and what is stored of them.
REQUESTS, *STATEMENTS = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").split(";\n")
ROWS_AT_ONCE = 250_000


def fill(url: str, traffic: Traffic, first: int, last: int) -> None:
    """Store the requests from `first` up to, but without, `last`, and move the ledger."""
    engine = sqlalchemy.create_engine(url)
    values: dict[str, Any] = {
        "source": traffic.source, "endpoint": traffic.endpoint, "fingerprint": FINGERPRINT,
        "partitions": NUM_PARTITIONS, "slices": traffic.num_slices, "step_us": traffic.step_us,
    }  # fmt: skip
    for start in range(first, last, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, last)
        with engine.begin() as connection:
            for statement in STATEMENTS:
                name = f"WITH requests AS ({REQUESTS}) {statement}"
                connection.execute(text(name), values | {"first": start, "last": stop - 1})
    move_ledger(url, traffic, last)


def vacuum(url: str, table: str = "") -> None:
    """Let the planner know the rows, of one table or of all."""
    with connected(url, isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"VACUUM ANALYZE {table}")


def move_ledger(url: str, traffic: Traffic, last: int) -> None:
    """The consumer has finished the requests up to, but without, `last`."""
    watermark = START + (last - 1) * timedelta(microseconds=traffic.step_us)
    place = {"source": traffic.source, "endpoint": traffic.endpoint, "at": watermark}
    with connected(url) as connection:
        for table in ("ledger", "funnel_counts"):
            connection.execute(text(f"DELETE FROM {table} WHERE source = :source"), place)  # noqa: S608 - our names
        for partition in range(NUM_PARTITIONS):
            place |= {"partition": partition, "next": -(-last // NUM_PARTITIONS)}
            connection.execute(text(
                "INSERT INTO ledger (consumer, source, source_partition, next_offset, num_messages, num_records, "
                "watermark, is_behind, is_ended, first_offset) "
                "VALUES ('group', :source, :partition, :next, :next, :next, :at, false, false, 0)"
            ), place)  # fmt: skip
            connection.execute(text(
                "INSERT INTO funnel_counts (consumer, source, source_partition, endpoint, counter, reason, "
                "num_records) VALUES ('group', :source, :partition, :endpoint, 'measured', '', :next)"
            ), place)  # fmt: skip


def fill_rollups(url: str, traffic: Traffic) -> None:
    """The hours of the stored runs, oldest first, with their numbers and weights; their other sums are 0."""
    summed = {"num_runs": "count(*)", "weight": "sum(1 / sampling_rate)"}
    key = ("endpoint", "slice_key", "fingerprint", "concurrency", "hour")
    others = [column.name for column in tables.rollups.columns if column.name not in (*key, "rollup_id")]
    with connected(url) as connection:
        connection.execute(text(
            f"INSERT INTO rollups ({', '.join((*key, *others))}) "  # noqa: S608 - our names
            "SELECT endpoint, slice_key, fingerprint, concurrency, "
            f"date_trunc('hour', event_time), {', '.join(summed.get(name, '0') for name in others)} FROM runs "
            "WHERE endpoint = :endpoint "
            "GROUP BY endpoint, slice_key, fingerprint, concurrency, date_trunc('hour', event_time) ORDER BY 5"
        ), {"endpoint": traffic.endpoint})  # fmt: skip
    vacuum(url, "rollups")


def is_filled(url: str, traffic: Traffic) -> bool:
    """Whether the endpoint's rows are stored, rollups last."""
    return bool(_scalar(url, traffic, "SELECT EXISTS (SELECT FROM rollups WHERE endpoint = :endpoint)"))


def num_folded(url: str, traffic: Traffic) -> int:
    """Runs in the endpoint's evidence."""
    return int(_scalar(url, traffic, "SELECT coalesce(sum(num_runs), 0) FROM folds WHERE endpoint = :endpoint"))


def _scalar(url: str, traffic: Traffic, statement: str) -> Any:
    with connected(url) as connection:
        return connection.scalar(text(statement), {"endpoint": traffic.endpoint})


def make_months(url: str) -> None:
    """Make the months in which the rows lie."""
    with connected(url) as connection:
        for month in ("2026-01-01", "2026-02-01", "2026-03-01"):
            for table in ("records", "runs"):
                connection.execute(text("SELECT shadowspec_create_partition(:t, :m)"), {"t": table, "m": month})


@contextmanager
def kept_database(server: str, name: str) -> Iterator[str]:
    """The database of this name on a server; made if it is not there."""
    with connected(server, isolation_level="AUTOCOMMIT") as connection:
        if not connection.scalar(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": name}):
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield sqlalchemy.make_url(server).set(database=name).render_as_string(hide_password=False)
