"""Several consumers of one source: where each began, when it last moved, and which ranges of offsets are folded.

Existing entries of the ledger count as begun at offset 0, as before.

Revision: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PLACE = ("endpoint", "source", "source_partition")


def upgrade() -> None:
    op.add_column("ledger", sa.Column("first_offset", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("ledger", sa.Column("moved_at", sa.DateTime(timezone=True)))
    _make_cursors((*PLACE, "start_offset"))
    op.execute("INSERT INTO evidence_cursors SELECT endpoint, source, source_partition, 0, folded_offset FROM was")
    op.drop_table("was")


def downgrade() -> None:
    """Ranges become one place each, the greatest: offsets in gaps below count as folded."""
    _make_cursors(PLACE)
    op.execute(
        "INSERT INTO evidence_cursors SELECT endpoint, source, source_partition, max(folded_offset) FROM was "
        "GROUP BY endpoint, source, source_partition"
    )
    op.drop_table("was")
    op.drop_column("ledger", "moved_at")
    op.drop_column("ledger", "first_offset")


def _make_cursors(key: tuple[str, ...]) -> None:
    """The table again, with this primary key; the old one is called `was`."""
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("pk_evidence_cursors", "evidence_cursors")  # the new one takes its name
    op.rename_table("evidence_cursors", "was")
    types = {"source_partition": sa.BigInteger, "start_offset": sa.BigInteger}
    op.create_table(
        "evidence_cursors",
        *(sa.Column(name, types.get(name, sa.Text), nullable=False, autoincrement=False) for name in key),
        sa.Column("folded_offset", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(*key, name="pk_evidence_cursors"),
    )
