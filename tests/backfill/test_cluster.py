"""Rows spread over actors of a real cluster: what ends a process is tried a few times, and nothing else is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from shadowspec.backfill.cluster import _ended_by_a_signal, _errors_unsaid
from tests.backfill.deadly_rows import FILES, ROWS, SECRET
from tests.backfill.processes import environment, temporary_folder, wait_until_ended

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def test_a_row_that_ends_its_actors_is_given_up_and_the_others_come_through() -> None:
    with temporary_folder() as folder:
        done = subprocess.run(
            [sys.executable, "-c", "from tests.backfill.deadly_rows import main; main()"],
            env=environment(TMPDIR=str(folder)),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        assert wait_until_ended(folder) == {}
        assert list(folder.iterdir()) == []
    found = json.loads(done.stdout)
    expected = [f"{place} {number}" for place in FILES for number in range(2 if place == "broken" else ROWS)]
    assert sorted(row for row, _ in found) == sorted(expected)
    assert [row for row, process in found if process is None] == ["two 3"]
    assert SECRET not in done.stderr


def test_a_signal_ends_as_an_interruption_does_and_means_what_it_meant_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), _ended_by_a_signal():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_native_code_says_while_ray_starts_is_unsaid(capfd: pytest.CaptureFixture[str]) -> None:
    with _errors_unsaid():
        os.write(2, b"a level of logging")
    os.write(2, b"an error")
    assert capfd.readouterr().err == "an error"
