"""A command as a pod runs it, with what it connects to and what it writes recorded by strace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.services import ServiceMissingError

CALLS: Final = "connect,sendto,sendmsg,sendmmsg,open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2"
_PORT = re.compile(r"sa_family=AF_INET6?, sin6?_port=htons\((\d+)\)")
_ADDRESS = re.compile(r'(?:inet_addr\("|inet_pton\(AF_INET6, ")([^"]+)"')
_OPENED = re.compile(r'\b(?:open|openat|creat)\(.*?"([^"]*)", ([A-Z_|]+).*\) = \d')
_MADE = re.compile(r"\b(?:mkdir|mkdirat|rename|renameat|renameat2)\((.*)\) = 0")
_WRITES = ("O_WRONLY", "O_RDWR", "O_CREAT")
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


class Recorded:
    """A running command; ends with its block.

    It sees the environment of its manifest alone, besides what Python needs to find this checkout.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, name: str) -> None:
        if shutil.which("strace") is None:
            raise ServiceMissingError("no strace: run .ci/strace")
        self._trace, self._log = folder / f"{name}.trace", folder / f"{name}.log"
        found = {
            literal: os.environ[literal]
            for literal in ("PYTHONPATH", "LANG", "OMP_NUM_THREADS")
            if literal in os.environ
        }
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        entry = {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1", **found, **environment}
        # -D: the command is our own child, and gets our signals.
        tracer = ["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-s", "0", "-e", f"trace={CALLS}"]
        (folder / "data").mkdir(exist_ok=True)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*tracer, "-e", "signal=none", "-o", str(self._trace), *command],
                env=entry, cwd=folder / "data", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_until(self, holds: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.said[-3000:]}"
            assert time.monotonic() < deadline, self.said[-3000:]
            time.sleep(0.2)

    def wait(self, seconds: float) -> int:
        return self.process.wait(seconds)

    def stop(self, grace_s: float) -> int:
        """Ask it to end, as a node does, and give it as long as the manifest does."""
        self.process.terminate()
        return self.process.wait(grace_s)

    def peers(self) -> set[tuple[str, int]]:
        """Address and port of everything that it connected or sent to.

        A UDP socket that is "connected" to port 0 sends nothing: so the C library asks which address is nearest.
        """
        found = set()
        for line in self._lines():
            for port, address in zip(_PORT.findall(line), _ADDRESS.findall(line), strict=True):
                if int(port):
                    found.add((address, int(port)))
        return found

    def written(self) -> set[str]:
        """Every path that it opened to write, made, or renamed."""
        found = set()
        for line in self._lines():
            if opened := _OPENED.search(line):
                if any(flag in opened[2] for flag in _WRITES):
                    found.add(opened[1])
            elif made := _MADE.search(line):
                found.update(re.findall(r'"([^"]*)"', made[1]))
        return found

    def _lines(self) -> list[str]:
        return self._trace.read_text(encoding="utf-8", errors="replace").splitlines()
