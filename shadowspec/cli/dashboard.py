"""`shadowspec dashboard`: serve the pages of `dashboards/`, in a separate process of Streamlit."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import results
from shadowspec.cli.options import ConfigOption
from shadowspec.config import CONFIG_VARIABLE, find_config, load_config
from shadowspec.config.dashboard_settings import LOOPBACK, require_auth_file
from shadowspec.errors import ConfigError, ExitCode, ServiceUnavailableError, UsageError
from shadowspec.types.extras import require_extra

START_TIMEOUT_S = 60.0  # it takes one to four seconds; a cold disk takes more
POLL_S = 0.1
STOP_TIMEOUT_S = 5.0  # what open pages get before the process is ended


def dashboard(
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65_535, help="Port; default: dashboard.port.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to bind; default: dashboard.host.")] = None,
    without_login: Annotated[
        bool, typer.Option("--without-login", help="Bind an address that others can reach, without a login.")
    ] = False,
    config_path: ConfigOption = None,
) -> None:
    """Serve the rollout dashboard until stopped: verdicts, their evidence, and the evidence still needed.

    It reads only the database. While the database is unreachable the page says so, and recovers by itself.
    """
    path = find_config(config_path)
    settings = load_config(path).dashboard
    host, port = host or settings.host, port or settings.port
    require_extra("the dashboard", "dashboard")
    _require_access(settings.access.auth_file, host, without_login=without_login)
    _require_free(host, port)
    command = [
        *(sys.executable, str(dashboards_folder() / "serve.py")),
        *("--server.address", host, "--server.port", str(port), "--server.headless", "true"),
        *("--browser.gatherUsageStats", "false", "--logger.level", "warning"),
    ]
    if settings.access.auth_file is not None:
        command += ["--secrets.files", str(settings.access.auth_file)]
    environment = os.environ | {CONFIG_VARIABLE: str(path), "PYTHONPATH": _search_path()}
    with subprocess.Popen(command, env=environment, stdout=sys.stderr.fileno()) as child:  # noqa: S603 - our own
        stopped = _serve(child, host, port)
    if stopped == signal.SIGINT:
        raise typer.Exit(ExitCode.INTERRUPTED)


def dashboards_folder() -> Path:
    """The folder with `app.py`: of the installed wheel, else beside `shadowspec/` in a checkout.

    Raises:
        ConfigError: the installation holds none.
    """
    spec = importlib.util.find_spec("shadowspec._dashboards")
    installed = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    sibling = Path(__file__).resolve().parents[2] / "dashboards"
    for folder in (*installed, sibling):
        if (folder / "app.py").is_file():
            return folder
    raise ConfigError(f"no dashboard found: neither shadowspec._dashboards nor {sibling}; install shadowspec again")


def _serve(child: subprocess.Popen[bytes], host: str, port: int) -> int | None:
    """Wait until the child ends; the signal that stopped it.

    Raises:
        ServiceUnavailableError: it ended by itself, or does not answer.
    """
    received: list[int] = []

    def ask(number: int, _frame: object) -> None:
        received.append(number)
        child.terminate()

    previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if _is_up(child, host, port):
            results.print(f"dashboard: http://{_format_host(host)}:{port}", highlight=False, soft_wrap=True)
            sys.stdout.flush()
            child.wait()
        elif child.poll() is None:
            child.terminate()
            raise ServiceUnavailableError(f"the dashboard did not answer on {host}:{port} within {START_TIMEOUT_S:g} s")
        if not received:
            raise ServiceUnavailableError(f"the dashboard's process ended by itself (exit code {child.returncode})")
        return received[0]
    finally:
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_up(child: subprocess.Popen[bytes], host: str, port: int) -> bool:
    """Whether it takes connections before the time-out and before it ends."""
    deadline = time.monotonic() + START_TIMEOUT_S
    address = ("127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host, port)  # noqa: S104 - compared
    while child.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(address, timeout=1.0):
                return True
        except OSError:
            time.sleep(POLL_S)
    return False


def _require_access(auth_file: Path | None, host: str, *, without_login: bool) -> None:
    """Raise unless a login is configured as it must be, or nobody but this machine reaches the address."""
    if auth_file is not None:
        require_auth_file(auth_file)
    elif host not in LOOPBACK and not without_login:
        raise UsageError(
            f"{host}: others can reach this address and no login is configured; set dashboard.auth_file, or give "
            "--without-login if another layer controls access"
        )
    elif host not in LOOPBACK:
        notes.print(f"no login is configured: anyone who can reach {host} can see all data", highlight=False)


def _require_free(host: str, port: int) -> None:
    """Raise UsageError where the address cannot be bound: Streamlit would go on to look for another."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UsageError(f"{host}:{port} cannot be bound ({error.strerror}); choose another with --port") from error


def _search_path() -> str:
    """PYTHONPATH under which the child imports the shadowspec that this process runs."""
    text = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([text, *filter(None, [os.environ.get("PYTHONPATH")])])


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 - compared
