"""Rows spread over actors of a real cluster: what ends a process is tried a few times, and nothing else is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from shadowspec.backfill import connection
from shadowspec.backfill.connection import _discarded_stderr
from shadowspec.child_processes import watched
from tests.backfill.deadly_rows import FILES, ROWS, SECRET
from tests.backfill.processes import Process, processes_of, python, temporary_folder, wait_for_actors, wait_until_ended
from tests.services import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.integration]

# With these Ray by itself gives a node up that is stuck for two seconds.
IMPATIENT = {"RAY_health_check_period_ms": "200", "RAY_health_check_timeout_ms": "200"}


def judging(folder: Path, name: str, **variables: str) -> AbstractContextManager[Process]:
    """A process that judges rows on a cluster of its own."""
    return python(["-c", f"from tests.backfill.deadly_rows import {name}; {name}()"], folder, **variables)


def raylet_of(folder: Path) -> int:
    """The process of the local cluster that runs its node."""
    return next(process for process, line in processes_of(folder).items() if "/raylet/raylet " in line)


@pytest.mark.all
def test_a_row_that_ends_its_actors_is_given_up_and_the_others_come_through() -> None:
    with temporary_folder() as folder, judging(folder, "main") as process:
        out, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        assert wait_until_ended(folder) == {}
        assert list(folder.iterdir()) == []
    found = json.loads(out)
    expected = [f"{place} {number}" for place in FILES for number in range(2 if place == "broken" else ROWS)]
    assert sorted(row for row, _ in found) == sorted(expected)
    assert [row for row, process in found if process is None] == ["two 3"]
    assert SECRET not in said


@pytest.mark.all
def test_a_node_that_is_stuck_is_waited_for() -> None:
    with temporary_folder() as folder, judging(folder, "harmless", **IMPATIENT) as process:
        actors = wait_for_actors(process, folder)
        raylet = raylet_of(folder)
        assert {psutil.Process(actor).nice() for actor in actors} == {psutil.Process().nice()}, "they yield to nobody"
        os.kill(raylet, signal.SIGSTOP)
        time.sleep(8)
        os.kill(raylet, signal.SIGCONT)
        out, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    assert len(json.loads(out)) == 2 * ROWS


@pytest.mark.all
def test_a_cluster_that_ended_is_told_and_not_waited_for() -> None:
    with temporary_folder() as folder, judging(folder, "harmless") as process:
        wait_for_actors(process, folder)
        os.kill(raylet_of(folder), signal.SIGKILL)
        out, said = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (3, ""), said
        assert wait_until_ended(folder) == {}
    assert said.endswith(
        "the Ray cluster on this machine ended; finished work is stored; run the same command again to resume"
    )


def test_a_signal_ends_as_an_interruption_does_and_means_what_it_meant_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), watched(lambda: False, 2.0):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_native_code_says_while_ray_starts_is_unsaid(capfd: pytest.CaptureFixture[str]) -> None:
    with _discarded_stderr():
        os.write(2, b"a level of logging")
    os.write(2, b"an error")
    assert capfd.readouterr().err == "an error"


def test_a_cluster_that_does_not_start_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine its processes give each other up; what they leave is ended before the next start."""
    raylet = shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    left: list[subprocess.Popen[bytes]] = []

    def init(**_: object) -> None:
        if len(left) < failures:
            left.append(subprocess.Popen([raylet, str(PATIENCE_S)]))
            raise RuntimeError("a node took too long")

    monkeypatch.setattr(connection.ray, "init", init)
    failures = 1
    connection._start(2, {})
    assert left[0].wait(PATIENCE_S) == -signal.SIGKILL
    failures = 9
    with pytest.raises(RuntimeError, match="took too long"):
        connection._start(3, {})
    assert [each.wait(PATIENCE_S) for each in left] == [-signal.SIGKILL] * 4
