"""What each arm of a run ran after, and the time of the baseline's second run; not known of the rows before.

Revision: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = {"baseline_ran_after": sa.Text, "speculative_ran_after": sa.Text, "baseline_repeat_ms": sa.Double}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("runs", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("runs", name)
