"""Facts of runs that servers answered: where acceptance was read, cached tokens, attempts thrown away.

Columns that are nullable: no row is rewritten, and workers that do not know them can still write.

Revision: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

COUNTS = ("baseline_cached_tokens", "speculative_cached_tokens", "num_retries")


def upgrade() -> None:
    op.add_column("runs", sa.Column("counts_source", sa.Text))
    for name in COUNTS:
        op.add_column("runs", sa.Column(name, sa.BigInteger))


def downgrade() -> None:
    for name in (*COUNTS, "counts_source"):
        op.drop_column("runs", name)
