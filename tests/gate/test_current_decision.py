"""Which decision is current, as every surface says it: board, `check` and `export` on generated histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import (
    current_fingerprints,
    decisions_in_force,
    evidence_time,
    is_stale,
)
from shadowspec.gate.verdict.trial import Seen, current_fingerprint, supersede
from shadowspec.reports.pages.board import BoardRow, build_board
from shadowspec.reports.pages.board_values import BoardValues
from shadowspec.rollout.check.judge import judge
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.rollout.check.question import CheckInput, Question
from shadowspec.rollout.export.endpoint_state import Off, judge_decisions
from shadowspec.store import Traffic
from shadowspec.types import (
    Clearing,
    Decision,
    EvidenceSummary,
    Override,
    OverrideRecord,
    Verdict,
    parse_slice_key,
)
from tests.promote.worlds import CHAT, CODE, NOW, config, decision

SLICES, LOADS, NAMES, REVISIONS = ("", CODE, CHAT), (2, 16), ("draft", "other"), ("a", "b", "c")
ENGINES = {"a": "vllm/0.32.0", "b": "sglang/0.5.23", "c": "vllm/0.33.0"}
HOUR = timedelta(hours=1)
CONFIGS = {
    own.fingerprint: own
    for name in NAMES
    for revision in REVISIONS
    for own in [config(name, revision, engine=ENGINES[revision])]
}
BEGIN = NOW - timedelta(days=6)  # all of what is measured lies within the week that every surface reads


@dataclass
class History:
    """What an endpoint's gate runs left, and what was measured between them, in the order of time."""

    now: datetime = BEGIN
    seen: dict[tuple[str, str], list[datetime]] = field(default_factory=dict)  # by name and revision: first, newest
    latest: dict[tuple[str, int, str], Decision] = field(default_factory=dict)

    def measure(self, name: str, revision: str) -> None:
        self.seen.setdefault((name, revision), [self.now, self.now])[1] = self.now

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
pauses = st.tuples(st.just("pause"), st.integers(1, 300), st.none())  # minutes


@st.composite
def histories(draw: st.DrawFn) -> History:
    own = History()
    enabled = ("gate", [Verdict.ENABLE, draw(st.sampled_from(list(Verdict)))], draw(st.booleans()))
    begin = [("measure", draw(st.sampled_from(NAMES)), draw(st.sampled_from(REVISIONS))), enabled]
    for kind, one, other in begin + draw(st.lists(st.one_of(gate_runs, measurings, pauses), max_size=20)):
        own.now += timedelta(minutes=1)
        if kind == "gate":
            own.run_gate(one, has_time=other)
        elif kind == "measure":
            own.measure(one, other)
        else:
            own.now += timedelta(minutes=one)
    return own


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
policies = st.sampled_from([GatePolicy(), GatePolicy(serving_engine="vllm"), GatePolicy(serving_engine="sglang")])
max_ages = st.sampled_from([timedelta(days=7), timedelta(days=6), timedelta(days=5), HOUR])


@given(histories(), st.lists(overrides, max_size=2), policies, max_ages)
def test_board_check_and_export_agree(
    history: History, records: list[OverrideRecord], policy: GatePolicy, max_age: timedelta
) -> None:
    """On the same slices, loads and candidates speculation may be on, and harm is shown, with the same fingerprint."""
    decisions, traffic = list(history.latest.values()), history.traffic()
    in_force = decisions_in_force(decisions, policy, records, NOW)
    exported = judge_decisions(in_force, measured=traffic, now=NOW, max_age=max_age, configs=CONFIGS)
    board = board_rows(decisions, traffic, records, policy)
    for name in NAMES:
        for slice_key in SLICES:
            for load in LOADS:
                place = slice_key, load, name
                on_export = {s.decision.fingerprint for s in exported if place_of(s.decision) == place and s.is_on}
                found = checked(history, in_force, records, place, max_age)
                shown = [row for row in board if (row.slice_key, row.concurrency) == place[:2] and of(row) == name]
                on_board = {
                    row.fingerprint for row in shown if row.verdict is Verdict.ENABLE and not row.is_stale(max_age, NOW)
                }
                on_check = {each for each, outcome in found.items() if outcome is Outcome.ENABLE}
                assert on_board == on_check == on_export
                assert len(on_export) <= 1
                event(f"on: {bool(on_export)}")
                disabled = {each for each, outcome in found.items() if outcome is Outcome.DISABLE}
                assert disabled == {row.fingerprint for row in shown if row.verdict is Verdict.DISABLE}
                off = {s.decision.fingerprint: s.off for s in exported if place_of(s.decision) == place}
                assert all(off[each] in (Off.DISABLED, Off.OVERRIDDEN) for each in disabled if each in off)


def place_of(own: Decision) -> tuple[str, int, str]:
    return own.slice_key, own.concurrency, own.config.name


def of(row: BoardRow) -> str:
    return CONFIGS[row.fingerprint].config.name if row.fingerprint in CONFIGS else ""


def board_rows(
    decisions: Sequence[Decision], traffic: Sequence[Traffic], records: Sequence[OverrideRecord], policy: GatePolicy
) -> list[BoardRow]:
    values = BoardValues(
        endpoints=["chat"],
        decisions=decisions,
        configs=CONFIGS,
        days=[],
        inputs={},
        rollouts=[],
        newest_day=None,
        prices={},
        loads={"chat": dict.fromkeys(LOADS, 0.5)},
        policies={"chat": policy},
        traffic={"chat": traffic},
    )
    active = [record.override for record in records if record.is_active(NOW)]
    return list(build_board(values, active, NOW).rows)


def checked(
    history: History,
    in_force: Sequence[Decision],
    records: Sequence[OverrideRecord],
    place: tuple[str, int, str],
    max_age: timedelta,
) -> dict[str, Outcome]:
    """What `check` finds of one hypothesis, by the fingerprint that it found it on; nothing where it refuses."""
    slice_key, load, name = place
    question = Question("chat", parse_slice_key(slice_key), load, max_age)
    standing = CheckInput(in_force, CONFIGS, history.traffic(), dict.fromkeys(LOADS, 0.5), [name], 0.6931)
    try:
        answer = judge(question, standing, NOW)
    except NoDataError:
        return {}
    finding = next(each for each in answer.findings if each.slice_key == slice_key)
    return {own.decision.fingerprint: own.outcome for own in finding.loads if own.decision is not None}


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


@pytest.mark.parametrize(
    ("age", "max_age", "stale"),
    [(HOUR, HOUR, False), (HOUR, HOUR / 2, True), (None, HOUR, True), (None, None, False), (HOUR, None, False)],
)
def test_staleness(age: timedelta | None, max_age: timedelta | None, stale: bool) -> None:
    assert is_stale(None if age is None else NOW - age, max_age, NOW) is stale
