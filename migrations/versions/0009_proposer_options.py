"""Options of the suffix proposer and of adaptive depth, as part of a speculation config.

The defaults stay in the database: every earlier config had these values, and workers that do not know the columns can
still write.

Revision: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

INTEGERS = {"suffix_decoding_max_tree_depth": "24", "suffix_memory_tokens": "100000"}
REALS = {
    "suffix_decoding_max_spec_factor": "1.0",
    "suffix_decoding_min_token_prob": "0.1",
    "draft_confidence_threshold": "0.0",
}


def upgrade() -> None:
    for kind, columns in ((sa.BigInteger, INTEGERS), (sa.Double, REALS)):
        for name, default in columns.items():
            op.add_column("fingerprints", sa.Column(name, kind, nullable=False, server_default=default))


def downgrade() -> None:
    for name in (*REALS, *INTEGERS):
        op.drop_column("fingerprints", name)
