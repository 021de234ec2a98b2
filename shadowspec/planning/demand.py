"""Verdicts at several loads under production's demand: the range that they cover, the schedule, and the speedup.

Demand is how many requests production's servers had in progress, read at even times.  A number of requests is governed
by the measured loads next to it, as in exports: between two loads something is on only if it is on at both, and above
the largest nothing is.  The speedup under the demand is a mean of the loads' bounds, which hold at once; so their mean
holds for any weights (docs/mathematics.md has the assumptions).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, groupby, takewhile
from operator import attrgetter
from typing import Annotated, Final, Self

from shadowspec.gate.verdict.slice_rules import bears_on_endpoint, forbidding_slices
from shadowspec.gate.verdict.trial_levels import is_superseded
from shadowspec.store import Store
from shadowspec.text import DASH, moment, percent, plain_text, plural, times
from shadowspec.types import Decision, Verdict
from shadowspec.types.live_windows import add_readings
from shadowspec.types.memory_pressure import MemoryPressure
from shadowspec.types.public_documents import PublicValue, public, shows
from shadowspec.types.speculation import draft_key

FACTORS: Final = (1.0, 1.5, 2.0)  # times the demand that was measured
MAX_HEADROOM: Final = 4.0
HEADROOM_STEP: Final = 0.1
ADDED_QUANTILE: Final = 0.99  # of the requests in progress: up to here a load is suggested
DEFAULT_CLIP: Final = math.log(2.0)
ALL_REQUESTS: Final = 0.9995  # a share that is shown as all of them
_WORDS: Final = {Verdict.ENABLE: "on", Verdict.DISABLE: "off", Verdict.HOLD: "undecided"}


@dataclass(frozen=True, slots=True)
class Demand:
    """Readings of production's servers, by the number of requests in progress at each server.

    `by_hour` has those of each hour of the day (UTC) that has any, `pressure` what was read beside them.
    """

    since: datetime
    until: datetime
    readings: Mapping[int, int]
    by_hour: Mapping[int, Mapping[int, int]]
    pressure: MemoryPressure | None = None

    @property
    def num_readings(self) -> int:
        return sum(self.readings.values())

    @property
    def is_idle(self) -> bool:
        """Whether no request was in progress at any reading."""
        return not any(self.readings)

    def shares(self, *, by_time: bool = False) -> dict[int, float]:
        """By number above 0 its share of the requests in progress, or of the busy time; in order."""
        parts = {
            number: count * (1 if by_time else number) for number, count in sorted(self.readings.items()) if number
        }
        total = sum(parts.values())
        return {number: part / total for number, part in parts.items()}

    def quantile(self, share: float) -> int:
        """The smallest number that at least this share of the requests in progress does not exceed."""
        shares = self.shares()
        reached = accumulate(shares.values())
        return next((number for number, sum_ in zip(shares, reached, strict=True) if sum_ >= share), max(shares))

    @property
    def busiest_hour(self) -> int:
        """The hour of the day (UTC) with the most requests in progress at a reading, on average."""

        def mean(hour: int) -> float:
            readings = self.by_hour[hour]
            return sum(number * count for number, count in readings.items()) / sum(readings.values())

        return max(sorted(self.by_hour), key=mean)


def read_demand(store: Store, endpoint: str, now: datetime, window_s: float) -> Demand | None:
    """The demand of the newest `window_s` seconds; None where no reading has a request in progress."""
    since = now - timedelta(seconds=window_s)
    hours = store.live_hours(endpoint, since, now)
    by_hour: dict[int, Counter[int]] = defaultdict(Counter)
    for live_hour in hours:
        if live_hour.running:
            by_hour[live_hour.hour.hour].update(live_hour.running)
    known = [live_hour for live_hour in hours if live_hour.running]
    if not known:
        return None
    begun, ended = min(live_hour.began_at for live_hour in known), max(live_hour.ended_at for live_hour in known)
    demand = Demand(
        begun,
        ended,
        add_readings(live_hour.running for live_hour in known),
        {hour: dict(by_hour[hour]) for hour in sorted(by_hour)},
        MemoryPressure.of(known),
    )
    return None if demand.is_idle else demand


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """The verdict on the whole endpoint at one load; speedup's estimate and bounds are logarithms.

    A bound that does not exist is the end of the range.
    """

    concurrency: int
    verdict: Verdict
    estimate: float | None
    lower: float
    upper: float

    @property
    def is_on(self) -> bool:
        return self.verdict is Verdict.ENABLE


@dataclass(frozen=True, slots=True)
class LoadRange:
    """Numbers of requests from `first` to `last`, both included, and what the verdicts say of them."""

    first: int
    last: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class DemandSpeedup:
    """The mean speedup of production's requests if `factor` times as many were in progress.

    The bounds are of the schedule, off where it is off, and of speculation at every load.  `covered_share` of the
    requests are in the range of the verdicts, `on_share` where the schedule is on.
    """

    factor: float
    covered_share: float
    on_share: float
    estimate: float | None  # of the schedule
    lower: float
    upper: float
    always_lower: float
    always_upper: float


@dataclass(frozen=True, slots=True)
class EndpointLoads:
    """What an endpoint's verdicts with one draft say of its loads, and under production's demand.

    `loads` are in order.  `clip` is the end of the range of a logarithm of a speedup, `error_level` the chance that any
    of the bounds on one side is wrong, at any look.  `demand` is None where production's load was not read.
    """

    endpoint: str
    config_name: str
    loads: tuple[LoadVerdict, ...]
    clip: float
    error_level: float
    demand: Demand | None

    @property
    def largest(self) -> int:
        """The largest measured load."""
        return self.loads[-1].concurrency

    @property
    def ranges(self) -> tuple[LoadRange, ...]:
        """From 1 to the largest measured load without a gap, neighbours of one verdict joined."""
        parts: list[LoadRange] = []
        for place, load in enumerate(self.loads):
            before = self.loads[place - 1] if place else None
            first = before.concurrency + 1 if before else 1
            if first < load.concurrency:
                parts.append(LoadRange(first, load.concurrency - 1, _between(before or load, load)))
            parts.append(LoadRange(load.concurrency, load.concurrency, load.verdict))
        joined = ((verdict, list(group)) for verdict, group in groupby(parts, key=attrgetter("verdict")))
        return tuple(LoadRange(group[0].first, group[-1].last, verdict) for verdict, group in joined)

    @property
    def schedule_limit(self) -> int | None:
        """Up to how many requests it is on, where it is on from 1 on and DISABLEd above; None without such a limit."""
        verdicts = [load_range.verdict for load_range in self.ranges]
        return self.ranges[0].last if verdicts == [Verdict.ENABLE, Verdict.DISABLE] else None

    @property
    def words(self) -> str:
        """What is on, as in `on up to 8, off above`."""
        *parts, last = [f"{_WORDS[load_range.verdict]} {_span_words(load_range)}" for load_range in self.ranges]
        if self.ranges[-1].verdict is not Verdict.DISABLE:
            return ", ".join([*parts, last, "not measured above"])
        return ", ".join([*parts, "off above"]) if parts else "off at every load"

    @property
    def covered(self) -> tuple[tuple[int, int], ...]:
        """First and last number of each range in which everything is decided, ENABLE or DISABLE."""
        joined = groupby(self.ranges, key=lambda load_range: load_range.verdict is not Verdict.HOLD)
        parts = [list(group) for is_decided, group in joined if is_decided]
        return tuple((part[0].first, part[-1].last) for part in parts)

    @property
    def covered_words(self) -> str:
        """The covered ranges, as in `1 to 8 requests at once`."""
        spans = [f"{first} to {last}" if first < last else str(last) for first, last in self.covered]
        return f"{' and '.join(spans)} requests at once" if spans else "no load yet"

    def covered_share(self, *, by_time: bool = False) -> float | None:
        """The covered share of production's requests in progress, or of its busy time; None without demand."""
        if self.demand is None:
            return None
        return math.fsum(share for number, share in self.demand.shares(by_time=by_time).items() if self._covers(number))

    @property
    def gap(self) -> str:
        """Which part of production's loads an ENABLE is for, in a sentence; "" where it is for all of them."""
        if self.demand is None:
            return f"ENABLE is for {self.covered_words}; production's load is not measured."
        share = self.speedup(1.0).on_share
        if share >= ALL_REQUESTS:
            return ""
        add = "" if self.added_load is None else f" Add load {self.added_load}."
        return f"ENABLE is for {percent(share)} of production's requests: {self.words}.{add}"

    @property
    def added_load(self) -> int | None:
        """The load to measure, where a share of the requests that counts is above the largest; None where not."""
        if self.demand is None:
            return None
        above = math.fsum(share for number, share in self.demand.shares().items() if number > self.largest)
        return max(self.demand.quantile(ADDED_QUANTILE), self.largest + 1) if bears_on_endpoint(above) else None

    @property
    def speedups(self) -> tuple[DemandSpeedup, ...]:
        """Under the measured demand and under more of it; () without demand."""
        return () if self.demand is None else tuple(self.speedup(factor) for factor in FACTORS)

    def speedup(self, factor: float) -> DemandSpeedup:
        """Under `factor` times the requests in progress; there must be demand."""
        parts = self._parts(factor)
        on = [(number, share) for number, share in parts if self._serves(number)]
        estimates = [share * estimate for number, share in on if (estimate := self._estimate(number)) is not None]
        return DemandSpeedup(
            factor=factor,
            covered_share=math.fsum(share for number, share in parts if self._covers(number)),
            on_share=math.fsum(share for _, share in on),
            estimate=math.exp(math.fsum(estimates)) if len(estimates) == len(on) else None,
            lower=math.exp(math.fsum(share * self._bounds(number)[0] for number, share in on)),
            upper=math.exp(math.fsum(share * self._bounds(number)[1] for number, share in on)),
            always_lower=math.exp(math.fsum(share * self._bounds(number)[0] for number, share in parts)),
            always_upper=math.exp(math.fsum(share * self._bounds(number)[1] for number, share in parts)),
        )

    @property
    def headroom(self) -> float | None:
        """By what factor demand may rise while speculation at every load is proven not to slow the mean request.

        None where that is not proven under the measured demand, or there is none; at most `MAX_HEADROOM`.
        """
        if self.demand is None:
            return None
        steps = range(round((MAX_HEADROOM - 1.0) / HEADROOM_STEP) + 1)
        factors = [1.0 + step * HEADROOM_STEP for step in steps]
        stable = list(takewhile(lambda factor: self.speedup(factor).always_lower > 1.0, factors))
        return stable[-1] if stable else None

    def _parts(self, factor: float) -> list[tuple[float, float]]:
        """The numbers of requests at this factor, each with its share."""
        assert self.demand is not None, "a speedup under no demand"
        return [(number * factor, share) for number, share in self.demand.shares().items()]

    def _governing(self, number: float) -> tuple[LoadVerdict, ...]:
        """The measured loads that govern a number of requests: one, or the two that it lies between; () above all."""
        place = bisect_left(self.loads, number, key=attrgetter("concurrency"))
        if place == len(self.loads):
            return ()
        is_one = place == 0 or self.loads[place].concurrency == number
        return self.loads[place : place + 1] if is_one else self.loads[place - 1 : place + 1]

    def _bounds(self, number: float) -> tuple[float, float]:
        """Logarithms; the ends of the range where no load governs.  Below the smallest only its lower bound holds."""
        governing = self._governing(number)
        lower = min((load.lower for load in governing), default=-self.clip)
        is_smaller = number < self.loads[0].concurrency
        return lower, self.clip if is_smaller else max((load.upper for load in governing), default=self.clip)

    def _serves(self, number: float) -> bool:
        """Whether the schedule is on there."""
        governing = self._governing(number)
        return bool(governing) and all(load.is_on for load in governing)

    def _covers(self, number: float) -> bool:
        governing = self._governing(number)
        return bool(governing) and all(load.verdict is not Verdict.HOLD for load in governing)

    def _estimate(self, number: float) -> float | None:
        """A logarithm, on a straight line over the logarithm of the load; None where a load has no estimate."""
        governing = self._governing(number)
        known = [(load.concurrency, load.estimate) for load in governing if load.estimate is not None]
        if not known or len(known) < len(governing):
            return None
        (first, low), (last, high) = known[0], known[-1]
        return low if first == last else low + (high - low) * math.log(number / first) / math.log(last / first)

    def lines(self) -> list[str]:
        """What people read: the schedule, the range that it covers, and the speedup under production's demand."""
        head = f"{plain_text(self.config_name)}: {self.words}; verdicts cover {self.covered_words}"
        demand, keys = self.demand, f"endpoints.{plain_text(self.endpoint)}"
        if demand is None:
            return [f"{head}. Production's load is not measured: set metrics_urls in {keys}.live"]
        lines = [head]
        requests, time = self.covered_share(), self.covered_share(by_time=True)
        lines.append(
            f"covered: {percent(requests)} of production's requests and {percent(time)} of its busy time "
            f"({plural(demand.num_readings, 'reading')}, {moment(demand.since)} to {moment(demand.until)}; "
            f"busiest at {demand.busiest_hour:02d}:00 UTC)"
        )
        if demand.pressure is not None:
            lines.append(f"memory: {_pressure_words(demand.pressure)}")
        if self.added_load is not None:
            lines.append(f"to cover the rest, add load {self.added_load} to {keys}.loads")
        for speedup in self.speedups:
            under = "at today's demand" if speedup.factor == 1.0 else f"at {speedup.factor:g} times the demand"
            lines.append(
                f"{under}: speedup {times(speedup.estimate)} "
                f"[{times(speedup.lower)}, {times(speedup.upper)}] by this schedule, "
                f"[{times(speedup.always_lower)}, {times(speedup.always_upper)}] with speculation at every load"
            )
        stable = "not even today" if self.headroom is None else _up_to(self.headroom)
        lines.append(
            f"speculation at every load is proven not to slow the mean request: {stable} "
            f"(error level {percent(self.error_level, 2)} a side, all loads and looks together)"
        )
        return lines


