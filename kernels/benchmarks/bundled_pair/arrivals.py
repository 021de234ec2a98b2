"""Arrival times of the bundled traffic: every request takes the time of one request of the Azure trace.

The trace (Azure LLM inference 2023, one hour of two production services) has no sessions.  A session starts
at a row drawn from the trace; each of its later requests takes the first free row after a drawn pause.  So
the times and their bursts are the trace's own, and which of them belong together is ours.
"""

from __future__ import annotations

import csv
import random
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from shadowspec.errors import InputError

SHORTEST_PAUSE_S = 5.0
MEAN_FURTHER_PAUSE_S = 40.0  # a person reads the answer before asking again
MAX_STARTS_TRIED = 100


def read_trace(traces: Path, name: str) -> list[datetime]:
    """Arrival times of the trace `name` ("code" or "conv"), ascending, UTC.

    Raises:
        InputError: the trace is missing or holds no times.
    """
    path = traces / "azure_llm_2023" / f"AzureLLMInferenceTrace_{name}.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            # Seven fractional digits in the file; datetime holds six.
            times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"cannot read the arrival trace {path}: {error}") from error
    if not times:
        raise InputError(f"the arrival trace {path} holds no times")
    return sorted(times)


class Arrivals:
    """Hands out the rows of one trace, each once."""

    def __init__(self, times: Sequence[datetime], rng: random.Random) -> None:
        self._times = times
        self._seconds = [(time - times[0]).total_seconds() for time in times]
        self._free = [True] * len(times)
        self._rng = rng

    def session(self, size: int) -> tuple[datetime, ...]:
        """Times of one session's `size` requests, ascending.

        Raises:
            InputError: the trace has no room for another session of this size.
        """
        for _ in range(MAX_STARTS_TRIED):
            rows = self._rows_from(self._rng.randrange(len(self._times)), size)
            if rows is not None:
                for row in rows:
                    self._free[row] = False
                return tuple(self._times[row] for row in rows)
        raise InputError(f"the arrival trace of {len(self._times)} rows has no room for another session")

    def _rows_from(self, start: int, size: int) -> list[int] | None:
        if not self._free[start]:
            return None
        rows = [start]
        while len(rows) < size:
            pause = SHORTEST_PAUSE_S + self._rng.expovariate(1.0 / MEAN_FURTHER_PAUSE_S)
            row = bisect_left(self._seconds, self._seconds[rows[-1]] + pause)
            while row < len(self._free) and not self._free[row]:
                row += 1
            if row >= len(self._free):
                return None
            rows.append(row)
        return rows
