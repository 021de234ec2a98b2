"""One holder per endpoint, across threads, processes and (on Postgres) machines.

Postgres: an advisory lock on a connection of its own, so that the pool's other transactions go on and a lost
connection frees it.  SQLite: an exclusive lock on a file beside the database, freed by the system when its
holder dies; a write transaction held open instead would shut out the holder's own writes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from shadowspec.errors import StoreError
from shadowspec.store.session import translated_errors

POLL_S = 0.02  # an attempt is one system call


def lock_number(name: str) -> int:
    """A signed 64-bit number, as Postgres names its advisory locks."""
    return int.from_bytes(hashlib.sha256(f"shadowspec {name}".encode()).digest()[:8], "big", signed=True)


@contextmanager
def endpoint_lock(engine: Engine, endpoint: str, timeout_s: float) -> Iterator[None]:
    """Hold the endpoint's lock; it is not re-entrant.

    Raises:
        StoreError: another holder kept it for longer than `timeout_s`, or it was lost while held.
    """
    hold = _postgres_lock if engine.dialect.name == "postgresql" else _file_lock
    with hold(engine, endpoint, timeout_s):
        yield


@contextmanager
def _postgres_lock(engine: Engine, endpoint: str, timeout_s: float) -> Iterator[None]:
    number = lock_number(f"endpoint {endpoint}")
    with ExitStack() as stack:
        with translated_errors(engine.url):
            connection = stack.enter_context(engine.connect().execution_options(isolation_level="AUTOCOMMIT"))
            connection.detach()  # closing it then ends the session, and with it the lock, whatever happened
            deadline = time.monotonic() + timeout_s
            while not _call(connection, "pg_try_advisory_lock", number):
                _wait(deadline, endpoint)
        yield
        with translated_errors(engine.url):
            if not _call(connection, "pg_advisory_unlock", number):
                raise StoreError(f"endpoint {endpoint}: its lock was lost while it was held")


def _call(connection: Connection, function: str, number: int) -> bool:
    return bool(connection.scalar(text(f"SELECT {function}(:number)"), {"number": number}))


@contextmanager
def _file_lock(engine: Engine, endpoint: str, timeout_s: float) -> Iterator[None]:
    folder = Path(f"{engine.url.database}-locks")
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder / f"{lock_number(endpoint) % 2**64:016x}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError as exc:
        raise StoreError(f"endpoint {endpoint}: no lock file can be made in {folder}: {exc.strerror}") from exc
    try:
        deadline = time.monotonic() + timeout_s
        while not _try_flock(descriptor):
            _wait(deadline, endpoint)
        yield
    finally:
        os.close(descriptor)


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