class PressurePart(PublicValue, frozen=True, kw_only=True):
    """The readings of memory pressure; null: the engine does not report it."""

    kv_use_median: float | None
    kv_use_p95: float | None
    kv_use_highest: float | None
    waiting_p95: int | None
    waiting_highest: int | None
    preemptions_per_thousand: float | None


@shows(Demand)
class DemandPart(PublicValue, frozen=True, kw_only=True):
    """Production's demand, and what the verdicts mean under it."""

    pressure: PressurePart | None
    num_readings: int
    covered_share: float
    covered_time_share: float
    added_load: int | None
    headroom: float | None
    speedups: Sequence[DemandSpeedup]


class LoadsPart(PublicValue, frozen=True, kw_only=True):
    """An endpoint's loads as JSON documents show them: the ranges and the speedups that readers need."""

    endpoint: str
    config: Annotated[str, "config_name"]
    words: str
    schedule_limit: int | None
    ranges: Sequence[LoadRange]
    error_level: float
    demand: DemandPart | None

    @classmethod
    def of(cls, value: EndpointLoads) -> Self:
        shares = {"covered_share": value.covered_share(), "covered_time_share": value.covered_share(by_time=True)}
        demand = None if value.demand is None else public(DemandPart, value.demand, value, **shares)
        return public(cls, value, demand=demand)


