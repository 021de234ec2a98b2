"""The live guard: production's acceptance, window by window, compared with the shadow's promise.

A window has a replica's counts between two successful scrapes.  Its unit value is the accepted share of its drafts, its
weight g = min(D, S) / S of D drafted (S = `scored_drafts`), so that a window with little traffic counts little and a
busy one no more than a full one.  The null is that the promise holds: E[accepted | past] >= m0 * D in every window, m0
the endpoint's lower bound at ENABLE less the policy's tolerance (never below the floor).  Each replica has one of the
gate's drift detectors over its windows (`gate.stats.drift`).  With threshold `run_length` x replicas the first false
alarm of any of them comes, on average, no sooner than after `run_length` windows.

Assumption: given the past a window is no worse than the promise.  Requests that last longer than a window, and traffic
whose mix swings for hours, make neighbours alike.  Where such a swing goes below the promise the detector fires, and
rightly so: the promise does not hold there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from shadowspec.gate.evidence.agreement import capped_rates
from shadowspec.gate.stats.betting import Floats, Sums
from shadowspec.gate.stats.drift import Detector, log_mean, log_statistic_paths
from shadowspec.live.promise import Promise
from shadowspec.metrics import ratio
from shadowspec.servers.engines import known_engine
from shadowspec.servers.metrics_page import CUT_OFF, EOF, IMPOSSIBLE, SEVERAL, counts_between
from shadowspec.types import Decision, LiveCounts, LiveReplica, LiveScrape, LiveWindow, Pool, Verdict
from shadowspec.types.live_windows import FIRST_POSITION
from shadowspec.types.serving_engines import verdict_engine
from shadowspec.types.settings import GuardPolicy

HIGHEST = 1.0  # an acceptance rate
MAX_ROUNDING = 0.01  # share of a window's drafts: errors of neighbouring windows cancel, and the tolerance is larger
MAX_UNITS = 10_000  # the newest windows that a detector folds: a later start makes its statistic lower, never higher
CLOCKS: Final = timedelta(minutes=1)  # by which a server's clock may be behind
FELL: Final = "counters_fell"
_WATCHED = ("advisory_acceptance", "drift_acceptance")  # of the promises fixed at ENABLE, the higher one


@dataclass(frozen=True, slots=True)
class Guarded:
    """One replica's detector: accepted and drafted since `since`, and how close it is to its alarm."""

    replica: str
    detector: Detector
    num_accepted: int
    num_drafted: int
    newest_rate: float | None  # of only the newest window
    threshold: float
    alarmed_at: datetime | None  # end of the window at which it first fired

    @property
    def rate(self) -> float | None:
        """Accepted over drafted, of all windows since the promise; of the metric that the policy names."""
        return ratio(self.num_accepted, self.num_drafted)


def window_between(before: LiveReplica | None, scrape: LiveScrape, pool: Pool = Pool.SPECULATIVE) -> LiveWindow | None:
    """The counts from the replica's last scrape to this one; None where they are unknown.

    A scrape that is no newer, or that cannot follow the last one (`conflict_between`), adds nothing.  Counters of a
    process that began after the last scrape count from then on: those between the last scrape and that moment are lost,
    and belong to no window.  Under another series, and of a process that is newer but began before the last scrape,
    counting begins at this scrape: what they counted elsewhere is no part of it.
    """
    last = None if before is None else before.scrape
    if before is None or last is None or conflict_between(last, scrape) is not None:
        return None
    began_at, counts, begun = last.scraped_at, None, _restarted_at(last, scrape)
    if begun is not None:
        counts, began_at = scrape.counts, max(last.scraped_at, begun)
    elif scrape.series == last.series and not _is_other_process(last, scrape):
        counts = counts_between(scrape.counts, last.counts)
    if counts is None or began_at >= scrape.scraped_at:
        return None
    is_reset = begun is not None
    return LiveWindow(
        replica=scrape.replica,
        series=scrape.series,
        began_at=began_at,
        ended_at=scrape.scraped_at,
        is_reset=is_reset,
        num_failed_scrapes=before.num_failed,
        counts=counts,
        num_running=scrape.num_running,
        pool=pool,
        num_waiting=scrape.num_waiting,
        kv_use=scrape.kv_use,
    )


