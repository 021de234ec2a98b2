"""Which decision is current, as every surface says it, on generated histories."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import (
    EndpointDecisions,
    current_fingerprints,
    evidence_time,
    is_stale,
    read_endpoint_decisions,
)
from shadowspec.gate.verdict.trial_levels import Seen, current_fingerprint, supersede
from shadowspec.live.watch import watch
from shadowspec.reports.pages.board import BoardRow, build_board
from shadowspec.reports.pages.board_values import BoardValues
from shadowspec.reports.pages.load_cells import load_cells
from shadowspec.reports.period.period_build import PeriodSettings, build_period_report
from shadowspec.reports.report import build_report
from shadowspec.rollout.check.answer import CheckInput, EndpointTerms, Question
from shadowspec.rollout.check.judge import asked, judge, read_check_input
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.rollout.endpoint_run import advance_rollouts
from shadowspec.rollout.export.load_schedule import endpoint_schedule
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.rollout.served_decision import Off, ServedDecision, judge_decisions
from shadowspec.scheduler.verdict_metrics import VerdictMetrics
from shadowspec.store import Traffic
from shadowspec.types import (
    MAX_CLOCK_AHEAD,
    Clearing,
    Decision,
    EvidenceSummary,
    FingerprintedConfig,
    Override,
    OverrideRecord,
    Rollout,
    Stage,
    Verdict,
    parse_slice_key,
)
from shadowspec.types.settings import GuardPolicy
from tests.reports.worlds import MemorySource
from tests.rollout.check.worlds import CHAT, CODE, NOW, config, decision
from tests.store import examples

SLICES, LOADS, NAMES, REVISIONS = ("", CODE, CHAT), (2, 16), ("draft", "other"), ("a", "b", "c")
ENGINES = {"a": "vllm/0.32.0", "b": "sglang/0.5.23", "c": "shadowspec-torch/0.1.0 torch/2.13.0"}
HOUR = timedelta(hours=1)
CONFIGS = {
    fingerprinted.fingerprint: fingerprinted
    for name in NAMES
    for revision in REVISIONS
    for fingerprinted in [config(name, revision, engine=ENGINES[revision])]
}
BEGIN = NOW - timedelta(days=40)
AT_ONCE = RolloutPolicy(require_confirmed=False, shadow_soak_s=0.0, min_soak_blocks=0)


@dataclass
class History:
    """What an endpoint's gate runs left, and what was measured between them, in the order of time.

    `lag` is how long before its measuring everything happened: years for files that were recorded and have ended.
    """

    lag: timedelta
    now: datetime
    seen: dict[tuple[str, str], list[datetime]] = field(default_factory=dict)  # by name and revision: first, newest
    latest: dict[tuple[str, int, str], Decision] = field(default_factory=dict)

    def measure(self, name: str, revision: str) -> None:
        happened = self.now - self.lag
        self.seen.setdefault((name, revision), [happened, happened])[1] = happened

    def run_gate(self, verdicts: Sequence[Verdict], *, has_time: bool) -> None:
        """A look at every hypothesis of the config that each name stands for; verdicts in turn."""
        turn = 0
        for name in NAMES:
            seen = {revision: Seen(*times) for (of, revision), times in self.seen.items() if of == name}
            revision = current_fingerprint(dict(sorted(seen.items())))
            if revision is None:
                continue
            fingerprint = config(name, revision).fingerprint
            for slice_key in SLICES:
                for load in LOADS:
                    for key, old in self.latest.items():
                        is_other = key[:2] == (slice_key, load) and old.config.name == name and key[2] != fingerprint
                        had_level = (
                            old.verdict is not Verdict.HOLD or load == LOADS[0]
                        )  # without one it is left as it is
                        if is_other and had_level and old.supersession is None:
                            self.latest[key] = supersede(old, fingerprint, self.now)
                    evidence = EvidenceSummary(newest_evidence=seen[revision].last if has_time else None)
                    self.latest[slice_key, load, fingerprint] = decision(
                        verdicts[turn % len(verdicts)],
                        slice_key,
                        load=load,
                        name=name,
                        revision=revision,
                        decided_at=self.now,
                        engine=ENGINES[revision],
                        evidence=evidence,
                        watch=examples.watched(drift_acceptance=0.4),
                    )
                    turn += 1

    def traffic(self) -> list[Traffic]:
        def hour(at: datetime) -> datetime:
            return at.replace(minute=0, second=0, microsecond=0)

        return [
            Traffic(slice_key, config(name, revision).fingerprint, load, 1.0, hour(first), hour(newest))
            for (name, revision), (first, newest) in self.seen.items()
            for slice_key in (CODE, CHAT)
            for load in LOADS
        ]


gate_runs = st.tuples(
    st.just("gate"),
    st.lists(st.sampled_from([Verdict.ENABLE, Verdict.ENABLE, Verdict.HOLD, Verdict.DISABLE]), min_size=1, max_size=5),
    st.booleans(),
)
measurings = st.tuples(st.just("measure"), st.sampled_from(NAMES), st.sampled_from(REVISIONS))
pauses = st.tuples(st.just("pause"), st.integers(1, 300) | st.sampled_from([2 * 1_440, 10 * 1_440]), st.none())


Step = tuple[str, Any, Any]


def history_of(steps: Sequence[Step], days: float = 1, lag: timedelta = timedelta(0)) -> History:
    """What became of these steps, the first so many days ago."""
    history = History(lag, NOW - timedelta(days=days))
    for kind, one, other in steps:
        history.now += timedelta(minutes=1)
        if history.now >= NOW:
            break
        if kind == "gate":
            history.run_gate(one, has_time=other)
        elif kind == "measure":
            history.measure(one, other)
        else:
            history.now += timedelta(minutes=one)
    return history


@st.composite
def histories(draw: st.DrawFn) -> History:
    enabled = ("gate", [Verdict.ENABLE, draw(st.sampled_from(list(Verdict)))], draw(st.booleans()))
    begin = [("measure", draw(st.sampled_from(NAMES)), draw(st.sampled_from(REVISIONS))), enabled]
    steps = begin + draw(st.lists(st.one_of(gate_runs, measurings, pauses), max_size=20))
    lag = draw(st.sampled_from([timedelta(0), timedelta(0), timedelta(days=3), timedelta(days=900)]))
    return history_of(steps, draw(st.sampled_from([1, 6, 13, 40])), lag)


overrides = st.builds(
    lambda number, slice_key, load, verdict, ends: OverrideRecord(
        Override(
            number, "chat", slice_key, load, verdict, "incident", "ops", BEGIN, None if ends is None else NOW + ends
        ),
        Clearing(number, "over", "ops", NOW - HOUR) if number % 3 == 0 else None,
    ),
    st.integers(1, 9),
    st.sampled_from(["", "prompt_class=code", "sampling_regime=high"]),
    st.sampled_from([None, *LOADS]),
    st.sampled_from([Verdict.DISABLE, Verdict.HOLD]),
    st.sampled_from([None, HOUR, -HOUR]),
)
policies = st.sampled_from(
    [
        GatePolicy(window_s=0.0),
        *(GatePolicy(window_s=0.0, serving_engine=name) for name in ("vllm", "sglang", "shadowspec-torch")),
    ]
)
stages = st.builds(
    lambda load, of, cap, name, revision: Rollout(
        "chat", load, *of, config(name, revision).fingerprint, BEGIN, BEGIN, "", "", depth_caps={"": cap}
    ),
    st.sampled_from(LOADS),
    st.sampled_from([(Stage.SHADOW, 0.0), (Stage.PARTIAL, 0.1), (Stage.BROAD, 1.0)]),
    st.sampled_from([4, 4, 2]),
    st.sampled_from(NAMES),
    st.sampled_from(REVISIONS),
)
max_ages = st.sampled_from([timedelta(days=days) for days in (7, 20, 39, 41, 2_000)] + [HOUR])


@dataclass
class Memory(MemorySource):
    """A store that holds a history."""

    spans: list[Traffic] = field(default_factory=list)
    stages: list[Rollout] = field(default_factory=list)

    def rollouts(self, endpoint: str = "chat") -> list[Rollout]:
        return self.stages

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        return self.configs

    def latest_decisions(self, endpoint: str = "chat") -> list[Decision]:
        return self.decisions

    def decisions_at(self, moment: datetime) -> list[Decision]:
        return self.decisions

    def overrides(self, endpoint: str = "chat") -> list[OverrideRecord]:
        return self.orders

    def traffic(self, endpoint: str, until: datetime | None = None) -> list[Traffic]:
        return self.spans

    def endpoint_lock(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def nothing(self, *_: Any, **__: Any) -> list[Any]:
        return []

    rollout_history = append_rollouts = live_windows = nothing
    verdict_changes = advice_changes = group_sums = nothing


Verdicts = set[tuple[str, int, str, Verdict]]  # slice, load, fingerprint


WEEK, YEARS = timedelta(days=7), timedelta(days=2_000)
ENABLED: list[Step] = [("measure", "draft", "a"), ("gate", [Verdict.ENABLE], True)]
REPLACED: list[Step] = [*ENABLED, ("pause", 90, None), ("measure", "draft", "b")]
LONG_AGO: list[Step] = [*REPLACED, ("pause", 20 * 1_440, None), ("measure", "other", "a")]
BACK: list[Step] = [*REPLACED, ("gate", [Verdict.ENABLE], True), ("pause", 300, None), ("measure", "draft", "a")]
IN_PROCESS: list[Step] = [("measure", "draft", "c"), ("gate", [Verdict.ENABLE], True)]
DISABLED: list[Step] = [("measure", "draft", "a"), ("gate", [Verdict.DISABLE], True)]
HELD = OverrideRecord(Override(2, "chat", "", None, Verdict.HOLD, "incident", "ops", BEGIN, None), None)
IN_SHADOW = Rollout("chat", 2, Stage.SHADOW, config().fingerprint, BEGIN, BEGIN, "began", "")
by_load = st.lists(stages, max_size=2, unique_by=lambda rollout: rollout.concurrency)
KILLED = OverrideRecord(Override(1, "chat", "", None, Verdict.DISABLE, "incident", "ops", BEGIN, None), None)


@given(histories(), st.lists(overrides, max_size=2), policies, max_ages, by_load)
@example(history_of(ENABLED), [], GatePolicy(window_s=0.0, serving_engine="sglang"), WEEK, [])
@example(history_of(ENABLED), [], GatePolicy(window_s=0.0), WEEK, [IN_SHADOW])
@example(history_of(IN_PROCESS), [], GatePolicy(window_s=0.0), WEEK, [])
@example(history_of(DISABLED), [HELD], GatePolicy(window_s=0.0), WEEK, [])
@example(history_of(ENABLED, lag=timedelta(days=900)), [], GatePolicy(window_s=0.0), WEEK, [])
@example(history_of(REPLACED), [], GatePolicy(window_s=0.0), WEEK, [])
@example(history_of(LONG_AGO, days=30), [], GatePolicy(window_s=0.0), YEARS, [])
@example(history_of(BACK), [KILLED], GatePolicy(window_s=0.0), WEEK, [])
def test_all_surfaces_agree(
    history: History, records: list[OverrideRecord], policy: GatePolicy, max_age: timedelta, rollouts: list[Rollout]
) -> None:
    """On the same slices, loads and candidates speculation may be on, and harm is shown, with the same fingerprint."""
    store: Any = Memory(
        configs=CONFIGS,
        decisions=list(history.latest.values()),
        orders=records,
        spans=history.traffic(),
        stages=rollouts,
    )
    found = read_endpoint_decisions(store, "chat", policy, NOW)
    exported = judge_decisions(found.latest, now=NOW, max_age=max_age, configs=CONFIGS, rollouts=rollouts)
    board = board_rows(store, policy)
    for name in NAMES:
        for slice_key in SLICES:
            for load in LOADS:
                place = slice_key, load, name
                on_export = {s.decision.fingerprint for s in exported if place_of(s.decision) == place and s.is_on}
                outcomes = checked(store, found, place, max_age)
                shown = [row for row in board if (row.slice_key, row.concurrency) == place[:2] and of(row) == name]
                on_board = {
                    row.fingerprint for row in shown if row.verdict is Verdict.ENABLE and not row.is_stale(max_age, NOW)
                }
                on_check = {each for each, outcome in outcomes.items() if outcome is Outcome.ENABLE}
                assert on_check == on_export <= on_board
                assert (
                    on_check
                    == {
                        s.decision.fingerprint
                        for s in exported
                        if place_of(s.decision) == place and may_serve(s, rollouts)
                    }
                    & on_board
                )
                assert len(on_export) <= 1
                event(f"on: {bool(on_export)}")
                disabled = {each for each, outcome in outcomes.items() if outcome is Outcome.DISABLE}
                assert disabled == {row.fingerprint for row in shown if row.verdict is Verdict.DISABLE}
                off = {s.decision.fingerprint: s.off for s in exported if place_of(s.decision) == place}
                assert all(off[each] in (Off.DISABLED, Off.OVERRIDDEN) for each in disabled if each in off)
    said = {
        (row.slice_key, row.concurrency, row.fingerprint, row.verdict) for row in board if row.verdict and row.config
    }
    assert on_report(store, policy) == on_period_report(store, policy) == on_loads_page(found) == said
    answer_alike(store, policy, max_age, exported)
    store.stages = []  # the first look
    follow_rollouts(store, policy, max_age, board)
    follow_live_guard(store, policy, board)


def may_serve(served: ServedDecision, rollouts: Sequence[Rollout]) -> bool:
    """What engine and stage say, in our own words: every config here has the same draft and depth."""
    decision = served.decision
    engine = decision.serving_engine or decision.engine
    here = next((rollout for rollout in rollouts if rollout.concurrency == decision.concurrency), None)
    return "shadowspec-torch" not in engine and (here is None or (here.share > 0 and here.depth_caps[""] == 4))


def answer_alike(store: Any, policy: GatePolicy, max_age: timedelta, exported: Sequence[ServedDecision]) -> None:
    """The endpoint's check, its metric, the board's next step and the exported server say the same of every load."""
    terms = EndpointTerms(policy, dict.fromkeys(LOADS, 0.5))
    inputs = read_check_input(store, "chat", terms, NOW)
    gauges = VerdictMetrics(store, {"chat": terms}).families(NOW)["check"].samples
    schedule = endpoint_schedule("chat", exported, overrides=inputs.decisions.overrides)
    for load in (None, *LOADS):
        answer = asked(Question("chat", concurrency=load), inputs, NOW)
        (said,) = (
            sample.labels["outcome"]
            for sample in gauges
            if sample.labels["load"] == ("" if load is None else str(load)) and sample.value
        )
        assert said == ("UNUSABLE" if answer is None else answer.outcome)
        if load is not None:
            aged = asked(Question("chat", concurrency=load, max_age=max_age), inputs, NOW)
            is_on = schedule.num_speculative_tokens(load) > 0
            assert (aged is not None and aged.outcome is Outcome.ENABLE) == is_on
            event(f"endpoint on: {is_on}")
        else:
            heads = [row for row in board_rows(store, policy) if not row.slice_key and row.verdict is Verdict.ENABLE]
            is_promoted = any(row.next_action.startswith(("promote", "keep speculation on")) for row in heads)
            assert is_promoted == (said == "ENABLE")


def on_report(store: Any, policy: GatePolicy) -> Verdicts:
    report = build_report(store, {"chat": policy}, NOW, data_note="Made up.")
    return {
        (each.slice_key, each.concurrency, each.fingerprint, each.decision.verdict)
        for each in report.hypotheses
        if each.decision is not None
    }


def on_period_report(store: Any, policy: GatePolicy) -> Verdicts:
    report = build_period_report(store, PeriodSettings({"chat": policy}), BEGIN, NOW, NOW + HOUR)
    return {(each.slice_key, each.concurrency, each.fingerprint, each.verdict) for each in report.board}


def on_loads_page(found: EndpointDecisions) -> Verdicts:
    return {
        (slice_key, cell.concurrency, cell.fingerprint, cell.verdict)
        for slice_key in SLICES
        for cell in load_cells(found.current, slice_key)
    }


def follow_rollouts(store: Any, policy: GatePolicy, max_age: timedelta, board: Sequence[BoardRow]) -> None:
    """What is chosen is enabled on the board, and waits for fresh evidence where the board says that it is stale."""
    rollout_policy = replace(AT_ONCE, max_decision_age_s=max_age.total_seconds())
    steps = {each.rollout.concurrency: each for each in advance_rollouts(store, "chat", policy, rollout_policy, NOW)}
    for load in LOADS:
        enabled = {
            row.fingerprint: row.is_stale(max_age, NOW)
            for row in board
            if (row.slice_key, row.concurrency, row.verdict) == ("", load, Verdict.ENABLE)
        }
        step = steps.get(load)
        chosen = None if step is None else step.rollout.fingerprint
        assert chosen in enabled if enabled else chosen is None
        if step is not None and chosen is not None:
            event(f"rolled out: {step.rollout.stage}")
            assert (step.waits_for or "").startswith("a fresh decision") == enabled[chosen]


def follow_live_guard(store: Any, policy: GatePolicy, board: Sequence[BoardRow]) -> None:
    """It holds production to what is enabled on the board, fresh or not."""
    enabled = [row for row in board if row.verdict is Verdict.ENABLE]
    promise = watch(store, "chat", ["a"], policy, GuardPolicy(), NOW).promise
    speaking = [row for row in enabled if not row.slice_key] or enabled
    assert set(() if promise is None else promise.config_names) == {of(row) for row in speaking}


def place_of(decision: Decision) -> tuple[str, int, str]:
    return decision.slice_key, decision.concurrency, decision.config.name


def of(row: BoardRow) -> str:
    return CONFIGS[row.fingerprint].config.name if row.fingerprint in CONFIGS else ""


def board_rows(store: Any, policy: GatePolicy) -> list[BoardRow]:
    values = BoardValues(
        endpoints=["chat"],
        decisions=store.latest_decisions(),
        configs=CONFIGS,
        days=[],
        rollouts=store.rollouts(),
        newest_day=None,
        prices={},
        terms={"chat": EndpointTerms(policy, dict.fromkeys(LOADS, 0.5))},
        traffic={"chat": store.traffic("chat")},
    )
    active = [record.override for record in store.overrides() if record.is_active(NOW)]
    return list(build_board(values, active, NOW).rows)


def checked(
    store: Any, found: EndpointDecisions, place: tuple[str, int, str], max_age: timedelta
) -> dict[str, Outcome]:
    """What `check` finds of one hypothesis, by the fingerprint that it found it on; nothing where it refuses."""
    slice_key, load, name = place
    question = Question("chat", parse_slice_key(slice_key), load, max_age)
    terms = EndpointTerms(GatePolicy(window_s=0.0), dict.fromkeys(LOADS, 0.5), [name])
    check_input = CheckInput(found, CONFIGS, store.traffic("chat"), terms, store.rollouts("chat"))
    try:
        answer = judge(question, check_input, NOW)
    except NoDataError:
        return {}
    finding = next(each for each in answer.findings if each.slice_key == slice_key)
    return {
        load_finding.decision.fingerprint: load_finding.outcome
        for load_finding in finding.loads
        if load_finding.decision is not None
    }


@given(histories())
def test_what_is_on_is_of_the_fingerprint_that_the_gate_would_name(history: History) -> None:
    """To the hour: the gate knows the minutes, so that what it has not seen yet may differ by less than two hours."""
    current = current_fingerprints(history.latest.values(), history.traffic(), CONFIGS)
    for name in NAMES:
        seen = {
            config(of, revision).fingerprint: Seen(*times)
            for (of, revision), times in history.seen.items()
            if of == name
        }
        gate = current_fingerprint(dict(sorted(seen.items())))
        assert (gate is None) == (name not in current)
        if gate is not None and gate != current[name]:
            one, two = seen[gate], seen[current[name]]
            assert min(abs(one.first - two.first), abs(abs(one.last - two.last) - HOUR)) < HOUR


def test_evidence_is_as_old_as_the_newest_hour_in_which_anything_was_measured() -> None:
    def row(slice_key: str, hours: float) -> Traffic:
        return Traffic(slice_key, decision().fingerprint, 4, 1.0, BEGIN, NOW - timedelta(hours=hours))

    rows = [row(CODE, 5), row(CHAT, 2), replace(row(CODE, 1), concurrency=8), replace(row(CODE, 1), fingerprint="fp")]
    assert evidence_time(decision(slice_key=CODE), rows) == NOW - 5 * HOUR
    assert evidence_time(decision(), rows) == NOW - 2 * HOUR
    assert evidence_time(decision(), [row(CODE, 0)]) == decision().decided_at, "what came later is not in it"
    assert evidence_time(decision(), []) is None


def test_evidence_that_is_newer_than_its_decision_is_of_no_known_time() -> None:
    """Else every look would make evidence of the future as new as the look."""
    at = decision().decided_at
    for ahead, known in ((-HOUR, at - HOUR), (MAX_CLOCK_AHEAD, at), (2 * MAX_CLOCK_AHEAD, None)):
        judged = replace(decision(), evidence=EvidenceSummary(newest_evidence=at + ahead))
        assert evidence_time(judged, []) == known


@pytest.mark.parametrize(
    ("age", "max_age", "stale"),
    [
        (HOUR, HOUR, False),
        (HOUR, HOUR / 2, True),
        (None, HOUR, True),
        (None, None, False),
        (HOUR, None, False),
        (-MAX_CLOCK_AHEAD, HOUR, False),
        (-HOUR, HOUR, True),
        (-HOUR, None, False),
    ],
)
def test_staleness(age: timedelta | None, max_age: timedelta | None, stale: bool) -> None:
    assert is_stale(None if age is None else NOW - age, max_age, NOW) is stale
