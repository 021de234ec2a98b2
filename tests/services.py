"""A real Postgres server for the tests: found, started on a free port, stopped.

The server's programs refuse to run as root, so root starts them as the `postgres` user.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 60  # a cold start takes 2 s; a machine busy with a training run takes ten times as long
DEBIAN_FOLDERS = Path("/usr/lib/postgresql")


class ServiceMissingError(RuntimeError):
    """A service that the tests need cannot be started; the message says what to install."""


def postgres_programs() -> Path:
    """The folder with initdb and pg_ctl, newest version first."""
    folders = sorted(DEBIAN_FOLDERS.glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    for folder in (*folders, *([Path(on_path).resolve().parent] if on_path else [])):
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise ServiceMissingError(
        "no Postgres server found: apt-get install postgresql, or set SHADOWSPEC_TEST_POSTGRES_URL to a server "
        "on which the tests may create databases"
    )


@contextmanager
def postgres_server() -> Iterator[str]:
    """A throw-away server without durability; yields the URL of its maintenance database."""
    programs = postgres_programs()
    user = "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        port = _free_port()
        options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off -c full_page_writes=off -c max_connections=50"
        data = folder / "data"
        run = ["--auth=trust", "--username=shadowspec", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        _command(user, programs / "initdb", "--pgdata", data, *run)
        control = (programs / "pg_ctl", "--pgdata", data, "--wait", "--timeout", START_TIMEOUT_S)
        _command(user, *control, "--log", folder / "log", "--options", options, "start", log=folder / "log")
        try:
            yield f"postgresql+psycopg://shadowspec@127.0.0.1:{port}/postgres"
        finally:
            _command(user, *control, "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command(user: str | None, *arguments: object, log: Path | None = None) -> None:
    # The server inherits these streams and outlives the command, so a pipe here would never close.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd="/",
            env=os.environ | ({"HOME": "/"} if user else {}),
            check=False,
        )
        output.seek(0)
        said = output.read().decode(errors="replace")
    if done.returncode != 0:
        kept = log.read_text(errors="replace") if log is not None and log.exists() else ""
        raise ServiceMissingError(f"{Path(str(arguments[0])).name} failed ({done.returncode}):\n{said}\n{kept}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