def conflict_between(last: LiveScrape, scrape: LiveScrape) -> tuple[str, str] | None:
    """Why a scrape cannot follow the last one of its replica, as a code and in words; None where it can."""
    if last.has_end_mark and not scrape.has_end_mark:
        return CUT_OFF, f"the page lacks the {EOF} with which the last one ended: it was cut off"
    if scrape.started_at is not None and last.started_at is not None and scrape.started_at < last.started_at:
        return SEVERAL, (
            "its process is older than that of the last reading: several processes answer at this address; name the "
            "page of each replica"
        )
    if _restarted_at(last, scrape) is not None or _is_other_process(last, scrape):
        return None
    growth = counts_between(scrape.counts, last.counts) if scrape.series == last.series else None
    has_fallen = any(scrape.samples.get(name, 0) < number for name, number in last.samples.items() if scrape.samples)
    if has_fallen or (growth is None and scrape.series == last.series):
        return FELL, (
            "a counter is lower than at the last reading, or gone. The server restarted, or several processes answer "
            "at this address: name the page of each replica"
        )
    off = (scrape.rounding(number) for number in (scrape.counts.num_drafts, scrape.counts.num_draft_tokens))
    return None if growth is None or growth.is_possible(*off) else ("garbage", IMPOSSIBLE)


def _restarted_at(last: LiveScrape, scrape: LiveScrape) -> datetime | None:
    """When the process of a scrape began, if it followed that of the last one."""
    begun, was = scrape.started_at, last.started_at
    if begun is None or (was is not None and begun <= was):
        return None
    return begun if begun > last.scraped_at - CLOCKS else None


def _is_other_process(last: LiveScrape, scrape: LiveScrape) -> bool:
    return None not in (last.started_at, scrape.started_at) and scrape.started_at != last.started_at


def is_too_coarse(scrape: LiveScrape, last: LiveScrape) -> bool:
    """Whether the drafts in between may be off by more than `MAX_ROUNDING` of them: the window is then made longer.

    False where the counters restarted, which always ends a window.
    """
    if scrape.series != last.series:
        return False
    pairs = [
        (new, old)
        for name in ("num_drafts", "num_draft_tokens")
        if (new := getattr(scrape.counts, name)) is not None and (old := getattr(last.counts, name)) is not None
    ]
    if any(new < old for new, old in pairs):
        return False
    return any(scrape.rounding(new) > MAX_ROUNDING * (new - old) for new, old in pairs)


def score_counts(counts: LiveCounts, metric: str, num_full_draft: int | None = None) -> tuple[int, int] | None:
    """Accepted and drafted of a window in the denominator of `metric`; None where its engine does not report it.

    Args:
        num_full_draft: the least number of tokens of a draft that no grammar shortened, where empty drafts are counted
            as steps that drafted.  The shadow counts them as plain steps, so that they are left out: the steps that
            drafted are taken for no more than their tokens allow, which is never too many.
    """
    if metric == FIRST_POSITION:
        first = counts.first_position
        if first is None or num_full_draft is None or counts.num_draft_tokens is None:
            return first
        depth = min(num_full_draft, len(counts.num_accepted_tokens_per_pos) or num_full_draft)
        most = max(first[0], min(first[1], math.ceil(counts.num_draft_tokens / depth)))
        return (first[0], most) if most else None
    accepted, drafted = counts.num_accepted_tokens, counts.num_draft_tokens
    return None if not counts.num_drafts or accepted is None or not drafted else (accepted, drafted)


