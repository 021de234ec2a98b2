"""The realised concurrency of each run's arms, and its sums.

Columns that are nullable or have a constant default: no row is rewritten.  The defaults stay in the database: workers
that do not know the columns can still write, and their runs count as ones without a known concurrency.

Revision: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

FIGURES = ("baseline_concurrency", "speculative_concurrency")


def upgrade() -> None:
    for name in FIGURES:
        op.add_column("runs", sa.Column(name, sa.Double))
    op.add_column("rollups", sa.Column("num_with_concurrency", sa.BigInteger, nullable=False, server_default="0"))
    for name in FIGURES:
        op.add_column("rollups", sa.Column(name, sa.Double, nullable=False, server_default="0"))


def downgrade() -> None:
    for name in (*FIGURES, "num_with_concurrency"):
        op.drop_column("rollups", name)
    for name in FIGURES:
        op.drop_column("runs", name)
