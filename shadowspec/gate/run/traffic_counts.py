"""Requests by time, slice and config, and the current traffic that they give: the weights of the slices' bounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.composition import SliceTraffic
from shadowspec.metrics import ratio
from shadowspec.types import ARRIVING, Run, StoredRecord

BUCKET_S = 6 * 3_600  # whole buckets count: a quarter of a day more or less in a window of days
LAG_S = 86_400  # retained beyond the window: the watermark may lie this far behind the newest record

# By slice: [requests, {fingerprint: [measured requests, their steps, their drafted tokens]}].
_Bucket = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """Counts within a window: requests by slice, and measured requests by (fingerprint, slice)."""

    requests: Mapping[str, int]
    measured: Mapping[tuple[str, str], int]
    drafts: Mapping[tuple[str, str], int]
    draft_tokens: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class TrafficCounts:
    """Counts by bucket of event time, from the epoch on; they add up."""

    buckets: Mapping[int, _Bucket] = field(default_factory=dict)

    def fold(self, records: Sequence[StoredRecord], runs: Iterable[Run], span_s: float) -> TrafficCounts:
        """The counts with these records and their runs added; older than a window of `span_s` needs are dropped."""
        places = {
            record.key: (int(record.event_time.timestamp() // BUCKET_S), record.slice_key)
            for record in records
            if record.counter in ARRIVING and record.slice_key and record.event_time is not None
        }
        requests = Counter(places.values())
        if not requests:
            return self
        sums: dict[tuple[tuple[int, str], str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for run in runs:
            if run.counts is not None and run.key in places:
                rows = sums[places[run.key], run.fingerprint]
                rows[0] += 1
                rows[1] += run.counts.num_drafts
                rows[2] += run.counts.num_draft_tokens
        buckets = {bucket: dict(entry) for bucket, entry in self.buckets.items()}
        for (bucket, slice_key), number in requests.items():
            before, measured = buckets.setdefault(bucket, {}).get(slice_key, (0, {}))
            buckets[bucket][slice_key] = [before + number, measured]
        for ((bucket, slice_key), fingerprint), added in sums.items():
            number, measured = buckets[bucket][slice_key]
            old = measured.get(fingerprint, (0, 0, 0))
            new = [before + more for before, more in zip(old, added, strict=True)]
            buckets[bucket][slice_key] = [number, {**measured, fingerprint: new}]
        oldest = max(buckets) - int((span_s + LAG_S) // BUCKET_S)
        return TrafficCounts({bucket: entry for bucket, entry in sorted(buckets.items()) if bucket >= oldest})

    def window(self, until: datetime | None, span_s: float) -> WindowCounts:
        """The sums of the buckets within `span_s` before `until` (None: the newest), those that lie across too."""
        newest = max(self.buckets, default=0) if until is None else int(until.timestamp() // BUCKET_S)
        oldest = newest - int(span_s // BUCKET_S)
        requests: Counter[str] = Counter()
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for bucket, slices in self.buckets.items():
            if oldest <= bucket <= newest:
                for slice_key, (number, by_fingerprint) in slices.items():
                    requests[slice_key] += number
                    for fingerprint, (count, own_drafts, own_tokens) in by_fingerprint.items():
                        total = sums[fingerprint, slice_key]
                        total[0] += count
                        total[1] += own_drafts
                        total[2] += own_tokens
        measured, drafts, tokens = ({place: counts[at] for place, counts in sums.items()} for at in range(3))
        return WindowCounts(requests, measured, drafts, tokens)


Traffic = Mapping[str, Mapping[str, SliceTraffic]]  # by fingerprint, then slice key


def traffic_of(counts: TrafficCounts, policy: GatePolicy, until: datetime | None) -> Traffic:
    """Requests by slice in the buckets of time that `mix_window_s` before `until` touches (None: before the newest).

    Draft tokens are the acceptance rate's denominators: of each slice the mean over its measured requests,
    times its requests; of a slice without any, the endpoint's mean.
    """
    window = counts.window(until, policy.mix_window_s)
    is_first = policy.acceptance_metric == "first_position_acceptance_rate"
    drafts = window.drafts if is_first else window.draft_tokens
    scored: dict[str, dict[str, int]] = {}
    measured: dict[str, dict[str, int]] = {}
    for (fingerprint, slice_key), number in window.measured.items():
        measured.setdefault(fingerprint, {})[slice_key] = number
        scored.setdefault(fingerprint, {})[slice_key] = drafts[fingerprint, slice_key]
    return {
        fingerprint: _by_slice(window.requests, scored[fingerprint], measured[fingerprint])
        for fingerprint in sorted(scored)
    }


def _by_slice(
    requests: Mapping[str, int], scored: Mapping[str, int], measured: Mapping[str, int]
) -> dict[str, SliceTraffic]:
    typical = ratio(sum(scored.values()), sum(measured.values())) or 1.0
    traffic = {}
    for name, count in sorted(requests.items()):
        mean = ratio(scored.get(name, 0), measured.get(name, 0))
        traffic[name] = SliceTraffic(float(count), count * (typical if mean is None else mean))
    return traffic
