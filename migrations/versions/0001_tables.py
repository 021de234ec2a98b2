"""Every table, index, trigger and function; records and runs are partitioned by time on Postgres.

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

PARTITIONED = ("records", "runs")
BY_TIME = {"postgresql_partition_by": "RANGE (timestamp_ms)"}
APPEND_ONLY = ("decisions", "test_snapshots", "folds", "overrides", "override_clearings", "rollouts")
TABLES = (  # in an order in which they may be made
    *("records", "runs", "blocks", "block_memory", "rollups", "rollup_positions", "rollup_bins", "rollup_failures"),
    *("ledger", "funnel_counts", "attempts", "fingerprints", "decisions", "test_snapshots", "overrides"),
    *("override_clearings", "rollouts", "folds", "evidence_endpoints", "evidence_cursors", "evidence"),
    *("evidence_keys", "evidence_blocks", "replay_configs", "replays", "audits", "audit_states", "backfill_blocks"),
    *("cost_surfaces", "evaluations", "schedule_periods", "report_deliveries", "live_replicas", "live_windows"),
    "live_hours",
)

RECORD_KEY = ("source", "source_partition", "source_offset", "timestamp_ms", "source_item")
HYPOTHESIS = ("endpoint", "slice_key", "concurrency", "fingerprint")
TIMES = ("queue_ms", "prefill_ms", "decode_ms", "draft_ms", "verify_ms", "other_ms")
LIVE_COUNTS = (
    *("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens", "num_requests"),
    *("num_failed_requests", "num_prompt_tokens", "num_cached_tokens"),
)


def upgrade() -> None:
    _make_fingerprints()
    _make_records_and_runs()
    _make_rollups()
    _make_ledger()
    _make_decisions()
    _make_overrides_and_rollouts()
    _make_evidence()
    _make_replays_and_audits()
    _make_costs_and_evaluations()
    _make_schedules()
    _make_live()
    if op.get_bind().dialect.name == "postgresql":
        _arrange_postgres()
    else:
        _forbid_changes_in_sqlite()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)  # its partitions, indexes and triggers go with it
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION shadowspec_refuse_change()")
        op.execute("DROP FUNCTION shadowspec_create_partition(text, date)")


def _make_fingerprints() -> None:
    op.create_table(
        "fingerprints",
        *_texts("fingerprint", "name", "target"),
        *_texts("draft", nullable=True),
        *_texts("proposer"),
        *_integers("num_speculative_tokens"),
        *_texts("verify_rule", "backend"),
        *_integers("ngram_min", "ngram_max", "suffix_decoding_max_tree_depth", "suffix_memory_tokens"),
        *_reals("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "draft_confidence_threshold"),
        *_texts("speculative_config", nullable=True),
        *_texts("ngram_occurrence", "draft_sampling"),
        *_booleans("drafts_within_limit"),
        *_texts("engine", "device", "dtype"),
        *_documents("details"),
        _key("fingerprints", "fingerprint"),
    )


def _make_records_and_runs() -> None:
    op.create_table(
        "records",
        *_record_key(),
        *_texts("counter"),
        *_texts("reason", "endpoint", "slice_key", nullable=True),
        *_documents("labels"),
        *_times("event_time", nullable=True),
        *_texts("session_hash", "user_hash", "request_id_hash", "unit_key", nullable=True),
        *_integers("session_position", nullable=True),
        *_reals("sampling_rate", nullable=True),
        *_integers("num_prompt_tokens", nullable=True),
        *_booleans("is_thinned", nullable=True),
        *_integers("num_cached_tokens", "num_served_tokens", nullable=True),
        _key("records", *RECORD_KEY),
        **BY_TIME,
    )
    op.create_index("ix_records_endpoint_event_time", "records", ["endpoint", "event_time"])
    op.create_table(
        "blocks",
        *_texts("block_id"),
        *_integers("sequence"),
        *_texts("endpoint", "slice_key"),
        *_integers("concurrency", "n_max"),
        *_texts("first_arm"),
        *_times("started_at"),
        *_integers("num_out_of_memory"),
        *_integers("num_runs"),
        *_integers("max_turns", nullable=True),
        _key("blocks", "block_id"),
    )
    op.create_index("ix_blocks_endpoint_sequence", "blocks", ["endpoint", "sequence"])
    op.create_table(
        "block_memory",
        *_texts("block_id", "fingerprint"),
        *_integers("baseline_peak_bytes", "speculative_peak_bytes", "kv_bytes_per_token", nullable=True),
        *_integers("draft_weight_bytes", "draft_kv_bytes_per_token", nullable=True),
        *_texts("source"),
        *_reals("kv_tokens_per_request", nullable=True),
        *_integers("baseline_kv_tokens", "speculative_kv_tokens", nullable=True),
        *_reals("baseline_kv_requests", "speculative_kv_requests", nullable=True),
        _key("block_memory", "block_id", "fingerprint"),
    )
    op.create_table(
        "runs",
        *_record_key(),
        *_texts("fingerprint", "block_id", "endpoint", "slice_key"),
        *_integers("concurrency"),
        *_times("event_time"),
        *_reals("sampling_rate", nullable=True),
        *_texts("failure", nullable=True),
        *_integers("num_drafts", "num_draft_tokens", "num_accepted_tokens", nullable=True),
        *_documents("num_accepted_tokens_per_pos", "acceptance_histogram", nullable=True),
        *_integers("num_output_tokens", "num_prompt_tokens", "num_plain_steps", "num_cut_steps", nullable=True),
        *_integers("num_cut_draft_tokens", "num_cut_accepted_tokens", nullable=True),
        *_reals(*(f"baseline_{name}" for name in TIMES), nullable=True),
        *_integers("baseline_num_output_tokens", nullable=True),
        *_reals(*(f"speculative_{name}" for name in TIMES), nullable=True),
        *_integers("speculative_num_output_tokens", nullable=True),
        *_booleans("has_parity"),
        *_integers("first_divergence", nullable=True),
        *_reals("divergence_gap", nullable=True),
        *_booleans("rerun_differs", nullable=True),
        *_reals("z_sum", nullable=True),
        *_integers("z_tokens", nullable=True),
        *_reals("baseline_z_sum", nullable=True),
        *_integers("baseline_z_tokens", nullable=True),
        *_booleans("is_repetition_loop"),
        *_texts("finish_reason", nullable=True),
        *_documents("scores", nullable=True),
        *_booleans("is_early_rejection", "is_beyond_draft_context", nullable=True),
        *_texts("contract", nullable=True),
        *_integers("baseline_validity", "speculative_validity", nullable=True),
        *_texts("intervention", nullable=True),
        *_reals("baseline_concurrency", "speculative_concurrency", nullable=True),
        *_texts("counts_source", nullable=True),
        *_integers("baseline_cached_tokens", "speculative_cached_tokens", "num_retries", nullable=True),
        *_reals("z_error", "baseline_longest_gap_ms", "speculative_longest_gap_ms", nullable=True),
        _key("runs", *RECORD_KEY, "fingerprint"),
        **BY_TIME,
    )
    op.create_index("ix_runs_endpoint_event_time", "runs", ["endpoint", "event_time"])


def _make_rollups() -> None:
    """Sums over runs."""
    op.create_table(
        "rollups",
        _number("rollup_id"),
        *_texts("endpoint", "slice_key", "fingerprint"),
        *_integers("concurrency"),
        *_times("hour"),
        *_integers("num_runs", "num_failed", "num_timed", "num_repetition_loops"),
        *_integers("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens", "num_prompt_tokens"),
        *_integers("num_plain_steps", "num_cut_steps", "num_cut_draft_tokens", "num_cut_accepted_tokens"),
        *_integers("baseline_num_output_tokens", "speculative_num_output_tokens"),
        *_reals("baseline_queue_ms", "baseline_prefill_ms", "baseline_decode_ms"),
        *_reals("speculative_queue_ms", "speculative_prefill_ms", "speculative_decode_ms"),
        *_reals("speculative_draft_ms", "speculative_verify_ms", "speculative_other_ms"),
        *_reals("baseline_end_to_end_ms_squares", "speculative_end_to_end_ms_squares"),
        *_reals("log_speedup", "log_speedup_squares"),
        *_reals("weight", "weight_squares", "weighted_drafts", "weighted_draft_tokens", "weighted_accepted_tokens"),
        *_reals("weighted_first_accepted_tokens", "timed_weight", "weighted_log_speedup"),
        *_reals("weighted_baseline_end_to_end_ms", "weighted_speculative_end_to_end_ms"),
        *_integers("num_with_concurrency"),
        *_reals("baseline_concurrency", "speculative_concurrency"),
        *_integers("num_cached_prompt_tokens", "baseline_cached_tokens", "speculative_cached_tokens"),
        _key("rollups", "rollup_id"),
        sa.UniqueConstraint("endpoint", "hour", "slice_key", "fingerprint", "concurrency", name="uq_rollups"),
    )
    # Each key's newest hour is found without a read of its other hours.
    op.create_index("ix_rollups_key", "rollups", ["endpoint", "slice_key", "fingerprint", "concurrency", "hour"])
    op.create_table(
        "rollup_positions",
        *_integers("rollup_id", "position", "num_accepted_tokens", "num_steps"),
        _key("rollup_positions", "rollup_id", "position"),
    )
    op.create_table(
        "rollup_bins",
        *_integers("rollup_id"),
        *_texts("metric"),
        *_integers("bin", "num_runs"),
        *_reals("weight"),
        _key("rollup_bins", "rollup_id", "metric", "bin"),
    )
    op.create_table(
        "rollup_failures",
        *_integers("rollup_id"),
        *_texts("name"),
        *_integers("total"),
        _key("rollup_failures", "rollup_id", "name"),
    )


def _make_ledger() -> None:
    """The place of each consumer, with its funnel."""
    op.create_table(
        "ledger",
        *_texts("consumer", "source"),
        *_integers("source_partition", "next_offset", "num_messages", "num_records"),
        *_times("watermark", nullable=True),
        *_booleans("is_behind", "is_ended"),
        *_integers("resume_offset", nullable=True),
        *_integers("first_offset"),
        *_times("moved_at", nullable=True),
        _key("ledger", "consumer", "source", "source_partition"),
    )
    op.create_table(
        "funnel_counts",
        *_texts("consumer", "source"),
        *_integers("source_partition"),
        *_texts("endpoint", "counter", "reason"),
        *_integers("num_records"),
        _key("funnel_counts", "consumer", "source", "source_partition", "endpoint", "counter", "reason"),
    )
    op.create_index("ix_funnel_counts_endpoint", "funnel_counts", ["endpoint"])
    op.create_table("attempts", *_record_key(), *_integers("num_attempts"), _key("attempts", *RECORD_KEY))


def _make_decisions() -> None:
    op.create_table(
        "decisions",
        _number("decision_id"),
        *_texts("endpoint", "slice_key"),
        *_integers("concurrency"),
        *_texts("fingerprint", "verdict", "reason_code", "reason"),
        *_integers("num_clusters", "num_blocks"),
        *_integers("clusters_needed", nullable=True),
        *_times("decided_at"),
        *_documents("document"),
        *_integers("fold_id", nullable=True),
        _key("decisions", "decision_id"),
        _reference("decisions", "fingerprints", "fingerprint"),
    )
    op.create_index("ix_decisions_hypothesis", "decisions", [*HYPOTHESIS, "decision_id"])
    op.create_index("ix_decisions_moment", "decisions", [*HYPOTHESIS, "decided_at", "decision_id"])
    op.create_index("ix_decisions_decided_at", "decisions", ["decided_at"])
    op.create_table(
        "test_snapshots",
        _number("decision_id", autoincrement=False),
        *_integers("position"),
        *_texts("name", "outcome"),
        *_reals("estimate", "lower", "upper", "threshold", nullable=True),
        *_reals("alpha"),
        *_texts("unit"),
        *_integers("num_units", "min_units"),
        *_integers("units_needed", nullable=True),
        *_documents("document"),
        _key("test_snapshots", "decision_id", "position"),
        _reference("test_snapshots", "decisions", "decision_id"),
    )


def _make_overrides_and_rollouts() -> None:
    op.create_table(
        "overrides",
        _number("override_id"),
        *_texts("endpoint", "slice_key"),
        *_integers("concurrency", nullable=True),
        *_texts("verdict", "reason", "author"),
        *_times("created_at"),
        *_times("expires_at", nullable=True),
        _key("overrides", "override_id"),
        sa.CheckConstraint("verdict IN ('DISABLE', 'HOLD')", name="ck_overrides_verdict"),  # ENABLE is never forced
    )
    op.create_index("ix_overrides_endpoint", "overrides", ["endpoint"])
    op.create_table(
        "override_clearings",
        *_integers("override_id"),  # one clearing ends it
        *_texts("reason", "author"),
        *_times("cleared_at"),
        _key("override_clearings", "override_id"),
        _reference("override_clearings", "overrides", "override_id"),
    )
    op.create_table(
        "rollouts",
        _number("rollout_id"),
        *_texts("endpoint"),
        *_integers("concurrency"),
        *_texts("stage"),
        *_texts("fingerprint", nullable=True),
        *_times("since", "decided_at"),
        *_texts("reason_code", "reason"),
        *_integers("num_blocks"),
        *_documents("alarms"),
        *_times("depth_since", nullable=True),
        *_documents("depth_caps"),
        *_reals("share"),
        _key("rollouts", "rollout_id"),
        _reference("rollouts", "fingerprints", "fingerprint"),
    )
    op.create_index("ix_rollouts_endpoint", "rollouts", ["endpoint", "concurrency", "rollout_id"])


def _make_evidence() -> None:
    """The input of each look, and the evidence between looks."""
    op.create_table(
        "folds",
        _number("fold_id"),
        *_texts("endpoint"),
        *_documents("spans"),
        *_times("closed_by", nullable=True),
        *_integers("num_records", "num_runs"),
        *_documents("parameters"),
        *_documents("begins", nullable=True),
        *_times("folded_at"),
        _key("folds", "fold_id"),
    )
    op.create_index("ix_folds_endpoint_fold_id", "folds", ["endpoint", "fold_id"])
    op.create_table(
        "evidence_endpoints",
        *_texts("endpoint"),
        *_integers("fold_id"),
        *_documents("document"),
        _key("evidence_endpoints", "endpoint"),
    )
    op.create_table(
        "evidence_cursors",
        *_texts("endpoint", "source"),
        *_integers("source_partition", "start_offset", "folded_offset"),
        _key("evidence_cursors", "endpoint", "source", "source_partition", "start_offset"),
    )
    op.create_table(
        "evidence",
        *_texts("endpoint", "slice_key"),
        *_integers("concurrency"),
        *_texts("fingerprint"),
        sa.Column("content", sa.LargeBinary, nullable=False),
        _key("evidence", *HYPOTHESIS),
    )
    op.create_table(
        "evidence_keys",
        *_texts("endpoint", "clustering", "slice_key", "key"),
        *_documents("arrivals"),
        *_times("reopens_at", "first_event", "closes_at", nullable=True),
        *_booleans("is_full"),
        _key("evidence_keys", "endpoint", "clustering", "slice_key", "key"),
    )
    # Partial: a search for one key cannot take them in place of the primary key, whatever the statistics say.
    for name, column, where in (("waiting", "first_event", "NOT NULL"), ("reopening", "reopens_at", "NULL")):
        rows = sa.text(f"first_event IS {where}")
        columns = ["endpoint", "clustering", column]
        op.create_index(f"ix_evidence_keys_{name}", "evidence_keys", columns, postgresql_where=rows, sqlite_where=rows)
    op.create_table(
        "evidence_blocks",
        *_texts("endpoint", "block_id"),
        *_documents("runs"),
        _key("evidence_blocks", "endpoint", "block_id"),
    )


def _make_replays_and_audits() -> None:
    op.create_table(
        "replay_configs",
        *_texts("fingerprint"),
        *_documents("config"),
        *_texts("engine", "device", "dtype"),
        *_documents("details"),
        _key("replay_configs", "fingerprint"),
    )
    op.create_table(
        "replays",
        *_record_key(),
        *_texts("fingerprint", "endpoint", "slice_key", "unit_key"),
        *_times("event_time"),
        *_integers("num_speculative_tokens"),
        *_reals("num_drafts", "num_draft_tokens", "num_accepted_tokens"),
        *_documents("num_accepted_tokens_per_pos", "acceptance_histogram"),
        *_integers("num_output_tokens", "num_prompt_tokens"),
        *_reals("num_plain_steps", "num_cut_steps", "num_cut_draft_tokens"),
        *_reals("drafts_variance", "accepted_variance", "drafts_accepted_covariance"),
        _key("replays", *RECORD_KEY, "fingerprint"),
    )
    op.create_index("ix_replays_endpoint_event_time", "replays", ["endpoint", "event_time"])
    op.create_table(
        "audits",
        *_record_key(),
        *_texts("fingerprint", "endpoint", "slice_key"),
        *_times("event_time"),
        *_integers("num_output_tokens", "num_accepted_tokens"),
        *_reals("expected_accepted_tokens", nullable=True),
        *_booleans("is_folded"),
        *_reals("tolerance"),
        _key("audits", *RECORD_KEY, "fingerprint"),
    )
    op.create_index("ix_audits_endpoint_is_folded", "audits", ["endpoint", "is_folded"])
    op.create_table(
        "audit_states",
        *_texts("endpoint", "slice_key", "fingerprint"),
        *_documents("document"),
        _key("audit_states", "endpoint", "slice_key", "fingerprint"),
    )
    op.create_table(
        "backfill_blocks",
        *_texts("work", "source"),
        *_integers("number"),
        *_booleans("is_last"),
        *_integers("num_records", "num_replayed", "num_near_ties"),
        *_documents("funnel"),
        *_times("last_event", nullable=True),
        *_times("finished_at"),
        _key("backfill_blocks", "work", "source", "number"),
    )


def _make_costs_and_evaluations() -> None:
    op.create_table(
        "cost_surfaces",
        _number("surface_id"),
        *_texts("engine", "device", "dtype", "proposer", "target_weights", "draft_weights", "verify_rule"),
        *_booleans("is_greedy"),
        *_times("profiled_at"),
        *_documents("points"),
        _key("cost_surfaces", "surface_id"),
    )
    op.create_table(
        "evaluations",
        _number("evaluation_id"),
        *_texts("endpoint", "fingerprint", "task", "metric"),
        *_times("measured_at"),
        *_documents("documents"),
        _key("evaluations", "evaluation_id"),
        _reference("evaluations", "fingerprints", "fingerprint"),
    )
    op.create_index("ix_evaluations_endpoint", "evaluations", ["endpoint"])


def _make_schedules() -> None:
    """The periods of each job, and the deliveries to each receiver."""
    op.create_table(
        "schedule_periods",
        *_texts("job"),
        *_times("due_at", "since"),
        *_times("until", nullable=True),
        *_texts("gate_outcome", nullable=True),
        _key("schedule_periods", "job", "due_at"),
    )
    op.create_table(
        "report_deliveries",
        *_texts("job"),
        *_times("due_at"),
        *_texts("receiver", "state"),
        *_integers("attempts"),
        *_texts("idempotency_key"),
        *_texts("message_id", nullable=True),
        *_times("next_attempt_at"),
        *_times("sent_at", nullable=True),
        *_texts("last_error", nullable=True),
        _key("report_deliveries", "job", "due_at", "receiver"),
        _reference("report_deliveries", "schedule_periods", "job", "due_at"),
    )
    op.create_index("ix_report_deliveries_receiver_state", "report_deliveries", ["receiver", "state"])


def _make_live() -> None:
    """Counts of production engines: each replica's newest scrape, the windows between scrapes, and their hours."""
    op.create_table(
        "live_replicas",
        *_texts("endpoint", "replica"),
        *_texts("series", nullable=True),
        *_times("scraped_at", "started_at", nullable=True),
        *_documents("counts", nullable=True),
        *_integers("num_failed"),
        *_times("failed_at", nullable=True),
        *_texts("error", nullable=True),
        _key("live_replicas", "endpoint", "replica"),
    )
    op.create_table(
        "live_windows",
        *_texts("endpoint", "replica"),
        *_times("ended_at", "began_at"),
        *_texts("series"),
        *_booleans("is_reset"),
        *_integers("num_failed_scrapes"),
        *_integers(*LIVE_COUNTS, nullable=True),
        *_documents("num_accepted_tokens_per_pos", "latencies"),
        *_integers("num_running", nullable=True),
        *_texts("pool"),
        _key("live_windows", "endpoint", "replica", "ended_at"),
    )
    op.create_index("ix_live_windows_endpoint_ended_at", "live_windows", ["endpoint", "ended_at"])
    op.create_table(
        "live_hours",
        *_texts("endpoint"),
        *_times("hour"),
        *_texts("replica", "series"),
        *_times("began_at", "ended_at"),
        *_times("drafted_at", nullable=True),
        *_integers("num_windows", "num_resets", "num_failed_scrapes"),
        *_integers(*LIVE_COUNTS, nullable=True),
        *_integers("requests_us", "output_tokens_us", "num_first_accepted_tokens", "num_first_drafts"),
        *_integers("num_known_accepted_tokens", "num_known_drafts"),
        *_documents("num_accepted_tokens_per_pos", "latencies"),
        *_documents("running", nullable=True),
        *_texts("pool"),
        _key("live_hours", "endpoint", "hour", "replica", "series"),
    )


