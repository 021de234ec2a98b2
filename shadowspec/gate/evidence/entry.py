"""Entry: when a slice's hypotheses begin to be tested, and take a part of alpha for good.

Requests decide the labels of their slices: by their language, their sampling, their length.  So a slice enters only
with a share of its endpoint's traffic (`entry_share`): a client who sends odd requests would otherwise take every
level slot, each with as many sessions as `entry_clusters` has.  The endpoint's verdict covers the slices that wait.

Invariant: entry depends on keys and event times only, as the clusters' order does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shadowspec.gate.policy import DAY_S, GatePolicy
from shadowspec.metrics import ratio

RECENT_DAYS = 7  # UTC days, the newest included: a whole cycle of the traffic


@dataclass(frozen=True, slots=True)
class Entry:
    """When a hypothesis enters: `position` of the cluster that lets it in folding order, and event time."""

    position: int
    at: datetime


@dataclass(frozen=True, slots=True)
class RecentRequests:
    """Requests of an endpoint's clusters that began on the last RECENT_DAYS days, by day since the epoch and slice."""

    by_day: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def share_of(self, slice_key: str) -> float | None:
        """A slice's share of the requests ("": of the whole endpoint, 1); None without requests."""
        return self.counting().share_of(slice_key)

    def counting(self) -> RequestCounting:
        """The same counts, to be added to."""
        return RequestCounting(self.by_day)


class RequestCounting:
    """Adds requests to the counts of `RecentRequests`, cluster by cluster."""

    def __init__(self, by_day: Mapping[int, Mapping[str, int]]) -> None:
        self._by_day = {day: Counter(counts) for day, counts in by_day.items()}
        self._newest = max(by_day, default=0)
        self._totals: Counter[str] = Counter()
        for counts in self._by_day.values():
            self._totals.update(counts)
        self._total = self._totals.total()

    def add(self, slice_key: str, first_event: datetime, number: int) -> None:
        """Count a cluster's requests on the day on which it began; days that are too old leave the counts."""
        day = int(first_event.timestamp() // DAY_S)
        if day > self._newest:
            self._newest = day
            for old in [known for known in self._by_day if known <= day - RECENT_DAYS]:
                left = self._by_day.pop(old)
                self._totals.subtract(left)
                self._total -= left.total()
        if day > self._newest - RECENT_DAYS:
            self._by_day.setdefault(day, Counter())[slice_key] += number
            self._totals[slice_key] += number
            self._total += number

    def share_of(self, slice_key: str) -> float | None:
        """As `RecentRequests.share_of`."""
        return ratio(self._totals[slice_key] if slice_key else self._total, self._total)

    def result(self) -> RecentRequests:
        """The counts by now."""
        return RecentRequests({day: dict(counts) for day, counts in sorted(self._by_day.items())})


def may_enter(num_clusters: float, share: float | None, policy: GatePolicy) -> bool:
    """Whether a slice with so many closed clusters, and this share of its endpoint's recent requests, enters."""
    return num_clusters >= policy.entry_clusters and share is not None and share >= policy.entry_share
