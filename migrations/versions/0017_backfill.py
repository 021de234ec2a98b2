"""Which parts of files were replayed by a backfill.

Only a new table: running processes continue while it is made.

Revision: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "backfill_blocks",
        sa.Column("work", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("is_last", sa.Boolean, nullable=False),
        sa.Column("num_records", sa.BigInteger, nullable=False),
        sa.Column("num_replayed", sa.BigInteger, nullable=False),
        sa.Column("num_near_ties", sa.BigInteger, nullable=False),
        sa.Column("funnel", sa.JSON, nullable=False),
        sa.Column("last_event", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("work", "source", "number", name="pk_backfill_blocks"),
    )


def downgrade() -> None:
    op.drop_table("backfill_blocks")
