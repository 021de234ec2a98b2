"""Servers of engines, vLLM's among them: started, waited for, stopped while another one is timed, and ended."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from kernels.benchmarks.engines.pair import BUNDLED
from kernels.benchmarks.harness import configuration
from shadowspec import demo

READY_S = 900.0  # to load, compile and answer, beside others on the same machine
LOOK_S = 1.0
SERVED_MODEL = "bundled"
MAX_MODEL_LEN = 1_024
SLOTS = 8
FIX_FOLDER = Path(__file__).parent / "mend"
TICKS = os.sysconf("SC_CLK_TCK")
_SERVED_ENDPOINT = configuration("served-endpoint.toml")


@dataclass(frozen=True, slots=True)
class Environment:
    """vLLM's own environment."""

    python: Path
    threads: str  # VLLM_CPU_OMP_THREADS_BIND
    preload: str  # LD_PRELOAD
    flags: tuple[str, ...] = ()  # further ones of every server

    @staticmethod
    def add_options(parser: argparse.ArgumentParser, threads: str = "auto", *, is_required: bool = True) -> None:
        """What a benchmark's command line says of it."""
        python = "the interpreter of vLLM's environment"
        parser.add_argument("--vllm-python", type=Path, required=is_required, help=python)
        parser.add_argument("--vllm-threads", default=threads, help="VLLM_CPU_OMP_THREADS_BIND (default: %(default)s)")
        parser.add_argument("--vllm-options", default="", help="further ones of its servers, such as --enforce-eager")
        preload = "what its CPU guide has preloaded: libiomp5, tcmalloc"
        parser.add_argument("--vllm-preload", default="", metavar="LIBRARY:...", help=preload)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Environment:
        """From the options that were given."""
        flags = tuple(shlex.split(arguments.vllm_options))
        return cls(arguments.vllm_python, arguments.vllm_threads, arguments.vllm_preload, flags)


class EngineServer:
    """One server process with all that it started, which is stopped (SIGSTOP) by `pause`; `log`: what it prints."""

    def __init__(
        self, command: Sequence[str], port: int, log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        with log.open("w") as printed:
            self._process = subprocess.Popen(  # noqa: S603 (what the caller names)
                command, env=variables, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._log = log

    def await_ready(self) -> None:
        """Wait until it answers.

        Raises:
            SystemExit: it has ended, or does not answer in time.
        """
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SystemExit(f"the server has ended; what it said is in {self._log}")
            try:
                with urlopen(f"{self.url}/health", timeout=LOOK_S):  # noqa: S310 (our own server)
                    return
            except (URLError, OSError):
                time.sleep(LOOK_S)
        raise SystemExit(f"the server does not answer; what it said is in {self._log}")

    def pause(self) -> None:
        """Stop it where it is: it takes no processor time until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, as the kernel does when memory runs out."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def processor_s(self) -> float:
        """Processor time that its processes have taken so far."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile
            if int(fields[2]) == self._process.pid:  # its process group
                total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def close(self) -> None:
        """End it and what it started."""
        try:
            self.resume()
            self._signal(signal.SIGTERM)
            self._process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        except ProcessLookupError:
            self._process.wait()
        try:
            self._signal(signal.SIGKILL)  # a worker that outlived its parent
        except ProcessLookupError:
            return

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


class Server(EngineServer):
    """One of vLLM's."""

    def __init__(
        self,
        environment: Environment,
        speculative_config: str | None,
        log: Path,
        *,
        is_fixed: bool,
        target: Path = BUNDLED.target,
    ) -> None:
        """
        Args:
            speculative_config: None: it decodes plainly.
            is_fixed: with sampled speculation as it should be on a CPU (`mend`).
        """
        port = free_port()
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
        variables |= {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": environment.threads,
            "VLLM_NO_USAGE_STATS": "1",
            # Its worker polls for a second after each request, and takes that time from the other arm.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": str(log.parent.resolve() / "vllm-cache"),  # of compiled passes, its own
            "LD_PRELOAD": environment.preload,
        }
        if is_fixed:
            variables["PYTHONPATH"] = str(FIX_FOLDER)
        command = [
            str(environment.python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(target), "--served-model-name", SERVED_MODEL, "--dtype", "float32",
            "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(SLOTS),
            "--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log",
            "--enable-per-request-metrics", "--enable-prompt-tokens-details", *environment.flags,
        ]  # fmt: skip
        if speculative_config is not None:
            command += ["--speculative-config", speculative_config, "--per-request-spec-decode-metrics", "detailed"]
        super().__init__(command, port, log, variables)


@contextmanager
def answering(server: EngineServer) -> Iterator[EngineServer]:
    """The server once it answers, which ends with the block."""
    try:
        server.await_ready()
        yield server
    finally:
        server.close()


def running(
    environment: Environment,
    speculative_config: str | None,
    log: Path,
    *,
    is_fixed: bool,
    target: Path = BUNDLED.target,
) -> AbstractContextManager[EngineServer]:
    """A server of vLLM's that answers, and ends with the block."""
    return answering(Server(environment, speculative_config, log, is_fixed=is_fixed, target=target))


def served_endpoint(
    name: str,
    servers: tuple[Server, Server],
    depth: int,
    loads: Sequence[int],
    *,
    model: str = "",
    settings: str = "",
    server_settings: str = "",
) -> str:
    """The configuration of an endpoint that is measured through both servers of the bundled pair.

    Args:
        model: that its requests name; none: the bundled traffic's.
        settings: further lines of the endpoint.
        server_settings: further lines of its servers.
    """
    return _SERVED_ENDPOINT.format(
        name=name,
        model=model or demo.SERVED_MODELS[name],
        target=demo.TARGET,
        draft=demo.DRAFT,
        loads=", ".join(f"{{ concurrency = {load} }}" for load in loads),
        baseline_url=servers[0].url,
        speculative_url=servers[1].url,
        served=SERVED_MODEL,
        depth=depth,
        settings=settings,
        server_settings=server_settings,
    )


@contextmanager
def both_arms(
    environment: Environment, speculative_config: str, folder: Path, *, is_fixed: bool = True
) -> Iterator[tuple[Server, Server]]:
    """A server that decodes plainly and one with drafts; both run all the time.  `is_fixed`: see `Server`."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(closing(Server(environment, config, folder / f"{name}.log", is_fixed=is_fixed)))
            for name, config in (("baseline", None), ("speculative", speculative_config))
        ]
        for server in servers:
            server.await_ready()
        yield servers[0], servers[1]


def vllm_version(environment: Environment) -> str:
    """As its own environment says."""
    command = [str(environment.python), "-c", "from importlib.metadata import version; print(version('vllm-cpu'))"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
