"""The rollout board: one line per endpoint with its slices and loads below it.

Invariant: it repeats what the gate decided (bounds and all), what operators ordered over it, and what rollups add up
to; it decides nothing.  Sums of rollups are pooled over the measured runs that they say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import LatestDecision, endpoint_decisions, is_stale
from shadowspec.gate.verdict.current_verdict import CurrentVerdict, current_verdict
from shadowspec.gate.verdict.e_values import Fleet, fleet_of
from shadowspec.gate.verdict.hold_reasons import StillNeeded, still_needed
from shadowspec.planning.demand import EndpointLoads, endpoint_loads, governing_shares
from shadowspec.reports.content.definitions import find_test
from shadowspec.reports.content.next_steps import MEASURED_ONLY, NOT_MEASURED, is_on, keep_off, next_action
from shadowspec.reports.content.notes import alerts
from shadowspec.reports.content.urgency import Severity, severity_of
from shadowspec.reports.pages.board_values import BoardValues, Saving, TrendDay, saving, trend
from shadowspec.rollout.check.answer import Answer, CheckInput, EndpointTerms, Question
from shadowspec.rollout.check.judge import asked
from shadowspec.store import GroupSums
from shadowspec.types import Decision, Override, Rollout, SpeculationConfig, Stage, TestResult, Verdict, parse_slice_key

PARITY_TESTS = ("parity_faults", "parity_near_ties", "parity_sampled")
Key = tuple[str, str, int, str]  # endpoint, slice key, concurrency, fingerprint


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One hypothesis: an endpoint ("" as slice) or a slice of it, at one load, with one config.

    `expected_at` is when `clusters_needed` more will have come at the pace at which they came so far, an estimate;
    `evidence_at` is when the newest of its evidence happened.  `num_runs` counts the measured requests of the last
    `TREND_DAYS`.  `answer` is that of `check` on its slice, or on the whole endpoint; None where it refuses.
    """

    endpoint: str
    slice_key: str
    concurrency: int
    fingerprint: str
    config: SpeculationConfig | None
    current: CurrentVerdict
    since: datetime | None
    speedup: TestResult | None
    total_time: TestResult | None
    acceptance: TestResult | None
    tail: TestResult | None
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
    answer: Answer | None
    owner: str = ""  # who answers for the endpoint; "" where nobody is named

    @property
    def verdict(self) -> Verdict | None:
        """The verdict in force; None where neither the gate nor an operator has spoken."""
        return self.current.verdict

    @property
    def reason(self) -> str:
        """Its reason, in a sentence."""
        decision = self.current.decision
        if decision is not None:
            return decision.reason
        if self.current.override is not None:
            return f"override by {self.current.override.author}: {self.current.override.reason}"
        return "measured, and not decided yet" if self.fingerprint else "no request was measured yet"

    @property
    def next_action(self) -> str:
        """What to do about it now, as an order."""
        decision = self.current.decision
        if self.verdict is Verdict.ENABLE and self.is_rolled_out and is_on(self.answer):
            return "keep speculation on: it serves all traffic, and the gate watches for drift"
        if decision is not None:
            return next_action(decision, self.answer)
        if self.current.override is not None:
            return keep_off(self.current.override.override_id)
        if self.fingerprint:
            return MEASURED_ONLY
        return NOT_MEASURED

    @property
    def severity(self) -> Severity:
        """What it asks of its owner."""
        decision = self.current.decision
        if decision is None:
            return Severity.TO_DO if self.current.override is None else Severity.ACT_NOW
        if self.verdict is Verdict.ENABLE and is_on(self.answer) and not self.is_rolled_out:
            return Severity.TO_DO  # it may be promoted
        return severity_of(decision)

    @property
    def is_rolled_out(self) -> bool:
        """Whether the last stage serves all of the enabled traffic."""
        return self.stage is not None and self.stage.stage is Stage.BROAD and self.stage.share >= 1.0

    @property
    def still_needed(self) -> StillNeeded | None:
        """The evidence that a HOLD still needs; None where it is decided, or cannot be estimated."""
        decision = self.current.decision
        return still_needed(decision) if decision is not None and decision.verdict is Verdict.HOLD else None

    def is_stale(self, max_age: timedelta, now: datetime) -> bool:
        """Whether its evidence is older than `max_age`; False where nothing was decided on evidence."""
        is_dated = self.evidence_at is not None or self.verdict is Verdict.ENABLE
        return is_dated and is_stale(self.evidence_at, max_age, now)

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
    """An endpoint: the row that speaks for it, and every row below it (other loads and configs, then slices).

    `loads` is what its verdicts say of its loads; None where none was judged.
    """

    name: str
    head: BoardRow
    rows: tuple[BoardRow, ...]
    loads: EndpointLoads | None

    @property
    def all_rows(self) -> tuple[BoardRow, ...]:
        return (self.head, *self.rows)


