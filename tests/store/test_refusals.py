"""Databases that are refused: what the message names, what it must not show, and whether waiting may help."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import StaticPool, make_url

from shadowspec.errors import ServiceUnavailableError, StoreError, UsageError
from shadowspec.store import Store, session, upgrade
from shadowspec.store.locks import require_session
from tests.services import free_port
from tests.store.failing import administrator, unavailable

PASSWORD = "pw-canary-81"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://u:{PASSWORD}@127.0.0.1:{{port}}/x",
        f"postgresql://u@127.0.0.1:{{port}}/x?password={PASSWORD}",
        f"postgresql://u@127.0.0.1:{{port}}/x?sslpassword={PASSWORD}&sslmode=disable",
        f"postgresql:///x?host=127.0.0.1&port={{port}}&user=u&password={PASSWORD}",
        f"postgresql://u:{PASSWORD}@127.0.0.1:{{port}}/x\n",
    ],
)
def test_a_message_names_host_port_and_database_alone(url: str) -> None:
    port = free_port()
    error = str(unavailable(lambda: Store.open(url.format(port=port))))
    assert f"database x at 127.0.0.1:{port} cannot be reached" in error
    assert PASSWORD not in error
    assert "u@" not in error


@pytest.mark.parametrize("rest", ["@db.example/x", "@pw/y@db.example/x", "@pw?y@db.example/x"])
def test_half_of_a_password_is_not_taken_for_a_host(rest: str) -> None:
    with pytest.raises(UsageError, match=r"write an @ within the password as %40") as caught:
        session.parse_url(f"postgresql://u:half@{PASSWORD}{rest}")
    assert PASSWORD not in str(caught.value)
    assert session.parse_url("postgresql://u:half%40x@db.example/x").password == "half@x"


def test_the_files_of_sqlite_are_private(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    upgrade(f"sqlite:///{path}")
    with Store.open(f"sqlite:///{path}") as store:
        store.endpoints()
        assert {
            file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir() if file.is_file()
        } == dict.fromkeys((file.name for file in tmp_path.iterdir() if file.is_file()), 0o600)


@contextmanager
def _refusing_server(sqlstate: str, message: str) -> Iterator[str]:
    """URL of what answers each login with one error, as Postgres does."""
    fields = f"SFATAL\0VFATAL\0C{sqlstate}\0M{message}\0\0".encode()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/x?sslmode=disable"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("sqlstate", "message", "is_retryable"),
    [
        ("28P01", "Passwort-Authentifizierung für Benutzer »gate« fehlgeschlagen", False),
        ("28000", "aucune entrée dans pg_hba.conf pour l'hôte", False),
        ("3D000", 'база данных "x" не существует', False),
        ("42501", "keine Berechtigung für Datenbank x", False),
        ("57P03", "das Datenbanksystem startet", True),
        ("53300", "tut mir leid, schon zu viele Verbindungen", True),
    ],
)
def test_a_login_is_judged_by_its_state_in_any_language(sqlstate: str, message: str, is_retryable: bool) -> None:
    with _refusing_server(sqlstate, message) as url:
        error = unavailable(lambda: Store.open(url))
    assert error.is_retryable is is_retryable
    assert message in str(error)


def test_a_pooler_that_takes_no_session_settings_is_named() -> None:
    with _refusing_server("08P01", "unsupported startup parameter: options") as url:
        error = unavailable(lambda: Store.open(url))
    assert not error.is_retryable
    assert "a pooler such as PgBouncer" in str(error)
    assert "name Postgres itself in database.url" in str(error)


@pytest.mark.integration
def test_a_connection_without_a_process_to_itself_takes_no_lock(postgres_url: str) -> None:
    own = session.create_engine(session.parse_url(postgres_url))
    shared = sqlalchemy.create_engine(session.parse_url(postgres_url), poolclass=StaticPool)
    with own.connect() as connection:
        require_session(connection)
    with shared.connect() as connection, pytest.raises(ServiceUnavailableError, match="PgBouncer") as caught:
        require_session(connection)
    assert not caught.value.is_retryable
    own.dispose()
    shared.dispose()


@pytest.mark.integration
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_all_text_is_refused(postgres_url: str, encoding: str) -> None:
    name = f"encoded_{encoding.lower()}"
    with administrator(postgres_url) as admin:
        admin.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    url = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    with pytest.raises(
        StoreError, match=f"{name} at .* has the encoding {encoding}, and UTF8 is needed: create another"
    ):
        upgrade(url)
    with administrator(postgres_url) as admin:
        admin.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
