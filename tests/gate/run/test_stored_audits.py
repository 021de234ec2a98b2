"""Audits on a real store: every unit testifies once, an alarm holds the slice, and an operator ends it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.audit_difference import AuditState
from shadowspec.gate.run.audit_run import CellAudit, fold_units, run_audits
from shadowspec.gate.run.gate_run import EndpointGateRun
from shadowspec.gate.run.gate_store import GateSession
from shadowspec.gate.verdict.current_verdict import current_decisions
from shadowspec.reports.period.period_model import GATE_DONE
from shadowspec.rollout import endpoint_run as app_gate
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.scheduler import jobs
from shadowspec.store import Store
from shadowspec.types import AUDITOR, AuditedRun, AuditedUnit, Clearing, RecordKey, Stage, Verdict
from tests.store import examples
from tests.store.saving import save_block

CODE, CHAT = "class=code", "class=chat"


def save(store: Store, first: int, count: int, expected: float, slice_key: str) -> None:
    """Blocks of one audited run each, of 20 tokens that could have been accepted, 9 of which were."""
    for line in range(first, first + count):
        result = examples.block(f"b{line}", range(line, line + 1), sequence=line)
        audits = (AuditedRun(result.runs[0].key, "fp", 21, 9, expected),)
        block = structs.replace(result.block, slice_key=slice_key)
        record = structs.replace(examples.record(line), event_time=examples.NOON + timedelta(seconds=line))
        save_block(store, replace(result, block=block, audits=audits), [record])


@pytest.fixture
def measured(store: Store) -> Store:
    store.save_fingerprints([examples.config()])
    return store


def decide_nothing(run: EndpointGateRun, session: GateSession) -> None:
    """The step of a gate run that folds nothing."""
    run.latest, run.has_decided = session.latest_decisions(), True


def cells(audits: list[CellAudit]) -> dict[str, AuditState]:
    return {audit.slice_key: audit.state for audit in audits}


def test_a_sound_loop_is_audited_and_held_by_nobody(measured: Store) -> None:
    save(measured, 0, 12, 9.0, CODE)
    save(measured, 12, 8, 9.0, CHAT)
    audits = run_audits(measured, "chat", examples.NOON)
    assert [audit.slice_key for audit in audits] == ["", CODE, CHAT]  # in the order of their first units
    assert [audit.state.place for audit in audits] == [1, 2, 3]
    assert {name: state.num_units for name, state in cells(audits).items()} == {"": 20, CODE: 12, CHAT: 8}
    assert measured.overrides() == []
    assert run_audits(measured, "chat", examples.NOON) == audits
    assert run_audits(measured, "elsewhere", examples.NOON) == []


def test_in_pieces_it_comes_to_the_same(measured: Store) -> None:
    save(measured, 0, 6, 8.0, CODE)
    run_audits(measured, "chat", examples.NOON)
    save(measured, 6, 6, 9.5, CODE)
    run_audits(measured, "chat", examples.NOON)
    expected = [8.0] * 6 + [9.5] * 6
    runs = [AuditedRun(RecordKey("file", 0, line), "fp", 21, 9, each) for line, each in enumerate(expected)]
    at_once = fold_units({}, [AuditedUnit(CODE, run) for run in runs], examples.NOON)
    found = cells(run_audits(measured, "chat", examples.NOON))
    assert set(found) == {"", CODE}
    for (slice_key, _), state in at_once.items():
        assert found[slice_key].num_units == state.num_units == 12
        assert found[slice_key].peak_more == pytest.approx(state.peak_more)
        assert found[slice_key].log_fewer == pytest.approx(state.log_fewer)


@pytest.mark.representative("sqlite")
def test_an_alarm_holds_what_stands_until_an_operator_clears_it(measured: Store) -> None:
    measured.append_decisions([replace(examples.decision(Verdict.ENABLE), slice_key=name) for name in (CODE, CHAT)])
    save(measured, 0, 150, 9.0, CHAT)
    save(measured, 150, 30, 2.0, CODE)
    audits = cells(run_audits(measured, "chat", examples.NOON))
    assert audits[CODE].has_alarmed
    assert not audits[CHAT].has_alarmed
    held = [record.override for record in measured.overrides("chat")]
    assert {order.author for order in held} == {AUDITOR}
    assert {order.verdict for order in held} == {Verdict.HOLD}
    assert CODE in {order.slice_key for order in held}
    assert CHAT not in {order.slice_key for order in held}
    current = current_decisions(measured.latest_decisions("chat"), measured.overrides(), examples.NOON)
    reasons = {decision.slice_key: (decision.verdict, decision.reason) for decision in current}
    assert reasons[CODE][0] is Verdict.HOLD
    assert "audit alarm: the engine accepts otherwise than replay expects, config fp, class=code" in reasons[CODE][1]

    run_audits(measured, "chat", examples.NOON)
    assert len(measured.overrides()) == len(held)
    for order in held:
        stored = next(record.override for record in measured.overrides() if record.override.reason == order.reason)
        measured.clear_override(Clearing(stored.override_id, "mended", "ada", examples.NOON))
    save(measured, 180, 5, 2.0, CODE)
    run_audits(measured, "chat", examples.NOON)
    assert len(measured.overrides()) == len(held)
    current = current_decisions(measured.latest_decisions("chat"), measured.overrides(), examples.NOON)
    assert {decision.verdict for decision in current} == {Verdict.ENABLE}


@pytest.mark.representative("sqlite")
def test_a_scheduled_gate_audits_before_it_moves_rollouts(measured: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that an audit has just held is rolled back in the same run."""
    save(measured, 0, 60, 2.0, "")
    measured.append_decisions([replace(examples.decision(Verdict.ENABLE), decided_at=datetime.now(UTC))])
    measured.append_rollouts([examples.rollout()])
    monkeypatch.setattr(EndpointGateRun, "step", decide_nothing)
    policies = app_gate.GatePolicies({"chat": GatePolicy(window_s=0.0)}, {"chat": RolloutPolicy()})
    assert jobs.run_measured_gates(measured, policies) == GATE_DONE
    assert [record.override.author for record in measured.overrides()] == [AUDITOR]
    (rollout,) = measured.rollouts("chat")
    assert rollout.stage is Stage.SHADOW
    assert "audit alarm" in rollout.reason


@pytest.mark.representative("sqlite")
def test_a_rehearsed_gate_audits_and_keeps_nothing(measured: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an alarm would hold is held in the rehearsal, and only there."""
    save(measured, 0, 60, 2.0, "")
    monkeypatch.setattr(EndpointGateRun, "step", decide_nothing)
    with measured.rehearsal("chat") as undone:
        run = app_gate.run_endpoint(undone, "chat", GatePolicy(window_s=0.0), RolloutPolicy(), now=examples.NOON)
        assert [record.override.author for record in undone.overrides()] == [AUDITOR]
    assert any(audit.state.has_alarmed for audit in run.audits)
    assert (measured.overrides(), measured.audit_states(["chat"])["chat"]) == ([], [])
