"""The time in which a shadow of limited capacity decides, and the rates at which sampling should start.

Pure arithmetic on flows: measured sessions ("clusters") needed, offered and served, per slice and load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WHOLE_ENDPOINT = ""


@dataclass(frozen=True, slots=True)
class ClusterDemand:
    """Clusters that a slice still needs at one load, and how many come for measuring per second at the current rate.

    The whole endpoint (slice "") offers none itself: every slice's clusters are its.  `wanted` is infinite where no
    evidence to come decides it.
    """

    slice_key: str
    concurrency: int
    wanted: float
    offered_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Course:
    """How demands are met: seconds until each is (infinite for never), and the clusters measured of each slice until
    the last one is that can be, those of slices that were decided before included."""

    decided_after: Mapping[tuple[str, int], float]
    measured: Mapping[tuple[str, int], float]


def course(demands: Sequence[ClusterDemand], capacity_per_s: float | None, decided_share: float) -> Course:
    """The course of the demands; the offer beyond the capacity is shed evenly.

    A slice that is decided at every load falls to `decided_share` of its rate, once its endpoint is decided too,
    which leaves the rest of the capacity to the others.
    """
    left = {(demand.slice_key, demand.concurrency): demand.wanted for demand in demands}
    measured = {key: 0.0 for key in left if key[0] != WHOLE_ENDPOINT}
    done: dict[tuple[str, int], float] = {}
    now = 0.0
    while True:
        done |= {key: now for key, wanted in left.items() if wanted <= 0.0 and key not in done}
        open_ = {key for key in left if key not in done}
        served = _allocate(demands, open_, capacity_per_s, decided_share)
        waits = {key: left[key] / served[key] for key in open_ if served[key] > 0.0 and math.isfinite(left[key])}
        if not waits:
            return Course({key: done.get(key, math.inf) for key in left}, measured)
        step = min(waits.values())
        now += step
        for key in measured:
            measured[key] += served[key] * step
        for key in open_:
            left[key] -= served[key] * step
            if key in waits and waits[key] <= step * (1.0 + 1e-12):
                left[key] = 0.0


def starting_rates(
    wanted: Mapping[str, float], traffic_per_s: Mapping[str, float], capacity_per_s: float | None
) -> dict[str, float]:
    """The sampling rate per slice that decides the last one soonest: each is decided at the same time, or at rate 1.

    `wanted` clusters per slice, `traffic_per_s` those that come per second at rate 1.  Rates hold until their slice
    is decided, so they have to be right from the start.
    """
    slices = {name: need for name, need in wanted.items() if need > 0.0 and traffic_per_s.get(name, 0.0) > 0.0}
    full = dict.fromkeys(slices, 1.0)
    if capacity_per_s is None or sum(traffic_per_s[name] for name in slices) <= capacity_per_s:
        return full
    # Slices that are too rare for the common time get rate 1; the rest share what they leave.
    rare: set[str] = set()
    while True:
        common = [name for name in slices if name not in rare]
        left = capacity_per_s - sum(traffic_per_s[name] for name in rare)
        total = sum(slices[name] for name in common)
        rates = {name: left * slices[name] / total / traffic_per_s[name] for name in common}
        too_rare = {name for name, rate in rates.items() if rate > 1.0}
        if not too_rare:
            return full | rates
        rare |= too_rare


def _allocate(
    demands: Sequence[ClusterDemand], open_: set[tuple[str, int]], capacity_per_s: float | None, decided_share: float
) -> dict[tuple[str, int], float]:
    endpoint_is_open = any(slice_key == WHOLE_ENDPOINT for slice_key, _ in open_)
    open_slices = {slice_key for slice_key, _ in open_}
    offered = {
        (demand.slice_key, demand.concurrency): demand.offered_per_s
        * (1.0 if endpoint_is_open or demand.slice_key in open_slices else decided_share)
        for demand in demands
        if demand.slice_key != WHOLE_ENDPOINT
    }
    total = sum(offered.values())
    kept = 1.0 if capacity_per_s is None or total <= capacity_per_s else capacity_per_s / total
    served = {key: rate * kept for key, rate in offered.items()}
    for demand in demands:
        if demand.slice_key == WHOLE_ENDPOINT:
            served[WHOLE_ENDPOINT, demand.concurrency] = sum(
                rate for (_, load), rate in served.items() if load == demand.concurrency
            )
    return served
