"""Requests in progress at the end of each live window, and how many windows of an hour ended at each number.

Nullable columns: no row is rewritten, and a scheduler that does not know them can still write.

Revision: 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("live_windows", sa.Column("num_running", sa.BigInteger))
    op.add_column("live_hours", sa.Column("running", sa.JSON))


def downgrade() -> None:
    op.drop_column("live_hours", "running")
    op.drop_column("live_windows", "num_running")
