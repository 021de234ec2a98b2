"""The tables, as the code reads and writes them; `migrations/` makes them and `check` compares the two.

Columns carry the names of the fields in `shadowspec.types`.  Counts are integers, per-position counts JSON
arrays on both dialects, and no ratio is stored.  A record's key is (source, source_partition, source_offset,
timestamp_ms): natural keys, because a unique key of a table partitioned by time must hold its time.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

from shadowspec.errors import StoreError


class UtcDateTime(TypeDecorator[datetime]):
    """An aware instant.  SQLite keeps no zone, so UTC goes in and is restored on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise StoreError("a time without a zone cannot be stored")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Real(TypeDecorator[float]):
    """A double; infinity is kept, NaN is refused: SQLite would turn it into NULL, and undefined is None."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        if value is not None and math.isnan(value):
            raise StoreError("NaN cannot be stored: an undefined figure is None")
        return value


AutoKey = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself in INTEGER columns only
Json = JSON(none_as_null=True)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

RECORD_KEY = ("source", "source_partition", "source_offset", "timestamp_ms")
RUN_KEY = (*RECORD_KEY, "fingerprint")


def _record_key() -> list[Column[Any]]:
    return [
        Column("source", Text, primary_key=True),
        *(Column(name, BigInteger, primary_key=True, autoincrement=False) for name in RECORD_KEY[1:]),
    ]


def _fingerprint(*, primary_key: bool = False) -> Column[Any]:
    return Column("fingerprint", Text, ForeignKey("fingerprints.fingerprint"), primary_key=primary_key, nullable=False)


def _integers(*names: str, nullable: bool = False) -> list[Column[Any]]:
    return [Column(name, BigInteger, nullable=nullable) for name in names]


def _reals(*names: str, nullable: bool = False) -> list[Column[Any]]:
    return [Column(name, Real, nullable=nullable) for name in names]


records = Table(
    "records",
    metadata,
    *_record_key(),
    Column("counter", Text, nullable=False),
    Column("reason", Text),
    Column("endpoint", Text),
    Column("slice_key", Text),
    Column("labels", Json, nullable=False),
    Column("event_time", UtcDateTime),
    Column("session_hash", Text),
    Column("user_hash", Text),
    Column("session_position", BigInteger),
    Column("sampling_rate", Real),
    Column("num_prompt_tokens", BigInteger),
    Index(None, "endpoint", "event_time"),
)

fingerprints = Table(
    "fingerprints",
    metadata,
    Column("fingerprint", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("draft", Text),
    Column("proposer", Text, nullable=False),
    Column("num_speculative_tokens", BigInteger, nullable=False),
    Column("verify_rule", Text, nullable=False),
    Column("backend", Text, nullable=False),
    *_integers("ngram_min", "ngram_max"),
    Column("engine", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("details", Json, nullable=False),
)

blocks = Table(
    "blocks",
    metadata,
    Column("block_id", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("slice_key", Text, nullable=False),
    *_integers("concurrency", "n_max"),
    Column("first_arm", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Index(None, "endpoint", "sequence"),
)

block_memory = Table(
    "block_memory",
    metadata,
    Column("block_id", Text, ForeignKey("blocks.block_id"), primary_key=True),
    _fingerprint(primary_key=True),
    *_integers(
        "baseline_peak_bytes",
        "speculative_peak_bytes",
        "kv_bytes_per_token",
        "draft_weight_bytes",
        "draft_kv_bytes_per_token",
    ),
    Column("source", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    *_record_key(),
    _fingerprint(primary_key=True),
    Column("block_id", Text, ForeignKey("blocks.block_id"), nullable=False),
    Column("failure", Text),
    *_integers("num_drafts", "num_draft_tokens", "num_accepted_tokens", nullable=True),
    Column("num_accepted_tokens_per_pos", Json),
    Column("acceptance_histogram", Json),
    *_integers("num_output_tokens", "num_prompt_tokens", "num_plain_steps", "num_cut_steps", nullable=True),
    *_integers("num_cut_draft_tokens", "num_cut_accepted_tokens", nullable=True),
    Column("has_parity", Boolean, nullable=False),
    Column("first_divergence", BigInteger),
    Column("divergence_gap", Real),
    Column("rerun_differs", Boolean),
    Column("z_sum", Real),
    Column("z_tokens", BigInteger),
    Column("baseline_z_sum", Real),
    Column("baseline_z_tokens", BigInteger),
    Column("is_repetition_loop", Boolean, nullable=False),
    Column("finish_reason", Text),
    ForeignKeyConstraint(RECORD_KEY, [f"records.{name}" for name in RECORD_KEY]),
    Index(None, "block_id"),
)

arms = Table(
    "arms",
    metadata,
    *_record_key(),
    Column("fingerprint", Text, primary_key=True),
    Column("arm", Text, primary_key=True),
    *_reals("queue_ms", "prefill_ms", "decode_ms", "draft_ms", "verify_ms", "other_ms"),
    Column("num_output_tokens", BigInteger, nullable=False),
    ForeignKeyConstraint(RUN_KEY, [f"runs.{name}" for name in RUN_KEY]),
)

decisions = Table(  # append-only: the database refuses UPDATE and DELETE
    "decisions",
    metadata,
    Column("decision_id", AutoKey, primary_key=True, autoincrement=True),
    Column("endpoint", Text, nullable=False),
    Column("slice_key", Text, nullable=False),
    Column("concurrency", BigInteger, nullable=False),
    _fingerprint(),
    Column("verdict", Text, nullable=False),
    Column("reason_code", Text, nullable=False),
    Column("reason", Text, nullable=False),
    *_integers("num_clusters", "num_blocks"),
    Column("clusters_needed", BigInteger),
    Column("decided_at", UtcDateTime, nullable=False),
    Column("details", Json, nullable=False),
    Index(None, "endpoint", "slice_key", "concurrency", "fingerprint"),
)

test_snapshots = Table(  # append-only, like the decisions that its rows belong to
    "test_snapshots",
    metadata,
    Column("decision_id", AutoKey, ForeignKey("decisions.decision_id"), primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    *_reals("estimate", "lower", "upper", "threshold", nullable=True),
    *_reals("alpha"),
    Column("unit", Text, nullable=False),
    *_integers("num_units", "min_units"),
    Column("units_needed", BigInteger),
    Column("details", Json, nullable=False),
)
