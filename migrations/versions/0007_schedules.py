"""Scheduled reports: the periods of each job, the deliveries to each receiver; and indexes on decisions by time.

A delivery is stored by its key and never holds the report.

Revision: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

HYPOTHESIS = ("endpoint", "slice_key", "concurrency", "fingerprint")


def upgrade() -> None:
    op.create_table(
        "schedule_periods",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True)),
        sa.Column("gate_outcome", sa.Text),
        sa.PrimaryKeyConstraint("job", "due_at", name="pk_schedule_periods"),
    )
    op.create_table(
        "report_deliveries",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("receiver", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("message_id", sa.Text),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("last_error", sa.Text),
        sa.PrimaryKeyConstraint("job", "due_at", "receiver", name="pk_report_deliveries"),
        sa.ForeignKeyConstraint(
            ["job", "due_at"],
            ["schedule_periods.job", "schedule_periods.due_at"],
            name="fk_report_deliveries_schedule_periods",
        ),
    )
    op.create_index("ix_report_deliveries_receiver_state", "report_deliveries", ["receiver", "state"])
    op.create_index("ix_decisions_moment", "decisions", [*HYPOTHESIS, "decided_at", "decision_id"])
    op.create_index("ix_decisions_decided_at", "decisions", ["decided_at"])


def downgrade() -> None:
    op.drop_index("ix_decisions_decided_at", "decisions")
    op.drop_index("ix_decisions_moment", "decisions")
    op.drop_table("report_deliveries")
    op.drop_table("schedule_periods")
