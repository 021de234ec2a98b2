"""Databases of each dialect for one test, made from one that is migrated once."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import NullPool, make_url

DIALECTS = ("sqlite", pytest.param("postgres", marks=pytest.mark.integration))


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of this run share."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder filled by the first process of this run that asks for it; all processes read it or copy it."""
    root = folder_of_run(factory)
    folder = root / f"once-{name}"
    with (root / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = root / f"once-{name}.{uuid.uuid4().hex}"
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


@contextmanager
def temporary_database(server_url: str, template: str | None = None) -> Iterator[str]:
    """A database of a fresh name on the server, dropped at the end."""
    name = f"shadowspec_{uuid.uuid4().hex[:12]}"
    engine = sqlalchemy.create_engine(server_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        copied = f' TEMPLATE "{template}"' if template else ""
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"{copied}')
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f'DROP DATABASE "{name}" WITH (FORCE)')
