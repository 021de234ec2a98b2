"""By which recipe a fingerprint was taken.

Every existing row was taken by the first recipe, which left an endpoint's sampling defaults out: they are unknown.
NULL marks these rows, and workers that do not know the column still write NULL.  A gate that sees such a fingerprint
replaced by one with sampling defaults names the recipe as the reason.

Revision: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("fingerprints", sa.Column("recipe", sa.BigInteger))


def downgrade() -> None:
    op.drop_column("fingerprints", "recipe")
