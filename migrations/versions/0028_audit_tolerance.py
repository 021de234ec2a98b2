"""The share by which the mean of an audited run's difference may depart from zero.

The default stays in the database: all earlier audits used it, and workers that do not know the column can still write.

Revision: 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audits", sa.Column("tolerance", sa.Double, nullable=False, server_default="0.005"))


def downgrade() -> None:
    op.drop_column("audits", "tolerance")
