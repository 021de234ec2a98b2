"""Builds a C++ source of this package with the machine's compiler, once for each source, compiler and processor.

The library lies in the user's cache folder (`$XDG_CACHE_HOME/shadowspec/kernels`, else `~/.cache/...`), named by the
digest of all that it depends on.  Several processes may build the same one at once: each builds a separate file and
moves it into place in one step, and all of them are the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from shadowspec_kernels.errors import UnavailableError

LLAMA_CPU: Final = Path(__file__).with_name("llama_cpu.cpp")
COMPILERS: Final = ("g++", "c++", "clang++")  # the first that is there, unless $CXX names one
# GCC's -fopenmp links libgomp.so.1, which torch has loaded already: both share one team of threads.
FLAGS: Final = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared")
TIMEOUT_S: Final = 300
MOST_MESSAGE: Final = 400  # characters of a compiler's complaint


def load_library(source: Path) -> ctypes.CDLL:
    """The library of a source, built if this processor has none yet.

    Raises:
        UnavailableError: there is no compiler, the build fails, or the library cannot be loaded; the message names the
            cause.
    """
    if not sys.platform.startswith("linux"):
        raise UnavailableError(f"they are built only on Linux, and this is {sys.platform}")
    compiler = _compiler()
    try:
        path = _folder() / f"{source.stem}-{_digest(source, compiler)}.so"
        if not path.exists():
            _build(source, compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise UnavailableError(str(error)) from error


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        if (path := shutil.which(name)) is not None:
            return path
    raise UnavailableError(f"no C++ compiler found ({named or ', '.join(COMPILERS)})")


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path.home() / ".cache") / "shadowspec" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _digest(source: Path, compiler: str) -> str:
    """The inputs of the library's code: source, compiler, flags, and the processor's features."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    abilities = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    binary = Path(compiler).resolve()
    parts = (*FLAGS, str(binary), str(binary.stat().st_mtime_ns), platform.machine(), abilities)
    return hashlib.sha256(source.read_bytes() + "\0".join(parts).encode()).hexdigest()[:24]


def _build(source: Path, compiler: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *FLAGS, "-o", str(built), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"{compiler} took over {TIMEOUT_S} s") from error
        if done.returncode != 0:
            complaint = " ".join(done.stderr.split())[:MOST_MESSAGE]
            raise UnavailableError(f"{compiler} failed with {done.returncode}: {complaint}")
        built.replace(path)
