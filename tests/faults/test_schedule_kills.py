"""A leader that is killed again and again: no period is missing, and a repeat is the same message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import schedule_kills


@pytest.mark.slow
@pytest.mark.integration
def test_killed_leaders_lose_no_report(new_database: Callable[[str], str], tmp_path: Path) -> None:
    figures = schedule_kills.run(new_database("postgres"), tmp_path, num_periods=4, seed=2)
    assert figures["wrong"] == []
    assert figures["kills"] == 4
    assert figures["periods"] >= 4
