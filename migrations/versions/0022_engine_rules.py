"""Which occurrence prompt lookup copies from, and which sampling parameters a draft follows.

The defaults stay in the database: every earlier config had these values, and workers that do not know the columns can
still write.

Revision: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

COLUMNS = {"ngram_occurrence": "latest", "draft_sampling": "request"}


def upgrade() -> None:
    for name, default in COLUMNS.items():
        op.add_column("fingerprints", sa.Column(name, sa.Text, nullable=False, server_default=default))


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_column("fingerprints", name)
