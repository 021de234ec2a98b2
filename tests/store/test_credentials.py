"""A login that is refused and a certificate that is not trusted: exit code 5, and no waiting for them to heal."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from shadowspec.errors import ServiceUnavailableError
from shadowspec.store import Store, session, upgrade
from tests.services import PATIENCE_S, postgres_server
from tests.store.failing import administrator, batch, opened, unavailable

pytestmark = pytest.mark.integration


def with_password(url: str, password: str) -> str:
    return make_url(url).set(password=password).render_as_string(hide_password=False)


@dataclass(frozen=True)
class Guarded:
    """A server that asks for TLS and a password."""

    url: str  # of a migrated database, without password
    authority: Path
    other_authority: Path


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _authority(folder: Path, name: str) -> Path:
    _openssl(
        folder,
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
        *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
    )
    return folder / f"{name}.crt"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = _authority(folder, "ca"), _authority(folder, "other")
    _openssl(
        folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=db", "-keyout", "server.key", "-out", "server.csr"
    )
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl(
        folder,
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"),
        *("-extfile", "san", "-out", "server.crt"),
    )
    with postgres_server() as server:
        with administrator(server.url) as admin:
            # The server's user reads neither our folders nor our files: it is given copies, through itself.
            data = str(admin.scalar(text("SHOW data_directory")))
            for name in ("server.key", "server.crt"):
                place = Path(data) / name
                place.write_bytes((folder / name).read_bytes())
                owner = Path(data).stat()
                os.chown(place, owner.st_uid, owner.st_gid)
                place.chmod(0o600)
            admin.exec_driver_sql("ALTER SYSTEM SET ssl = on")
            admin.exec_driver_sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
            admin.exec_driver_sql("CREATE DATABASE guarded OWNER guarded")
            rules = "hostssl all guarded 127.0.0.1/32 scram-sha-256\nhost all shadowspec 127.0.0.1/32 trust\n"
            (Path(data) / "pg_hba.conf").write_text(rules)
            admin.execute(text("SELECT pg_reload_conf()"))
        url = make_url(server.url).set(database="guarded", username="guarded")
        made = url.render_as_string(hide_password=False)
        deadline = time.monotonic() + PATIENCE_S
        while True:  # the new settings take a moment
            try:
                upgrade(with_password(made, "right"))
                break
            except ServiceUnavailableError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield Guarded(made, authority, other)


def _with(url: str, **query: str) -> str:
    return make_url(url).update_query_dict(query).render_as_string(hide_password=False)


def test_tls_is_verified(guarded: Guarded) -> None:
    url = _with(with_password(guarded.url, "right"), sslmode="verify-full", sslrootcert=str(guarded.authority))
    engine = session.create_engine(session.parse_url(url))
    with opened(url) as store, session.read(engine) as connection:
        assert store.save_batch(batch(), "group").num_new_runs == 4
        assert connection.scalar(text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")) is True
    engine.dispose()


@pytest.mark.parametrize("wrong", ["authority", "host", "missing file"])
def test_a_server_that_is_not_trusted_is_refused(guarded: Guarded, wrong: str, tmp_path: Path) -> None:
    url = with_password(guarded.url, "right")
    authority = {"authority": guarded.other_authority, "missing file": tmp_path / "none.crt"}.get(
        wrong, guarded.authority
    )
    if wrong == "host":
        url = make_url(url).set(host="localhost").render_as_string(hide_password=False)  # not in the certificate
        url = _with(url, hostaddr="127.0.0.1")
    error = unavailable(lambda: Store.open(_with(url, sslmode="verify-full", sslrootcert=str(authority))))
    assert not error.is_retryable
    assert "certificate" in str(error)
    assert "right" not in str(error)


@pytest.mark.parametrize("wrong", ["password", "no password", "user", "database", "no TLS"])
def test_wrong_credentials_cannot_heal(guarded: Guarded, wrong: str) -> None:
    url = (
        guarded.url
        if wrong == "no password"
        else with_password(guarded.url, "wrong" if wrong == "password" else "right")
    )
    parsed = make_url(url)
    if wrong == "user":
        parsed = parsed.set(username="nobody")
    if wrong == "database":
        parsed = parsed.set(database="none")
    if wrong == "no TLS":
        parsed = parsed.update_query_dict({"sslmode": "disable"})
    error = unavailable(lambda: Store.open(parsed.render_as_string(hide_password=False)))
    assert not error.is_retryable
    assert "right" not in str(error)
