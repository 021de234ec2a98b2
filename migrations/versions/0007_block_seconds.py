"""The time that a block took; not known of the blocks before.

Revision: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blocks", sa.Column("seconds", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("blocks", "seconds")
