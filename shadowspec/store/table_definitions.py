"""The tables, as the code reads and writes them; `migrations/` makes them and `check` compares the two.

Columns carry the names of the fields in `shadowspec.types`.  Counts are integers, per-position counts JSON
arrays on both dialects, and no ratio is stored.  A record's key is (source, source_partition, source_offset,
timestamp_ms, source_item): natural keys, because a unique key of a table partitioned by time must hold its time.

`records` and `runs` are partitioned by `timestamp_ms` on Postgres (`shadowspec.store.admin.month_partitions`).
Neither they nor `block_memory` have foreign keys: at volume each would cost a look-up and a row lock per row, and
hinder the dropping of a partition.  Other code guarantees the same: a run is written in the transaction that writes its
record and its block, after a check that its config is known, and configs are never deleted.  Retention drops the
partitions of both tables together, and then the blocks without runs.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from shadowspec.store.column_types import (
    AutoKey,
    Json,
    Real,
    UtcDateTime,
    fingerprint_reference,
    integers,
    ledger_key,
    reals,
    record_key,
)
from shadowspec.types import COUNTS

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s",
    }
)

HYPOTHESIS = ("endpoint", "slice_key", "concurrency", "fingerprint")
TIMING_COLUMNS = ("queue_ms", "prefill_ms", "decode_ms", "draft_ms", "verify_ms", "other_ms")

records = Table(
    "records",
    metadata,
    *record_key(),
    Column("counter", Text, nullable=False),
    Column("reason", Text),
    Column("endpoint", Text),
    Column("slice_key", Text),
    Column("labels", Json, nullable=False),
    Column("event_time", UtcDateTime),
    Column("session_hash", Text),
    Column("user_hash", Text),
    Column("request_id_hash", Text),
    Column("unit_key", Text),
    Column("session_position", BigInteger),
    Column("sampling_rate", Real),
    Column("num_prompt_tokens", BigInteger),
    Column("is_thinned", Boolean),  # NULL: it counts for its whole endpoint
    *(Column(name, BigInteger) for name in ("num_cached_tokens", "num_served_tokens")),  # NULL: production does not say
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
    *integers("ngram_min", "ngram_max"),
    *integers("suffix_decoding_max_tree_depth", "suffix_memory_tokens"),
    *reals("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "draft_confidence_threshold"),
    Column("speculative_config", Text),  # canonical JSON; NULL: the engine drafts by the options above
    Column("ngram_occurrence", Text, nullable=False),
    Column("draft_sampling", Text, nullable=False),
    Column("drafts_within_limit", Boolean, nullable=False),
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
    *integers("concurrency", "n_max"),
    Column("first_arm", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    *integers("num_out_of_memory"),
    *integers("num_runs"),  # the block is complete once this many are known
    Column("max_turns", BigInteger),  # of its conversations; NULL: 1
    Column("stands_for", Real),  # blocks of the traffic that it represents; NULL: 1
    Column("seconds", Real),  # that it took, everything with it; NULL: not known
    Index(None, "endpoint", "sequence"),
)

block_memory = Table(
    "block_memory",
    metadata,
    Column("block_id", Text, primary_key=True),
    Column("fingerprint", Text, primary_key=True),
    *integers(
        "baseline_peak_bytes",
        "speculative_peak_bytes",
        "kv_bytes_per_token",
        "draft_weight_bytes",
        "draft_kv_bytes_per_token",
        nullable=True,  # where servers measured, that say no bytes
    ),
    Column("source", Text, nullable=False),
    *reals("kv_tokens_per_request", nullable=True),  # NULL where servers measured
    *integers("baseline_kv_tokens", "speculative_kv_tokens", nullable=True),  # these: NULL where no server measured
    *reals("baseline_kv_requests", "speculative_kv_requests", nullable=True),
)

runs = Table(  # one row per request and config, both arms in it; repeats columns of block and record for reads
    "runs",
    metadata,
    *record_key(),
    Column("fingerprint", Text, primary_key=True),
    Column("block_id", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("slice_key", Text, nullable=False),
    *integers("concurrency"),
    Column("event_time", UtcDateTime, nullable=False),  # the record's; where it has none, the start of the block
    Column("sampling_rate", Real),
    Column("failure", Text),
    *integers("num_drafts", "num_draft_tokens", "num_accepted_tokens", nullable=True),
    Column("num_accepted_tokens_per_pos", Json),
    Column("acceptance_histogram", Json),
    *integers("num_output_tokens", "num_prompt_tokens", "num_plain_steps", "num_cut_steps", nullable=True),
    *integers("num_cut_draft_tokens", "num_cut_accepted_tokens", nullable=True),
    *reals(*(f"baseline_{name}" for name in TIMING_COLUMNS), nullable=True),
    *integers("baseline_num_output_tokens", nullable=True),
    *reals(*(f"speculative_{name}" for name in TIMING_COLUMNS), nullable=True),
    *integers("speculative_num_output_tokens", nullable=True),
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
    Column("scores", Json),  # by name, of both arms; NULL where a run carries none
    Column("is_early_rejection", Boolean),  # this and the following: NULL where not defined
    Column("is_beyond_draft_context", Boolean),
    Column("contract", Text),
    *integers("baseline_validity", "speculative_validity", nullable=True),  # `Validity`
    Column("intervention", Text),
    *reals("baseline_concurrency", "speculative_concurrency", nullable=True),
    Column("counts_source", Text),  # this and the following: NULL where no server answered
    *integers("baseline_cached_tokens", "speculative_cached_tokens", "num_retries", nullable=True),
    *reals("z_error", nullable=True),  # NULL where z_sum is exact or not known
    *reals("baseline_longest_gap_ms", "speculative_longest_gap_ms", nullable=True),
    Column("baseline_ran_after", Text),  # `Arm`, as the next; NULL where it is not known
    Column("speculative_ran_after", Text),
    *reals("baseline_repeat_ms", nullable=True),  # NULL where the baseline ran once, or failed the second time
    Column("baseline_stream", Text),  # "whole" or a fault's code; this and the following: NULL of all but chats
    Column("speculative_stream", Text),
    Column("is_stream_fault", Boolean),
    *integers("baseline_thinking_tokens", "speculative_thinking_tokens", nullable=True),
    *reals("baseline_thinking_ms", "speculative_thinking_ms", nullable=True),
    *integers("num_thinking_drafts", "num_thinking_draft_tokens", "num_thinking_accepted_tokens", nullable=True),
    Index(None, "endpoint", "event_time"),
)

decisions = Table(  # append-only: the database refuses UPDATE and DELETE
    "decisions",
    metadata,
    Column("decision_id", AutoKey, primary_key=True, autoincrement=True),
    Column("endpoint", Text, nullable=False),
    Column("slice_key", Text, nullable=False),
    Column("concurrency", BigInteger, nullable=False),
    fingerprint_reference(),
    Column("verdict", Text, nullable=False),
    Column("reason_code", Text, nullable=False),
    Column("reason", Text, nullable=False),
    *integers("num_clusters", "num_blocks"),
    Column("clusters_needed", BigInteger),
    Column("decided_at", UtcDateTime, nullable=False),
    Column("document", Json, nullable=False),
    Column("fold_id", BigInteger),  # up to which evidence was folded
    Index("ix_decisions_hypothesis", *HYPOTHESIS, "decision_id"),
    Index("ix_decisions_moment", *HYPOTHESIS, "decided_at", "decision_id"),
    Index(None, "decided_at"),
)

test_snapshots = Table(  # append-only, like the decisions that its rows belong to
    "test_snapshots",
    metadata,
    Column("decision_id", AutoKey, ForeignKey("decisions.decision_id"), primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    *reals("estimate", "lower", "upper", "threshold", nullable=True),
    *reals("alpha"),
    Column("unit", Text, nullable=False),
    *integers("num_units", "min_units"),
    Column("units_needed", BigInteger),
    Column("document", Json, nullable=False),
)

overrides = Table(  # append-only: operators' orders
    "overrides",
    metadata,
    Column("override_id", AutoKey, primary_key=True, autoincrement=True),
    Column("endpoint", Text, nullable=False),
    Column("slice_key", Text, nullable=False),
    Column("concurrency", BigInteger),
    *(Column(name, Text, nullable=False) for name in ("verdict", "reason", "author")),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    CheckConstraint("verdict IN ('DISABLE', 'HOLD')", name="ck_overrides_verdict"),  # ENABLE is never forced
    Index(None, "endpoint"),
)

override_clearings = Table(  # append-only: an override is cleared once, or never
    "override_clearings",
    metadata,
    Column("override_id", BigInteger, ForeignKey("overrides.override_id"), primary_key=True, autoincrement=False),
    *(Column(name, Text, nullable=False) for name in ("reason", "author")),
    Column("cleared_at", UtcDateTime, nullable=False),
)

override_effects = Table(  # append-only: once that speculation is still on, and once that it is off
    "override_effects",
    metadata,
    Column("override_id", BigInteger, ForeignKey("overrides.override_id"), primary_key=True, autoincrement=False),
    Column("is_off", Boolean, primary_key=True),
    Column("observed_at", UtcDateTime, nullable=False),
    Column("reason", Text, nullable=False),
)

rollouts = Table(  # append-only: a row per change of stage or depth
    "rollouts",
    metadata,
    Column("rollout_id", AutoKey, primary_key=True, autoincrement=True),
    Column("endpoint", Text, nullable=False),
    Column("concurrency", BigInteger, nullable=False),
    Column("stage", Text, nullable=False),
    Column("fingerprint", Text, ForeignKey("fingerprints.fingerprint")),
    Column("since", UtcDateTime, nullable=False),
    Column("decided_at", UtcDateTime, nullable=False),
    Column("reason_code", Text, nullable=False),
    Column("reason", Text, nullable=False),
    *integers("num_blocks"),
    Column("alarms", Json, nullable=False),
    Column("depth_since", UtcDateTime),
    Column("depth_caps", Json, nullable=False),
    *reals("share"),
    Index("ix_rollouts_endpoint", "endpoint", "concurrency", "rollout_id"),
)

ledger = Table(  # the place of each consumer: decides which records are counted
    "ledger",
    metadata,
    *ledger_key(),
    *integers("next_offset", "num_messages", "num_records"),
    Column("watermark", UtcDateTime),
    Column("is_behind", Boolean, nullable=False),
    Column("is_ended", Boolean, nullable=False),
    Column("resume_offset", BigInteger),
    Column("first_offset", BigInteger, nullable=False),  # where the consumer began
    Column("moved_at", UtcDateTime),
)

funnel_counts = Table(  # per partition, so that workers never wait for each other's rows
    "funnel_counts",
    metadata,
    *ledger_key(),
    Column("endpoint", Text, primary_key=True),  # "" where none is known: a key holds no NULL
    Column("counter", Text, primary_key=True),
    Column("reason", Text, primary_key=True),  # "" for none
    *integers("num_records"),
    Index(None, "endpoint"),
)

attempts = Table(  # measurements of a single record, after one that killed the engine
    "attempts", metadata, *record_key(), *integers("num_attempts")
)

rollups = Table(  # sums over runs, which add up and outlive them
    "rollups",
    metadata,
    Column("rollup_id", AutoKey, primary_key=True, autoincrement=True),
    Column("endpoint", Text, nullable=False),
    Column("slice_key", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("concurrency", BigInteger, nullable=False),
    Column("hour", UtcDateTime, nullable=False),  # of event time
    *integers("num_runs", "num_failed", "num_timed", "num_repetition_loops"),
    *integers("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens", "num_prompt_tokens"),
    *integers("num_plain_steps", "num_cut_steps", "num_cut_draft_tokens", "num_cut_accepted_tokens"),
    *integers("baseline_num_output_tokens", "speculative_num_output_tokens"),
    *reals("baseline_queue_ms", "baseline_prefill_ms", "baseline_decode_ms"),
    *reals("speculative_queue_ms", "speculative_prefill_ms", "speculative_decode_ms"),
    *reals("speculative_draft_ms", "speculative_verify_ms", "speculative_other_ms"),
    *reals("baseline_end_to_end_ms_squares", "speculative_end_to_end_ms_squares"),
    *reals("log_speedup", "log_speedup_squares"),
    *reals("weight", "weight_squares", "weighted_drafts", "weighted_draft_tokens", "weighted_accepted_tokens"),
    *reals("weighted_first_accepted_tokens", "timed_weight", "weighted_log_speedup"),
    *reals("weighted_baseline_end_to_end_ms", "weighted_speculative_end_to_end_ms"),
    *integers("num_with_concurrency"),
    *reals("baseline_concurrency", "speculative_concurrency"),
    *integers("num_cached_prompt_tokens", "baseline_cached_tokens", "speculative_cached_tokens"),
    UniqueConstraint("endpoint", "hour", "slice_key", "fingerprint", "concurrency"),
    Index("ix_rollups_key", "endpoint", "slice_key", "fingerprint", "concurrency", "hour"),
)

rollup_positions = Table(  # changed only while its rollup's row is held
    "rollup_positions",
    metadata,
    Column("rollup_id", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    *integers("num_accepted_tokens", "num_steps"),
)

rollup_bins = Table(  # changed only while its rollup's row is held
    "rollup_bins",
    metadata,
    Column("rollup_id", BigInteger, primary_key=True, autoincrement=False),
    Column("metric", Text, primary_key=True),
    Column("bin", BigInteger, primary_key=True, autoincrement=False),
    *integers("num_runs"),
    *reals("weight"),
)

rollup_failures = Table(  # changed only while its rollup's row is held; a count that is not there is 0
    "rollup_failures",
    metadata,
    Column("rollup_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    *integers("total"),
)

folds = Table(  # append-only: the input of each step of a gate run
    "folds",
    metadata,
    Column("fold_id", AutoKey, primary_key=True, autoincrement=True),
    Column("endpoint", Text, nullable=False),
    Column("spans", Json, nullable=False),
    Column("closed_by", UtcDateTime),
    *integers("num_records", "num_runs"),
    Column("parameters", Json, nullable=False),
    Column("begins", Json),
    Column("folded_at", UtcDateTime, nullable=False),
    Index(None, "endpoint", "fold_id"),
)

evidence_endpoints = Table(  # how far an endpoint's evidence has come
    "evidence_endpoints",
    metadata,
    Column("endpoint", Text, primary_key=True),
    *integers("fold_id"),
    Column("document", Json, nullable=False),
)

evidence_cursors = Table(  # the ranges of offsets that are folded
    "evidence_cursors",
    metadata,
    Column("endpoint", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("source_partition", BigInteger, primary_key=True, autoincrement=False),
    Column("start_offset", BigInteger, primary_key=True, autoincrement=False),
    *integers("folded_offset"),  # everything from the start up to, but without, this
)

evidence = Table(  # the sums of each hypothesis's units
    "evidence",
    metadata,
    Column("endpoint", Text, primary_key=True),
    Column("slice_key", Text, primary_key=True),
    Column("concurrency", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", Text, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

evidence_keys = Table(  # clusters that are open, or in evidence but not to be opened again yet
    "evidence_keys",
    metadata,
    Column("endpoint", Text, primary_key=True),
    Column("clustering", Text, primary_key=True),  # a digest of its parameters
    Column("slice_key", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("arrivals", Json, nullable=False),
    Column("reopens_at", UtcDateTime),
    Column("first_event", UtcDateTime),
    Column("closes_at", UtcDateTime),
    Column("is_full", Boolean, nullable=False),
    # Both partial: a search for one key cannot take them in place of the primary key, whatever the statistics say.
    *(
        Index(f"ix_evidence_keys_{name}", "endpoint", "clustering", column, postgresql_where=rows, sqlite_where=rows)
        for name, column, rows in (
            ("waiting", "first_event", text("first_event IS NOT NULL")),
            ("reopening", "reopens_at", text("first_event IS NULL")),
        )
    ),
)

evidence_blocks = Table(  # blocks that are started and in no evidence yet
    "evidence_blocks",
    metadata,
    Column("endpoint", Text, primary_key=True),
    Column("block_id", Text, primary_key=True),
    Column("runs", Json, nullable=False),
)

cost_surfaces = Table(  # append-only: the cost of steps on a device, a row per profile
    "cost_surfaces",
    metadata,
    Column("surface_id", AutoKey, primary_key=True, autoincrement=True),
    *(Column(name, Text, nullable=False) for name in ("engine", "device", "dtype", "proposer")),
    *(Column(name, Text, nullable=False) for name in ("target_weights", "draft_weights", "verify_rule")),
    Column("is_greedy", Boolean, nullable=False),
    Column("profiled_at", UtcDateTime, nullable=False),
    Column("points", Json, nullable=False),
)

evaluations = Table(  # append-only: a task of a harness through both servers, a row per task
    "evaluations",
    metadata,
    Column("evaluation_id", AutoKey, primary_key=True, autoincrement=True),
    Column("endpoint", Text, nullable=False),
    fingerprint_reference(),
    *(Column(name, Text, nullable=False) for name in ("task", "metric")),
    Column("measured_at", UtcDateTime, nullable=False),
    Column("documents", Json, nullable=False),  # by keyed hash: [baseline, speculative], null where missing
    Index(None, "endpoint"),
)

schedule_periods = Table(  # the runs of each job: one row per time at which it was due
    "schedule_periods",
    metadata,
    Column("job", Text, primary_key=True),
    Column("due_at", UtcDateTime, primary_key=True),
    Column("since", UtcDateTime, nullable=False),
    Column("until", UtcDateTime),  # NULL until its deliveries are planned
    Column("gate_outcome", Text),
)

report_deliveries = Table(  # a report to one receiver, without its content
    "report_deliveries",
    metadata,
    Column("job", Text, primary_key=True),
    Column("due_at", UtcDateTime, primary_key=True),
    Column("receiver", Text, primary_key=True),
    Column("state", Text, nullable=False),
    *integers("attempts"),
    Column("idempotency_key", Text, nullable=False),
    Column("message_id", Text),
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("sent_at", UtcDateTime),
    Column("last_error", Text),
    ForeignKeyConstraint(
        ["job", "due_at"],
        ["schedule_periods.job", "schedule_periods.due_at"],
        name="fk_report_deliveries_schedule_periods",
    ),
    Index(None, "receiver", "state"),
)

replay_configs = Table(  # configs of replays; one that was measured too has the same fingerprint
    "replay_configs",
    metadata,
    Column("fingerprint", Text, primary_key=True),
    Column("config", Json, nullable=False),  # every field of the speculation config
    *(Column(name, Text, nullable=False) for name in ("engine", "device", "dtype")),
    Column("details", Json, nullable=False),
)

replays = Table(  # expected counts, given the response: replay's, never the loop's
    "replays",
    metadata,
    *record_key(),
    Column("fingerprint", Text, primary_key=True),
    Column("endpoint", Text, nullable=False),
    Column("slice_key", Text, nullable=False),
    Column("unit_key", Text, nullable=False),
    Column("event_time", UtcDateTime, nullable=False),
    *integers("num_speculative_tokens"),  # the config's, so that a read by K needs no join
    *reals("num_drafts", "num_draft_tokens", "num_accepted_tokens"),
    Column("num_accepted_tokens_per_pos", Json, nullable=False),
    Column("acceptance_histogram", Json, nullable=False),
    *integers("num_output_tokens", "num_prompt_tokens"),
    *reals("num_plain_steps", "num_cut_steps", "num_cut_draft_tokens"),
    *reals("drafts_variance", "accepted_variance", "drafts_accepted_covariance"),
    Index(None, "endpoint", "event_time"),
)

backfill_blocks = Table(  # parts of files whose responses were replayed, and are not to be again
    "backfill_blocks",
    metadata,
    Column("work", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("is_last", Boolean, nullable=False),
    *integers("num_records", "num_replayed", "num_near_ties"),
    Column("funnel", Json, nullable=False),  # [[endpoint, counter, reason, records], ...]
    Column("last_event", UtcDateTime),  # NULL: nothing was replayed
    Column("finished_at", UtcDateTime, nullable=False),
)

audits = Table(  # outputs of the loop, replayed
    "audits",
    metadata,
    *record_key(),
    Column("fingerprint", Text, primary_key=True),
    Column("endpoint", Text, nullable=False),
    Column("slice_key", Text, nullable=False),
    Column("event_time", UtcDateTime, nullable=False),
    *integers("num_output_tokens", "num_accepted_tokens"),
    Column("expected_accepted_tokens", Real),  # NULL: replay refuses the output
    Column("is_folded", Boolean, nullable=False),
    Column("tolerance", Real, nullable=False),
    Index(None, "endpoint", "is_folded"),
)

audit_states = Table(  # the audit state of each slice and config
    "audit_states",
    metadata,
    Column("endpoint", Text, primary_key=True),
    Column("slice_key", Text, primary_key=True),
    Column("fingerprint", Text, primary_key=True),
    Column("document", Json, nullable=False),
)

live_replicas = Table(  # how far each replica of a production engine was read
    "live_replicas",
    metadata,
    Column("endpoint", Text, primary_key=True),
    Column("replica", Text, primary_key=True),
    Column("series", Text),  # NULL, as the next three, until a scrape has come off
    Column("scraped_at", UtcDateTime),
    Column("started_at", UtcDateTime),
    Column("counts", Json),
    *integers("num_failed"),
    Column("failed_at", UtcDateTime),
    Column("error", Text),
)

live_windows = Table(  # a replica's counts between two scrapes
    "live_windows",
    metadata,
    Column("endpoint", Text, primary_key=True),
    Column("replica", Text, primary_key=True),
    Column("ended_at", UtcDateTime, primary_key=True),
    Column("began_at", UtcDateTime, nullable=False),
    Column("series", Text, nullable=False),
    Column("is_reset", Boolean, nullable=False),
    *integers("num_failed_scrapes"),
    *integers(*COUNTS[:-1], nullable=True),  # NULL: the engine does not count it
    Column("num_accepted_tokens_per_pos", Json, nullable=False),
    Column("latencies", Json, nullable=False),
    Column("num_running", BigInteger),  # requests in progress at its end; NULL: not reported
    Column("pool", Text, nullable=False),
    *integers(COUNTS[-1], nullable=True),  # preemptions, which came later
    Column("num_waiting", BigInteger),  # requests in the queue at its end; NULL: not reported
    Column("kv_use", Real),  # share of the KV cache in use at its end; NULL: not reported
    Index(None, "endpoint", "ended_at"),
)

live_hours = Table(  # sums of the windows that ended in an hour; they outlive the windows
    "live_hours",
    metadata,
    Column("endpoint", Text, primary_key=True),
    Column("hour", UtcDateTime, primary_key=True),
    Column("replica", Text, primary_key=True),
    Column("series", Text, primary_key=True),
    Column("began_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime, nullable=False),
    Column("drafted_at", UtcDateTime),  # NULL: nothing was drafted
    *integers("num_windows", "num_resets", "num_failed_scrapes"),
    *integers(*COUNTS[:-1], nullable=True),  # NULL: no window knows
    *integers("requests_us", "output_tokens_us", "num_first_accepted_tokens", "num_first_drafts"),
    *integers("num_known_accepted_tokens", "num_known_drafts"),
    Column("num_accepted_tokens_per_pos", Json, nullable=False),
    Column("latencies", Json, nullable=False),
    Column("running", Json),  # windows by the requests in progress at their ends; NULL: none reported
    Column("pool", Text, nullable=False),
    *integers(COUNTS[-1], nullable=True),
    Column("waiting", Json),  # the same by the requests in the queue
    Column("kv_use", Json),  # the same by the percent of the KV cache in use
)

ROLLUP_KEY = ("endpoint", "hour", "slice_key", "fingerprint", "concurrency")
LEDGER_KEY = ("consumer", "source", "source_partition")
PARTITIONED = (records, runs)
