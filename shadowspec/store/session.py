"""The database engine and its transactions; the only place where a driver's errors become ours.

Postgres and SQLite only.  SQLite runs in WAL mode with foreign keys on; a write takes the write lock at its
start (BEGIN IMMEDIATE), because a reader that becomes a writer half-way fails at once instead of waiting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError, StatementError

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError, StoreError, UsageError

BUSY_TIMEOUT_MS = 30_000  # a block's rows are written in milliseconds; this outlasts any sane queue of writers
CONNECT_TIMEOUT_S = 10  # an unreachable host otherwise hangs for the operating system's minutes
UNREACHABLE_SQLSTATES = ("08", "28", "3D", "57P")  # connection, login, unknown database, shutting down


def parse_url(url: str) -> URL:
    """The URL with its driver fixed: psycopg for Postgres, the standard library's for SQLite.

    Raises:
        UsageError: not a URL, another database, or SQLite without a file.
    """
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError) as exc:
        raise UsageError("the database URL cannot be read; expected sqlite:///FILE or postgresql+psycopg://…") from exc
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise UsageError(
            f"database {parsed.drivername!r} is not supported; use sqlite:///FILE or postgresql+psycopg://…"
        )
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise UsageError("an SQLite database must name a plain file: sqlite:///FILE")
    return parsed.set(drivername="sqlite+pysqlite")


def is_missing_file(url: URL) -> bool:
    """Whether this is an SQLite database whose file does not exist (connecting would create it)."""
    return url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists()


def create_engine(url: URL, *, foreign_keys: bool = True) -> Engine:
    """A lazily connecting engine; `foreign_keys` off is for migrations that rebuild SQLite tables."""
    arguments: dict[str, Any] = {
        "hide_parameters": True,
        "json_serializer": partial(json.dumps, allow_nan=False, separators=(",", ":")),
    }
    if url.get_backend_name() == "postgresql":
        return sqlalchemy.create_engine(
            url,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "options": "-c timezone=UTC"},
            **arguments,
        )
    engine = sqlalchemy.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000}, **arguments)

    @event.listens_for(engine, "connect")
    def prepare(dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.isolation_level = None  # the driver begins no transaction: `begin` below does
        cursor = dbapi_connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        is_write = connection.get_execution_options().get("shadowspec_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")

    return engine


@contextmanager
def read(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads one snapshot of the database on both dialects."""
    with translated_errors(engine.url), engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        yield connection


@contextmanager
def write(engine: Engine) -> Iterator[Connection]:
    """A transaction that commits at the end, or leaves nothing behind if an exception leaves it."""
    with (
        translated_errors(engine.url),
        engine.connect() as connection,
        connection.execution_options(shadowspec_write=True).begin(),
    ):
        yield connection


@contextmanager
def translated_errors(url: URL) -> Iterator[None]:
    """Turn errors of driver and toolkit into ours; messages name the database and hold no row values.

    Raises:
        ServiceUnavailableError: the server cannot be reached or refuses us.
        StoreError: anything else that the database objects to.
    """
    name = url.render_as_string(hide_password=True)
    try:
        yield
    except StatementError as exc:
        if isinstance(exc.orig, ShadowSpecError):
            raise exc.orig from exc
        if _is_unreachable(url, exc):
            raise ServiceUnavailableError(f"database {name} cannot be reached: {_first_line(exc)}") from exc
        raise StoreError(f"database {name}: {_first_line(exc)}") from exc
    except SQLAlchemyError as exc:
        raise StoreError(f"database {name}: {_first_line(exc)}") from exc
    except (OverflowError, ValueError) as exc:  # a number too large, text without a UTF-8 form, NaN in JSON
        raise StoreError(f"database {name}: a value cannot be stored ({type(exc).__name__})") from exc


def _is_unreachable(url: URL, exc: StatementError) -> bool:
    if url.get_backend_name() != "postgresql" or not isinstance(exc, OperationalError | InterfaceError):
        return False
    sqlstate = getattr(exc.orig, "sqlstate", None)
    return exc.connection_invalidated or sqlstate is None or sqlstate.startswith(UNREACHABLE_SQLSTATES)


def _first_line(exc: SQLAlchemyError) -> str:
    cause = exc.orig if isinstance(exc, StatementError) and exc.orig is not None else exc
    if isinstance(exc, DBAPIError) or cause is exc:
        return (str(cause).splitlines() or [type(cause).__name__])[0]
    return type(cause).__name__  # a Python error on a bound value may quote the value
