"""Open keys are found by their whole key, or by the time that they wait for.

The index over (endpoint, way, first_event) looked as good as the primary key to a planner without statistics of the
table.  A search for one key then read every key of the endpoint.  Its two successors are partial, so that only
statements about waiting or reopening keys can take them.

Revision: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

FORMER = "ix_evidence_keys_endpoint_way_first_event"
INDEXES = {
    "ix_evidence_keys_waiting": ("first_event", "first_event IS NOT NULL"),
    "ix_evidence_keys_reopening": ("reopens_at", "first_event IS NULL"),
}


def upgrade() -> None:
    op.drop_index(FORMER, "evidence_keys")
    for name, (column, rows) in INDEXES.items():
        where = sa.text(rows)
        columns = ["endpoint", "way", column]
        op.create_index(name, "evidence_keys", columns, postgresql_where=where, sqlite_where=where)


def downgrade() -> None:
    for name in INDEXES:
        op.drop_index(name, "evidence_keys")
    op.create_index(FORMER, "evidence_keys", ["endpoint", "way", "first_event"])