def endpoint_loads(
    decisions: Collection[Decision], demand: Demand | None = None, *, fingerprint: str | None = None
) -> EndpointLoads | None:
    """What the verdicts on a whole endpoint say of its loads, with the draft that is on at the most of them.

    Of several drafts the one with the best lower bounds.  Of several depths of a draft each load has the best.  A slice
    that is DISABLEd and bears on the endpoint turns its load off.

    Args:
        decisions: the current ones of current fingerprints, of one endpoint and of its slices.
        fingerprint: only this one's.

    Returns:
        None where no load was judged, or only in a trial, which serves none.
    """
    known = [decision for decision in decisions if not is_superseded(decision) and not decision.recording_only]
    wholes = [decision for decision in known if not decision.slice_key and fingerprint in (None, decision.fingerprint)]
    by_draft: dict[str, list[Decision]] = defaultdict(list)
    for decision in wholes:
        by_draft[str(draft_key(decision.config))].append(decision)
    # The best is chosen among all of them, so all of their bounds must hold.
    error = math.fsum(test.alpha for decision in wholes if (test := decision.find_test("speedup")) is not None)
    loads_of_drafts = [_of_draft(by_draft[draft], known, error, demand) for draft in sorted(by_draft)]
    return max(loads_of_drafts, key=_merit, default=None)


