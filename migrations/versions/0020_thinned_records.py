"""Which records the whole endpoint's evidence leaves out, so that its mix is the traffic's.

A nullable column without default: no row is rewritten, NULL counts as every row did before, and workers that know
nothing of the column can still write.  Workers now read the reason of a verdict too: on Postgres every role that may
read the verdict gets that column too, so that a worker continues without another `db grant`.

Revision: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_READERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.column_privileges "
    "WHERE table_schema = current_schema() AND table_name = 'decisions' AND column_name = 'verdict' "
    "AND privilege_type = 'SELECT' AND grantee <> 'PUBLIC'"
)


def upgrade() -> None:
    op.add_column("records", sa.Column("is_thinned", sa.Boolean))
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for role in connection.execute(_READERS).scalars().all():
            name = connection.dialect.identifier_preparer.quote(role)
            op.execute(f"GRANT SELECT (reason_code) ON decisions TO {name}")


def downgrade() -> None:
    op.drop_column("records", "is_thinned")
