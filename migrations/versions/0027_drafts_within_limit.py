"""Whether drafts end one token before a request's limit of output tokens.

The default stays in the database: no earlier config's drafts did, and workers that do not know the column can still
write.

Revision: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "fingerprints", sa.Column("drafts_within_limit", sa.Boolean, nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    op.drop_column("fingerprints", "drafts_within_limit")
