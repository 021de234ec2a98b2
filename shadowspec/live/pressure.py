"""Memory pressure: whether production's servers run short of KV cache since ENABLE, window by window.

Speculation holds GPU memory (the draft, its cache, the slots of drafted tokens) that requests then lack.  The unit is a
window.  Where the engine counts preemptions, its value is the share of its requests that were not preempted, its weight
min(n, S) / S of n requests (S = `SCORED_REQUESTS`).  A preemption beyond the requests that ended counts as a request:
it was of one that did not end yet, so that a server that only preempts is seen.  The null is that
E[weight * value | past] >= (1 - limit) * E[weight | past] in every window: in the long run at most `limit` of the
requests are preempted.

Where the engine counts no preemptions, but reports the use of its KV cache, the value is the free share f at the
window's end, as min(f, 2r) / 2r with r = 1 - limit.  The null is that its mean is at least one half, given the past:
free cache beyond 2r makes up for no full one.

The limit is the policy's and, of preemptions, the share before ENABLE added to it; of KV-cache use, the mean before
ENABLE where that is higher.  "Before" are hours of the endpoint in which nothing was drafted; their share is taken as
known.  The detectors, their threshold and their run length are those of the acceptance (`guard`), for each of the two
families by itself.  Preemptions that come in bursts longer than a window bring false alarms sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import numpy as np

from shadowspec.gate.evidence.agreement import capped_rates
from shadowspec.gate.stats.betting import Floats, Sums
from shadowspec.gate.stats.drift import Detector
from shadowspec.live.guard import HIGHEST, MAX_UNITS, first_alarm, windows_to_alarm
from shadowspec.metrics import ratio
from shadowspec.text import percent, plural
from shadowspec.types import LiveHour, LiveWindow
from shadowspec.types.memory_pressure import MemoryPressure, preempted_share
from shadowspec.types.settings import GuardPolicy

SCORED_REQUESTS: Final = 100  # from which on a window has its full weight
BEFORE: Final = timedelta(days=7)  # of the hours before ENABLE: every hour of the week
HALF: Final = 0.5


class Measure(StrEnum):
    """What tells the memory pressure of a replica."""

    PREEMPTED = "preempted_requests"
    KV_USE = "kv_cache_use"


@dataclass(frozen=True, slots=True)
class PressureLimits:
    """The highest share that is tolerated on average, by measure."""

    preempted: float
    kv_use: float

    def of(self, measure: Measure) -> float:
        return self.preempted if measure is Measure.PREEMPTED else self.kv_use


@dataclass(frozen=True, slots=True)
class Pressed:
    """One replica's detector of memory pressure.  `share` is that of all windows since the promise: of requests
    preempted, or the mean of the KV cache in use.
    """

    replica: str
    measure: Measure
    limit: float
    share: float | None
    detector: Detector
    threshold: float
    alarmed_at: datetime | None  # end of the window at which it first fired

    @property
    def words(self) -> str:
        """The replica's pressure, for people."""
        what = "of its requests preempted" if self.measure is Measure.PREEMPTED else "of its KV cache in use"
        windows = plural(self.detector.num_units, "window")
        return f"{percent(self.share)} {what} in {windows}, {percent(self.limit)} tolerated"


def pressure_limits(hours: Iterable[LiveHour], enabled_at: datetime, policy: GuardPolicy) -> PressureLimits:
    """The limits after what was before ENABLE: `hours` are the endpoint's of at least `BEFORE` up to then."""
    plain = [hour for hour in hours if not hour.counts.num_drafts and hour.ended_at <= enabled_at]
    before = MemoryPressure.of(plain)
    preempted = (before.preempted_share if before is not None else None) or 0.0
    kv_use = (before.kv_use_mean if before is not None else None) or 0.0
    return PressureLimits(min(1.0, preempted + policy.max_preempted_share), max(policy.max_kv_use, kv_use))


def watch_pressure(
    replica: str, windows: Sequence[LiveWindow], since: datetime, limits: PressureLimits, policy: GuardPolicy
) -> Pressed | None:
    """The replica's detector after its windows (in the order of time) that began since then.

    None where its engine, at the newest window, neither counts preemptions nor reports the use of its KV cache, or
    where the limit is everything.
    """
    own = [window for window in windows if window.began_at >= since][-MAX_UNITS:]
    measure = _measure(own[-1]) if own else None
    if measure is None or limits.of(measure) >= HIGHEST:
        return None
    limit = limits.of(measure)
    units = [(window.ended_at, pair) for window in own if (pair := _counted(window, measure)) is not None]
    bad, total = np.array([pair for _, pair in units], dtype=np.float64).reshape(-1, 2).T
    if measure is Measure.PREEMPTED:
        started, sums = Detector(1.0 - limit, HIGHEST), capped_rates(total - bad, total, SCORED_REQUESTS)
    else:
        started, sums = Detector(HALF, HIGHEST), Sums(_free_values(bad, limit), np.ones(len(bad)))
    return Pressed(
        replica=replica,
        measure=measure,
        limit=limit,
        share=ratio(float(bad.sum()), float(total.sum())),
        detector=started.fold(sums),
        threshold=policy.threshold,
        alarmed_at=first_alarm(started, sums, [ended for ended, _ in units], policy.threshold),
    )


def windows_to_pressure(share: float, measure: Measure, limit: float, policy: GuardPolicy) -> int | None:
    """After how many full windows with exactly this share a detector fires; None: not in `MAX_UNITS`."""
    if measure is Measure.PREEMPTED:
        return windows_to_alarm(1.0 - limit, 1.0 - share, policy)
    (value,) = _free_values(np.array([share]), limit)
    return windows_to_alarm(HALF, float(value), policy)


def _measure(window: LiveWindow) -> Measure | None:
    if window.counts.num_preemptions is not None and window.counts.num_requests is not None:
        return Measure.PREEMPTED
    return None if window.kv_use is None else Measure.KV_USE


def _counted(window: LiveWindow, measure: Measure) -> tuple[float, float] | None:
    """What is bad in a window, of how much; None where nothing is known, or nothing happened."""
    if measure is Measure.KV_USE:
        return None if window.kv_use is None else (window.kv_use, 1.0)
    preempted, ended = window.counts.num_preemptions, window.counts.num_requests
    if preempted is None or ended is None or preempted_share(preempted, ended) is None:
        return None
    return preempted, max(preempted, ended)


def _free_values(kv_use: Floats, limit: float) -> Floats:
    """The free shares on a scale from 0 to 1, where one half is what the limit leaves, [n]."""
    values: Floats = np.minimum((1.0 - kv_use) / (2.0 * (1.0 - limit)), HIGHEST)
    return values
