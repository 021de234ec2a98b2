"""Evaluations: paired scores of a task set's documents, one row per task.

Only a new table: running processes continue while it is made.

Revision: 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evaluations",
        sa.Column(
            "evaluation_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, sa.ForeignKey("fingerprints.fingerprint"), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("task", "metric")),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("documents", sa.JSON(none_as_null=True), nullable=False),
    )
    op.create_index("ix_evaluations_endpoint", "evaluations", ["endpoint"])


def downgrade() -> None:
    op.drop_table("evaluations")
