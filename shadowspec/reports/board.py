"""The rollout board: one line per endpoint with its slices and loads below it.

Invariant: it repeats what the gate decided (bounds and all), what operators ordered over it, and what rollups add up
to; it decides nothing.  Sums of rollups are pooled over the measured runs that they say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from shadowspec.gate.overrides import StandingVerdict, standing_verdict
from shadowspec.gate.restarts import is_superseded
from shadowspec.metrics import ratio
from shadowspec.reports.board_sums import Saving, TrendDay, saving, trend
from shadowspec.reports.evidence import interval
from shadowspec.reports.model import Interval
from shadowspec.reports.notes import alerts
from shadowspec.store import GroupSums, Input
from shadowspec.types import (
    Decision,
    FingerprintedConfig,
    Override,
    Rollout,
    SpeculationConfig,
    TestResult,
    Verdict,
    parse_slice_key,
)

PARITY_TESTS = ("parity_faults", "parity_near_ties", "parity_sampled")
Key = tuple[str, str, int, str]  # endpoint, slice key, concurrency, fingerprint


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One hypothesis: an endpoint ("" as slice) or a slice of it, at one load, with one config.

    `expected_at` is when `clusters_needed` more will have come at the pace at which they came so far, an estimate;
    `evidence_at` how new the evidence is: its newest event, or, where the input was files alone, when they were
    measured.  `num_runs` counts the measured requests of the last `TREND_DAYS`.
    """

    endpoint: str
    slice_key: str
    concurrency: int
    fingerprint: str
    config: SpeculationConfig | None
    standing: StandingVerdict
    since: datetime | None
    speedup: Interval | None
    acceptance: Interval | None
    tail: Interval | None
    parity: tuple[TestResult, ...]
    memory: TestResult | None
    saving: Saving | None
    traffic_share: float | None
    num_clusters: int
    clusters_needed: int | None
    expected_at: datetime | None
    evidence_at: datetime | None
    num_runs: int
    trend: tuple[TrendDay, ...]
    stage: Rollout | None
    alerts: tuple[str, ...]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that stands; None where neither the gate nor an operator has spoken."""
        return self.standing.verdict

    @property
    def reason(self) -> str:
        """Why it stands, in a sentence."""
        decision = self.standing.decision
        if decision is not None:
            return decision.reason
        if self.standing.override is not None:
            return f"override by {self.standing.override.author}: {self.standing.override.reason}"
        return "measured, but the gate has not judged it yet"

    @property
    def labels(self) -> dict[str, str]:
        return parse_slice_key(self.slice_key)

    @property
    def parity_outcome(self) -> str | None:
        """The worst outcome of the parity tests: "fail", "open" or "pass"; None where there is none."""
        outcomes = {test.outcome for test in self.parity}
        return next((outcome for outcome in ("fail", "open", "pass") if outcome in outcomes), None)


@dataclass(frozen=True, slots=True)
class BoardEndpoint:
    """An endpoint: the row that speaks for it, and every row below it (other loads and configs, then slices)."""

    name: str
    head: BoardRow
    rows: tuple[BoardRow, ...]

    @property
    def all_rows(self) -> tuple[BoardRow, ...]:
        return (self.head, *self.rows)


@dataclass(frozen=True, slots=True)
class Board:
    """Every endpoint, by name."""

    endpoints: tuple[BoardEndpoint, ...]

    @property
    def rows(self) -> tuple[BoardRow, ...]:
        return tuple(row for endpoint in self.endpoints for row in endpoint.all_rows)

    def tallies(self) -> dict[Verdict | None, int]:
        """Endpoints by the verdict of the row that speaks for them."""
        found: dict[Verdict | None, int] = dict.fromkeys([*Verdict, None], 0)
        for endpoint in self.endpoints:
            found[endpoint.head.verdict] += 1
        return found


@dataclass(frozen=True, slots=True)
class BoardValues:
    """What a board is built of: everything of one moment of the store.

    `days` are the sums by day (`DAY_SUMS` alone) of the last `TREND_DAYS` before `newest_day`; `prices` those of the
    device per hour.
    """

    endpoints: Sequence[str]
    decisions: Sequence[Decision]
    configs: Mapping[str, FingerprintedConfig]
    days: Sequence[GroupSums]
    inputs: Mapping[str, Input]
    rollouts: Sequence[Rollout]
    newest_day: date | None
    prices: Mapping[str, float | None]
    loads: Mapping[str, Mapping[int, float]]  # each endpoint's configured loads with their shares


def build_board(values: BoardValues, overrides: Sequence[Override], now: datetime) -> Board:
    """The board at `now`; `overrides` are the active ones."""
    days: dict[Key, list[GroupSums]] = defaultdict(list)
    for sums in values.days:
        for slice_key in {sums.slice_key, ""}:
            days[sums.endpoint, slice_key, sums.concurrency, sums.fingerprint].append(sums)
    decisions = {_key(own): own for own in values.decisions if not is_superseded(own)}
    replaced = {_key(own) for own in values.decisions if is_superseded(own)}
    stages = {(own.endpoint, own.concurrency): own for own in values.rollouts}
    keys = sorted({*decisions, *days} - replaced)
    rows: dict[str, list[BoardRow]] = defaultdict(list)
    for key in keys:
        row = _row(key, decisions.get(key), days.get(key, []), values, stages, overrides, now)
        rows[row.endpoint].append(row)
    for name in {*values.endpoints, *(own.endpoint for own in overrides)} - set(rows):
        rows[name].append(_unmeasured(name, values, overrides, now))
    return Board(tuple(_endpoint(name, rows[name], values.loads.get(name, {})) for name in sorted(rows)))


def _endpoint(name: str, rows: Sequence[BoardRow], shares: Mapping[int, float]) -> BoardEndpoint:
    """The whole endpoint at its weightiest load and with its best config speaks for it."""
    wholes = [row for row in rows if not row.slice_key] or list(rows)
    head = max(wholes, key=lambda row: (shares.get(row.concurrency, 0.0), row.num_runs, *_preference(row)))

    def order(row: BoardRow) -> tuple[object, ...]:
        return (row.slice_key != "", -(row.traffic_share or 0.0), row.slice_key, row.concurrency, row.fingerprint)

    return BoardEndpoint(name, head, tuple(sorted((row for row in rows if row is not head), key=order)))


def _preference(row: BoardRow) -> tuple[bool, bool, float]:
    """Of several configs the one that the gate names, else the one with the best lower bound."""
    measured = row.standing.measured
    is_named = measured is not None and measured.details.get("is_named") == 1
    lower = row.speedup.lower if row.speedup is not None and row.speedup.lower is not None else -math.inf
    return is_named, row.verdict is Verdict.ENABLE, lower


def _row(
    key: Key,
    decision: Decision | None,
    days: Sequence[GroupSums],
    values: BoardValues,
    stages: Mapping[tuple[str, int], Rollout],
    overrides: Iterable[Override],
    now: datetime,
) -> BoardRow:
    endpoint, slice_key, concurrency, fingerprint = key
    standing = standing_verdict(endpoint, slice_key, concurrency, decision, overrides, now)
    tests = {test.name: test for test in decision.tests} if decision is not None else {}
    config = values.configs.get(fingerprint)
    share = decision.details.get("traffic_share") if decision is not None else None
    shown = standing.decision
    return BoardRow(
        endpoint=endpoint,
        slice_key=slice_key,
        concurrency=concurrency,
        fingerprint=fingerprint,
        config=decision.config if decision is not None else config.config if config is not None else None,
        standing=standing,
        since=_since(standing),
        speedup=interval(decision, "speedup"),
        acceptance=interval(decision, "acceptance"),
        tail=interval(decision, "tail"),
        parity=tuple(tests[name] for name in PARITY_TESTS if name in tests),
        memory=tests.get("memory"),
        saving=saving(days, values.newest_day, values.prices.get(endpoint)),
        traffic_share=share if isinstance(share, float) else None if slice_key else 1.0,
        num_clusters=0 if decision is None else decision.num_clusters,
        clusters_needed=None if shown is None else shown.clusters_needed,
        expected_at=None if shown is None else expected_at(shown, now),
        evidence_at=_evidence_at(decision, values.inputs.get(endpoint)),
        num_runs=sum(own.sums.num_runs for own in days),
        trend=trend(days, values.newest_day),
        stage=stages.get((endpoint, concurrency)),
        alerts=() if shown is None else tuple(alerts(shown)),
    )


def _unmeasured(name: str, values: BoardValues, overrides: Iterable[Override], now: datetime) -> BoardRow:
    """An endpoint of which nothing is known but its name."""
    load = max(values.loads.get(name, {1: 1.0}), default=1)
    key = name, "", load, ""
    return _row(key, None, (), values, {}, overrides, now)


def _key(decision: Decision) -> Key:
    return decision.endpoint, decision.slice_key, decision.concurrency, decision.fingerprint


def _since(standing: StandingVerdict) -> datetime | None:
    """Since when the verdict stands."""
    decision = standing.decision
    if decision is None:
        return standing.override.created_at if standing.override is not None else None
    since = decision.details.get("verdict_since")
    return datetime.fromisoformat(since) if isinstance(since, str) else decision.decided_at


def _evidence_at(decision: Decision | None, own: Input | None) -> datetime | None:
    if own is not None and own.is_ended:
        return own.moved_at
    newest = decision.details.get("newest_evidence") if decision is not None else None
    return datetime.fromisoformat(newest) if isinstance(newest, str) else None


def expected_at(decision: Decision, now: datetime) -> datetime | None:
    """When the clusters that are still needed will have come at the pace so far; None where it cannot be said."""
    span = decision.details.get("span_s")
    needed = decision.clusters_needed
    if needed is None or not isinstance(span, float) or not span:
        return None
    wanted_s = ratio(needed * span, decision.num_clusters)
    return None if wanted_s is None else now + timedelta(seconds=wanted_s)
