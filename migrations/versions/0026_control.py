"""The pool of each live window and hour, and the requests that failed in it.

A nullable count and a column with a default: no row is rewritten, and a scheduler that does not know them can still
write.

Revision: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("live_windows", "live_hours"):
        op.add_column(table, sa.Column("pool", sa.Text, nullable=False, server_default="speculative"))
        op.add_column(table, sa.Column("num_failed_requests", sa.BigInteger))


def downgrade() -> None:
    for table in ("live_hours", "live_windows"):
        op.drop_column(table, "num_failed_requests")
        op.drop_column(table, "pool")
