"""A Docker engine: the one that runs on this machine, or one with a folder of its own that is gone afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
NUM_LINES = 30  # of what failed


class DockerError(RuntimeError):
    """A command of Docker failed; the message has its last lines."""


class Docker:
    """The command line of one engine."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = os.environ | dict(environment)

    def run(self, *words: str, standard_input: bytes | None = None, is_required: bool = True) -> str:
        """What `docker` prints to standard output.

        Raises:
            DockerError: it failed, and the caller requires that it does not.
        """
        done = subprocess.run(
            ["docker", *words], env=self.environment, input=standard_input, capture_output=True, check=False
        )
        if done.returncode != 0 and is_required:
            said = (done.stdout + done.stderr).decode(errors="replace").splitlines()
            raise DockerError(
                f"docker {' '.join(words[:4])} ended with {done.returncode}:\n" + "\n".join(said[-NUM_LINES:])
            )
        return done.stdout.decode(errors="replace")

    def succeeds(self, *words: str) -> bool:
        """Whether `docker` with these words ends with 0."""
        return self.code(*words) == 0

    def code(self, *words: str) -> int:
        """The exit code of `docker` with these words."""
        return subprocess.run(["docker", *words], env=self.environment, capture_output=True, check=False).returncode

    def import_folder(self, folder: Path, image: str) -> None:
        """Make an image of a root file system."""
        with subprocess.Popen(["tar", "-C", str(folder), "-c", "."], stdout=subprocess.PIPE) as tar:
            command = ["docker", "import", "-", image]
            subprocess.run(command, env=self.environment, stdin=tar.stdout, capture_output=True, check=True)
        if tar.returncode != 0:
            raise DockerError(f"tar of {folder} ended with {tar.returncode}")

    def size_bytes(self, image: str) -> int:
        """The size of an image with all of its layers."""
        return int(self.run("image", "inspect", "--format", "{{.Size}}", image))

    def cache(self) -> set[str]:
        """The records of the build cache."""
        found = self.run("system", "df", "--verbose", "--format", "{{json .BuildCache}}", is_required=False)
        return {str(each["ID"]) for each in json.loads(found or "[]") or []}

    def remove_cache(self, kept: set[str]) -> None:
        """Remove the records of the build cache other than these."""
        for record in self.cache() - kept:
            self.run("builder", "prune", "--force", "--all", "--filter", f"id={record}", is_required=False)


@contextmanager
def engine() -> Iterator[Docker]:
    """The engine that answers, else one that is started here and leaves nothing.

    Raises:
        DockerError: none answers, and none can be started.
    """
    plugins = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shadowspec" / "docker"
    shared = {} if Docker({}).succeeds("compose", "version") else {"DOCKER_CONFIG": str(plugins)}
    found = Docker(shared)
    if found.succeeds("info"):
        yield found
        return
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-docker-"))
    try:
        with _daemon(folder, shared) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _daemon(folder: Path, environment: Mapping[str, str]) -> Iterator[Docker]:
    if os.geteuid() != 0:
        raise DockerError("no Docker engine answers, and only root can start one: start it, or run this as root")
    docker = Docker(dict(environment) | {"DOCKER_HOST": f"unix://{folder}/docker.sock"})
    log = folder / "log"
    command = ["dockerd", "--host", docker.environment["DOCKER_HOST"], "--data-root", str(folder / "data"),
               "--exec-root", str(folder / "run"), "--pidfile", str(folder / "pid")]  # fmt: skip
    had_bridge = Path("/sys/class/net/docker0").exists()
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not docker.succeeds("info"):
            if daemon.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(errors="replace").splitlines()[-NUM_LINES:]
                raise DockerError("dockerd did not start:\n" + "\n".join(lines))
            time.sleep(0.2)
        yield docker
    finally:
        daemon.terminate()
        try:
            daemon.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        if not had_bridge:
            subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, check=False)
