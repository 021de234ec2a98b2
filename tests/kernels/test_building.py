"""Building compiled code: once, by several processes at once, and with a reason where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shadowspec_kernels.building import load_library
from shadowspec_kernels.errors import UnavailableError

COUNTING_COMPILER = """#!/bin/sh
echo built >> {log}
exec g++ "$@"
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small source, and a cache folder in which nothing is built yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 41; }\n')
    return path


@pytest.fixture
def builds(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each build."""
    log, compiler = tmp_path / "builds", tmp_path / "compiler"
    compiler.write_text(COUNTING_COMPILER.format(log=log))
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    return log


def test_a_source_is_built_once_and_again_when_it_changes(source: Path, builds: Path) -> None:
    assert load_library(source).answer() == 41
    assert load_library(source).answer() == 41
    assert builds.read_text().count("built") == 1
    source.write_text('extern "C" int answer() { return 42; }\n')
    assert load_library(source).answer() == 42
    assert builds.read_text().count("built") == 2


def test_processes_that_build_at_once_leave_one_library(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from shadowspec_kernels.building import load_library\n"
        "print(load_library(Path(sys.argv[1])).answer())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(source)]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in started] == ["41"] * 3
    assert len([*(tmp_path / "cache" / "shadowspec" / "kernels").iterdir()]) == 1


def test_no_compiler_is_a_reason(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"no C\+\+ compiler found \(g\+\+, c\+\+, clang\+\+\)"):
        load_library(source)
    monkeypatch.setenv("CXX", "icpx")
    with pytest.raises(UnavailableError, match=r"compiler found \(icpx\)"):
        load_library(source)


def test_a_build_that_fails_is_a_reason(source: Path, tmp_path: Path) -> None:
    source.write_text("answer;\n")
    with pytest.raises(UnavailableError, match=r"failed with 1: .*answer"):
        load_library(source)
    assert [*(tmp_path / "cache" / "shadowspec" / "kernels").iterdir()] == []


def test_a_folder_that_cannot_be_written_is_a_reason(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(UnavailableError, match="cache"):
        load_library(source)


def test_another_system_is_a_reason(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnavailableError, match="only on Linux, and this is darwin"):
        load_library(source)
