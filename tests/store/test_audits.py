"""Replays stand apart from what the loop counted and are written once; audited runs are taken in once."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from shadowspec.store import Store
from shadowspec.store.write import stored_replays
from shadowspec.types import (
    AuditedUnit,
    BlockResult,
    FingerprintedConfig,
    LoopSpan,
    RecordKey,
    Run,
    SpeculationConfig,
    StoredAudit,
    VerifyRule,
)
from tests.store import examples
from tests.store.saving import save_block

DRAFTED = SpeculationConfig("draft", "t", "d", "draft_model", 5, VerifyRule.REJECTION)


def other(fingerprint: str) -> FingerprintedConfig:
    return FingerprintedConfig(DRAFTED, "engine/1", "cpu", "float32", {"target_weights": "w"}, fingerprint)


def sliced(result: BlockResult, slice_key: str) -> BlockResult:
    return replace(result, block=structs.replace(result.block, slice_key=slice_key))


def test_a_record_replayed_twice_changes_nothing(store: Store) -> None:
    wanted = [examples.replayed(1, examples.config(), other("g")), examples.replayed(2)]
    assert store.save_replays(wanted) == 3
    before = store.replay_sums(["chat"])["chat"]
    changed = replace(wanted[0], counts=tuple((config, examples.expected(9.0)) for config, _ in wanted[0].counts))
    assert store.save_replays([changed, wanted[1], wanted[1]]) == 0
    assert store.replay_sums(["chat"])["chat"] == before
    assert store.save_replays([examples.replayed(1, other("h"))]) == 1
    assert store.save_replays([]) == 0


def test_configs_come_back_and_are_not_among_the_measured(store: Store) -> None:
    store.save_replays([examples.replayed(1, other("g"), examples.config())])
    assert store.replay_configs() == {"g": other("g"), "fp": examples.config()}
    assert store.fingerprints() == {}
    assert (store.runs("chat"), store.rollups("chat"), store.endpoints()) == ([], [], [])


def test_replays_add_up_by_slice_and_config_over_sessions(store: Store) -> None:
    store.save_replays(
        [
            examples.replayed(1, examples.config(), other("g"), unit_key="session:a"),
            examples.replayed(2, unit_key="session:a"),
            replace(examples.replayed(3, unit_key="session:b"), event_time=examples.NOON + timedelta(days=1)),
            replace(examples.replayed(4, unit_key="session:b"), slice_key="a=c"),
            replace(examples.replayed(5), endpoint="elsewhere"),
        ]
    )
    whole, single, slice_c = store.replay_sums(["chat"])["chat"]
    assert (whole.slice_key, whole.fingerprint, whole.num_requests, whole.num_units) == ("a=b", "fp", 3, 2)
    assert (whole.num_drafts, whole.num_draft_tokens, whole.num_accepted_tokens) == (6.75, 13.5, 13.5)
    assert whole.num_first_accepted_tokens == pytest.approx(9.0)
    assert whole.drafts_squares == pytest.approx(4.5**2 + 2.25**2)
    assert whole.accepted_drafts == pytest.approx(9.0 * 4.5 + 4.5 * 2.25)
    assert whole.accepted_squares == pytest.approx(9.0**2 + 4.5**2)
    assert (whole.first_event, whole.last_event) == (examples.NOON, examples.NOON + timedelta(days=1))
    assert (single.fingerprint, single.num_requests) == ("g", 1)
    assert (slice_c.slice_key, slice_c.num_units) == ("a=c", 1)


def test_the_newest_are_added_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is stored, a read takes in no more rows than it may."""
    times = [examples.NOON + timedelta(minutes=line) for line in range(1, 6)]
    store.save_replays([replace(examples.replayed(line), event_time=time) for line, time in enumerate(times, start=1)])
    store.save_fingerprints([examples.config()])
    records = [structs.replace(examples.record(line), event_time=time) for line, time in enumerate(times, start=1)]
    save_block(store, examples.block("b", range(1, 6)), records)
    monkeypatch.setattr(stored_replays, "MAX_REPLAYS", 2)
    monkeypatch.setattr(stored_replays, "MAX_RUNS", 3)
    (sums,) = store.replay_sums(["chat"])["chat"]
    assert (sums.num_requests, sums.first_event, sums.last_event) == (2, times[3], times[4])
    (loop,) = store.loop_sums([LoopSpan("chat", {"fp"}, times[0], times[4])])["chat"]
    assert (loop.num_requests, loop.first_event, loop.last_event) == (3, times[2], times[4])


def test_the_loops_runs_add_up_likewise(store: Store) -> None:
    store.save_fingerprints([examples.config(), other("g")])
    save_block(store, sliced(examples.block("b", range(1, 4)), "a=b"), [examples.record(line) for line in range(1, 4)])
    failed = examples.block("c", range(4, 5))
    failed = replace(failed, runs=(Run(failed.runs[0].key, "fp", "c", failure="out_of_memory"),))
    save_block(store, sliced(failed, "a=b"), [examples.record(4)])
    later = structs.replace(examples.record(5), event_time=examples.NOON + timedelta(hours=1))
    save_block(store, sliced(examples.block("d", range(5, 6)), "a=b"), [later])
    save_block(store, sliced(examples.block("e", range(6, 7), fingerprint="g"), "a=b"), [examples.record(6)])
    (sums,) = store.loop_sums([LoopSpan("chat", {"fp"}, examples.NOON, examples.NOON)])["chat"]
    assert (sums.slice_key, sums.fingerprint, sums.num_requests, sums.num_units) == ("a=b", "fp", 3, 3)
    assert (sums.num_drafts, sums.num_draft_tokens, sums.num_accepted_tokens) == (6.0, 24.0, 15.0)
    assert sums.num_first_accepted_tokens == 6.0
    assert (sums.drafts_squares, sums.accepted_drafts, sums.accepted_squares) == (12.0, 30.0, 75.0)
    (sums,) = store.loop_sums([LoopSpan("chat", {"fp"}, examples.NOON, later.event_time)])["chat"]
    assert sums.num_units == 4
    assert store.loop_sums([LoopSpan("chat", set(), examples.NOON, later.event_time)]) == {"chat": []}


