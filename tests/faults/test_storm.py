"""A short storm in every test run; `make test-faults SEED=n FAULTS=n` makes longer ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.casts import fakes
from tests.faults.storm import run


@pytest.mark.slow
@pytest.mark.integration
def test_nothing_is_lost_or_counted_twice(tmp_path: Path) -> None:
    figures = run(fakes(600, seed=141), 141, 4, tmp_path, lambda line: print(line, file=sys.stderr))
    assert figures["wrong"] == []
    assert set(figures["faults"]) == {"kill_worker", "crash_postgres", "kill_broker", "kill_engine"}
    assert figures["measured"] > 100
