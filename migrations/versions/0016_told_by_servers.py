"""By how much the score of a sampled output may be off, where a server told too little to know it exactly.

A column that is nullable: no row is rewritten, and workers that know nothing of it go on writing.

Revision: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("z_error", sa.Double))


def downgrade() -> None:
    op.drop_column("runs", "z_error")
