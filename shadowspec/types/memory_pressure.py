"""How short of memory production's servers were: KV cache in use, requests that waited, preemptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from shadowspec.types.live_windows import LiveHour, add_readings

P95 = 0.95  # of the readings


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Readings by the whole percent of the KV cache in use (of a server's fullest rank), and by the requests that wait.

    `num_preemptions` are those of `num_requests` that ended; both None where no engine counts preemptions.
    """

    kv_use: Mapping[int, int]
    waiting: Mapping[int, int]
    num_preemptions: int | None
    num_requests: int | None

    @classmethod
    def of(cls, hours: Iterable[LiveHour]) -> Self | None:
        """Of these hours; None where no engine reports any of it."""
        parts = list(hours)
        counted = [part.counts for part in parts if part.counts.num_preemptions is not None]
        known = [counts for counts in counted if counts.num_requests is not None]
        pressure = cls(
            kv_use=add_readings(part.kv_use for part in parts),
            waiting=add_readings(part.waiting for part in parts),
            num_preemptions=sum(counts.num_preemptions or 0 for counts in known) if known else None,
            num_requests=sum(counts.num_requests or 0 for counts in known) if known else None,
        )
        return pressure if pressure.kv_use or pressure.waiting or known else None

    @property
    def kv_use_median(self) -> float | None:
        return _share(_quantile(self.kv_use, 0.5))

    @property
    def kv_use_p95(self) -> float | None:
        return _share(_quantile(self.kv_use, P95))

    @property
    def kv_use_highest(self) -> float | None:
        return _share(max(self.kv_use, default=None))

    @property
    def kv_use_mean(self) -> float | None:
        """Of the readings."""
        total = sum(self.kv_use.values())
        return sum(number * times for number, times in self.kv_use.items()) / (100 * total) if total else None

    @property
    def waiting_p95(self) -> int | None:
        return _quantile(self.waiting, P95)

    @property
    def waiting_highest(self) -> int | None:
        return max(self.waiting, default=None)

    @property
    def preempted_share(self) -> float | None:
        """Preemptions over the requests that ended, or over themselves where they are more."""
        return None if self.num_preemptions is None else preempted_share(self.num_preemptions, self.num_requests or 0)

    @property
    def preemptions_per_thousand(self) -> float | None:
        """Preemptions per thousand requests that ended."""
        if self.num_preemptions is None or not self.num_requests:
            return None
        return 1_000 * self.num_preemptions / self.num_requests


def preempted_share(num_preemptions: int, num_requests: int) -> float | None:
    """The share of requests that were preempted; None where there were none.

    A preemption beyond the requests that ended was of one that did not end yet: it counts as a request.
    """
    total = max(num_preemptions, num_requests)
    return num_preemptions / total if total else None


def _share(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _quantile(readings: Mapping[int, int], share: float) -> int | None:
    """The smallest number that at least this share of the readings does not exceed."""
    ordered = dict(sorted(readings.items()))
    wanted = share * sum(ordered.values())
    reached = zip(ordered, accumulate(ordered.values()), strict=True)
    return next((number for number, total in reached if total >= wanted), None)