@dataclass(frozen=True, slots=True)
class Board:
    """Every endpoint, by name, and how sure their ENABLEs are together."""

    endpoints: tuple[BoardEndpoint, ...]
    fleet: Fleet

    @property
    def rows(self) -> tuple[BoardRow, ...]:
        return tuple(row for endpoint in self.endpoints for row in endpoint.all_rows)

    def tallies(self) -> dict[Verdict | None, int]:
        """Endpoints by the verdict of the row that speaks for them."""
        tally: dict[Verdict | None, int] = dict.fromkeys([*Verdict, None], 0)
        for endpoint in self.endpoints:
            tally[endpoint.head.verdict] += 1
        return tally


def build_board(values: BoardValues, overrides: Sequence[Override], now: datetime) -> Board:
    """The board at `now`; `overrides` are the active ones."""
    days: dict[Key, list[GroupSums]] = defaultdict(list)
    for sums in values.days:
        for slice_key in {sums.slice_key, ""}:
            days[sums.endpoint, slice_key, sums.concurrency, sums.fingerprint].append(sums)
    by_endpoint: dict[str, list[Decision]] = defaultdict(list)
    for decision in values.decisions:
        by_endpoint[decision.endpoint].append(decision)
    decisions: dict[Key, LatestDecision] = {}
    loads: dict[str, EndpointLoads | None] = {}
    inputs: dict[str, CheckInput] = {}
    fingerprints, fleet = set(), fleet_of(values.decisions)
    for name in {*by_endpoint, *(key[0] for key in days)}:
        terms, measured = values.terms.get(name), values.traffic.get(name, ())
        policy = None if terms is None else terms.policy
        decided = endpoint_decisions(
            by_endpoint[name], policy, overrides, now, measured=measured, configs=values.configs
        )
        inputs[name] = CheckInput(
            decisions=decided,
            configs=values.configs,
            traffic=measured,
            terms=terms or EndpointTerms(GatePolicy()),
            rollouts=[rollout for rollout in values.rollouts if rollout.endpoint == name],
            demand=values.demands.get(name),
            fleet=fleet,
        )
        decisions |= {_key(latest.decision): latest for latest in decided.latest if latest.is_current}
        loads[name] = endpoint_loads(decided.current, values.demands.get(name))
        fingerprints |= {(name, fingerprint) for fingerprint in decided.fingerprints.values()}
    stages = {(rollout.endpoint, rollout.concurrency): rollout for rollout in values.rollouts}
    rows: dict[str, list[BoardRow]] = defaultdict(list)
    answers: dict[tuple[str, str], Answer | None] = {}
    for key in sorted(key for key in {*decisions, *days} if (key[0], key[3]) in fingerprints):
        if key in decisions and key[:2] not in answers:
            answers[key[:2]] = asked(Question(key[0], parse_slice_key(key[1])), inputs[key[0]], now)
        answer = answers.get(key[:2])
        row = _row(key, decisions.get(key), days.get(key, []), values, stages, overrides, now, answer)
        rows[row.endpoint].append(row)
    for name in {*values.endpoints, *(override.endpoint for override in overrides)} - set(rows):
        rows[name].append(_unmeasured_row(name, values, overrides, now))
    return Board(
        tuple(
            _endpoint(name, rows[name], values.terms[name].load_shares if name in values.terms else {}, loads.get(name))
            for name in sorted(rows)
        ),
        fleet,
    )


