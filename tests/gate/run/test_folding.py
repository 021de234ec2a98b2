"""Evidence folded look by look over a real database: each unit once, and the numbers of one look at the end."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from sqlalchemy import create_engine, event, text

from shadowspec.errors import InputError, NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run import fold_spans as spans
from shadowspec.gate.run.gate_run import EndpointGateRun
from shadowspec.gate.run.gate_store import GateSession
from shadowspec.gate.run.recompute import explain, policy_of
from shadowspec.gate.run.state import EndpointState, new_progress, new_state
from shadowspec.store import Store
from shadowspec.types import Decision, FunnelCounter, RecordKey, Run, StoredRecord, TestState
from shadowspec.types.codec import pack
from shadowspec.types.decision_documents import stored_details
from tests.builders.folding import POLICY, gate
from tests.gate.feeding import Feed, assert_same_decisions
from tests.gate.oracle import EndpointEvidence, decide_endpoint
from tests.gate.worlds import CONFIG, ENDPOINT, START, World, noisy_run, record_of, run_of

pytestmark = pytest.mark.slow  # all of them together

SLICES = ("prompt_class=code", "prompt_class=sql")


class AtOnce:
    """The gate over all rows at every look, with its own decisions to go on from."""

    def __init__(self, policy: GatePolicy = POLICY) -> None:
        self.policy = policy
        self.current: dict[tuple[str, int, str], Decision] = {}

    def look(self, rows: EndpointEvidence, *, ended: bool, hours: int = 0) -> list[Decision]:
        decided = decide_endpoint(
            rows,
            self.policy,
            {CONFIG.fingerprint: CONFIG},
            [4],
            list(self.current.values()),
            input_ended=ended,
            now=START + timedelta(hours=hours),
        )
        self.current |= {(d.slice_key, d.concurrency, d.fingerprint): d for d in decided}
        return decided


@pytest.mark.representative("postgres")
def test_look_after_look_decides_what_all_rows_at_once_decide(store: Store) -> None:
    """Failures, lost and slowed requests among them, and an ENABLE with its detectors on the way."""
    draw = noisy_run(slowed_share=0.02)
    make = lambda rng, index, block: (  # noqa: E731
        replace(draw(rng, index, block), failure="timeout", counts=None, baseline=None, speculative=None)
        if index % 60 == 7
        else draw(rng, index, block)
    )
    world = World(150, slices=SLICES, make_run=make).evidence()
    lost = [
        structs.replace(
            record_of(i, at_s=20.0 * i, session=f"lost{i}", counter=FunnelCounter.SHED), key=RecordKey("file", 2, i)
        )
        for i in range(0, 600, 300)
    ]
    feed, at_once = Feed(store, world), AtOnce()
    stops = [0, 3, 10, 40, 41, 90, 150]
    for hours, (start, stop) in enumerate(itertools.pairwise(stops)):
        is_last = stop == 150
        feed.write_blocks(start, stop, is_last=is_last and not lost)
        feed.write([r for r in lost if start * 4 <= r.key.offset < stop * 4], set(), is_last=is_last)
        decided = gate(store, hours=hours)
        assert_same_decisions(decided, at_once.look(feed.so_far(), ended=is_last, hours=hours))
        again = gate(store, hours=hours)
        assert [d.tests for d in again] == [d.tests for d in decided], "a look without news changes nothing"
        at_once.look(feed.so_far(), ended=is_last, hours=hours)
    assert decided[0].verdict.value == "ENABLE"
    assert decided[0].evidence.counts.num_lost == 2
    assert decided[0].evidence.num_failed == 10
    assert decided[0].evidence.newest_record is not None


@pytest.mark.representative("postgres")
def test_the_whole_endpoint_leaves_thinned_sessions_out_and_their_slice_does_not(store: Store) -> None:
    """Of one slice's blocks every second counts with one request of four, and the others do not count at all."""
    world = World(40, slices=SLICES, make_run=noisy_run()).evidence()
    world = replace(
        world,
        records=[
            structs.replace(record, is_thinned=True)
            if record.slice_key == SLICES[1] and record.session_hash and int(record.session_hash[1:]) % 16 != 4
            else record
            for record in world.records
        ],
    )
    feed, at_once = Feed(store, world), AtOnce(POLICY)
    for hours, (start, stop) in enumerate(itertools.pairwise([0, 7, 8, 40])):
        feed.write_blocks(start, stop, is_last=stop == 40)
        decided = gate(store, POLICY, hours=hours)
        assert_same_decisions(decided, at_once.look(feed.so_far(), ended=stop == 40, hours=hours))
    by_slice = {decision.slice_key: decision for decision in decided}
    assert [(by_slice[name].num_blocks, by_slice[name].num_clusters) for name in SLICES] == [(20, 80), (20, 80)]
    whole = by_slice[""]
    assert (whole.num_blocks, whole.num_clusters) == (30, 90)
    speedup = next(test for test in whole.tests if test.name == "speedup")
    assert speedup.betting is not None
    assert speedup.betting.observed_weight == pytest.approx(22.5)
    for decision in decided:
        assert explain(store, decision.decision_id or 0).differences == ()


