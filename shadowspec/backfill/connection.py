"""A Ray cluster for as long as it is needed: an existing one or one on this machine; and its premature end."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import ray
from ray.exceptions import RayError, RayTaskError

from shadowspec.child_processes import watched
from shadowspec.errors import ServiceUnavailableError

WATCH_S: Final = 2.0  # between two looks at the cluster
# Of a cluster on this machine.  Its processes give each other up after fixed 15 to 30 seconds, which a busy machine may
# need to read Ray's files for the first time.
STARTS: Final = 4
_VITAL: Final = ("raylet", "gcs_server")  # processes without which a local cluster returns no results
# On a single machine no other node can replace a slow one: it is waited for, however long the machine pauses, and its
# processes are watched instead.  By default Ray gives a node up that hangs for half a minute, and runs its workers at
# nice 15, so that on a busy machine they make hardly any progress.
_ALONE: Final = {
    "health_check_failure_threshold": 1000,
    "gcs_rpc_server_reconnect_timeout_s": 600,
    "worker_niceness": 0,
}


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a cluster."""

    cpus: int
    gpus: int
    nodes: int


@contextlib.contextmanager
def connect(address: str | None, *, verbose: bool = False) -> Iterator[Resources]:
    """An existing cluster, or one on this machine for as long as this lasts; usage reports are off.

    A local cluster keeps values only in memory.  An existing one behaves as it was configured at its start.

    Raises:
        ServiceUnavailableError: no cluster answers at the address, or the cluster ended meanwhile.
    """
    where = "on this machine" if address is None else f"at {address}"
    level = logging.INFO if verbose else logging.ERROR
    with contextlib.ExitStack() as stack:
        # Ray prints its workers' messages to standard output, which is for results.
        nowhere = sys.stderr if verbose else stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level, "configure_logging": verbose}
        variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        if not verbose:
            variables["RAY_BACKEND_LOG_LEVEL"] = "fatal"
        if address is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            options |= {
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": folder,
                "_system_config": {"automatic_object_spilling_enabled": False, **_ALONE},
            }
            # Without this setting Ray requires a token, and keeps one in the home folder.
            variables |= {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
        stack.enter_context(_environment(variables))
        logging.getLogger("ray").setLevel(level)
        try:
            with contextlib.nullcontext() if verbose else _discarded_stderr():
                _start(STARTS if address is None else 1, {"address": address or "local", **options})
        except Exception as error:  # a bare one where a node takes longer than Ray waits
            raise ServiceUnavailableError(f"no Ray cluster {where} ({type(error).__name__}: {error})") from error
        stack.callback(ray.shutdown)
        watch = stack.enter_context(
            # Ray itself would wait for ever, and its handler of SIGTERM would leave its folder behind silently.
            watched(_some_vital_ended(_vital()) if address is None else lambda: _num_nodes() == 0, WATCH_S)
        )
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        try:
            yield Resources(int(total.get("CPU", 0)), int(total.get("GPU", 0)), _num_nodes())
        except RayTaskError:
            raise  # an error of the work, not of the cluster
        except (KeyboardInterrupt, RayError) as error:
            if isinstance(error, KeyboardInterrupt) and not watch.is_gone:
                raise
            why = "" if watch.is_gone else f" ({type(error).__name__})"
            raise ServiceUnavailableError(
                f"the Ray cluster {where} ended{why}; finished work is stored; run the same command again to resume"
            ) from error


def _start(attempts: int, options: Mapping[str, Any]) -> None:
    """Start or join a cluster, again where a start fails; what a failed start leaves is ended."""
    for attempt in range(1, attempts + 1):
        try:
            ray.init(**options)
        except Exception:
            ray.shutdown()
            for process in _vital():
                with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by now
                    process.kill()
            if attempt == attempts:
                raise
        else:
            return


def _vital() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() in _VITAL]


def _some_vital_ended(processes: list[psutil.Process]) -> Callable[[], bool]:
    def is_gone() -> bool:
        try:
            return not all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
        except psutil.NoSuchProcess:  # between the two questions
            return True

    return is_gone


def _num_nodes() -> int:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return sum(bool(node["Alive"]) for node in nodes)


@contextlib.contextmanager
def _discarded_stderr() -> Iterator[None]:
    """Without native code's output to standard error, where Ray writes its log level."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables of this process and its children, as long as this lasts."""
    before = {name: os.environ.get(name) for name in (*variables, "RAY_AUTH_MODE")}  # Ray sets the last one itself
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
