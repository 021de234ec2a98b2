"""A database that fails in the middle of things: what may heal says so, nothing is half written, and work goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import make_url, text

from shadowspec.errors import ServiceUnavailableError, StoreError
from shadowspec.store import Store, session, upgrade
from tests.services import PATIENCE_S, PostgresServer, postgres_server
from tests.store.failing import FILE, MEASURED, administrator, batch, opened, unavailable

pytestmark = pytest.mark.integration


def _others(connection: sqlalchemy.Connection) -> list[int]:
    mine = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return list(connection.scalars(text(mine)))


def _terminate_others(connection: sqlalchemy.Connection) -> None:
    for pid in _others(connection):
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})


@pytest.fixture
def url(new_database: Callable[[str], str]) -> str:
    return new_database("postgres")


def test_a_connection_cut_between_uses_is_replaced(url: str) -> None:
    with opened(url) as store, administrator(url) as admin:
        _terminate_others(admin)
        assert store.save_batch(batch(), "group").num_new_runs == 4


def test_a_connection_cut_inside_a_transaction_leaves_nothing(url: str) -> None:
    """The batch waits for the ledger's row, which another transaction holds; there it is cut off."""
    with opened(url) as store, administrator(url) as admin:
        store.save_batch(batch(0), "group")
        engine = session.create_engine(session.parse_url(url))
        errors: list[ServiceUnavailableError] = []
        with session.write(engine) as holder:
            holder.execute(text("SELECT * FROM ledger FOR UPDATE"))
            writer = threading.Thread(
                target=lambda: errors.append(unavailable(lambda: store.save_batch(batch(1), "group")))
            )
            writer.start()
            waiting = text(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            deadline = time.monotonic() + PATIENCE_S
            while (pid := admin.scalar(waiting)) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            admin.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            writer.join()
        engine.dispose()
        assert [error.is_retryable for error in errors] == [True]
        assert len(store.runs("chat")) == 4
        assert store.save_batch(batch(1), "group").num_new_runs == 4
        assert store.funnel() == {MEASURED: 8}


def test_after_a_write_whose_answer_was_lost_the_ledger_knows(url: str) -> None:
    """The commit may have happened: sent again it is fenced, and the entry says so."""
    with opened(url) as store:
        store.save_batch(batch(0), "group")  # as if this answer had not arrived
        with pytest.raises(StoreError, match="is at 4, expected no entry"):
            store.save_batch(batch(0), "group")
        entry = store.ledger_entry("group", FILE)
        assert entry is not None
        assert entry.next_offset == batch(0).advances[0].next_offset


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def own_url(own_server: PostgresServer) -> str:
    """A database on a server that this module may stop."""
    with administrator(own_server.url) as admin:
        admin.exec_driver_sql("DROP DATABASE IF EXISTS ours WITH (FORCE)")
        admin.exec_driver_sql("CREATE DATABASE ours")
    made = make_url(own_server.url).set(database="ours").render_as_string(hide_password=False)
    upgrade(made)
    return made


def test_a_server_that_restarts(own_server: PostgresServer, own_url: str) -> None:
    with opened(own_url) as store:
        store.save_batch(batch(0), "group")
        own_server.stop("fast")
        for call in (
            lambda: store.save_batch(batch(1), "group"),
            lambda: store.ledger("group"),
            lambda: Store.open(own_url),
        ):
            assert unavailable(call).is_retryable
        own_server.start()
        assert store.save_batch(batch(1), "group").num_new_runs == 4
        own_server.stop("immediate")  # a crash; the next start recovers
        assert unavailable(lambda: store.save_batch(batch(2), "group")).is_retryable
        own_server.start()
        assert store.save_batch(batch(2), "group").num_new_runs == 4
        assert store.funnel() == {MEASURED: 12}


@contextmanager
def standby(server: PostgresServer, url: str, *, is_readable: bool) -> Iterator[None]:
    """The server in recovery that does not end."""
    with administrator(server.url) as admin:
        folder = Path(str(admin.scalar(text("SHOW data_directory"))))
        admin.exec_driver_sql(f"ALTER SYSTEM SET hot_standby = {'on' if is_readable else 'off'}")
    server.stop("fast")
    mark = folder / "standby.signal"
    mark.touch()
    server.start()
    yield
    server.stop("fast")
    mark.unlink()
    with (folder / "postgresql.auto.conf").open("a") as settings:  # off, pg_ctl does not wait for recovery's end
        settings.write("hot_standby = 'on'\n")
    server.start()


def test_a_server_in_recovery_may_heal(own_server: PostgresServer, own_url: str) -> None:
    with opened(own_url) as store:
        with standby(own_server, own_url, is_readable=False):
            for call in (lambda: store.save_batch(batch(), "group"), lambda: Store.open(own_url)):
                error = unavailable(call)
                assert error.is_retryable
                assert "recovery" in str(error) or "not accepting" in str(error) or "starting up" in str(error)
        assert store.save_batch(batch(), "group").num_new_runs == 4


def test_a_server_that_only_reads_may_heal(own_server: PostgresServer, own_url: str) -> None:
    with opened(own_url) as store:
        store.save_batch(batch(0), "group")
        with standby(own_server, own_url, is_readable=True):
            assert len(store.runs("chat")) == 4
            error = unavailable(lambda: store.save_batch(batch(1), "group"))
            assert error.is_retryable
            assert "recovery" in str(error)
        assert store.save_batch(batch(1), "group").num_new_runs == 4


@pytest.mark.parametrize("sqlstate", ["53100", "53200", "53300", "58030", "40001", "40P01"])
def test_what_may_heal_is_retryable(url: str, sqlstate: str) -> None:
    """Disk full, out of memory, too many connections, I/O error, rolled back in favour of others: simulated."""
    with opened(url) as store, administrator(url) as admin:
        admin.exec_driver_sql(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'simulated' USING ERRCODE = '{sqlstate}'; END $$"
        )
        admin.exec_driver_sql("CREATE TRIGGER fail BEFORE INSERT ON rollup_bins EXECUTE FUNCTION fail()")
        error = unavailable(lambda: store.save_batch(batch(), "group"))
        assert error.is_retryable
        assert sqlstate in str(error)
        assert (store.runs("chat"), store.records("chat"), store.ledger("group"), store.funnel()) == ([], [], [], {})
        admin.exec_driver_sql("DROP TRIGGER fail ON rollup_bins")
        assert store.save_batch(batch(), "group").num_new_runs == 4


def test_what_cannot_heal_is_not_retried(url: str) -> None:
    with opened(url) as store, administrator(url) as admin:
        admin.exec_driver_sql("ALTER TABLE rollups DROP COLUMN weight")
        with pytest.raises(StoreError) as caught:
            store.save_batch(batch(), "group")
        assert not isinstance(caught.value, ServiceUnavailableError)
        assert store.runs("chat") == []


def test_a_statement_that_takes_too_long_is_given_up(url: str) -> None:
    impatient = make_url(url).update_query_dict({"options": "-c statement_timeout=200ms"})
    with opened(impatient.render_as_string(hide_password=False)) as store:
        store.save_batch(batch(0), "group")
        engine = session.create_engine(session.parse_url(url))
        with session.write(engine) as holder:
            holder.execute(text("SELECT * FROM ledger FOR UPDATE"))
            error = unavailable(lambda: store.save_batch(batch(1), "group"))
        engine.dispose()
        assert error.is_retryable
        assert "57014" in str(error)
        assert store.save_batch(batch(1), "group").num_new_runs == 4


def test_a_server_process_that_is_stuck_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine still answers, so neither keep-alives nor the server's own time-out help."""
    monkeypatch.setattr(session, "STATEMENT_TIMEOUT_S", 1)
    monkeypatch.setattr(session, "ANSWER_MARGIN_S", 1)
    engine = session.create_engine(session.parse_url(url))
    with session.read(engine, timeout_s=1) as connection:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()

        def ask() -> object:
            with session.read(engine, timeout_s=1) as connection:
                return connection.scalar(text("SELECT pg_backend_pid()"))

        assert ask() != pid  # the ping gave the stuck one up, and another was opened
        assert time.monotonic() - started < PATIENCE_S
        with session.read(engine, timeout_s=1) as connection:
            other = connection.scalar(text("SELECT pg_backend_pid()"))
            assert other is not None
            os.kill(other, signal.SIGSTOP)
            error = unavailable(lambda: _ask(connection))
            os.kill(other, signal.SIGCONT)
        assert error.is_retryable
        assert "has not answered for 2 s" in str(error)
    finally:
        os.kill(pid, signal.SIGCONT)
    engine.dispose()


def _ask(connection: sqlalchemy.Connection) -> None:
    with session.translate_errors(connection.engine.url):
        connection.scalar(text("SELECT 1"))


def test_the_session_is_bounded(url: str) -> None:
    engine = session.create_engine(session.parse_url(url))
    with session.read(engine) as connection:
        shown = {name: connection.scalar(text(f"SHOW {name}")) for name in ("statement_timeout", "timezone")}
        idle = connection.scalar(text("SHOW idle_in_transaction_session_timeout"))
    with session.write(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
        long = connection.scalar(text("SHOW statement_timeout"))
        long_idle = connection.scalar(text("SHOW idle_in_transaction_session_timeout"))
    with session.write(engine) as connection:
        after = connection.scalar(text("SHOW statement_timeout"))
    engine.dispose()
    assert shown == {"statement_timeout": "30s", "timezone": "UTC"}
    assert (idle, long, after) == ("1min", "1h", "30s")
    assert long_idle == "15min", "a fold computes between its statements"