@pytest.mark.all
@pytest.mark.representative("postgres")
def test_a_backlog_is_folded_in_parts_and_gives_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(60, slices=SLICES, make_run=noisy_run()).evidence()
    feed = Feed(store, world)
    feed.write_blocks(0, 60)
    monkeypatch.setattr(spans, "OFFSETS_AT_ONCE", 100)
    monkeypatch.setattr(spans.next_plan, "__defaults__", (100,))
    decided = gate(store)
    assert_same_decisions(decided, AtOnce().look(feed.so_far(), ended=False))
    assert count(store, "folds") > 10
    assert total(store, "folds", "num_records") == len(world.records)
    assert total(store, "folds", "num_runs") == len(world.runs)


@pytest.mark.representative("postgres")
def test_a_look_without_news_reads_no_rows_and_no_traffic(store: Store) -> None:
    """So that its time grows with hypotheses alone."""
    world = World(40, slices=SLICES, make_run=noisy_run()).evidence()
    feed, sent = Feed(store, world), []
    feed.write_blocks(0, 40)

    def keep(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(store.engine, "before_cursor_execute", keep)
    read = re.compile(r"FROM (records|runs|blocks|block_memory|rollups)\b")
    gate(store)
    assert {name for statement in sent for name in read.findall(statement)} == {
        *("records", "runs", "blocks", "block_memory")
    }
    sent.clear()
    gate(store)
    assert sent
    assert not [statement for statement in sent if read.search(statement)]


@pytest.mark.representative("postgres")
def test_rows_ahead_of_the_ledger_wait_for_it(store: Store) -> None:
    """A block whose runs lie on both sides of the ledger's place folds once the last of them is below."""
    world = World(30, make_run=noisy_run()).evidence()
    feed = Feed(store, world)
    feed.write_blocks(0, 20)
    ids = {world.blocks[20].block_id}
    records = [r for r in world.records if r.key.partition == 0 and 81 <= r.key.offset <= 84]
    feed.write(records[:2], ids)  # the block's rows are all there, the ledger stands in its midst
    assert gate(store)[0].num_blocks == 20
    assert count(store, "evidence_blocks") == 1
    feed.write(records[2:], set())
    assert gate(store)[0].num_blocks == 21
    assert count(store, "evidence_blocks") == 0


@pytest.mark.representative("postgres")
def test_late_records_are_counted_and_never_enter(store: Store) -> None:
    world = World(100, make_run=noisy_run()).evidence()
    feed = Feed(store, world)
    feed.write_blocks(0, 100)
    before = gate(store)[0]
    late = structs.replace(
        record_of(3, at_s=61.0, session="s000003"), key=RecordKey("file", 2, 5), counter=FunnelCounter.SAMPLED_OUT
    )
    feed.write([late], set())
    after = gate(store)[0]
    assert (after.evidence.counts.num_late, before.evidence.counts.num_late) == (1, 0)
    assert after.num_clusters == before.num_clusters


@pytest.mark.representative("postgres")
def test_records_that_come_out_of_order_hold_what_else_would_be_decided(store: Store) -> None:
    """Their share is counted over looks, told by the decision, and recomputed with it."""
    world, policy = World(150, make_run=noisy_run()).evidence(), replace(POLICY, min_span_s=1e9)
    feed = Feed(store, world)
    feed.write_blocks(0, 150)
    found = [gate(store, policy)[0]]
    for sessions in (range(590, 600), range(60), range(60, 100)):  # the first of them have not entered
        missed = [
            structs.replace(
                record_of(i, at_s=20.0 * i + 3.0, session=f"s{i:06d}"), key=RecordKey("file", 2, (i + 10) % 600)
            )
            for i in sessions
        ]
        feed.write([structs.replace(record, counter=FunnelCounter.SAMPLED_OUT) for record in missed], set())
        found.append(gate(store, policy)[0])
    assert [decision.evidence.counts.num_left_out for decision in found] == [0, 0, 60, 100]
    assert [decision.reason_code for decision in found] == ["min_span", "min_span", "min_span", "late_data"]
    num_members = 3 * found[-1].num_clusters
    assert found[-1].evidence.late_share == pytest.approx(100 / (num_members + 100))
    for decision in found:
        assert decision.decision_id is not None
        assert explain(store, decision.decision_id).differences == ()


@pytest.mark.representative("postgres")
def test_keys_that_dominate_at_entry_are_cut_and_everything_is_folded_anew(store: Store) -> None:
    """Some slices have entered by then; the numbers are those of all rows at once."""
    world = World(40, slices=SLICES, make_run=noisy_run(), untimed=0).evidence()
    bot = [
        structs.replace(
            record_of(i, at_s=5.0 * i, session="bot", slice_key=SLICES[1], counter=FunnelCounter.SAMPLED_OUT),
            key=RecordKey("file", 3, i),
        )
        for i in range(700)
    ]
    policy = replace(POLICY, cluster_reopen_after_s=600.0, entry_clusters=15)
    feed, at_once = Feed(store, world), AtOnce(policy)
    for start, stop in ((0, 5), (5, 20), (20, 40)):
        feed.write_blocks(start, stop)
        feed.write([r for r in bot if start * 16 <= r.key.offset < stop * 16], set())
        decided = gate(store, policy)
        assert_same_decisions(decided, at_once.look(feed.so_far(), ended=False))
    assert decided[0].evidence.counts.num_dominant_keys == 1
    assert total(store, "evidence_keys", "key LIKE 'session:bot@%'") > 0
    assert count(store, "folds WHERE begins IS NOT NULL AND fold_id > 1") >= 1


@pytest.mark.representative("postgres")
def test_keys_that_dominate_are_cut_where_their_slice_enters_in_the_first_fold_of_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog: nothing is folded yet to go on from."""
    world = World(40, make_run=noisy_run(), untimed=0).evidence()
    bot = [
        structs.replace(
            record_of(i, at_s=5.0 * i, session="bot", counter=FunnelCounter.SAMPLED_OUT), key=RecordKey("file", 3, i)
        )
        for i in range(400)
    ]
    feed = Feed(store, world)
    feed.write_blocks(0, 40)
    feed.write(bot, set())
    num_steps, step = itertools.count(1), EndpointGateRun.step

    def counted(endpoint_gate: EndpointGateRun, session: GateSession) -> None:
        assert next(num_steps) <= 3, "the same fold again and again"
        step(endpoint_gate, session)

    monkeypatch.setattr(EndpointGateRun, "step", counted)
    assert gate(store)[0].evidence.counts.num_dominant_keys == 1


@pytest.mark.representative("postgres")
def test_a_changed_policy_folds_anew_what_has_not_entered_and_leaves_what_has(store: Store) -> None:
    world = World(60, slices=(*[SLICES[0]] * 14, SLICES[1]), make_run=noisy_run()).evidence()
    feed = Feed(store, world)
    feed.write_blocks(0, 60)
    first = {d.slice_key: d for d in gate(store, ended=True)}
    assert first[SLICES[0]].level is not None
    assert first[SLICES[1]].level is None
    changed = replace(POLICY, log_speedup_clip=0.5, max_requests_per_cluster=4)
    second = {d.slice_key: d for d in gate(store, changed, ended=True)}
    clip = {
        name: next(t for t in d.tests if t.name == "speedup").figures["log_speedup_clip"] for name, d in second.items()
    }
    assert clip == {"": POLICY.log_speedup_clip, SLICES[0]: POLICY.log_speedup_clip, SLICES[1]: 0.5}
    assert second[""].tests[0].num_units == first[""].tests[0].num_units
    assert count(store, "folds WHERE begins IS NOT NULL AND fold_id > 1") == 1


@pytest.mark.representative("postgres")
def test_folding_anew_is_refused_where_rows_are_gone(store: Store) -> None:
    world = World(4, make_run=noisy_run()).evidence()
    feed = Feed(store, world)
    feed.write_blocks(0, 4)
    before = gate(store)
    execute(store, "DELETE FROM records WHERE source_offset < 3")
    assert [d.tests for d in gate(store)] == [d.tests for d in before], "what is folded needs its rows no more"
    with pytest.raises(InputError, match=r"must be folded again .* retention has removed"):
        gate(store, replace(POLICY, log_speedup_clip=0.5))
    assert [d.tests for d in gate(store)] == [d.tests for d in before], "and nothing was lost"


@pytest.mark.representative("postgres")
def test_folding_anew_is_refused_where_only_runs_are_gone(store: Store) -> None:
    """Retention that was killed between the two tables leaves records without their runs."""
    feed = Feed(store, World(4, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 4)
    gate(store)
    execute(store, "DELETE FROM runs WHERE source_offset < 3")
    with pytest.raises(InputError, match=r"must be folded again .* \d+ of \d+ runs are left"):
        gate(store, replace(POLICY, log_speedup_clip=0.5))


@pytest.mark.representative("postgres-evidence", "postgres-evidence_endpoints")
@pytest.mark.parametrize("table", ["evidence", "evidence_endpoints"])
def test_evidence_of_another_version_is_folded_anew(store: Store, table: str) -> None:
    feed = Feed(store, World(40, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 30)
    before = gate(store)
    _age(store, table)
    again = gate(store)
    assert [d.tests for d in again] == [d.tests for d in before]
    assert explain(store, again[0].decision_id or 0).num_folds == 1, "it rests on rows read again"
    feed.write_blocks(30, 40)
    assert gate(store)[0].num_blocks == 40
    _age(store, table)
    execute(store, "DELETE FROM records WHERE source_offset < 3")
    with pytest.raises(InputError, match=r"another version of ShadowSpec wrote it.* retention has removed"):
        gate(store)


def _age(store: Store, table: str) -> None:
    """As if the table's values had been written by a version that knew other fields."""
    if table == "evidence":
        execute(store, "UPDATE evidence SET content = :content", content=pack({}, 0))
        return
    old = """'{"version": 0}'"""
    kind = "json" if store.engine.dialect.name == "postgresql" else "text"
    execute(store, f"UPDATE {table} SET document = CAST({old} AS {kind})")


@pytest.mark.representative("postgres-7")
@pytest.mark.parametrize("at_once", [7, 100])
def test_a_file_in_any_order_is_folded_in_parts_as_if_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """The newest sessions come first, each with all its turns: nothing closes before all of it is read."""
    records = [
        structs.replace(
            record_of(
                session,
                at_s=600.0 * turn + 300.0 * (40 - session),
                session=f"s{session}",
                counter=FunnelCounter.SAMPLED_OUT,
            ),
            key=RecordKey("file", 0, session * 6 + turn),
        )
        for session in range(40)
        for turn in range(6)
    ]
    feed = Feed(store, EndpointEvidence(ENDPOINT, records, [], []))
    monkeypatch.setattr(spans.next_plan, "__defaults__", (at_once,))
    feed.write(records, set(), is_last=True)
    gate(store)
    assert count(store, "folds") > 2
    with store.evidence_session(ENDPOINT) as session:
        assert session.progress is not None
        (progress,) = session.progress.document["clusterings"].values()
    assert progress["num_entered"] == 40
    assert progress["num_late"] == {}


@pytest.mark.representative("postgres")
def test_units_are_folded_once_whatever_order_the_records_come_in(store: Store) -> None:
    """Partitions that run ahead of each other, and records behind the watermark."""
    world = World(60, slices=SLICES, make_run=noisy_run()).evidence()
    feed, rng = Feed(store, world), random.Random(3)
    order = list(range(60))
    spread = [order[start : start + 6] for start in range(0, 60, 6)]
    untimed = [r for r in world.records if r.key.partition == 1]
    for part in spread:
        timed = [r for r in world.records if r.key.partition == 0 and (r.key.offset - 1) // 4 in part]
        feed.write(timed, {world.blocks[index].block_id for index in part})
        if rng.random() < 0.5 and untimed:
            take = rng.randint(1, 60)
            feed.write(untimed[:take], set())
            untimed = untimed[take:]
        gate(store)
    feed.write(untimed, set(), is_last=True)
    last = gate(store, ended=True)[0]
    assert last.num_blocks == 60
    assert last.num_clusters == 240
    assert next(t for t in last.tests if t.name == "parity_near_ties").num_units == 240


@pytest.mark.representative("postgres")
def test_evidence_is_read_by_what_is_new(store: Store) -> None:
    """A look does not read the rows of earlier looks again."""
    feed = Feed(store, World(40, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 30)
    gate(store)
    seen: list[StoredRecord] = []
    with store.evidence_session(ENDPOINT) as session:
        plan = spans.next_plan(session, session.progress.cursors)
        assert plan.spans == ()
    feed.write_blocks(30, 31)
    with store.evidence_session(ENDPOINT) as session:
        plan = spans.next_plan(session, session.progress.cursors)
        seen = session.records(plan.spans)
    assert len(seen) == 12


@pytest.mark.representative("postgres")
def test_keys_are_dropped_once_they_may_begin_anew(store: Store) -> None:
    policy = replace(POLICY, cluster_reopen_after_s=600.0)
    feed = Feed(store, World(200, make_run=noisy_run()).evidence())
    for start in range(0, 200, 50):
        feed.write_blocks(start, start + 50)
        gate(store, policy)
    # 30 minutes idle and 10 until reopening, at a session every 20 s
    assert 90 <= count(store, "evidence_keys") <= 125


# Explanations.


@pytest.mark.representative("postgres")
def test_every_decision_is_recomputed_to_the_same_numbers(store: Store) -> None:
    """Before and after entry, under a changed threshold, where tests restarted, and after an ENABLE."""
    shocks = np.random.default_rng(5).standard_normal(200)
    draw = noisy_run()

    def make(rng: np.random.Generator, index: int, block_id: str) -> Run:
        sequence = int(block_id[1:])
        shared = sum(0.9 ** (sequence - i) * shocks[i] for i in range(max(0, sequence - 30), sequence + 1))
        run = draw(rng, index, block_id)
        return run if sequence >= 150 else run_of(index, block_id, log_speedup=math.log(1.3) + 0.05 * float(shared))

    feed, at_once = Feed(store, World(200, slices=SLICES, make_run=make).evidence()), AtOnce()
    for hours, (start, stop) in enumerate(itertools.pairwise([0, 2, 30, 120, 160, 200])):
        feed.write_blocks(start, stop)
        decided = gate(store, replace(POLICY, margin=0.05 if hours < 4 else 0.06), hours=hours)
        if hours < 4:
            assert_same_decisions(decided, at_once.look(feed.so_far(), ended=False, hours=hours))
    made = count(store, "decisions")
    restarted = 0
    for decision_id in range(1, made + 1):
        explanation = explain(store, decision_id)
        assert explanation.differences == ()
        assert explanation.num_figures > 100
        restarted += any(t.state == TestState(t.state.start_unit, 4) for t in explanation.recomputed.tests if t.state)
    assert made == 15
    assert restarted > 0
    assert explanation.num_folds == 5
    assert explanation.num_runs == 800


@pytest.mark.representative("postgres")
def test_a_decision_that_was_tampered_with_is_told(store: Store) -> None:
    feed = Feed(store, World(20, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 20)
    gate(store)
    on_postgres = "postgres" in str(store.engine.url)
    off, on = (
        ("ALTER TABLE test_snapshots DISABLE TRIGGER USER", "ALTER TABLE test_snapshots ENABLE TRIGGER USER")
        if on_postgres
        else ("DROP TRIGGER test_snapshots_no_update", "SELECT 1")
    )
    execute(store, off)
    execute(store, "UPDATE test_snapshots SET lower = lower * 1.000001 WHERE decision_id = 1 AND name = 'speedup'")
    execute(store, on)
    assert [difference.name for difference in explain(store, 1).differences] == ["speedup.lower"]
    assert explain(store, 2).differences == ()


def at_level(decision: Decision, level: float) -> dict[str, Any]:
    """The stored document of a decision whose run has another level."""
    document = stored_details(decision)
    return document if decision.run is None else document | {"run": document["run"] | {"level": level}}


@pytest.mark.representative("postgres")
def test_a_level_that_its_share_does_not_give_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "shadowspec.store.evidence.evidence_session.stored_details"
    monkeypatch.setattr(wrong, lambda decision: at_level(decision, 0.04) | {"frozen_parameters": {"z_clip": 0.1}})
    feed = Feed(store, World(30, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 30)
    assert gate(store, POLICY)[0].run is not None
    parameters, level = explain(store, 1).differences
    assert (parameters.name, level.name) == ("details.frozen_parameters", "details.level")
    assert parameters.stored == '{"z_clip": 0.1}', "objects are shown as schema 1 has them"


@pytest.mark.representative("postgres")
def test_a_level_of_the_graph_that_the_tests_were_not_read_at_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have passed on is recomputed from their decisions."""
    wrong = "shadowspec.store.evidence.evidence_session.stored_details"
    monkeypatch.setattr(wrong, lambda decision: at_level(decision, 0.04))
    feed = Feed(store, World(30, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 30)
    (decision, *_) = gate(store)
    (difference,) = explain(store, 1).differences
    assert (difference.name, difference.stored) == ("details.level", 0.04)
    assert difference.recomputed == pytest.approx(decision.level)


@pytest.mark.representative("postgres")
def test_what_folds_hold_has_a_version_and_is_refused_without_one_or_of_another(store: Store) -> None:
    feed = Feed(store, World(20, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 20)
    gate(store)
    with store.evidence_rows(ENDPOINT) as rows:
        (fold,) = rows.folds_until(1)
    policy = policy_of(fold)
    assert fold.parameters == {"version": 1, **asdict(policy)}
    with pytest.raises(InputError, match="of no known version"):
        policy_of(replace(fold, parameters=asdict(policy)))
    assert new_state(new_progress({}, {}), {}) == EndpointState()
    with pytest.raises(InputError, match="is of version 2"):
        policy_of(replace(fold, parameters={**fold.parameters, "version": 2}))
    with pytest.raises(InputError, match="is of version 2"):
        new_state({**new_progress({}, {}), "version": 2}, {})


@pytest.mark.representative("postgres")
def test_what_cannot_be_explained_says_why(store: Store) -> None:
    feed = Feed(store, World(20, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 20)
    gate(store)
    with pytest.raises(InputError, match="there is no decision 99"):
        explain(store, 99)
    store.append_decisions([replace(store.latest_decisions(ENDPOINT)[0], slice_key="prompt_class=old")])
    with pytest.raises(NoDataError, match="older than the first stored fold"):
        explain(store, 3)
    execute(store, "DELETE FROM runs WHERE source_offset < 5")
    with pytest.raises(NoDataError, match=r"76 of 80 runs are left\. Retention has removed the others"):
        explain(store, 1)


@pytest.mark.representative("postgres")
def test_a_decision_after_everything_was_folded_anew_is_explained_from_there(store: Store) -> None:
    feed = Feed(store, World(12, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 12)
    gate(store)
    gate(store, replace(POLICY, cluster_idle_s=900.0))
    explanation = explain(store, 3)
    assert explanation.differences == ()
    assert explanation.num_folds == 1
    assert explain(store, 1).differences == ()


def execute(store: Store, statement: str, **values: bytes) -> None:
    engine = create_engine(store.engine.url)
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


def count(store: Store, what: str) -> int:
    return total(store, what, "1")


def total(store: Store, what: str, figure: str) -> int:
    engine = create_engine(store.engine.url)
    with engine.connect() as connection:
        figure = f"CASE WHEN {figure} THEN 1 ELSE 0 END" if "LIKE" in figure else figure
        found = connection.execute(text(f"SELECT coalesce(sum({figure}), 0) FROM {what}")).scalar_one()
    engine.dispose()
    return int(found)


@pytest.mark.representative("postgres")
def test_the_moment_of_a_decision_is_given(store: Store) -> None:
    feed = Feed(store, World(4, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 4)
    assert gate(store, hours=5)[0].decided_at == datetime(2026, 1, 5, 5, tzinfo=START.tzinfo)


@pytest.mark.representative("postgres")
def test_a_level_once_given_is_kept_where_clusters_are_open_again(store: Store) -> None:
    """An input had ended and closed every cluster; more of it comes while another hypothesis wants all folded anew."""
    world = World(24, slices=(*[SLICES[0]] * 11, SLICES[1]), make_run=noisy_run()).evidence()
    feed = Feed(store, world)
    feed.write_blocks(0, 12)
    first = gate(store, replace(POLICY, max_hypotheses=2), ended=True)
    changed = replace(POLICY, max_hypotheses=2, margin=0.06)
    again = gate(store, changed, ended=False)
    assert [d.evidence.counts.num_closed_clusters for d in again] == [0, 0, 0], "all of it was folded anew, and is open"
    assert [d.run and d.run.share for d in again] == [d.run and d.run.share for d in first] == [0.025, 0.025, None]
    assert explain(store, again[0].decision_id or 0).differences == ()
    feed.write_blocks(12, 24)
    last = gate(store, changed, ended=True)
    assert [d.run and d.run.share for d in last] == [0.025, 0.025, None]
