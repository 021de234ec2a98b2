"""Flags of runs, and how many runs of each rollup have them.

Nullable columns without default: no row is rewritten.  Runs that are there keep NULL in all of them, and their
rollups count nothing: nobody looked.

Revision: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

FLAGS = {
    "is_early_rejection": sa.Boolean,
    "is_beyond_draft_context": sa.Boolean,
    "contract": sa.Text,
    "baseline_validity": sa.BigInteger,
    "speculative_validity": sa.BigInteger,
    "intervention": sa.Text,
}


def upgrade() -> None:
    for name, kind in FLAGS.items():
        op.add_column("runs", sa.Column(name, kind))
    op.create_table(
        "rollup_failures",
        sa.Column("rollup_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("rollup_id", "name", name="pk_rollup_failures"),
    )


def downgrade() -> None:
    op.drop_table("rollup_failures")
    for name in reversed(FLAGS):
        op.drop_column("runs", name)
