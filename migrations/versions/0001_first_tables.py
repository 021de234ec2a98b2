"""Records, fingerprints, blocks, runs, decisions and snapshots; records and runs partitioned by time on Postgres.

Revision: 0001
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("decisions", "test_snapshots")
AUTO_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows itself only in INTEGER columns
RECORD_KEY = ("source", "source_partition", "source_offset", "timestamp_ms", "source_item")
PARTITIONED = ("records", "runs")
BY_TIME = {"postgresql_partition_by": "RANGE (timestamp_ms)"}
TIMES = ("queue_ms", "prefill_ms", "decode_ms", "draft_ms", "verify_ms", "other_ms")


def upgrade() -> None:
    op.create_table(
        "records",
        *_record_key(),
        sa.Column("counter", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("endpoint", sa.Text),
        sa.Column("slice_key", sa.Text),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("event_time", sa.DateTime(timezone=True)),
        sa.Column("session_hash", sa.Text),
        sa.Column("user_hash", sa.Text),
        sa.Column("request_id_hash", sa.Text),
        sa.Column("unit_key", sa.Text),
        sa.Column("session_position", sa.BigInteger),
        sa.Column("sampling_rate", sa.Double),
        sa.Column("num_prompt_tokens", sa.BigInteger),
        sa.PrimaryKeyConstraint(*RECORD_KEY, name="pk_records"),
        **BY_TIME,
    )
    op.create_index("ix_records_endpoint_event_time", "records", ["endpoint", "event_time"])
    op.create_table(
        "fingerprints",
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("draft", sa.Text),
        sa.Column("proposer", sa.Text, nullable=False),
        sa.Column("num_speculative_tokens", sa.BigInteger, nullable=False),
        sa.Column("verify_rule", sa.Text, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("ngram_min", sa.BigInteger, nullable=False),
        sa.Column("ngram_max", sa.BigInteger, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("dtype", sa.Text, nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_fingerprints"),
    )
    op.create_table(
        "blocks",
        sa.Column("block_id", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("concurrency", sa.BigInteger, nullable=False),
        sa.Column("n_max", sa.BigInteger, nullable=False),
        sa.Column("first_arm", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("num_out_of_memory", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("block_id", name="pk_blocks"),
    )
    op.create_index("ix_blocks_endpoint_sequence", "blocks", ["endpoint", "sequence"])
    op.create_table(
        "block_memory",
        sa.Column("block_id", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("baseline_peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("speculative_peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("kv_bytes_per_token", sa.BigInteger, nullable=False),
        sa.Column("draft_weight_bytes", sa.BigInteger, nullable=False),
        sa.Column("draft_kv_bytes_per_token", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("block_id", "fingerprint", name="pk_block_memory"),
    )
    op.create_table(
        "runs",
        *_record_key(),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("block_id", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("concurrency", sa.BigInteger, nullable=False),
        sa.Column("event_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sampling_rate", sa.Double),
        sa.Column("failure", sa.Text),
        sa.Column("num_drafts", sa.BigInteger),
        sa.Column("num_draft_tokens", sa.BigInteger),
        sa.Column("num_accepted_tokens", sa.BigInteger),
        sa.Column("num_accepted_tokens_per_pos", sa.JSON),
        sa.Column("acceptance_histogram", sa.JSON),
        sa.Column("num_output_tokens", sa.BigInteger),
        sa.Column("num_prompt_tokens", sa.BigInteger),
        sa.Column("num_plain_steps", sa.BigInteger),
        sa.Column("num_cut_steps", sa.BigInteger),
        sa.Column("num_cut_draft_tokens", sa.BigInteger),
        sa.Column("num_cut_accepted_tokens", sa.BigInteger),
        *(sa.Column(f"baseline_{name}", sa.Double) for name in TIMES),
        sa.Column("baseline_num_output_tokens", sa.BigInteger),
        *(sa.Column(f"speculative_{name}", sa.Double) for name in TIMES),
        sa.Column("speculative_num_output_tokens", sa.BigInteger),
        sa.Column("has_parity", sa.Boolean, nullable=False),
        sa.Column("first_divergence", sa.BigInteger),
        sa.Column("divergence_gap", sa.Double),
        sa.Column("rerun_differs", sa.Boolean),
        sa.Column("z_sum", sa.Double),
        sa.Column("z_tokens", sa.BigInteger),
        sa.Column("baseline_z_sum", sa.Double),
        sa.Column("baseline_z_tokens", sa.BigInteger),
        sa.Column("is_repetition_loop", sa.Boolean, nullable=False),
        sa.Column("finish_reason", sa.Text),
        sa.PrimaryKeyConstraint(*RECORD_KEY, "fingerprint", name="pk_runs"),
        **BY_TIME,
    )
    op.create_index("ix_runs_endpoint_event_time", "runs", ["endpoint", "event_time"])
    op.create_table(
        "decisions",
        sa.Column("decision_id", AUTO_KEY, autoincrement=True, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("concurrency", sa.BigInteger, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("reason_code", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("num_clusters", sa.BigInteger, nullable=False),
        sa.Column("num_blocks", sa.BigInteger, nullable=False),
        sa.Column("clusters_needed", sa.BigInteger),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("decision_id", name="pk_decisions"),
        _refers("decisions", "fingerprints", "fingerprint"),
    )
    op.create_index(
        "ix_decisions_hypothesis",
        "decisions",
        ["endpoint", "slice_key", "concurrency", "fingerprint", "decision_id"],
    )
    op.create_table(
        "test_snapshots",
        sa.Column("decision_id", AUTO_KEY, autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("estimate", sa.Double),
        sa.Column("lower", sa.Double),
        sa.Column("upper", sa.Double),
        sa.Column("threshold", sa.Double),
        sa.Column("alpha", sa.Double, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("num_units", sa.BigInteger, nullable=False),
        sa.Column("min_units", sa.BigInteger, nullable=False),
        sa.Column("units_needed", sa.BigInteger),
        sa.Column("details", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("decision_id", "position", name="pk_test_snapshots"),
        _refers("test_snapshots", "decisions", "decision_id"),
    )
    _forbid_changes()
    if op.get_bind().dialect.name == "postgresql":
        _partition()


def downgrade() -> None:
    for table in ("test_snapshots", "decisions", "runs", "block_memory", "blocks", "fingerprints", "records"):
        op.drop_table(table)  # its partitions, indexes and triggers go with it
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION shadowspec_refuse_change()")
        op.execute("DROP FUNCTION shadowspec_create_partition(text, date)")


def _record_key() -> list[sa.Column[Any]]:
    integers = [sa.Column(name, sa.BigInteger, autoincrement=False, nullable=False) for name in RECORD_KEY[1:]]
    return [sa.Column("source", sa.Text, nullable=False), *integers]


def _refers(table: str, to: str, *columns: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(columns, [f"{to}.{name}" for name in columns], name=f"fk_{table}_{to}")


def _forbid_changes() -> None:
    """The database itself refuses to change or delete decisions."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            """
            CREATE FUNCTION shadowspec_refuse_change() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$
            """
        )
        for table in APPEND_ONLY:
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION shadowspec_refuse_change()"
            )
        return
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def _partition() -> None:
    """One partition for rows without a time (files have 0), a default one, and months created on demand.

    The function runs as the tables' owner, so that a writer without rights on the schema can have its months.
    It attaches a filled table instead of creating one in place: attaching locks the default partition, not
    the table itself, so that other writers continue.  It moves the month's rows out of the default partition, where
    they went before the month could be made.  It waits for locks for half a second at most.
    """
    for table in PARTITIONED:
        op.execute(f"CREATE TABLE {table}_timeless PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO (1)")
        op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema())"))
    op.execute(
        f"""
        CREATE FUNCTION shadowspec_create_partition(parent text, month date) RETURNS boolean
        LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = {schema}, pg_temp SET lock_timeout = '500ms' SET timezone = 'UTC' AS
        $$
        DECLARE
            child text := parent || to_char(month, '_YYYY_MM');
            lowest bigint := 1000 * extract(epoch FROM month::timestamptz);
            highest bigint := 1000 * extract(epoch FROM (month + interval '1 month')::timestamptz);
        BEGIN
            IF parent NOT IN ({", ".join(f"'{table}'" for table in PARTITIONED)})
                OR extract(day FROM month) <> 1 OR month < '2020-01-01' OR month > now() + interval '40 days' THEN
                RAISE EXCEPTION 'no partition may be made for this table or month';
            END IF;
            PERFORM pg_advisory_xact_lock(hashtext('shadowspec_create_partition'));
            IF to_regclass(child) IS NOT NULL THEN
                RETURN false;
            END IF;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING INDEXES)', child, parent);
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', parent || '_default');
            EXECUTE format(
                'WITH moved AS (DELETE FROM %I WHERE timestamp_ms >= %s AND timestamp_ms < %s RETURNING *) '
                'INSERT INTO %I SELECT * FROM moved', parent || '_default', lowest, highest, child);
            EXECUTE format(
                'ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', parent, child, lowest, highest);
            RETURN true;
        END
        $$
        """  # noqa: S608 - our names
    )
    op.execute("REVOKE EXECUTE ON FUNCTION shadowspec_create_partition(text, date) FROM PUBLIC")
