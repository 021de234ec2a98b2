"""Adds scrapes of production engines to live evidence, and orders DISABLE where the live guard fires.

An alarm means that production accepts less than the shadow did at ENABLE, or that its servers run short of memory
(`pressure`).  The guard sets an override as an operator would, so that every user of decisions (check, export,
dashboard, rollouts) obeys it.  The override stays until an operator clears it; the detectors then restart with later
counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import read_endpoint_decisions
from shadowspec.live.causes import plausible_causes
from shadowspec.live.guard import (
    MAX_UNITS,
    Guarded,
    conflict_between,
    from_then,
    is_too_coarse,
    promise_of,
    watch_replica,
    window_between,
)
from shadowspec.live.pressure import BEFORE, Pressed, pressure_limits, watch_pressure
from shadowspec.live.promise import Promise
from shadowspec.store import Store
from shadowspec.text import percent, plural
from shadowspec.types import (
    GUARD,
    FailedScrape,
    LiveReplica,
    LiveScrape,
    LiveWindow,
    Override,
    OverrideRecord,
    Pool,
    Verdict,
)
from shadowspec.types.settings import GuardPolicy

MAX_REFUSED: Final = 2  # readings that contradict the last good one; after them counting begins anew, without a window

Scraped = LiveScrape | FailedScrape


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of one replica's scrape: the window that it ended, if any, and the new scraping state."""

    scraped: Scraped
    window: LiveWindow | None
    replica: LiveReplica
    pool: Pool


@dataclass(frozen=True, slots=True)
class Watched:
    """An endpoint under its live guard.  `promise` is None where nothing is enabled; `ordered` is the id of an override
    that this look set.
    """

    endpoint: str
    promise: Promise | None
    replicas: tuple[Guarded, ...]
    ordered: int | None = None
    causes: tuple[str, ...] = ()  # plausible ones of a loss of acceptance
    pressures: tuple[Pressed, ...] = ()  # of the replicas that tell their memory pressure

    @property
    def alarms(self) -> tuple[Guarded, ...]:
        """The replicas whose acceptance fell below the promise."""
        return tuple(replica for replica in self.replicas if replica.alarmed_at is not None)

    @property
    def pressed(self) -> tuple[Pressed, ...]:
        """The replicas that run short of memory."""
        return tuple(pressure for pressure in self.pressures if pressure.alarmed_at is not None)


def take_scrapes(
    store: Store, endpoint: str, scrapes: Iterable[Scraped], plain_replicas: Collection[str] = ()
) -> list[Taken]:
    """Keep scrapes, and the windows that they end; the same ones again change nothing."""
    with store.live_session(endpoint) as session:
        before = session.replicas()
        pools = dict.fromkeys(plain_replicas, Pool.PLAIN)
        taken = [
            _take_scrape(before.get(scrape.replica), scrape, pools.get(scrape.replica, Pool.SPECULATIVE))
            for scrape in scrapes
        ]
        changed = [taking.replica for taking in taken if taking.replica is not before.get(taking.replica.replica)]
        session.keep(changed, [taking.window for taking in taken if taking.window is not None])
    return taken


def watch(
    store: Store,
    endpoint: str,
    replicas: Sequence[str],
    gate_policy: GatePolicy | None,
    policy: GuardPolicy,
    now: datetime,
) -> Watched:
    """The endpoint's detectors over its live evidence; where one has fired, DISABLE is ordered.

    While an order keeps everything off there is no promise, and so no second order.  An ENABLE promises at any age of
    its evidence, because its speculation is still served.
    """
    with store.endpoint_lock(f"live guard of {endpoint}"):
        decisions = read_endpoint_decisions(store, endpoint, gate_policy, now).current
        promise = promise_of(decisions)
        if promise is None:
            return Watched(endpoint, None, ())
        hours = store.live_hours(endpoint, promise.since - BEFORE, promise.since)
        limits = pressure_limits(hours, promise.since, policy)
        promise = from_then(promise, _last_cleared(store.overrides(endpoint)))
        limit = MAX_UNITS * len(replicas)
        windows = store.live_windows(endpoint, since=promise.since, replicas=replicas, limit=limit)
        by_replica = {name: [window for window in windows if window.replica == name] for name in replicas}
        guarded = tuple(watch_replica(name, own, promise, policy) for name, own in by_replica.items())
        pressures = (watch_pressure(name, own, promise.since, limits, policy) for name, own in by_replica.items())
        watched = Watched(endpoint, promise, guarded, pressures=tuple(filter(None, pressures)))
        if watched.alarms:
            known = {name: replica for name, replica in store.live_replicas(endpoint).items() if name in replicas}
            causes = plausible_causes([alarm.replica for alarm in watched.alarms], known, windows, decisions, now)
            watched = replace(watched, causes=tuple(causes))
        has_alarmed = watched.alarms or watched.pressed
        return replace(watched, ordered=store.add_override(_order(watched, now))) if has_alarmed else watched


def alarm_words(watched: Watched) -> str:
    """An alarm's sentences: replicas, their acceptance, the promise, what a loss of it looks like, and memory."""
    assert watched.promise is not None, "an alarm without a promise"
    sentences = [
        f"{alarm.replica} accepts {percent(alarm.newest_rate)} in its newest window, "
        f"{percent(alarm.rate)} in the {plural(alarm.detector.num_units, 'window')} since then"
        for alarm in watched.alarms
    ]
    promised = [f"at least {percent(watched.promise.rate)} was promised at ENABLE"] if sentences else []
    pressure = ["memory pressure since ENABLE"] if watched.pressed else []
    parts = (*promised, *sentences, *pressure, *(f"{pressed.replica}: {pressed.words}" for pressed in watched.pressed))
    words = f"live alarm: {'; '.join(parts)}"
    return f"{words}. Look first at: {'; '.join(watched.causes)}" if watched.causes else words


def _order(watched: Watched, now: datetime) -> Override:
    return Override(
        override_id=0,
        endpoint=watched.endpoint,
        slice_key="",
        concurrency=None,
        verdict=Verdict.DISABLE,
        reason=alarm_words(watched),
        author=GUARD,
        created_at=now,
        expires_at=None,
    )


def _last_cleared(records: Iterable[OverrideRecord]) -> datetime | None:
    """When an order of the guard was cleared last."""
    cleared = [
        record.clearing.cleared_at
        for record in records
        if record.override.author == GUARD and record.clearing is not None
    ]
    return max(cleared, default=None)


def _take_scrape(before: LiveReplica | None, scraped: Scraped, pool: Pool) -> Taken:
    known = before or LiveReplica(scraped.replica, None)
    if isinstance(scraped, FailedScrape):
        is_newer = known.failed_at is None or scraped.scraped_at > known.failed_at
        failed = replace(known, num_failed=known.num_failed + 1, failed_at=scraped.scraped_at, error=scraped.code)
        return Taken(scraped, None, failed if is_newer else known, pool)
    if known.scrape is not None and scraped.scraped_at <= known.scrape.scraped_at:
        return Taken(scraped, None, known, pool)
    if known.scrape is not None and is_too_coarse(scraped, known.scrape):
        return Taken(scraped, None, known, pool)
    if known.scrape is not None and (conflict := conflict_between(known.scrape, scraped)) is not None:
        code, words = conflict
        if known.num_failed < MAX_REFUSED or known.error != code:
            refused = FailedScrape(scraped.replica, scraped.scraped_at, code, f"{scraped.replica}: {words}")
            return _take_scrape(known, refused, pool)
    return Taken(scraped, window_between(before, scraped, pool), LiveReplica(scraped.replica, scraped), pool)