def test_each_endpoint_has_its_own_newest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints asked for together are limited apart, and one without rows is there too."""
    store.save_fingerprints([examples.config()])
    for place, endpoint in enumerate(("chat", "editor")):
        lines = range(10 * place + 1, 10 * place + 5)
        times = {line: examples.NOON + timedelta(hours=place, minutes=line) for line in lines}
        store.save_replays(
            [replace(examples.replayed(line), endpoint=endpoint, event_time=time) for line, time in times.items()]
        )
        block = examples.block(endpoint, lines)
        block = replace(block, block=structs.replace(block.block, endpoint=endpoint))
        records = [
            structs.replace(examples.record(line), endpoint=endpoint, event_time=time) for line, time in times.items()
        ]
        save_block(store, block, records)
        with store.audit_session(endpoint) as session:
            session.save([StoredAudit("", "fp", {"x": place})])
    monkeypatch.setattr(stored_replays, "MAX_REPLAYS", 3)
    monkeypatch.setattr(stored_replays, "MAX_RUNS", 2)
    names = ("chat", "editor", "elsewhere")
    found = store.replay_sums(names)
    assert {name: [sums.num_requests for sums in acceptance_sums] for name, acceptance_sums in found.items()} == {
        "chat": [3],
        "editor": [3],
        "elsewhere": [],
    }
    assert found == {name: store.replay_sums([name])[name] for name in names}
    spans = [LoopSpan(name, {"fp"}, examples.NOON, examples.NOON + timedelta(hours=2)) for name in names]
    looped = store.loop_sums(spans)
    assert {name: [sums.num_requests for sums in acceptance_sums] for name, acceptance_sums in looped.items()} == {
        "chat": [2],
        "editor": [2],
        "elsewhere": [],
    }
    assert looped["editor"][0].first_event == examples.NOON + timedelta(hours=1, minutes=13)
    assert looped == {span.endpoint: store.loop_sums([span])[span.endpoint] for span in spans}
    assert store.audit_states(names) == {
        "chat": [StoredAudit("", "fp", {"x": 0})],
        "editor": [StoredAudit("", "fp", {"x": 1})],
        "elsewhere": [],
    }
    assert (store.replay_sums([]), store.loop_sums([]), store.audit_states([])) == ({}, {}, {})


def test_audited_runs_are_taken_in_once_and_in_order(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    late = structs.replace(examples.record(1), event_time=examples.NOON + timedelta(hours=1))
    save_block(store, sliced(examples.audited(examples.block("b", range(1, 3))), "a=b"), [late, examples.record(2)])
    save_block(store, examples.audited(examples.block("c", range(3, 4)), None), [examples.record(3)])
    with store.audit_session("chat") as session:
        units = session.take()
        assert session.take() == []
        assert [unit.run.key.offset for unit in units] == [2, 3, 1]
        assert units[0] == AuditedUnit("a=b", examples.audited(examples.block("b", range(2, 3))).audits[0])
        assert units[1].run.expected_accepted_tokens is None
        session.save([StoredAudit("a=b", "fp", {"x": 1.5, "y": None}), StoredAudit("", "fp", {"x": 1})])
    with store.audit_session("chat") as session:
        assert session.take() == []
        session.save([StoredAudit("", "fp", {"x": 2})])
        session.save([])
        states = session.states()
    assert states == store.audit_states(["chat"])["chat"]
    assert store.audit_states(["chat"])["chat"] == [
        StoredAudit("", "fp", {"x": 2}),
        StoredAudit("a=b", "fp", {"x": 1.5, "y": None}),
    ]
    assert store.audit_states(["elsewhere"]) == {"elsewhere": []}


def test_what_fails_leaves_everything_to_the_next(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    save_block(store, examples.audited(examples.block("b", range(1, 3))), [examples.record(1), examples.record(2)])

    def killed() -> None:
        with store.audit_session("chat") as session:
            session.save([StoredAudit("", "fp", {"x": len(session.take())})])
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        killed()
    assert store.audit_states(["chat"])["chat"] == []
    with store.audit_session("chat") as session:
        assert len(session.take()) == 2


def test_sessions_at_once_take_every_run_once(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    for number in range(20):
        block = examples.block(f"b{number}", range(number, number + 1), sequence=number)
        save_block(store, examples.audited(block), [examples.record(number)])
    taken: list[RecordKey] = []

    def take() -> None:
        with store.audit_session("chat") as session:
            taken.extend(unit.run.key for unit in session.take())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == 20


def test_a_run_measured_again_is_not_audited_again(store: Store) -> None:
    """What comes under another block keeps its first audit; one of a run that is not stored is none."""
    store.save_fingerprints([examples.config()])
    save_block(store, examples.audited(examples.block("b", range(1, 2))), [examples.record(1)])
    again = examples.audited(examples.block("c", range(1, 3)), 1.0)
    save_block(store, again, [examples.record(1), examples.record(2)])
    stranger = replace(examples.block("d", range(3, 4)), audits=again.audits)
    save_block(store, stranger, [examples.record(3)])
    with store.audit_session("chat") as session:
        found = {unit.run.key.offset: unit.run.expected_accepted_tokens for unit in session.take()}
    assert found == {1: 4.5, 2: 1.0}
