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
from contextlib import ExitStack, contextmanager
from pathlib import Path

PATIENCE_S = 900  # ends what hangs, on the slowest and busiest machine; no result depends on it
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


class PostgresServer:
    """One server on its own folder and port, which survives being stopped: what it held is there again."""

    def __init__(self, folder: Path, *, port: int | None = None, is_durable: bool = False, settings: str = "") -> None:
        self._user = "postgres" if os.geteuid() == 0 else None
        self._folder, self._programs, self._port = folder, postgres_programs(), port or free_port()
        if self._user is not None:
            shutil.chown(folder, self._user)
        options = f"-h 127.0.0.1 -p {self._port} -k {folder} -c max_connections=50 {settings}"
        self._options = options if is_durable else f"{options} -c fsync=off -c full_page_writes=off"
        initdb = ["--auth=trust", "--username=shadowspec", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        if not self._data.exists():
            _command(self._user, self._programs / "initdb", "--pgdata", self._data, *initdb)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def is_running(self) -> bool:
        """Whether its process is there; left behind by a crash, its pid file may say so wrongly."""
        return (self._data / "postmaster.pid").exists()

    @property
    def url(self) -> str:
        """URL of the maintenance database."""
        return f"postgresql+psycopg://shadowspec@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        log = self._folder / "log"
        self._control("--log", log, "--options", self._options, "start", log=log)

    def stop(self, mode: str = "immediate") -> None:
        """Stop it as pg_ctl does: "smart", "fast", or "immediate", which is a crash."""
        self._control("--mode", mode, "stop")

    def _control(self, *arguments: object, log: Path | None = None) -> None:
        wait = ("--pgdata", self._data, "--wait", "--timeout", PATIENCE_S)
        _command(self._user, self._programs / "pg_ctl", *wait, *arguments, log=log)


@contextmanager
def postgres_server(*, is_durable: bool = False, settings: str = "") -> Iterator[PostgresServer]:
    """A throw-away server, started; without durability unless asked for."""
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-postgres-"))
    try:
        server = PostgresServer(folder, is_durable=is_durable, settings=settings)
        server.start()
        try:
            yield server
        finally:
            if server.is_running:
                server.stop()
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


def is_running(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listened on a moment ago."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def free_port() -> int:
    """A port that nothing listened on a moment ago."""
    return free_ports(1)[0]


def is_listening(port: int) -> bool:
    """Whether something accepts connections on a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
