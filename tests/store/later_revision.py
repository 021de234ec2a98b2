"""A further revision, in a folder for this test: what a later version's migrations would be."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import indent

import pytest

from shadowspec.store.admin import schema

LATER = f"{int(schema.head()) + 1:04d}"

_MODULE = """
import sqlalchemy as sa
from alembic import op

revision = "{later}"
down_revision = "{head}"


def upgrade() -> None:
{upgrade}


def downgrade() -> None:
{downgrade}
"""


def add_revision(monkeypatch: pytest.MonkeyPatch, folder: Path, upgrade: str, downgrade: str = "pass") -> None:
    """Have the store find revision `LATER` after its last one, with these statements, until the patch is undone."""
    migrations = folder / "migrations"
    shutil.copytree(schema.migrations_folder(), migrations)
    module = _MODULE.format(
        later=LATER, head=f"{int(LATER) - 1:04d}", upgrade=indent(upgrade, "    "), downgrade=indent(downgrade, "    ")
    )
    (migrations / "versions" / f"{LATER}_later.py").write_text(module, encoding="utf-8")
    monkeypatch.setattr(schema, "migrations_folder", lambda: migrations)
