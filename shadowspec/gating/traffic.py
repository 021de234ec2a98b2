"""The current traffic of an endpoint by config and slice: what its slices' bounds are weighted with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from shadowspec.gate.endpoint import SliceTraffic
from shadowspec.gate.policy import GatePolicy
from shadowspec.gating.traffic_counts import TrafficCounts
from shadowspec.metrics import ratio
from shadowspec.types import Run, StoredRecord

Traffic = Mapping[str, Mapping[str, SliceTraffic]]  # by fingerprint, then slice key


def current_traffic(
    records: Sequence[StoredRecord], runs: Iterable[Run], policy: GatePolicy, until: datetime | None
) -> Traffic:
    """Requests by slice within `mix_window_s` before `until` (None: the newest record), measured or not."""
    return traffic_of(TrafficCounts().fold(records, runs, policy.mix_window_s), policy, until)


def traffic_of(counts: TrafficCounts, policy: GatePolicy, until: datetime | None) -> Traffic:
    """The same of counted requests: those in the buckets of time that the window touches.

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
