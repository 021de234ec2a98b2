"""The database engine and its transactions; the only place where a driver's errors become ours.

Postgres and SQLite only.  SQLite runs in WAL mode with foreign keys on; a write takes the write lock at its
start (BEGIN IMMEDIATE), because a reader that becomes a writer half-way fails at once instead of waiting.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError, StatementError

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError, StoreError, UsageError

P = ParamSpec("P")
R = TypeVar("R")

BUSY_TIMEOUT_MS = 30_000  # a block's rows are written in milliseconds; this outlasts any sane queue of writers
CONNECT_TIMEOUT_S = 10  # an unreachable host otherwise hangs for the operating system's minutes
STATEMENT_TIMEOUT_S = 30  # a batch takes less than one; a hung server must not hang a worker for ever
LONG_TIMEOUT_S = 3600  # migrations, retention and an endpoint's whole evidence
ANSWER_MARGIN_S = 15  # a server reports its own time-out; one that is silent this much longer hangs
IDLE_TIMEOUT_S = 60  # a transaction left open by a worker that hangs holds locks and stops vacuum
LONG_IDLE_TIMEOUT_S = 900  # a fold computes for seconds between its statements, on a starved machine for minutes
SESSION_OPTIONS = " ".join(
    (
        "-c timezone=UTC",
        "-c jit=off",  # compiling takes 0.5 s, running the statement 0.1 s
        f"-c statement_timeout={STATEMENT_TIMEOUT_S}s",
        f"-c idle_in_transaction_session_timeout={IDLE_TIMEOUT_S}s",
    )
)
SILENCE_TIMEOUT_S = 30  # a server whose host is gone answers nothing: the connection is given up

encode_json = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode

# By SQLSTATE: connection lost, no such resources now (disk, memory, connections), shutting down or starting,
# interrupted by an operator or a time-out, rolled back in favour of others, lock not had, read-only (a standby).
HEALING_SQLSTATES = ("08", "53", "57", "58", "40", "55P03", "25006", "25P03", "25P04")
LOCK_NOT_AVAILABLE = "55P03"
NOT_SQLITE = "file is not a database"  # SQLite's words for another file
FINAL_SQLSTATES = ("28", "3D")  # login refused, unknown database
# Conditions that need more than the state: a row that was on its way to the default partition when its month was made
# (the next attempt goes to the month), and a server that is a standby for now.
HEALING_WORDS = {"23514": "partition constraint", "0A000": "during recovery"}
# What libpq itself objects to before a server answers; libpq speaks English here.
FINAL_LOGIN = re.compile(
    r"no password supplied|certificate|unknown ca|support SSL|invalid connection option|not available on this server",
    re.IGNORECASE,
)
SERVERS_ANSWER = re.compile(r":  \S")  # libpq puts two spaces between a server's severity and its message
NO_STARTUP_PARAMETERS = "unsupported startup parameter"  # PgBouncer's words
ENCODING = "UTF8"
POOLER = "a pooler such as PgBouncer in transaction mode keeps no session: name Postgres itself in database.url"


def parse_url(url: str) -> URL:
    """The URL with its driver fixed: psycopg for Postgres, the standard library's for SQLite.

    Raises:
        UsageError: not a URL, another database, or SQLite without a file.
    """
    url = url.strip()  # a mounted secret may end in a newline
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError) as exc:
        raise UsageError("the database URL cannot be read; expected sqlite:///FILE or postgresql+psycopg://…") from exc
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        if url.count("@") > 1:  # the rest of a password would be read as a host, and shown as one
            raise UsageError("the database URL has more than one @: write an @ within the password as %40")
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise UsageError(
            f"database {parsed.drivername!r} is not supported; use sqlite:///FILE or postgresql+psycopg://…"
        )
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise UsageError("an SQLite database must name a plain file: sqlite:///FILE")
    return parsed.set(drivername="sqlite+pysqlite")


def database_name(url: URL) -> str:
    """The database as messages name it: the file of SQLite; host, port and database of Postgres, and nothing else of
    its URL, whose other parts may hold passwords.
    """
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host, port, database = (
        part or url.query.get(name) for part, name in ((url.host, "host"), (url.port, "port"), (url.database, "dbname"))
    )
    place = f"{host or 'localhost'}" + (f":{port}" if port else "")
    return f"{database} at {place}" if database else f"at {place}"


def is_missing_file(url: URL) -> bool:
    """Whether this is an SQLite database whose file does not exist (connecting would create it)."""
    return url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists()


def create_engine(url: URL, *, foreign_keys: bool = True) -> Engine:
    """A lazily connecting engine; `foreign_keys` off is for migrations that rebuild SQLite tables."""
    arguments: dict[str, Any] = {
        "hide_parameters": True,
        "json_serializer": encode_json,
        "json_deserializer": _read_json,
    }
    if url.get_backend_name() == "postgresql":
        from shadowspec.store.bounded_connection import (
            BINARY,
            BoundedConnection,
            connect_or_say_why,
        )  # SQLite needs none

        engine = sqlalchemy.create_engine(
            url,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "keepalives_idle": SILENCE_TIMEOUT_S // 3,
                "keepalives_interval": SILENCE_TIMEOUT_S // 6,
                "keepalives_count": 4,
                "tcp_user_timeout": SILENCE_TIMEOUT_S * 1000,
            }
            | dict(url.query)
            | {"options": f"{SESSION_OPTIONS} {url.query.get('options', '')}"},
            **arguments,
        )

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: object, _record: object, args: list[Any], keywords: dict[str, Any]) -> BoundedConnection:
            connection = connect_or_say_why(keywords.pop("context", None), *args, **keywords)
            try:
                _require_encoding(url, connection.info.parameter_status("server_encoding"))
            except StoreError:
                connection.close()
                raise
            reset_answer_timeout(connection)
            return connection

        @event.listens_for(engine, "checkin")
        def reset_answer_timeout(connection: Any, _record: object = None) -> None:
            if connection is not None:  # it was given up
                connection.answer_timeout_s = STATEMENT_TIMEOUT_S + ANSWER_MARGIN_S

        @event.listens_for(engine, "before_cursor_execute")
        def choose_format(
            _connection: Connection, cursor: Any, _statement: str, _parameters: Any, context: Any, _many: bool
        ) -> None:
            # Of statements that read many bytes: as text each would travel as two hexadecimal digits.
            if context is not None and context.execution_options.get("shadowspec_binary"):
                cursor.format = BINARY

        return engine
    engine = sqlalchemy.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000}, **arguments)

    @event.listens_for(engine, "do_connect")
    def create_privately(_dialect: object, _record: object, _args: object, _keywords: object) -> None:
        with suppress(OSError):  # it exists, or SQLite says what is wrong; its other files get the mode of this one
            os.close(os.open(str(url.database), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

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


def _require_encoding(url: URL, encoding: str | None) -> None:
    """
    Raises:
        StoreError: the database cannot hold all text.
    """
    if encoding is not None and encoding != ENCODING:
        raise StoreError(
            f"database {database_name(url)} has the encoding {encoding}, and {ENCODING} is needed: create another with "
            f"CREATE DATABASE name TEMPLATE template0 ENCODING '{ENCODING}', and name it in database.url"
        )


def _read_json(text: str | bytes) -> Any:
    """A stored document.  The standard library wrote it, and reads the few that msgspec refuses (half a surrogate)."""
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return json.loads(text)


@contextmanager
def read(database: Engine | Connection, *, timeout_s: int = STATEMENT_TIMEOUT_S) -> Iterator[Connection]:
    """A transaction that reads one snapshot of the database on both dialects; on a connection, a nested one."""
    if isinstance(database, Connection):
        with translate_errors(database.engine.url):
            yield database
        return
    with translate_errors(database.url), database.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        _limit(connection, timeout_s)
        yield connection


@contextmanager
def write(database: Engine | Connection, *, timeout_s: int = STATEMENT_TIMEOUT_S) -> Iterator[Connection]:
    """A transaction that commits at the end, or leaves no change behind after an exception; on a connection, a nested
    one.
    """
    if isinstance(database, Connection):
        with translate_errors(database.engine.url), database.begin_nested():
            yield database
        return
    with (
        translate_errors(database.url),
        database.connect() as connection,
        connection.execution_options(shadowspec_write=True).begin(),
    ):
        _limit(connection, timeout_s)
        yield connection


class _Database(Protocol):
    database: Engine | Connection


def reading(
    function: Callable[Concatenate[Connection, P], R], *, timeout_s: int = STATEMENT_TIMEOUT_S
) -> Callable[Concatenate[_Database, P], R]:
    """Make a method of the store from the function: each call reads one snapshot, in a separate transaction."""
    return _make_method(function, read, timeout_s)


def writing(
    function: Callable[Concatenate[Connection, P], R], *, timeout_s: int = STATEMENT_TIMEOUT_S
) -> Callable[Concatenate[_Database, P], R]:
    """Make a method of the store from the function: each call commits a separate transaction at its end."""
    return _make_method(function, write, timeout_s)


def _make_method(
    function: Callable[Concatenate[Connection, P], R],
    transaction: Callable[..., AbstractContextManager[Connection]],
    timeout_s: int,
) -> Callable[Concatenate[_Database, P], R]:
    @wraps(function)
    def method(store: _Database, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with transaction(store.database, timeout_s=timeout_s) as connection:
            return function(connection, *args, **kwargs)

    return method


def _limit(connection: Connection, timeout_s: int) -> None:
    """Bound the statements of this transaction, on the server and, a little later, on this side."""
    if connection.dialect.name == "postgresql":
        dbapi_connection: Any = connection.connection.dbapi_connection  # a BoundedConnection
        dbapi_connection.answer_timeout_s = timeout_s + ANSWER_MARGIN_S
        if timeout_s != STATEMENT_TIMEOUT_S:
            idle_s = min(timeout_s, LONG_IDLE_TIMEOUT_S)
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{timeout_s}s'")
            connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{idle_s}s'")


def is_lock_timeout(error: ServiceUnavailableError) -> bool:
    """Whether a statement gave up waiting for a lock."""
    cause = error.__cause__
    return isinstance(cause, StatementError) and getattr(cause.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE


@contextmanager
def translate_errors(url: URL) -> Iterator[None]:
    """Turn errors of driver and toolkit into ours; messages name the database and hold no row values.

    Raises:
        ServiceUnavailableError: the server cannot be reached or refuses us.
        StoreError: anything else that the database objects to.
    """
    name = database_name(url)
    try:
        yield
    except StatementError as exc:
        if isinstance(exc.orig, ShadowSpecError):
            raise exc.orig from exc
        unavailable = _unavailability(url, exc)
        if unavailable is not None:
            raise unavailable from exc
        said = _first_line(exc)
        remedy = "; correct database.url" if said == NOT_SQLITE else ""
        raise StoreError(f"database {name}: {said}{remedy}") from exc
    except SQLAlchemyError as exc:
        raise StoreError(f"database {name}: {_first_line(exc)}") from exc
    except (OverflowError, ValueError) as exc:  # a number too large, text without a UTF-8 form, NaN in JSON
        raise StoreError(f"database {name}: a value cannot be stored ({type(exc).__name__})") from exc


def _unavailability(url: URL, exc: StatementError) -> ServiceUnavailableError | None:
    """The error for a server that cannot serve, or None where it objects to the statement."""
    if url.get_backend_name() != "postgresql":
        return None
    name, said = database_name(url), _first_line(exc)
    sqlstate = getattr(exc.orig, "sqlstate", None)
    if sqlstate is None:
        is_connection_error = isinstance(exc, OperationalError | InterfaceError)
        if not is_connection_error and not (isinstance(exc, DBAPIError) and exc.connection_invalidated):
            return None
        # A login that a server refused without a state that could be read is not repeated for ever.
        is_final = FINAL_LOGIN.search(said) is not None or SERVERS_ANSWER.search(said) is not None
        return ServiceUnavailableError(
            f"database {name} cannot be reached: {said}; start it, or correct database.url", is_retryable=not is_final
        )
    if NO_STARTUP_PARAMETERS in said:
        return ServiceUnavailableError(f"database {name}: {said}; {POOLER}", is_retryable=False)
    if sqlstate.startswith(HEALING_SQLSTATES) or HEALING_WORDS.get(sqlstate, "\0") in str(exc.orig):
        return ServiceUnavailableError(f"database {name} cannot serve now ({sqlstate}): {said}; try again later")
    if sqlstate.startswith(FINAL_SQLSTATES) or getattr(exc.orig, "is_login", False):
        return ServiceUnavailableError(
            f"database {name} cannot be reached: {said}; correct database.url", is_retryable=False
        )
    return None


def _first_line(exc: SQLAlchemyError) -> str:
    cause = exc.orig if isinstance(exc, StatementError) and exc.orig is not None else exc
    if isinstance(exc, DBAPIError) or cause is exc:
        return (str(cause).splitlines() or [type(cause).__name__])[0]
    return type(cause).__name__  # a Python error on a bound value may quote the value
