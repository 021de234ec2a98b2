"""Capacities of servers' KV caches, and the settings of methods by which servers draft.

Columns that are nullable and without default: no row is rewritten on Postgres, and workers that do not know them can
still write.  The bytes of `block_memory` become nullable, because servers report none.

Revision: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

BYTES = (
    "baseline_peak_bytes",
    "speculative_peak_bytes",
    "kv_bytes_per_token",
    "draft_weight_bytes",
    "draft_kv_bytes_per_token",
)
TOKENS = ("baseline_kv_tokens", "speculative_kv_tokens")
REALS = ("kv_tokens_per_request", "baseline_kv_requests", "speculative_kv_requests")


def upgrade() -> None:
    with op.batch_alter_table("block_memory") as batch:
        for name in BYTES:
            batch.alter_column(name, existing_type=sa.BigInteger, nullable=True)
        for name in TOKENS:
            batch.add_column(sa.Column(name, sa.BigInteger))
        for name in REALS:
            batch.add_column(sa.Column(name, sa.Double))
    op.add_column("fingerprints", sa.Column("speculative_config", sa.Text))


def downgrade() -> None:
    op.drop_column("fingerprints", "speculative_config")
    op.execute(sa.text("DELETE FROM block_memory WHERE baseline_peak_bytes IS NULL"))  # the rows of servers
    with op.batch_alter_table("block_memory") as batch:
        for name in (*REALS, *TOKENS):
            batch.drop_column(name)
        for name in BYTES:
            batch.alter_column(name, existing_type=sa.BigInteger, nullable=False)