def _endpoint(
    name: str, rows: Sequence[BoardRow], shares: Mapping[int, float], loads: EndpointLoads | None
) -> BoardEndpoint:
    """The whole endpoint at its weightiest load and with its best config speaks for it.

    Production's demand weighs the loads where it is measured, else the configured shares.  Where the verdicts are a
    schedule, a load at which it is on speaks.
    """
    if loads is not None and loads.demand is not None:
        shares = governing_shares(loads.demand, [judged_load.concurrency for judged_load in loads.loads]) or shares
    if loads is not None and (limit := loads.schedule_limit) is not None:
        shares = {load: share for load, share in shares.items() if load <= limit}
    wholes = [row for row in rows if not row.slice_key] or list(rows)
    head = max(wholes, key=lambda row: (shares.get(row.concurrency, 0.0), row.num_runs, *_preference(row)))

    def order(row: BoardRow) -> tuple[object, ...]:
        return (row.slice_key != "", -(row.traffic_share or 0.0), row.slice_key, row.concurrency, row.fingerprint)

    return BoardEndpoint(name, head, tuple(sorted((row for row in rows if row is not head), key=order)), loads)


def _preference(row: BoardRow) -> tuple[bool, bool, float]:
    """Of several configs the one that the gate names, else the one with the best lower bound."""
    measured = row.current.measured
    is_named = measured is not None and measured.composition is not None and measured.composition.is_named
    lower = row.speedup.lower if row.speedup is not None and row.speedup.lower is not None else -math.inf
    return is_named, row.verdict is Verdict.ENABLE, lower


def _row(
    key: Key,
    latest: LatestDecision | None,
    days: Sequence[GroupSums],
    values: BoardValues,
    stages: Mapping[tuple[str, int], Rollout],
    overrides: Iterable[Override],
    now: datetime,
    answer: Answer | None = None,
) -> BoardRow:
    endpoint, slice_key, concurrency, fingerprint = key
    current = current_verdict(*key[:3], None, overrides, now) if latest is None else latest.current
    decision, shown = current.measured, current.decision
    config = values.configs.get(fingerprint)
    share = decision.traffic_share if decision is not None else None
    return BoardRow(
        endpoint=endpoint,
        slice_key=slice_key,
        concurrency=concurrency,
        fingerprint=fingerprint,
        config=decision.config if decision is not None else config.config if config is not None else None,
        current=current,
        since=current.since,
        speedup=find_test(decision, "speedup"),
        total_time=find_test(decision, "total_time"),
        acceptance=find_test(decision, "acceptance"),
        tail=find_test(decision, "tail"),
        parity=tuple(test for name in PARITY_TESTS if (test := find_test(decision, name)) is not None),
        memory=find_test(decision, "memory"),
        saving=saving(days, values.newest_day, values.prices.get(endpoint)),
        traffic_share=share if share is not None or slice_key else 1.0,
        num_clusters=0 if decision is None else decision.num_clusters,
        clusters_needed=None if shown is None else shown.clusters_needed,
        expected_at=None if shown is None else expected_at(shown, now),
        evidence_at=None if latest is None else latest.evidence_at,
        num_runs=sum(day.sums.num_runs for day in days),
        trend=trend(days, values.newest_day),
        stage=stages.get((endpoint, concurrency)),
        alerts=() if shown is None else tuple(alerts(shown)),
        answer=answer,
        owner=values.owners.get(endpoint, ""),
    )


def _unmeasured_row(name: str, values: BoardValues, overrides: Iterable[Override], now: datetime) -> BoardRow:
    """An endpoint of which nothing is known but its name."""
    load = max(values.terms[name].load_shares if name in values.terms else {}, default=1)
    key = name, "", load, ""
    return _row(key, None, (), values, {}, overrides, now)


def _key(decision: Decision) -> Key:
    return decision.endpoint, decision.slice_key, decision.concurrency, decision.fingerprint


def expected_at(decision: Decision, now: datetime) -> datetime | None:
    """When the sessions that are still needed will have come at the pace so far; None where that is unknown."""
    needed = still_needed(decision)
    return None if needed is None or needed.seconds is None else now + timedelta(seconds=needed.seconds)


