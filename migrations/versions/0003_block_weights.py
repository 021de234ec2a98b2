"""How many blocks of the traffic each measured block represents.

A block from before represents itself.

Revision: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blocks", sa.Column("stands_for", sa.Double()))


def downgrade() -> None:
    op.drop_column("blocks", "stands_for")
