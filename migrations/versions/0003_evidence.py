"""Stored evidence between looks, the input of each look, and how many runs a block was stored with.

Blocks are counted once, which reads the block ids of every run; a writer of the older revision must not continue
afterwards.  Evidence begins empty: the first gate run folds the stored rows.

Revision: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

AUTO_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows itself only in INTEGER columns
TABLES = ("evidence_blocks", "evidence_keys", "evidence", "evidence_cursors", "evidence_endpoints", "folds")


def upgrade() -> None:
    op.add_column("blocks", sa.Column("num_runs", sa.BigInteger, nullable=False, server_default="0"))
    op.execute(
        "UPDATE blocks SET num_runs = counted.num_runs FROM "
        "(SELECT block_id, count(*) AS num_runs FROM runs GROUP BY block_id) AS counted "
        "WHERE counted.block_id = blocks.block_id"
    )
    if op.get_bind().dialect.name == "postgresql":  # SQLite cannot drop a default, and it does no harm
        op.alter_column("blocks", "num_runs", server_default=None)
    op.add_column("decisions", sa.Column("fold_id", sa.BigInteger))
    op.create_table(
        "folds",
        sa.Column("fold_id", AUTO_KEY, autoincrement=True, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("spans", sa.JSON, nullable=False),
        sa.Column("closed_by", sa.DateTime(timezone=True)),
        sa.Column("num_records", sa.BigInteger, nullable=False),
        sa.Column("num_runs", sa.BigInteger, nullable=False),
        sa.Column("parameters", sa.JSON, nullable=False),
        sa.Column("begins", sa.JSON),
        sa.Column("folded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("fold_id", name="pk_folds"),
    )
    op.create_index("ix_folds_endpoint_fold_id", "folds", ["endpoint", "fold_id"])
    op.create_table(
        "evidence_endpoints",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("fold_id", sa.BigInteger, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("endpoint", name="pk_evidence_endpoints"),
    )
    op.create_table(
        "evidence_cursors",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("source_partition", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("folded_offset", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("endpoint", "source", "source_partition", name="pk_evidence_cursors"),
    )
    op.create_table(
        "evidence",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("concurrency", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("tables", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("endpoint", "slice_key", "concurrency", "fingerprint", name="pk_evidence"),
    )
    op.create_table(
        "evidence_keys",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("way", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("arrivals", sa.JSON, nullable=False),
        sa.Column("reopens_at", sa.DateTime(timezone=True)),
        sa.Column("first_event", sa.DateTime(timezone=True)),
        sa.Column("closes_at", sa.DateTime(timezone=True)),
        sa.Column("is_full", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("endpoint", "way", "slice_key", "key", name="pk_evidence_keys"),
    )
    op.create_index("ix_evidence_keys_endpoint_way_first_event", "evidence_keys", ["endpoint", "way", "first_event"])
    op.create_table(
        "evidence_blocks",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("block_id", sa.Text, nullable=False),
        sa.Column("runs", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("endpoint", "block_id", name="pk_evidence_blocks"),
    )
    _arrange()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)  # its indexes and triggers go with it
    op.drop_column("decisions", "fold_id")
    op.drop_column("blocks", "num_runs")


def _arrange() -> None:
    """The database refuses to change or delete folds; on Postgres, sums are stored uncompressed."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER folds_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON folds "
            "FOR EACH STATEMENT EXECUTE FUNCTION shadowspec_refuse_change()"
        )
        op.execute("ALTER TABLE evidence ALTER COLUMN tables SET STORAGE EXTERNAL")  # doubles do not compress
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER folds_no_{change.lower()} BEFORE {change} ON folds "
            "BEGIN SELECT RAISE(ABORT, 'folds is append-only'); END"
        )
