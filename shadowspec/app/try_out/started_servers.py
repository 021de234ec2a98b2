"""The two servers of a trial that starts them itself: found, started one after the other, watched, and stopped again.

Nothing is sent to a server before it is ready, so that its log holds no prompt until then.  The logs lie in a folder
that only the user can read.  They are deleted at the end, except that of a server that did not start.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from shadowspec.app.try_out.configuration import NUM_TOKENS
from shadowspec.app.try_out.server_keeper import GRACE_S, SIGNALLED, keep
from shadowspec.app.try_out.trial_servers import TrialUrls
from shadowspec.child_processes import stopping_blocked, watched
from shadowspec.errors import InputError, ServiceUnavailableError, UsageError
from shadowspec.model_folder import require_model_folder
from shadowspec.servers.engines import ENGINES, ServingEngine
from shadowspec.servers.engines.launching import Launcher, ServerStart
from shadowspec.text import plain_text, span_text
from shadowspec.types import Arm, SpeculationConfig, VerifyRule
from shadowspec.worker.engine_process import Died

STARTABLE: Final = {name: engine.launcher for name, engine in ENGINES.items() if engine.launcher is not None}
HOST: Final = "127.0.0.1"
HEALTH: Final = "health"  # where an engine answers once it takes requests
ANSWER_S: Final = 2.0  # that a look may take
LOOK_S: Final = 0.25
LONGEST_START_S: Final = 3_600.0  # of one server: large models and a first compilation take many minutes
SHOWN_LINES: Final = 15  # of the log of a server that did not start
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Both servers of a trial, before they are started: everything that can be wrong without them is checked."""

    engine: type[ServingEngine]
    program: tuple[str, ...]
    target: Path  # the folder or file that they serve
    drafting: SpeculationConfig
    slots: int

    @property
    def launcher(self) -> Launcher:
        assert self.engine.launcher is not None, "an engine that cannot be started was refused"
        return self.engine.launcher

    @property
    def folder(self) -> Path | None:
        """The target's folder with its tokenizer, where the engine takes folders."""
        return self.target if self.launcher.file_type is None else None

    @property
    def method(self) -> str:
        """The engine's name of the way of drafting."""
        return self.launcher.methods.get(self.drafting.proposer, self.drafting.proposer)

    @property
    def text(self) -> str:
        """What is started, by which a trial is known again: ports are others each time."""
        draft = f" {self.drafting.draft}" if self.drafting.draft is not None else ""
        return f"started with {shlex.join(self.program)}: {self.target}, {self.method}{draft}"

    def command(self, arm: Arm, port: int) -> list[str]:
        drafting = self.drafting if arm is Arm.SPECULATIVE else None
        start = ServerStart(str(self.target), self.target.stem, HOST, port, self.slots, drafting)
        return self.launcher.arguments(start, self.program)


def plan_start(name: str, command: str | None, target: Path | None, draft: Path | None, slots: int) -> StartPlan:
    """What starts the servers of an engine.

    Args:
        command: that starts a server, in place of the engine's program.

    Raises:
        UsageError: the engine is not one that can be started, is not installed, or a target is missing.
        InputError: target or draft is not what the engine loads.
    """
    engine = ENGINES.get(name)
    if engine is None or engine.launcher is None:
        raise UsageError(f"--start {name}: starts {' or '.join(STARTABLE)}")
    if target is None:
        raise UsageError(f"--start {name}: needs the model; give --target")
    launcher = engine.launcher
    program = _program(engine, launcher, command)
    target = _model("--target", target, launcher)
    draft = None if draft is None else _model("--draft", draft, launcher)
    proposer = "ngram" if draft is None else "draft_model"
    smallest, largest = launcher.ngram_sizes
    drafting = SpeculationConfig(
        name=proposer,
        target=str(target),
        draft=None if draft is None else str(draft),
        proposer=proposer,
        num_speculative_tokens=NUM_TOKENS[proposer],
        verify_rule=VerifyRule.SERVER,
        ngram_min=smallest,
        ngram_max=largest,
    )
    return StartPlan(engine, program, target, drafting, slots)


def _program(engine: type[ServingEngine], launcher: Launcher, command: str | None) -> tuple[str, ...]:
    words = tuple(shlex.split(command)) if command is not None else launcher.program
    if words and shutil.which(words[0]) is not None:
        return words
    if command is not None:
        raise UsageError(f"--engine-command {command!r}: cannot be run here; give a program on PATH or its path")
    if launcher.module is not None and importlib.util.find_spec(launcher.module.partition(".")[0]) is not None:
        return sys.executable, "-m", launcher.module
    other = "" if launcher.module is None else f", such as 'VENV/bin/python -m {launcher.module}'"
    raise UsageError(
        f"--start {engine.name}: {engine.title} is not installed here (no {launcher.program[0]} on PATH); install it, "
        f"or give the command that starts a server with --engine-command{other}"
    )


