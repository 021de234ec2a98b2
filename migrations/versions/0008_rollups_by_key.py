"""Rollups by key: each key's newest hour is found without reading its other hours.

Revision: 0008
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_rollups_key", "rollups", ["endpoint", "slice_key", "fingerprint", "concurrency", "hour"])


def downgrade() -> None:
    op.drop_index("ix_rollups_key", "rollups")
