"""Scores of both arms, which guardrails may judge.

A nullable column without default: no row is rewritten, and running processes continue.

Revision: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("scores", sa.JSON))


def downgrade() -> None:
    op.drop_column("runs", "scores")
