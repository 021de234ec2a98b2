"""One holder per endpoint, and one leader of a kind, across threads, processes and (on Postgres) machines.

Postgres: an advisory lock on a dedicated connection, so that the pool's other transactions continue and a lost
connection frees it.  SQLite: an exclusive lock on a file beside the database, which the system frees when its
holder dies; an open write transaction instead would block the holder's other writes.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from shadowspec.errors import ServiceUnavailableError, StoreError
from shadowspec.store.session import POOLER, database_name, translate_errors

POLL_S = 0.02  # an attempt is one system call
SILENT_LEADER_S = 30  # after which the server takes a leader for dead

RequireHeld = Callable[[], None]  # raises if a lock was lost while it was held

_SILENCE_OPTIONS = {
    "idle_session_timeout": f"{SILENT_LEADER_S}s",
    "tcp_keepalives_idle": SILENT_LEADER_S // 3,
    "tcp_keepalives_interval": SILENT_LEADER_S // 6,
    "tcp_keepalives_count": 4,
}
_IS_HELD = text(
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted "
    "AND objsubid = 1 AND classid = CAST(:upper AS bigint)::oid AND objid = CAST(:lower AS bigint)::oid)"
)
_log = logging.getLogger(__name__)


def lock_number(name: str) -> int:
    """A signed 64-bit number, as Postgres names its advisory locks."""
    return int.from_bytes(hashlib.sha256(f"shadowspec {name}".encode()).digest()[:8], "big", signed=True)


@contextmanager
def endpoint_lock(engine: Engine, endpoint: str, timeout_s: float) -> Iterator[RequireHeld]:
    """Hold the endpoint's lock, which is not re-entrant; the function that is given raises if it was lost.

    Raises:
        StoreError: another holder kept it for longer than `timeout_s`, or it was lost while held.
        ServiceUnavailableError: its connection was lost.
    """
    hold = _postgres_lock if engine.dialect.name == "postgresql" else _file_lock
    with hold(engine, endpoint, timeout_s) as require_held:
        yield require_held


@contextmanager
def _postgres_lock(engine: Engine, endpoint: str, timeout_s: float) -> Iterator[RequireHeld]:
    number = lock_number(f"endpoint {endpoint}")
    with ExitStack() as stack:
        with translate_errors(engine.url):
            connection = stack.enter_context(engine.connect().execution_options(isolation_level="AUTOCOMMIT"))
            connection.detach()  # closing it then ends the session, and with it the lock, after any error too
            require_session(connection)
            deadline = time.monotonic() + timeout_s
            while not _call(connection, "pg_try_advisory_lock", number):
                _wait(deadline, endpoint)
        yield partial(_require_held, connection, endpoint, number)
        with translate_errors(engine.url):
            if not _call(connection, "pg_advisory_unlock", number):
                raise _lost(endpoint)


def require_session(connection: Connection) -> None:
    """Check that the connection has a session of the server to itself: behind a pooler a lock would outlive its holder.

    Raises:
        ServiceUnavailableError: another connection is served by the same process meanwhile, or this one by two.
    """
    with connection.engine.connect() as other:  # in a transaction, so a pooler leaves its process to it
        process, other_process = _process_of(connection), _process_of(other)
        if process == other_process or process != _process_of(connection):
            raise ServiceUnavailableError(
                f"database {database_name(connection.engine.url)}: {POOLER}", is_retryable=False
            )


def _process_of(connection: Connection) -> int:
    return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)


def _require_held(connection: Connection, endpoint: str, number: int) -> None:
    if not _is_held(connection, number):
        raise _lost(endpoint)


def _is_held(connection: Connection, number: int) -> bool:
    """Whether this connection holds the lock, asked of the server."""
    with translate_errors(connection.engine.url):
        return bool(connection.scalar(_IS_HELD, _halves(number)))


def _lost(endpoint: str) -> StoreError:
    return StoreError(f"endpoint {endpoint}: its lock was lost while it was held")


def _call(connection: Connection, function: str, number: int) -> bool:
    return bool(connection.scalar(text(f"SELECT {function}(:number)"), {"number": number}))


@contextmanager
def _file_lock(engine: Engine, endpoint: str, timeout_s: float) -> Iterator[RequireHeld]:
    descriptor = _lock_file(engine, endpoint, f"endpoint {endpoint}")
    try:
        deadline = time.monotonic() + timeout_s
        while not _try_flock(descriptor):
            _wait(deadline, endpoint)
        yield lambda: None  # no other process can take it
    finally:
        os.close(descriptor)


def _lock_file(engine: Engine, name: str, what: str) -> int:
    """A descriptor of the file that represents a lock."""
    folder = Path(f"{engine.url.database}-locks")
    try:
        folder.mkdir(exist_ok=True)
        return os.open(folder / f"{lock_number(name) % 2**64:016x}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError as exc:
        raise StoreError(f"{what}: no lock file can be made in {folder}: {exc.strerror}") from exc


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(deadline: float, endpoint: str) -> None:
    if time.monotonic() >= deadline:
        raise StoreError(f"endpoint {endpoint}: another process holds its lock")
    time.sleep(POLL_S)


class Leadership:
    """A lock that one process holds until it ends or loses the lock.

    On Postgres it uses a dedicated connection, outside the pool.  The server frees it when that session ends, which
    happens when the holder is silent for `SILENT_LEADER_S` (stopped, or cut off).  So a holder checks `is_held` more
    often than that.  Not for several threads at once.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._connection: Connection | None = None
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take it if nobody holds it; whether it is ours now.

        Raises:
            ServiceUnavailableError, StoreError: the database cannot be asked.
        """
        if self.is_held():
            return True
        self.release()
        if self._engine.dialect.name != "postgresql":
            descriptor = _lock_file(self._engine, f"leader {self._name}", f"leader {self._name}")
            if not _try_flock(descriptor):
                os.close(descriptor)
                return False
            self._descriptor = descriptor
            return True
        with translate_errors(self._engine.url):
            with ExitStack() as stack:
                connection = stack.enter_context(self._engine.connect().execution_options(isolation_level="AUTOCOMMIT"))
                connection.detach()
                require_session(connection)
                if not _call(connection, "pg_try_advisory_lock", self._number):
                    return False
                for name, value in _SILENCE_OPTIONS.items():
                    connection.exec_driver_sql(f"SET {name} = '{value}'")
                stack.pop_all()
            self._connection = connection
        return True

    def is_held(self) -> bool:
        """Whether it is still ours, asked of the server; a connection that fails has lost it."""
        if self._connection is None:
            return self._descriptor is not None
        try:
            return _is_held(self._connection, self._number)
        except (StoreError, ServiceUnavailableError):
            return False

    def release(self) -> None:
        """Let it go; nothing happens if it is not held."""
        connection, self._connection = self._connection, None
        descriptor, self._descriptor = self._descriptor, None
        if connection is not None:
            try:
                with translate_errors(self._engine.url):
                    connection.close()
            except (StoreError, ServiceUnavailableError) as error:  # then it is gone with its session
                _log.debug("the leader's connection was lost: %s", error)
        if descriptor is not None:
            os.close(descriptor)

    @property
    def _number(self) -> int:
        return lock_number(f"leader {self._name}")


def _halves(number: int) -> dict[str, int]:
    """A lock's number as pg_locks shows it."""
    return {"upper": (number >> 32) & 0xFFFFFFFF, "lower": number & 0xFFFFFFFF}
