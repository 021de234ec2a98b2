"""Counts of production engines: the newest scrape of each replica, and the windows between scrapes.

Only new tables: running processes continue while they are made.

Revision: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

COUNTS = (
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_output_tokens",
    "num_requests",
    "num_prompt_tokens",
    "num_cached_tokens",
)


def upgrade() -> None:
    op.create_table(
        "live_replicas",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("replica", sa.Text, nullable=False),
        sa.Column("series", sa.Text),
        sa.Column("scraped_at", sa.DateTime(timezone=True)),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("counts", sa.JSON),
        sa.Column("num_failed", sa.BigInteger, nullable=False),
        sa.Column("failed_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("endpoint", "replica", name="pk_live_replicas"),
    )
    op.create_table(
        "live_windows",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("replica", sa.Text, nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("series", sa.Text, nullable=False),
        sa.Column("is_reset", sa.Boolean, nullable=False),
        sa.Column("num_failed_scrapes", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in COUNTS),
        sa.Column("num_accepted_tokens_per_pos", sa.JSON, nullable=False),
        sa.Column("latencies", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("endpoint", "replica", "ended_at", name="pk_live_windows"),
    )
    op.create_index("ix_live_windows_endpoint_ended_at", "live_windows", ["endpoint", "ended_at"])


def downgrade() -> None:
    op.drop_table("live_windows")  # its index goes with it
    op.drop_table("live_replicas")