UNDECIDED = "undecided"
_VERDICT_ORDER = {Verdict.ENABLE: 0, Verdict.DISABLE: 1, Verdict.HOLD: 2, None: 3}


@dataclass(frozen=True, slots=True)
class BoardFilter:
    """What a row must be; what is empty asks for nothing.

    `verdicts` are the words, "undecided" for none; `models` names of configs, targets or drafts; `labels` the values
    allowed of each slice label; `search` any part of a name, label, owner, config or reason.
    """

    search: str = ""
    endpoints: frozenset[str] = frozenset()
    verdicts: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    owners: frozenset[str] = frozenset()
    severities: frozenset[str] = frozenset()

    def matches(self, row: BoardRow) -> bool:
        """Whether the row is all that is asked for."""
        if self.endpoints and row.endpoint not in self.endpoints:
            return False
        if self.verdicts and (UNDECIDED if row.verdict is None else row.verdict.value) not in self.verdicts:
            return False
        if self.owners and row.owner not in self.owners:
            return False
        if self.severities and row.severity not in self.severities:
            return False
        if self.models and not self.models & set(models_of(row)):
            return False
        labels = row.labels
        if any(wanted and labels.get(name) not in wanted for name, wanted in self.labels.items()):
            return False
        text = " ".join((row.endpoint, row.slice_key, row.owner, *models_of(row), row.reason)).casefold()
        return all(word in text for word in self.search.casefold().split())


@dataclass(frozen=True, slots=True)
class FoundRows:
    """What of a board matches: endpoints with the rows that do, and the names of those that match only below."""

    endpoints: tuple[BoardEndpoint, ...]
    opened: frozenset[str]
    num_rows: int


def find_rows(board: Board, wanted: BoardFilter, sort: str) -> FoundRows:
    """The endpoints of which any row matches, each with the rows that do (all of them where nothing is asked for)."""
    shown, opened, number = [], set(), 0
    for endpoint in board.endpoints:
        rows = tuple(row for row in endpoint.rows if wanted.matches(row))
        if rows or wanted.matches(endpoint.head):
            is_head = wanted.matches(endpoint.head)
            number += len(rows) + is_head
            shown.append(replace(endpoint, rows=rows))
            if not is_head:
                opened.add(endpoint.name)
    order = SORTS.get(sort, SORTS["verdict"])
    in_order = sorted(shown, key=lambda endpoint: (order(endpoint.head), endpoint.name))
    return FoundRows(tuple(in_order), frozenset(opened), number)


def models_of(row: BoardRow) -> tuple[str, ...]:
    """The names under which a row's models are looked for: of the config, the target and the draft."""
    if row.config is None:
        return ()
    return tuple(name for name in (row.config.name, row.config.target, row.config.draft) if name)


def label_values(board: Board) -> dict[str, list[str]]:
    """Every slice label of the board with its values, sorted."""
    names: dict[str, set[str]] = {}
    for row in board.rows:
        for name, value in row.labels.items():
            names.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in sorted(names.items())}


def _falling(value: float | None) -> float:
    """Large values first, what is not known last."""
    return math.inf if value is None else -value


def _oldest_first(at: datetime | None) -> float:
    return math.inf if at is None else at.timestamp()


SORTS: dict[str, Callable[[BoardRow], float]] = {
    "verdict": lambda row: _VERDICT_ORDER[row.verdict],
    "severity": lambda row: list(Severity).index(row.severity),
    "name": lambda _row: 0.0,
    "speedup": lambda row: _falling(None if row.speedup is None else row.speedup.lower),
    "acceptance": lambda row: _falling(None if row.acceptance is None else row.acceptance.lower),
    "tail": lambda row: _falling(None if row.tail is None else row.tail.estimate),
    "saving": lambda row: _falling(None if row.saving is None else row.saving.share),
    "evidence": lambda row: _oldest_first(row.evidence_at),
    "needed": lambda row: math.inf if row.clusters_needed is None else row.clusters_needed,
}
