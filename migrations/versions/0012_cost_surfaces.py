"""Cost surfaces: the measured times of a pair's steps on a device, one row per profile.

Revision: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

KEY = ("engine", "device", "dtype", "proposer", "target_weights", "draft_weights", "verify_rule")


def upgrade() -> None:
    op.create_table(
        "cost_surfaces",
        sa.Column(
            "surface_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
        ),
        *(sa.Column(name, sa.Text, nullable=False) for name in KEY),
        sa.Column("is_greedy", sa.Boolean, nullable=False),
        sa.Column("profiled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("points", sa.JSON(none_as_null=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("cost_surfaces")
