"""The ledger with its funnel counts, attempts, and rollups.

Only new tables: writers continue while they are made.  Earlier rows are entered in the ledger under the consumer "" as
read to their end; rollups begin with the rows stored from here on.

Revision: 0002
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

AUTO_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows itself only in INTEGER columns
RECORD_KEY = ("source", "source_partition", "source_offset", "timestamp_ms", "source_item")
ROLLUP_COUNTS = (
    *("num_runs", "num_failed", "num_timed", "num_repetition_loops"),
    *("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens", "num_prompt_tokens"),
    *("num_plain_steps", "num_cut_steps", "num_cut_draft_tokens", "num_cut_accepted_tokens"),
    *("baseline_num_output_tokens", "speculative_num_output_tokens"),
)
ROLLUP_SUMS = (
    *("baseline_queue_ms", "baseline_prefill_ms", "baseline_decode_ms"),
    *("speculative_queue_ms", "speculative_prefill_ms", "speculative_decode_ms"),
    *("speculative_draft_ms", "speculative_verify_ms", "speculative_other_ms"),
    *("baseline_end_to_end_ms_squares", "speculative_end_to_end_ms_squares"),
    *("log_speedup", "log_speedup_squares"),
    *("weight", "weight_squares", "weighted_drafts", "weighted_draft_tokens", "weighted_accepted_tokens"),
    *("weighted_first_accepted_tokens", "timed_weight", "weighted_log_speedup"),
    *("weighted_baseline_end_to_end_ms", "weighted_speculative_end_to_end_ms"),
)


def upgrade() -> None:
    op.create_table(
        "ledger",
        *_partition(),
        *_integers("next_offset", "num_messages", "num_records"),
        sa.Column("watermark", sa.DateTime(timezone=True)),
        sa.Column("is_behind", sa.Boolean, nullable=False),
        sa.Column("is_ended", sa.Boolean, nullable=False),
        sa.Column("resume_offset", sa.BigInteger),
        sa.PrimaryKeyConstraint("consumer", "source", "source_partition", name="pk_ledger"),
    )
    op.create_table(
        "funnel_counts",
        *_partition(),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("counter", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        *_integers("num_records"),
        sa.PrimaryKeyConstraint(
            *("consumer", "source", "source_partition", "endpoint", "counter", "reason"), name="pk_funnel_counts"
        ),
    )
    op.create_index("ix_funnel_counts_endpoint", "funnel_counts", ["endpoint"])
    op.create_table(
        "attempts",
        sa.Column("source", sa.Text, nullable=False),
        *_integers(*RECORD_KEY[1:], "num_attempts"),
        sa.PrimaryKeyConstraint(*RECORD_KEY, name="pk_attempts"),
    )
    op.create_table(
        "rollups",
        sa.Column("rollup_id", AUTO_KEY, autoincrement=True, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("concurrency", sa.BigInteger, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        *_integers(*ROLLUP_COUNTS),
        *(sa.Column(name, sa.Double, nullable=False) for name in ROLLUP_SUMS),
        sa.PrimaryKeyConstraint("rollup_id", name="pk_rollups"),
        sa.UniqueConstraint("endpoint", "hour", "slice_key", "fingerprint", "concurrency", name="uq_rollups"),
    )
    op.create_table(
        "rollup_positions",
        *_integers("rollup_id", "position", "num_accepted_tokens", "num_steps"),
        sa.PrimaryKeyConstraint("rollup_id", "position", name="pk_rollup_positions"),
    )
    op.create_table(
        "rollup_bins",
        *_integers("rollup_id"),
        sa.Column("metric", sa.Text, nullable=False),
        *_integers("bin", "num_runs"),
        sa.Column("weight", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("rollup_id", "metric", "bin", name="pk_rollup_bins"),
    )
    _enter_what_is_stored()


def downgrade() -> None:
    for table in ("rollup_bins", "rollup_positions", "rollups", "attempts", "funnel_counts", "ledger"):
        op.drop_table(table)


def _partition() -> list[sa.Column[Any]]:
    return [
        sa.Column("consumer", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        *_integers("source_partition"),
    ]


def _integers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, autoincrement=False, nullable=False) for name in names]


def _enter_what_is_stored() -> None:
    """Count the stored records once; a writer of the older revision must not run on afterwards."""
    op.execute(
        """
        INSERT INTO funnel_counts (consumer, source, source_partition, endpoint, counter, reason, num_records)
        SELECT '', source, source_partition, coalesce(endpoint, ''), counter, coalesce(reason, ''), count(*)
        FROM records
        GROUP BY source, source_partition, coalesce(endpoint, ''), counter, coalesce(reason, '')
        """
    )
    op.execute(
        """
        INSERT INTO ledger (consumer, source, source_partition, next_offset, num_messages, num_records, watermark,
                            is_behind, is_ended)
        SELECT '', source, source_partition, max(source_offset) + 1, count(DISTINCT source_offset), count(*),
               max(event_time), false, true
        FROM records
        GROUP BY source, source_partition
        """
    )
