"""Where the records ended, as a report shows it: counters with their reasons, which add up to the records read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shadowspec.reports.model import Funnel, FunnelRow
from shadowspec.types import FunnelCounter

FunnelCounts = Mapping[tuple[str | None, FunnelCounter, str | None], int]


def funnel_of(endpoint: str | None, counts: FunnelCounts, names: set[str | None]) -> Funnel:
    """Where the records of these endpoints ended; None among them: those of which no endpoint could be told."""
    reasons: dict[FunnelCounter, Counter[str]] = {counter: Counter() for counter in FunnelCounter}
    totals: Counter[FunnelCounter] = Counter()
    for (name, counter, reason), number in counts.items():
        if name in names:
            totals[counter] += number
            if reason is not None:
                reasons[counter][reason] += number
    return Funnel(
        endpoint=endpoint,
        num_records=sum(totals.values()),
        rows=tuple(
            FunnelRow(
                counter, totals[counter], tuple(sorted(reasons[counter].items(), key=lambda item: (-item[1], item[0])))
            )
            for counter in FunnelCounter
        ),
    )
