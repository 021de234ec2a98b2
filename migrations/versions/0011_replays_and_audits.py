"""Replay's expected counts, the engine's replayed outputs, and the states of their audits.

Only new tables: running processes continue while they are made.

Revision: 0011
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

RECORD_KEY = ("source", "source_partition", "source_offset", "timestamp_ms", "source_item")
EXPECTED = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
MORE_EXPECTED = (
    "num_plain_steps",
    "num_cut_steps",
    "num_cut_draft_tokens",
    "drafts_variance",
    "accepted_variance",
    "drafts_accepted_covariance",
)


def upgrade() -> None:
    op.create_table(
        "replay_configs",
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("dtype", sa.Text, nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_replay_configs"),
    )
    op.create_table(
        "replays",
        *_run_key(),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("unit_key", sa.Text, nullable=False),
        sa.Column("event_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("num_speculative_tokens", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Double, nullable=False) for name in EXPECTED),
        sa.Column("num_accepted_tokens_per_pos", sa.JSON, nullable=False),
        sa.Column("acceptance_histogram", sa.JSON, nullable=False),
        sa.Column("num_output_tokens", sa.BigInteger, nullable=False),
        sa.Column("num_prompt_tokens", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Double, nullable=False) for name in MORE_EXPECTED),
        sa.PrimaryKeyConstraint(*RECORD_KEY, "fingerprint", name="pk_replays"),
    )
    op.create_index("ix_replays_endpoint_event_time", "replays", ["endpoint", "event_time"])
    op.create_table(
        "audits",
        *_run_key(),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("event_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("num_output_tokens", sa.BigInteger, nullable=False),
        sa.Column("num_accepted_tokens", sa.BigInteger, nullable=False),
        sa.Column("expected_accepted_tokens", sa.Double),
        sa.Column("is_folded", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint(*RECORD_KEY, "fingerprint", name="pk_audits"),
    )
    op.create_index("ix_audits_endpoint_is_folded", "audits", ["endpoint", "is_folded"])
    op.create_table(
        "audit_states",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("endpoint", "slice_key", "fingerprint", name="pk_audit_states"),
    )


def downgrade() -> None:
    for table in ("audit_states", "audits", "replays", "replay_configs"):
        op.drop_table(table)  # its indexes go with it


def _run_key() -> list[sa.Column[Any]]:
    """The key of a record and the config that it was run with."""
    return [
        sa.Column("source", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, autoincrement=False, nullable=False) for name in RECORD_KEY[1:]),
        sa.Column("fingerprint", sa.Text, nullable=False),
    ]
