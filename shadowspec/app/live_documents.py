"""What `shadowspec live --json` prints: each endpoint's replicas, their newest windows, and the guard's state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

from shadowspec.live.guard import Guarded, windows_to_alarm
from shadowspec.live.pressure import Pressed, windows_to_pressure
from shadowspec.live.watch import Taken
from shadowspec.reports.pages.live_production import live_period
from shadowspec.rollout.control import Control, ControlVerdict, PoolComparison
from shadowspec.scheduler.jobs import LiveRun
from shadowspec.store.evidence.live_rows import hour_of_window
from shadowspec.types import FailedScrape, LiveCounts, Pool
from shadowspec.types.public_documents import AtLoad, PublicDocument, PublicValue, public, shows
from shadowspec.types.settings import GuardPolicy


class WindowsToAlarm(PublicValue, frozen=True, kw_only=True):
    """Windows until an alarm, where production accepts half of the promise, or nothing; null: never."""

    at_half_of_it: int | None
    at_zero: int | None


class PromiseDocument(PublicValue, frozen=True, kw_only=True):
    """What the shadow promised at ENABLE."""

    rate: float
    since: datetime
    configs: Annotated[Sequence[str], "config_names"]
    windows_to_alarm: WindowsToAlarm


class ControlDocument(PublicValue, frozen=True, kw_only=True):
    """The comparison of both pools at a load."""

    load: AtLoad
    verdict: ControlVerdict
    reason: str
    promised_speedup: Annotated[float | None, "promised"]
    num_intervals_with_few_requests: Annotated[int, "num_small"]
    num_intervals_with_unlike_loads: Annotated[int, "num_unlike"]
    num_intervals_with_plain_drafts: Annotated[int, "num_drafted"]
    comparisons: Sequence[PoolComparison]


@shows(LiveCounts, "latencies")
class WindowDocument(PublicValue, frozen=True, kw_only=True):
    """The difference of two readings of a replica; what its engine does not count or report is null."""

    began_at: datetime
    ended_at: datetime
    series: str
    num_failed_scrapes: int
    num_running: int | None
    num_waiting: int | None
    kv_use: float | None
    first_position_acceptance_rate: float | None
    draft_acceptance_rate: float | None
    mean_acceptance_length: float | None


@shows(Guarded, "replica", "threshold")
class GuardDocument(PublicValue, frozen=True, kw_only=True):
    """What the live guard knows of a replica since ENABLE."""

    num_windows: Annotated[int, "detector.num_units"]
    rate: float | None
    log10_peak: Annotated[float | None, "detector.log10_peak"]


class WindowsToPressure(PublicValue, frozen=True, kw_only=True):
    """Windows until an alarm, where the share is twice the limit, or everything; null: never."""

    at_twice_the_limit: int | None
    at_everything: int | None


@shows(Pressed, "replica", "detector", "alarmed_at")
class PressureDocument(PublicValue, frozen=True, kw_only=True):
    """What the live guard knows of a replica's memory pressure since ENABLE."""

    num_windows: Annotated[int, "detector.num_units"]
    log10_peak: Annotated[float | None, "detector.log10_peak"]
    windows_to_alarm: WindowsToPressure


class ReplicaDocument(PublicValue, frozen=True, kw_only=True):
    """One replica's reading; `unwatched`: why it does not show whether the promise of ENABLE holds."""

    replica: str
    pool: Pool
    scraped_at: datetime
    outcome: str
    error: str | None
    num_failed: Annotated[int, "replica.num_failed"]
    window: WindowDocument | None
    unwatched: str | None
    since_enable: GuardDocument | None
    pressure: PressureDocument | None


class LiveEndpointDocument(PublicValue, frozen=True, kw_only=True):
    """One endpoint's readings, against the shadow's promise."""

    endpoint: str
    engine: str
    metric: str
    promise: PromiseDocument | None
    threshold_log10: float
    override_id: int | None
    controls: list[ControlDocument]
    replicas: list[ReplicaDocument]


class LiveDocument(PublicDocument, frozen=True, kw_only=True):
    """The readings of `live --json`."""

    endpoints: list[LiveEndpointDocument]


def live_document(runs: Sequence[LiveRun], controls: Mapping[str, Mapping[int, Control]]) -> LiveDocument:
    """The readings of these runs; `controls` are by endpoint and load."""
    return LiveDocument(endpoints=[_endpoint(run, controls[run.endpoint]) for run in runs])


def _endpoint(run: LiveRun, controls: Mapping[int, Control]) -> LiveEndpointDocument:
    guard, watched = run.settings.guard, run.watched
    promise = watched.promise
    guards = {replica.replica: replica for replica in watched.replicas}
    pressures = {pressure.replica: pressure for pressure in watched.pressures}
    return LiveEndpointDocument(
        endpoint=run.endpoint,
        engine=run.settings.source.engine,
        metric=guard.metric,
        promise=None
        if promise is None
        else public(
            PromiseDocument,
            promise,
            windows_to_alarm=WindowsToAlarm(
                at_half_of_it=windows_to_alarm(promise.rate, promise.rate / 2.0, guard),
                at_zero=windows_to_alarm(promise.rate, 0.0, guard),
            ),
        ),
        threshold_log10=math.log10(guard.threshold),
        override_id=watched.ordered,
        controls=[public(ControlDocument, control, load=concurrency) for concurrency, control in controls.items()],
        replicas=[
            _replica(run, taken, guards.get(taken.replica.replica), pressures.get(taken.replica.replica))
            for taken in run.taken
        ],
    )


def _replica(run: LiveRun, taken: Taken, guarded: Guarded | None, pressed: Pressed | None) -> ReplicaDocument:
    scraped = taken.scraped
    return public(
        ReplicaDocument,
        scraped,
        taken,
        outcome=scrape_outcome(taken),
        error=scraped.message if isinstance(scraped, FailedScrape) else None,
        window=None
        if taken.window is None
        else public(WindowDocument, taken.window, taken.window.counts, live_period([hour_of_window(taken.window)])),
        unwatched=run.unwatched.get(taken.replica.replica),
        since_enable=guarded,
        pressure=None if pressed is None else _pressure(pressed, run.settings.guard),
    )


def _pressure(pressed: Pressed, guard: GuardPolicy) -> PressureDocument:
    twice, everything = (
        windows_to_pressure(share, pressed.measure, pressed.limit, guard)
        for share in (min(1.0, 2.0 * pressed.limit), 1.0)
    )
    windows_to_alarm = WindowsToPressure(at_twice_the_limit=twice, at_everything=everything)
    return public(PressureDocument, pressed, windows_to_alarm=windows_to_alarm)


def scrape_outcome(taken: Taken) -> str:
    """The outcome of a scrape: `window`, `reset`, `first` (where counting begins), or the code of its failure."""
    if isinstance(taken.scraped, FailedScrape):
        return taken.scraped.code
    if taken.window is None:
        return "first"
    return "reset" if taken.window.is_reset else "window"
