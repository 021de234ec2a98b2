"""Overrides by operators, and rollout stages; both append-only.

Only new tables: running processes continue while they are made.

Revision: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

AUTO_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows itself only in INTEGER columns
APPEND_ONLY = ("overrides", "override_clearings", "rollouts")


def upgrade() -> None:
    op.create_table(
        "overrides",
        sa.Column("override_id", AUTO_KEY, autoincrement=True, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("slice_key", sa.Text, nullable=False),
        sa.Column("concurrency", sa.BigInteger),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("override_id", name="pk_overrides"),
        sa.CheckConstraint("verdict IN ('DISABLE', 'HOLD')", name="ck_overrides_verdict"),  # ENABLE is never forced
    )
    op.create_index("ix_overrides_endpoint", "overrides", ["endpoint"])
    op.create_table(
        "override_clearings",
        sa.Column("override_id", sa.BigInteger, autoincrement=False, nullable=False),  # one clearing ends it
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("cleared_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("override_id", name="pk_override_clearings"),
        sa.ForeignKeyConstraint(["override_id"], ["overrides.override_id"], name="fk_override_clearings_overrides"),
    )
    op.create_table(
        "rollouts",
        sa.Column("rollout_id", AUTO_KEY, autoincrement=True, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("concurrency", sa.BigInteger, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason_code", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("num_blocks", sa.BigInteger, nullable=False),
        sa.Column("alarms", sa.JSON, nullable=False),
        sa.Column("depth_since", sa.DateTime(timezone=True)),
        sa.Column("depth_caps", sa.JSON, nullable=False),
        sa.Column("share", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_rollouts"),
        sa.ForeignKeyConstraint(["fingerprint"], ["fingerprints.fingerprint"], name="fk_rollouts_fingerprints"),
    )
    op.create_index("ix_rollouts_endpoint", "rollouts", ["endpoint", "concurrency", "rollout_id"])
    _forbid_changes()


def downgrade() -> None:
    for table in ("rollouts", "override_clearings", "overrides"):
        op.drop_table(table)  # its indexes and triggers go with it


def _forbid_changes() -> None:
    """The database itself refuses to change or delete orders and rollouts."""
    if op.get_bind().dialect.name == "postgresql":
        for table in APPEND_ONLY:
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION shadowspec_refuse_change()"
            )
        return
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
