"""The rows that the benchmarks of the gate and of the store's scale measure over, made in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy
from sqlalchemy import text

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


# One row per request i: its place, its block i / 4 and that block's slice.
REQUESTS = """
    SELECT i, (i % :partitions)::bigint AS partition, (i / :partitions)::bigint AS place,
           md5(:endpoint || i / 4) || md5(:endpoint || i / 4) AS block_id,
           'prompt_class=s' || lpad(((i / 4) % :slices)::text, greatest(3, length(((i / 4) % :slices)::text)), '0')
               AS slice_key,
           timestamptz '2026-01-01 00:00:00+00' + i * (:step_us * interval '1 microsecond') AS at,
           sin(i * 12.9898) * 43758.5453 - floor(sin(i * 12.9898) * 43758.5453) AS u,
           sin(i * 78.233) * 12543.123 - floor(sin(i * 78.233) * 12543.123) AS v
    FROM generate_series(cast(:first AS bigint), cast(:last AS bigint)) AS i
"""
STATEMENTS = (
    """
    INSERT INTO records (source, source_partition, source_offset, timestamp_ms, source_item, counter, endpoint,
        slice_key, labels, event_time, session_hash, unit_key, session_position, sampling_rate, num_prompt_tokens)
    SELECT :source, partition, place, (1000 * extract(epoch FROM at))::bigint, 0, 'measured', :endpoint, slice_key,
        '{"sampling_regime":"greedy"}', at, md5(i::text), 'session:' || md5(i::text), 1, 0.1, 200
    FROM requests
    """,
    """
    INSERT INTO blocks (block_id, sequence, endpoint, slice_key, concurrency, n_max, first_arm, started_at,
        num_out_of_memory, num_runs)
    SELECT block_id, i / 4, :endpoint, slice_key, 4, 4, 'baseline', at, 0, 4 FROM requests WHERE i % 4 = 3
    """,
    """
    INSERT INTO block_memory (block_id, fingerprint, baseline_peak_bytes, speculative_peak_bytes, kv_bytes_per_token,
        draft_weight_bytes, draft_kv_bytes_per_token, source)
    SELECT block_id, :fingerprint, 1000000000, 1100000000, 100000, 100000000, 10000, 'accounted'
    FROM requests WHERE i % 4 = 3
    """,
    """
    INSERT INTO runs (source, source_partition, source_offset, timestamp_ms, source_item, fingerprint, block_id,
        endpoint, slice_key, concurrency, event_time, sampling_rate, num_drafts, num_draft_tokens, num_accepted_tokens,
        num_accepted_tokens_per_pos, acceptance_histogram, num_output_tokens, num_prompt_tokens, num_plain_steps,
        num_cut_steps, num_cut_draft_tokens, num_cut_accepted_tokens,
        baseline_queue_ms, baseline_prefill_ms, baseline_decode_ms, baseline_draft_ms, baseline_verify_ms,
        baseline_other_ms, baseline_num_output_tokens,
        speculative_queue_ms, speculative_prefill_ms, speculative_decode_ms, speculative_draft_ms,
        speculative_verify_ms, speculative_other_ms, speculative_num_output_tokens,
        has_parity, is_repetition_loop, finish_reason)
    SELECT :source, partition, place, (1000 * extract(epoch FROM at))::bigint, 0, :fingerprint, block_id, :endpoint,
        slice_key, 4, at, 0.1, 30, 30, 10 + (20 * u)::bigint,
        json_build_array(10 + (20 * u)::bigint), json_build_array(20 - (20 * u)::bigint, 10 + (20 * u)::bigint),
        41 + (20 * u)::bigint, 200, 0, 0, 0, 0,
        1.5, 50, 950, 0, 0, 0, 60,
        1.5, 50, 950 * (0.65 + 0.3 * v), 100, 500, 50, 60,
        true, false, 'stop'
    FROM requests
    """,
)
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
    engine.dispose()
    move_ledger(url, traffic, last)


def vacuum(url: str, table: str = "") -> None:
    """Let the planner know the rows, of one table or of all."""
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"VACUUM ANALYZE {table}")
    engine.dispose()


def move_ledger(url: str, traffic: Traffic, last: int) -> None:
    """The consumer has finished the requests up to, but without, `last`."""
    watermark = START + (last - 1) * timedelta(microseconds=traffic.step_us)
    place = {"source": traffic.source, "endpoint": traffic.endpoint, "at": watermark}
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
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
    engine.dispose()


def fill_rollups(url: str, traffic: Traffic) -> None:
    """The hours of the stored runs, oldest first, with their numbers and weights; their other sums are 0."""
    summed = {"num_runs": "count(*)", "weight": "sum(1 / sampling_rate)"}
    key = ("endpoint", "slice_key", "fingerprint", "concurrency", "hour")
    others = [column.name for column in tables.rollups.columns if column.name not in (*key, "rollup_id")]
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(
            f"INSERT INTO rollups ({', '.join((*key, *others))}) "  # noqa: S608 - our names
            "SELECT endpoint, slice_key, fingerprint, concurrency, "
            f"date_trunc('hour', event_time), {', '.join(summed.get(name, '0') for name in others)} FROM runs "
            "WHERE endpoint = :endpoint "
            "GROUP BY endpoint, slice_key, fingerprint, concurrency, date_trunc('hour', event_time) ORDER BY 5"
        ), {"endpoint": traffic.endpoint})  # fmt: skip
    engine.dispose()
    vacuum(url, "rollups")


def is_filled(url: str, traffic: Traffic) -> bool:
    """Whether the endpoint's rows are stored, rollups last."""
    return bool(_scalar(url, traffic, "SELECT EXISTS (SELECT FROM rollups WHERE endpoint = :endpoint)"))


def num_folded(url: str, traffic: Traffic) -> int:
    """Runs in the endpoint's evidence."""
    return int(_scalar(url, traffic, "SELECT coalesce(sum(num_runs), 0) FROM folds WHERE endpoint = :endpoint"))


def _scalar(url: str, traffic: Traffic, statement: str) -> Any:
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        found = connection.scalar(text(statement), {"endpoint": traffic.endpoint})
    engine.dispose()
    return found


def make_months(url: str) -> None:
    """Make the months in which the rows lie."""
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        for month in ("2026-01-01", "2026-02-01", "2026-03-01"):
            for table in ("records", "runs"):
                connection.execute(text("SELECT shadowspec_create_partition(:t, :m)"), {"t": table, "m": month})
    engine.dispose()


@contextmanager
def kept_database(server: str, name: str) -> Iterator[str]:
    """The database of this name on a server; made if it is not there."""
    engine = sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if not connection.scalar(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": name}):
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    yield sqlalchemy.make_url(server).set(database=name).render_as_string(hide_password=False)