def _arrange_postgres() -> None:
    """Refuse changes of what is append-only, make the first partitions, and store sums uncompressed."""
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
    op.execute("ALTER TABLE evidence ALTER COLUMN content SET STORAGE EXTERNAL")  # doubles do not compress
    for table in PARTITIONED:  # one partition for rows without a time (files have 0), and a default one
        op.execute(f"CREATE TABLE {table}_timeless PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO (1)")
        op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")
    _make_partition_function()


def _make_partition_function() -> None:
    """A function that creates a month's partition on demand.

    It runs as the tables' owner, so that a writer without rights on the schema can have its months.  It attaches a
    filled table instead of creating one in place: attaching locks the default partition, not the table itself, so that
    other writers continue.  It moves the month's rows out of the default partition, where they went before the month
    could be made.  It waits for locks for half a second at most.
    """
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


def _forbid_changes_in_sqlite() -> None:
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def _record_key() -> list[sa.Column[Any]]:
    """Natural, with its time: a unique key of a table partitioned by time must hold it."""
    return [*_texts("source"), *_integers(*RECORD_KEY[1:])]


def _number(name: str, *, autoincrement: bool = True) -> sa.Column[Any]:
    """A key that the database counts, or one that refers to it; SQLite counts in INTEGER columns alone."""
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column(name, kind, autoincrement=autoincrement, nullable=False)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _reference(table: str, to: str, *columns: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(columns, [f"{to}.{name}" for name in columns], name=f"fk_{table}_{to}")


def _texts(*names: str, **options: Any) -> list[sa.Column[Any]]:
    return _columns(sa.Text, names, options)


def _integers(*names: str, **options: Any) -> list[sa.Column[Any]]:
    return _columns(sa.BigInteger, names, {"autoincrement": False} | options)


def _reals(*names: str, **options: Any) -> list[sa.Column[Any]]:
    return _columns(sa.Double, names, options)


def _booleans(*names: str, **options: Any) -> list[sa.Column[Any]]:
    return _columns(sa.Boolean, names, options)


def _times(*names: str, **options: Any) -> list[sa.Column[Any]]:
    return _columns(sa.DateTime(timezone=True), names, options)


def _documents(*names: str, **options: Any) -> list[sa.Column[Any]]:
    return _columns(sa.JSON, names, options)


def _columns(kind: Any, names: tuple[str, ...], options: dict[str, Any]) -> list[sa.Column[Any]]:
    """Columns of one type, required unless `nullable`."""
    return [sa.Column(name, kind, **({"nullable": False} | options)) for name in names]