def _model(option: str, path: Path, launcher: Launcher) -> Path:
    """The folder or file that an engine loads, absolute."""
    if launcher.file_type is None:
        require_model_folder(f"{option} {path}", path)
        return path.resolve()
    found = sorted(path.glob(f"*{launcher.file_type}")) if path.is_dir() else [path] if path.is_file() else []
    if not found:
        raise InputError(f"{option} {path}: holds no {launcher.file_type} file; give one, or its folder")
    if len(found) > 1:
        raise InputError(f"{option} {path}: holds {len(found)} {launcher.file_type} files; give one of them")
    return found[0].resolve()


class _StartedServer:
    """One server and its keeper, from `start` until `stop`."""

    def __init__(self, plan: StartPlan, arm: Arm, logs: Path) -> None:
        self.name = f"the {arm} server ({plan.engine.title})"
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        self.log = logs / f"{arm}.log"
        arguments = (plan.command(arm, port), dict(plan.launcher.variables), self.log, os.getpid())
        self._keeper = multiprocessing.get_context("spawn").Process(target=keep, args=arguments, daemon=True)

    def start(self) -> None:
        with stopping_blocked():
            self._keeper.start()

    @property
    def died(self) -> Died | None:
        """How it ended, if it has."""
        code = self._keeper.exitcode
        if code is None:
            return None
        return Died(SIGNALLED - code if code > SIGNALLED else code)

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests.

        Raises:
            ServiceUnavailableError: it has ended; the message has the last lines of its log, which hold no prompt yet.
        """
        try:
            answer = httpx.get(f"{self.url}/{HEALTH}", timeout=ANSWER_S, trust_env=False)
            is_answering = answer.status_code == httpx.codes.OK
        except httpx.HTTPError:
            is_answering = False
        if self.died is not None:
            raise ServiceUnavailableError(
                f"{self.name} ended while it started ({self.died}); its log is {self.log}:\n{last_lines(self.log)}",
                is_retryable=False,
            )
        return is_answering

    def stop(self) -> None:
        """End it with all that it started."""
        if self._keeper.pid is None:
            return
        self._keeper.terminate()
        self._keeper.join(GRACE_S * 2.0)
        self._keeper.kill()  # the server is tied to it
        self._keeper.join()


@contextmanager
def start_servers(plan: StartPlan, on_wait: Callable[[int, str], None]) -> Iterator[TrialUrls]:
    """Both servers, ready, for as long as this lasts; they are stopped in every case.

    They start one after the other: an engine that measures its device's memory must not see another do so.  SIGTERM
    interrupts meanwhile as Ctrl-C does, and so does a server that ends.

    Args:
        on_wait: called while they start, with the number of ready servers and the time so far.

    Raises:
        ServiceUnavailableError: a server did not start, or ended too early; the message names it.
    """
    logs = Path(tempfile.mkdtemp(prefix="shadowspec-servers-"))
    servers: list[_StartedServer] = []
    keeps_logs = False
    try:
        with watched(lambda: False, LOOK_S):  # SIGTERM, before there is anything to watch
            for arm in (Arm.BASELINE, Arm.SPECULATIVE):
                server = _StartedServer(plan, arm, logs)
                servers.append(server)
                server.start()
                try:
                    _await_ready(server, len(servers) - 1, on_wait)
                except ServiceUnavailableError:
                    keeps_logs = True
                    raise
        with watched(lambda: any(server.died is not None for server in servers), LOOK_S) as watch:
            baseline, speculative = servers
            try:
                yield TrialUrls(baseline.url, (speculative.url,), plan.method, plan.text)
                if watch.is_gone:
                    raise KeyboardInterrupt
            except (KeyboardInterrupt, Exception) as error:  # an interruption ends a trial with its verdict so far
                if (ended := next((server for server in servers if server.died is not None), None)) is None:
                    raise
                raise ServiceUnavailableError(
                    f"{ended.name} ended while it was measured ({ended.died}); finished work is stored. Its log may "
                    "hold prompts and is deleted: start it by hand to see why, or run the same command again",
                    is_retryable=False,
                ) from error
    finally:
        with stopping_blocked():  # a second Ctrl-C waits until they are stopped
            for server in reversed(servers):
                server.stop()
        if not keeps_logs:
            shutil.rmtree(logs, ignore_errors=True)


def _await_ready(server: _StartedServer, num_ready: int, on_wait: Callable[[int, str], None]) -> None:
    began = time.monotonic()
    while not server.is_ready:
        seconds = time.monotonic() - began
        on_wait(num_ready, f"{server.name}, {span_text(seconds)} so far")
        if seconds > LONGEST_START_S:
            raise ServiceUnavailableError(
                f"{server.name} is not ready after {span_text(seconds)}; its log is {server.log}:\n"
                f"{last_lines(server.log)}",
                is_retryable=False,
            )
        time.sleep(LOOK_S)


def last_lines(log: Path) -> str:
    """The end of a log, without colours, each line indented."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    shown = [plain_text(_ESCAPES.sub("", line)) for line in lines if line.strip()][-SHOWN_LINES:]
    return "\n".join(f"  {line}" for line in shown) or "  (it is empty)"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
