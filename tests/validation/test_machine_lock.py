"""Whoever times something is alone; others wait, and need no lock to go on without one."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from kernels.benchmarks.engines import machine_lock
from kernels.benchmarks.engines.machine_lock import MachineLock


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_lock, "BREATH_S", 0.0)


def can_take(path: Path, kind: int) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_timing_is_alone_and_other_work_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = MachineLock(path)
    with lock.alone():
        assert not can_take(path, fcntl.LOCK_SH)
    with lock.beside_others():
        assert can_take(path, fcntl.LOCK_SH)
        assert not can_take(path, fcntl.LOCK_EX)
    assert can_take(path, fcntl.LOCK_EX)
    assert lock.alone_s > 0.0


def test_without_a_file_nobody_is_waited_for() -> None:
    lock = MachineLock(None)
    with lock.alone(), lock.beside_others():
        assert lock.alone_s == 0.0
