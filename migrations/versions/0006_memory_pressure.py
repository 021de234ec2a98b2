"""KV-cache use, requests that wait and preemptions of production's servers; not known of the rows before.

Revision: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

COLUMNS = {
    "live_windows": {"num_preemptions": sa.BigInteger, "num_waiting": sa.BigInteger, "kv_use": sa.Double},
    "live_hours": {"num_preemptions": sa.BigInteger, "waiting": sa.JSON, "kv_use": sa.JSON},
}


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        for name, kind in columns.items():
            op.add_column(table, sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    for table, columns in COLUMNS.items():
        for name in reversed(columns):
            op.drop_column(table, name)