def governing_shares(demand: Demand, loads: Sequence[int]) -> dict[int, float]:
    """The shares of production's requests that each load, in order, governs; {} where none is in their range.

    A number of requests is governed by the next larger load.  Those above the largest are left out.
    """
    parts = dict.fromkeys(loads, 0.0)
    for number, share in demand.shares().items():
        place = bisect_left(loads, number)
        if place < len(loads):
            parts[loads[place]] += share
    total = math.fsum(parts.values())
    return {load: part / total for load, part in parts.items()} if total else {}


def _of_draft(
    wholes: Sequence[Decision], decisions: Collection[Decision], error: float, demand: Demand | None
) -> EndpointLoads:
    clips = [
        float(value) for decision in wholes if (value := (decision.frozen_parameters or {}).get("log_speedup_clip"))
    ]
    clip = max(clips, default=DEFAULT_CLIP)
    by_load: dict[int, list[tuple[LoadVerdict, str]]] = defaultdict(list)
    for decision in wholes:
        verdict = decision.verdict
        if verdict is Verdict.ENABLE and forbidding_slices(decision, decisions):
            verdict = Verdict.DISABLE
        by_load[decision.concurrency].append((_load_verdict(decision, verdict, clip), decision.config.name))
    chosen = [max(by_load[load], key=lambda pair: _rank(pair[0])) for load in sorted(by_load)]
    names = sorted({name for load, name in chosen if load.is_on} or {name for _, name in chosen})
    loads = tuple(load for load, _ in chosen)
    return EndpointLoads(wholes[0].endpoint, " and ".join(names), loads, clip, error, demand)


