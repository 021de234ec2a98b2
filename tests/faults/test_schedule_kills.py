"""A leader that is killed again and again: no period is missing, and a repeat is the same message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import schedule_kills


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.all
@pytest.mark.parametrize("num_periods", [2, 4])
def test_killed_leaders_lose_no_report(new_database: Callable[[str], str], tmp_path: Path, num_periods: int) -> None:
    figures = schedule_kills.run(new_database("postgres"), tmp_path, num_periods=num_periods, seed=2)
    assert figures["wrong"] == []
    assert figures["kills"] == num_periods
    assert figures["periods"] >= num_periods
