"""Expected counters of many responses, pooled, with an interval of the traffic's mean acceptance length.

The interval is that of a ratio of sums over sessions, the independent units; requests of one session are alike.  It
holds for one look at a fixed number of sessions, while the gate's sequences hold at every look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from shadowspec.metrics import mean_acceptance_length, student_quantile
from shadowspec.types import ExpectedCounts

LEVEL: Final = 0.95
_SCALARS: Final = tuple(
    field.name
    for field in fields(ExpectedCounts)
    if field.name not in ("num_accepted_tokens_per_pos", "acceptance_histogram")
)
_INTEGERS: Final = frozenset({"num_output_tokens", "num_prompt_tokens"})


@dataclass(frozen=True, slots=True)
class PooledCounts:
    """One depth over all responses of a pool; the interval is None where there are fewer than two units."""

    counts: ExpectedCounts
    num_requests: int
    num_units: int
    lower: float | None  # of the mean acceptance length, two-sided at LEVEL
    upper: float | None


class CounterPool:
    """Adds up the counters of responses, for each depth."""

    def __init__(self, depths: Sequence[int]) -> None:
        self._depths = tuple(depths)
        self._sums = np.zeros((len(depths), len(_SCALARS) + max(depths) + 1))  # scalars, then the histogram
        self._units: dict[str, npt.NDArray[np.float64]] = {}  # [depths, 2]: accepted tokens, drafts
        self.num_requests = 0

    def add(self, unit_key: str, counts: Sequence[ExpectedCounts]) -> None:
        """Take in the counters of one response, for each depth, under its session."""
        self.num_requests += 1
        unit = self._units.setdefault(unit_key, np.zeros((len(self._depths), 2)))
        for index, count in enumerate(counts):
            histogram = count.acceptance_histogram
            self._sums[index, : len(_SCALARS)] += [getattr(count, name) for name in _SCALARS]
            self._sums[index, len(_SCALARS) : len(_SCALARS) + len(histogram)] += histogram
            unit[index] += count.num_accepted_tokens, count.num_drafts

    def pool(self) -> tuple[PooledCounts, ...]:
        """The sums, for each depth."""
        return tuple(self._pool_depth(index, depth) for index, depth in enumerate(self._depths))

    def _pool_depth(self, index: int, depth: int) -> PooledCounts:
        scalars = dict(zip(_SCALARS, self._sums[index].tolist(), strict=False))
        for name in _INTEGERS:
            scalars[name] = round(scalars[name])
        histogram = self._sums[index, len(_SCALARS) : len(_SCALARS) + depth + 1]
        counts = ExpectedCounts(
            num_accepted_tokens_per_pos=tuple(histogram[::-1].cumsum()[::-1][1:].tolist()),
            acceptance_histogram=tuple(histogram.tolist()),
            **scalars,
        )
        half = self._half_width(index, counts)
        length = mean_acceptance_length(counts)
        if half is None or length is None:
            return PooledCounts(counts, self.num_requests, len(self._units), None, None)
        bounds = max(1.0, length - half), min(depth + 1.0, length + half)
        return PooledCounts(counts, self.num_requests, len(self._units), *bounds)

    def _half_width(self, index: int, counts: ExpectedCounts) -> float | None:
        """Of the interval of accepted tokens per draft: the residuals of the ratio, one a session."""
        accepted, drafts = np.array([unit[index] for unit in self._units.values()]).reshape(-1, 2).T
        number = len(drafts)
        length = mean_acceptance_length(counts)
        if number < 2 or length is None:
            return None
        residuals = accepted - (length - 1.0) * drafts
        spread = np.sqrt(number / (number - 1.0) * (residuals**2).sum()) / counts.num_drafts
        return float(student_quantile(number - 1, 0.5 + LEVEL / 2.0) * spread)