def _load_verdict(decision: Decision, verdict: Verdict, clip: float) -> LoadVerdict:
    test = decision.find_test("speedup")
    if test is None:
        return LoadVerdict(decision.concurrency, verdict, None, -clip, clip)
    return LoadVerdict(
        concurrency=decision.concurrency,
        verdict=verdict,
        estimate=math.log(test.estimate) if test.estimate else None,
        lower=math.log(test.lower) if test.lower else -clip,
        upper=math.log(test.upper) if test.upper else clip,
    )


def _between(below: LoadVerdict, above: LoadVerdict) -> Verdict:
    """Between two loads: on where it is at both, undecided where either is, else off."""
    verdicts = {below.verdict, above.verdict}
    if verdicts == {Verdict.ENABLE}:
        return Verdict.ENABLE
    return Verdict.HOLD if Verdict.HOLD in verdicts else Verdict.DISABLE


def _rank(load: LoadVerdict) -> tuple[int, float]:
    return (Verdict.DISABLE, Verdict.HOLD, Verdict.ENABLE).index(load.verdict), load.lower


def _merit(of_draft: EndpointLoads) -> tuple[int, float, int]:
    on = [load for load in of_draft.loads if load.is_on]
    num_undecided = sum(load.verdict is Verdict.HOLD for load in of_draft.loads)
    return len(on), math.fsum(load.lower for load in on), num_undecided


def _span_words(loads: LoadRange) -> str:
    if loads.first == 1:
        return f"up to {loads.last}"
    return f"from {loads.first} to {loads.last}" if loads.first < loads.last else f"at {loads.last}"


def _pressure_words(pressure: MemoryPressure) -> str:
    parts = []
    if pressure.kv_use:
        shares = (pressure.kv_use_median, pressure.kv_use_p95, pressure.kv_use_highest)
        parts.append("KV cache in use {} (median), {} (95%), {} (highest)".format(*(percent(it, 0) for it in shares)))
    if pressure.waiting:
        parts.append(f"{pressure.waiting_p95} requests wait (95%), {pressure.waiting_highest} at most")
    if pressure.preemptions_per_thousand is not None:
        parts.append(f"{pressure.preemptions_per_thousand:.3g} preemptions per thousand requests")
    return "; ".join(parts) or DASH


def _up_to(headroom: float) -> str:
    at_least = "at least " if headroom >= MAX_HEADROOM - HEADROOM_STEP / 2 else ""
    return f"up to {at_least}{headroom:.3g} times today's demand"
