"""Cached tokens of production's prompts and of both arms' sums, and how many turns a block's conversations may have.

Columns that are nullable or have a constant default: no row is rewritten.  NULL and the defaults equal the earlier
meaning of every row, and workers that do not know the columns can still write.

Revision: 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

SUMS = ("num_cached_prompt_tokens", "baseline_cached_tokens", "speculative_cached_tokens")


def upgrade() -> None:
    op.add_column("records", sa.Column("num_cached_tokens", sa.BigInteger))
    op.add_column("blocks", sa.Column("max_turns", sa.BigInteger))
    for name in SUMS:
        op.add_column("rollups", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    for name in SUMS:
        op.drop_column("rollups", name)
    op.drop_column("blocks", "max_turns")
    op.drop_column("records", "num_cached_tokens")
