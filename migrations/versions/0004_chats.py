"""The streams of chats, and their part that was thought; not known of the rows before.

Revision: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = {
    "baseline_stream": sa.Text,
    "speculative_stream": sa.Text,
    "is_stream_fault": sa.Boolean,
    "baseline_thinking_tokens": sa.BigInteger,
    "speculative_thinking_tokens": sa.BigInteger,
    "baseline_thinking_ms": sa.Double,
    "speculative_thinking_ms": sa.Double,
    "num_thinking_drafts": sa.BigInteger,
    "num_thinking_draft_tokens": sa.BigInteger,
    "num_thinking_accepted_tokens": sa.BigInteger,
}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("runs", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("runs", name)
