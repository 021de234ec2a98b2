"""What production's counters show after an override.

Revision: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLE = "override_effects"


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("override_id", sa.BigInteger, nullable=False),
        sa.Column("is_off", sa.Boolean, nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("override_id", "is_off", name=f"pk_{TABLE}"),
        sa.ForeignKeyConstraint(["override_id"], ["overrides.override_id"], name=f"fk_{TABLE}_overrides"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {TABLE}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {TABLE} "
            "FOR EACH STATEMENT EXECUTE FUNCTION shadowspec_refuse_change()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {TABLE}_no_{change.lower()} BEFORE {change} ON {TABLE} "
            f"BEGIN SELECT RAISE(ABORT, '{TABLE} is append-only'); END"
        )


def downgrade() -> None:
    op.drop_table(TABLE)
