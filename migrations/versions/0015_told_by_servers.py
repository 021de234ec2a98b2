"""The error of a sampled output's score where a server reported too little, and the longest gap between tokens.

Columns that are nullable: no row is rewritten, and workers that do not know them can still write.

Revision: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

NAMES = ("z_error", "baseline_longest_gap_ms", "speculative_longest_gap_ms")


def upgrade() -> None:
    for name in NAMES:
        op.add_column("runs", sa.Column(name, sa.Double))


def downgrade() -> None:
    for name in reversed(NAMES):
        op.drop_column("runs", name)