def promise_of(decisions: Iterable[Decision]) -> Promise | None:
    """The promise of the current ENABLEs; None where nothing is enabled.

    `decisions` are an endpoint's current ones.  Those of the whole endpoint take precedence, because an engine's
    counters are of all its traffic.
    """
    enabled = [
        decision for decision in decisions if decision.verdict is Verdict.ENABLE and _find_promise(decision) is not None
    ]
    spoken = [decision for decision in enabled if not decision.slice_key] or enabled
    rates = [rate for decision in spoken if (rate := _find_promise(decision)) is not None]
    if not rates:
        return None
    return Promise(
        rate=min(rates),
        since=max(decision.since for decision in spoken),
        config_names=tuple(sorted({decision.config.name for decision in spoken})),
        depths=frozenset(decision.config.num_speculative_tokens for decision in spoken),
        has_empty_drafts=all(_has_empty_drafts(decision) for decision in spoken),
    )


def watch_replica(replica: str, windows: Sequence[LiveWindow], promise: Promise, policy: GuardPolicy) -> Guarded:
    """The replica's detector after its windows (in the order of time) that began since the promise."""
    live_windows = [
        window for window in windows if window.began_at >= promise.since and is_comparable(window, promise, policy)
    ]
    num_full_draft = min(promise.depths) if promise.has_empty_drafts else None
    pairs = [
        (window.ended_at, score)
        for window in live_windows
        if (score := score_counts(window.counts, policy.metric, num_full_draft)) is not None
    ]
    pairs = pairs[-MAX_UNITS:]
    accepted = np.array([number for _, (number, _) in pairs], dtype=np.float64)
    drafted = np.array([number for _, (_, number) in pairs], dtype=np.float64)
    started, sums = Detector(promise.rate, HIGHEST), capped_rates(accepted, drafted, policy.scored_drafts)
    return Guarded(
        replica=replica,
        detector=started.fold(sums),
        num_accepted=int(accepted.sum()),
        num_drafted=int(drafted.sum()),
        newest_rate=ratio(*pairs[-1][1]) if pairs else None,
        threshold=policy.threshold,
        alarmed_at=first_alarm(started, sums, [ended for ended, _ in pairs], policy.threshold),
    )


def is_comparable(window: LiveWindow, promise: Promise, policy: GuardPolicy) -> bool:
    """Whether the promise applies to this window: a rate over drafted tokens falls with their number by itself."""
    positions = len(window.counts.num_accepted_tokens_per_pos)
    return policy.metric == FIRST_POSITION or not positions or positions in promise.depths


def windows_to_alarm(promise: float, rate: float, policy: GuardPolicy, *, limit: int = MAX_UNITS) -> int | None:
    """After how many full windows of exactly this acceptance a detector fires; None: not within `limit`."""
    weights = np.ones(limit)
    paths = _means(Detector(promise, HIGHEST), Sums(weights * rate, weights))
    reached = np.flatnonzero(paths >= math.log(policy.threshold))
    return int(reached[0]) + 1 if len(reached) else None


def first_alarm(started: Detector, sums: Sums, ends: Sequence[datetime], threshold: float) -> datetime | None:
    """The end of the window at which the statistic first reached the threshold; None where it did not."""
    if not ends:
        return None
    reached = np.flatnonzero(_means(started, sums) >= math.log(threshold))
    return ends[int(reached[0])] if len(reached) else None


def _means(started: Detector, sums: Sums) -> Floats:
    """Logarithm of the mean of the M after each unit, [n]."""
    return log_mean(log_statistic_paths(started, sums.values, sums.weights))


def _find_promise(decision: Decision) -> float | None:
    promises = {} if decision.watch is None else decision.watch.promises
    return next((promises[name].promise for name in _WATCHED if name in promises), None)


def _has_empty_drafts(decision: Decision) -> bool:
    """Whether production counts steps with an empty draft, and counts no other step whose draft is short."""
    engine = known_engine(verdict_engine(decision.serving_engine, decision.engine))
    return engine is not None and engine.counts_empty_drafts and decision.config.drafts_in_every_step


def from_then(promise: Promise, cleared_at: datetime | None) -> Promise:
    """The promise after an alarm was cleared: earlier windows do not count again."""
    return promise if cleared_at is None else replace(promise, since=max(promise.since, cleared_at))
