"""Arrival times: every one is the trace's own, none is used twice, sessions run forward."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.benchmarks.bundled_pair import Arrivals, read_trace

START = datetime(2023, 11, 16, 18, 15, tzinfo=UTC)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_times_are_rows_of_the_trace_each_once(seed: int, sizes: list[int]) -> None:
    rng = random.Random(seed)
    times = sorted(START + timedelta(seconds=rng.uniform(0, 3_600)) for _ in range(2_000))
    arrivals = Arrivals(times, rng)
    sessions = [arrivals.session(size) for size in sizes]
    given_out = [time for session in sessions for time in session]
    assert len(set(given_out)) == len(given_out) == sum(sizes)
    assert set(given_out) <= set(times)
    for session in sessions:
        pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(session)]
        assert all(pause >= 5.0 for pause in pauses)


def test_a_trace_without_room_is_refused() -> None:
    arrivals = Arrivals([START, START + timedelta(seconds=1)], random.Random(0))
    with pytest.raises(SystemExit, match="no room"):
        arrivals.session(2)


def test_the_trace_is_read_as_it_is_published(tmp_path: Path) -> None:
    folder = tmp_path / "azure_llm_2023"
    folder.mkdir()
    (folder / "AzureLLMInferenceTrace_code.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:03.9799600,4808,10\n",
        encoding="utf-8",
    )
    first, second = read_trace(tmp_path, "code")
    assert first == datetime(2023, 11, 16, 18, 17, 3, 979_960, tzinfo=UTC)
    assert second - first == timedelta(milliseconds=52)
