"""Revisions of the database: where the migrations are, upgrade, current, head, and drift.

An installed wheel holds the migrations as `shadowspec._migrations`; a checkout has them beside `shadowspec/`.
A migration's file is named by its revision, and revisions are numbered in order: so that a database can be opened
without alembic, whose import takes longer than all else that a promotion check does.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, event, inspect, text

from shadowspec.errors import StoreError
from shadowspec.store import session
from shadowspec.store.admin.month_partitions import partition_names
from shadowspec.store.locks import lock_number
from shadowspec.store.table_definitions import metadata

if TYPE_CHECKING:
    from alembic.config import Config

# What `save_batch` locks, in its order: a worker's transaction holds some of them and waits for the next one.
WRITTEN_TABLES = (
    "ledger", "funnel_counts", "records", "fingerprints", "runs", "blocks", "block_memory", "audits", "rollups",
    "rollup_positions", "rollup_bins", "rollup_failures",
)  # fmt: skip
_LOCKING = re.compile(r"\s*(?:ALTER TABLE|DROP TABLE|CREATE INDEX \S+ ON)\s+(?:ONLY )?(\w+)")

UPGRADE_HINT = "run `shadowspec db upgrade`"


def migrations_folder() -> Path:
    """The folder with `env.py` and `versions/`.

    Raises:
        StoreError: the installation holds none.
    """
    spec = importlib.util.find_spec("shadowspec._migrations")
    installed = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    sibling = Path(__file__).resolve().parents[3] / "migrations"
    for folder in (*installed, sibling):
        if (folder / "env.py").is_file():
            return folder
    raise StoreError(f"no migrations found: neither shadowspec._migrations nor {sibling}; install shadowspec again")


def head() -> str:
    """The revision that this code reads and writes."""
    return revisions()[-1]


def revisions() -> list[str]:
    """Every revision, oldest first."""
    folder = migrations_folder()
    names = sorted(path.name.partition("_")[0] for path in (folder / "versions").glob("[0-9]*_*.py"))
    if not names:
        raise StoreError(f"{folder} holds no revision")
    return names


def current(url: str) -> str | None:
    """The database's revision; None if it has no schema yet.

    Raises:
        UsageError, StoreError, ServiceUnavailableError: the database cannot be used or reached.
    """
    parsed = session.parse_url(url)
    if session.is_missing_file(parsed):
        return None
    with _engine(parsed) as engine, session.read(engine) as connection:
        return _revision(connection)


def upgrade(url: str) -> str:
    """Bring the database to `head()`, all or nothing; concurrent upgrades wait for each other."""
    migrate(url, "head")
    return head()


def migrate(url: str, revision: str) -> None:
    """Move the database to a revision, up or down ("base": empty), in one transaction."""
    from alembic import command
    from alembic.util import CommandError

    parsed = session.parse_url(url)
    folder = Path(str(parsed.database)).parent
    if session.is_missing_file(parsed) and not folder.is_dir():
        raise StoreError(f"the database's folder {folder} does not exist; create it, or correct database.url")
    with _engine(parsed) as engine, session.write(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": lock_number("migrations")})
        config = _config()
        config.attributes["connection"] = connection
        try:
            before, known = _revision(connection), revisions()
            if before is not None and before not in known:
                raise StoreError(_mismatch(parsed, before))
            is_down = revision == "base" or (before is not None and revision in known[: known.index(before)])
            _lock_before_changes(connection)
            (command.downgrade if is_down else command.upgrade)(config, revision)
        except CommandError as exc:
            raise StoreError(f"database {session.database_name(parsed)}: {exc}") from exc
        if connection.dialect.name == "sqlite" and connection.execute(text("PRAGMA foreign_key_check")).first():
            raise StoreError("the migration would leave rows that refer to nothing; it was undone")


def _lock_before_changes(connection: Connection) -> None:
    """Have the transaction lock all tables that workers write, in their order, before it changes the first of them.

    One that locks them as the revisions come would hold a table that a worker waits for, and wait for one that the
    worker holds.  Until then it only reads them, and workers write.  On SQLite the whole transaction is the one writer.
    """
    if connection.dialect.name != "postgresql":
        return
    waiting = [name for name in WRITTEN_TABLES if inspect(connection).has_table(name)]

    @event.listens_for(connection, "before_cursor_execute")
    def lock(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        changes = _LOCKING.match(statement)
        if waiting and changes is not None and changes[1] in waiting:
            cursor.execute(f"LOCK TABLE {', '.join(waiting)} IN ACCESS EXCLUSIVE MODE")
            waiting.clear()


def check(url: str) -> list[str]:
    """How the database's tables differ from the code's, one line each; [] if they do not.

    Raises:
        StoreError: the database is not at `head()`.
    """
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    parsed = session.parse_url(url)
    require_head(parsed)
    with _engine(parsed) as engine, session.read(engine) as connection:
        partitions = partition_names(connection) if connection.dialect.name == "postgresql" else set()

        def is_ours(name: str | None, kind: str, _parents: object) -> bool:
            return kind != "table" or name not in partitions  # months come and go

        context = MigrationContext.configure(connection, opts={"include_name": is_ours})
        differences = compare_metadata(context, metadata)
        return [_describe(difference) for difference in differences]


def require_head(url: URL, engine: Engine | None = None) -> None:
    """Raise unless the database is at `head()`; the message names the command that fixes it."""
    if session.is_missing_file(url):
        raise StoreError(_mismatch(url, None))
    with _engine(url) if engine is None else _borrow(engine) as opened, session.read(opened) as connection:
        revision = _revision(connection)
    if revision != head():
        raise StoreError(_mismatch(url, revision))


def _mismatch(url: URL, revision: str | None) -> str:
    name = session.database_name(url)
    if revision is None:
        return f"database {name} has no schema yet: {UPGRADE_HINT}"
    if revision in revisions():
        return f"database {name} is at revision {revision}, behind this version's {head()}: {UPGRADE_HINT}"
    return (
        f"database {name} is at revision {revision}, which this version (at {head()}) does not know. Either a newer "
        "version made it (pip install --upgrade shadowspec), or a state before 0.1.0, which is not upgraded "
        "(name a new database in database.url)"
    )


def _describe(difference: object) -> str:
    if isinstance(difference, list):  # alembic lists the changes of one column together
        return "; ".join(map(_describe, difference))
    return " ".join(str(part) for part in difference) if isinstance(difference, tuple) else str(difference)


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    return config


def _revision(connection: Connection) -> str | None:
    """The revision that alembic has stored in the database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


@contextmanager
def _engine(url: URL) -> Iterator[Engine]:
    engine = session.create_engine(url, foreign_keys=False)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _borrow(engine: Engine) -> Iterator[Engine]:
    yield engine
