"""The services of docker-compose.yml, started, asked, killed and removed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.compose.engine import Docker, DockerError

CHECKOUT = Path(__file__).resolve().parents[2]
FILES = ("docker-compose.yml", "tests/compose/override.yml")
LASTING = ("postgres", "kafka", "worker", "dashboard", "schedule")
NUM_LINES = 40


class Stack:
    """One project of compose."""

    def __init__(self, docker: Docker, project: str, environment: Mapping[str, str]) -> None:
        self.docker = Docker(docker.environment | dict(environment))
        files = [word for name in FILES for word in ("--file", str(CHECKOUT / name))]
        self._words = ("compose", "--project-name", project, "--project-directory", str(CHECKOUT), *files)

    def compose(self, *words: str, is_required: bool = True) -> str:
        """What `docker compose` prints."""
        return self.docker.run(*self._words, "--profile", "schedule", *words, is_required=is_required)

    def command(self, *words: str) -> int:
        """The exit code of one of our commands in a container of its own."""
        return self.docker.code(*self._words, "run", "--rm", "--no-deps", "-T", "gate", *words)

    def sql(self, statement: str) -> str:
        """The answer of the database."""
        psql = ("psql", "--username", "postgres", "--dbname", "shadowspec", "--no-align", "--tuples-only")
        return self.compose("exec", "-T", "postgres", *psql, "--command", statement).strip()

    def container(self, service: str) -> str:
        """The identifier of a service's container."""
        found = self.compose("ps", "--all", "--quiet", service).split()
        if not found:
            raise DockerError(f"{service} has no container")
        return found[0]

    def state(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        found: dict[str, Any] = json.loads(self.docker.run("inspect", self.container(service)))[0]
        return found

    def is_well(self, service: str) -> bool:
        """Whether it runs, and its health check, if it has one, passes.

        Raises:
            DockerError: it has ended, which no lasting service should.
        """
        state = self.state(service)["State"]
        if state["Status"] in ("exited", "dead"):
            raise self.failure(service, f"ended with {state['ExitCode']}")
        health = state.get("Health", {}).get("Status", "healthy")
        return (state["Status"], health) == ("running", "healthy")

    def wait(self, what: str, service: str, holds: Callable[[], bool], timeout_s: float) -> float:
        """Wait until something holds; the seconds that it took.

        Raises:
            DockerError: it does not; the message names the service and has its last lines.
        """
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > timeout_s:
                raise self.failure(service, f"{what}: not within {timeout_s:.0f} s")
            time.sleep(1.0)
        return time.monotonic() - began

    def failure(self, service: str, why: str) -> DockerError:
        """The error of a service, with the last lines of its log."""
        lines = self.compose("logs", "--no-color", "--tail", str(NUM_LINES), service, is_required=False)
        return DockerError(f"the container of {service}: {why}; its last lines:\n{lines}")

    def kill(self, service: str) -> None:
        """End its container without warning."""
        self.docker.run("kill", self.container(service))
        if self.state(service)["State"]["Status"] == "running":
            raise DockerError(f"{service} survived docker kill")

    def start(self, service: str) -> None:
        """Start its container again, as it was."""
        self.docker.run("start", self.container(service))


@contextmanager
def stack(docker: Docker, project: str, environment: Mapping[str, str]) -> Iterator[Stack]:
    """The project, whose containers, networks, volumes and images are removed at the end."""
    cached = docker.cache()
    made = Stack(docker, project, environment)
    try:
        yield made
    finally:
        made.compose("--profile", "once", "down", "--volumes", "--remove-orphans", "--timeout", "5", is_required=False)
        docker.run("image", "rm", "--force", environment["SHADOWSPEC_IMAGE"], is_required=False)
        docker.remove_cache(cached)
