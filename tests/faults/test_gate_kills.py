"""A handful of the kills of `gate_kills.py`; the results of 200 lie in `results`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults import gate_kills

pytestmark = pytest.mark.slow  # all of them together


@pytest.mark.representative("postgres")
@pytest.mark.parametrize("dialect", ["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def test_killed_gates_and_four_at_once_fold_each_unit_once(new_database: Callable[[str], str], dialect: str) -> None:
    figures = gate_kills.run(new_database(dialect), new_database(dialect), num_kills=6, seed=4)
    assert figures["wrong"] == []
    assert figures["gates"]["killed"] == 6
    assert figures["gates"]["at once: exit 0"] == 12
