"""Old rows go, and with them nothing that was counted, added up or decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs
from sqlalchemy import event, text

from shadowspec.errors import ServiceUnavailableError, UsageError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.store import Store, session
from shadowspec.store.admin import retention
from shadowspec.types import Advance, FunnelCounter, OpenBlock, PartitionId, RecordKey, StoredAudit, Verdict, WriteBatch
from tests.store import examples

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
OLD, OLDER, YOUNG = datetime(2025, 5, 5, tzinfo=UTC), datetime(2025, 4, 5, tzinfo=UTC), NOW - timedelta(days=3)
KEEP = timedelta(days=90)


def measured(source: str, number: int, time: datetime, *, has_time: bool = True) -> WriteBatch:
    """A block of two, its records of this time; a file's records (`has_time` False) have only an event time."""
    timestamp_ms = int(time.timestamp() * 1000) if has_time else 0
    keys = [RecordKey(source, 0, number * 2 + place, timestamp_ms) for place in range(2)]
    records = tuple(structs.replace(examples.record(1), key=key, event_time=time) for key in keys)
    plain = examples.block(f"{source}{number}", range(2), sequence=number)
    runs = tuple(replace(run, key=key) for run, key in zip(plain.runs, keys, strict=True))
    block = replace(plain, runs=runs, started_at=time)
    moved = Advance(
        PartitionId(source), number * 2 or None, number * 2 + 2, 2, {("chat", FunnelCounter.MEASURED, None): 2}, time
    )
    return WriteBatch((), ((block, records),), (moved,))


@pytest.fixture
def filled(store: Store) -> Store:
    store.save_fingerprints([examples.config()])
    for number, time in enumerate((OLDER, OLD, YOUNG)):
        store.save_batch(measured("topic", number, time), "group")
        store.save_batch(measured("file", number, time, has_time=False), "run")
    store.append_decisions([examples.decision(Verdict.ENABLE)])
    return store


@contextmanager
def postgres_store(
    new_database: Callable[[str], str], *times: datetime, verdict: Verdict = Verdict.ENABLE
) -> Iterator[Store]:
    """A store on Postgres with a block of each of these times, and a verdict."""
    with Store.open(new_database("postgres")) as store:
        store.save_fingerprints([examples.config()])
        for number, time in enumerate(times):
            store.save_batch(measured("topic", number, time), "group")
        store.append_decisions([examples.decision(verdict)])
        yield store


def kept(store: Store) -> tuple[object, ...]:
    """What retention never touches."""
    return (
        *(store.rollups("chat"), store.histogram("chat", "speedup"), store.funnel(), store.fingerprints()),
        *(store.ledger("group"), store.ledger("run"), store.latest_decisions()),
    )


def test_old_rows_are_removed_and_nothing_else(filled: Store) -> None:
    before = kept(filled)
    removal = filled.retain(KEEP, now=NOW)
    assert (removal.num_runs, removal.num_records, removal.num_blocks) == (8, 8, 4)
    assert removal.undecided_endpoints == ()
    assert [run.key.offset for run in filled.runs("chat")] == [4, 5, 4, 5]
    assert {record.event_time for record in filled.records("chat")} == {YOUNG}
    assert {block.block_id for block in filled.blocks("chat")} == {"topic2", "file2"}
    assert all(block.memory for block in filled.blocks("chat"))
    assert kept(filled) == before
    assert sum(rollup.sums.num_runs for rollup in filled.rollups("chat")) == 12
    again = filled.retain(KEEP, now=NOW)
    assert (again.num_runs, again.num_records, again.num_blocks, again.partitions) == (0, 0, 0, ())


def test_replays_and_audited_runs_go_with_the_rows_of_their_time(store: Store) -> None:
    """What no gate has taken in of audits stays, and what they have come to."""
    store.save_fingerprints([examples.config()])
    for number, time in enumerate((OLDER, OLD, YOUNG)):
        for batch, consumer in ((measured("topic", number, time), "group"), (timeless(number, time), "run")):
            ((block, records),) = batch.blocks
            store.save_batch(replace(batch, blocks=((examples.audited(block), records),)), consumer)
            keys = [run.key for run in block.runs]
            store.save_replays([replace(examples.replayed(1), key=key, event_time=time) for key in keys])
        if time == OLDER:
            with store.audit_session("chat") as audits:
                audits.save([StoredAudit("", "fp", {"num_units": len(audits.take())})])
    store.append_decisions([examples.decision(Verdict.ENABLE)])
    store.retain(KEEP, now=NOW)
    assert [sums.num_requests for sums in store.replay_sums(["chat"])["chat"]] == [4]
    assert store.audit_states(["chat"])["chat"] == [StoredAudit("", "fp", {"num_units": 4})]
    assert count(store, "audits") == 8
    with store.audit_session("chat") as audits:
        assert len(audits.take()) == 8
    store.retain(KEEP, now=NOW)
    assert count(store, "audits") == 4


def timeless(number: int, time: datetime) -> WriteBatch:
    return measured("file", number, time, has_time=False)


def count(store: Store, table: str) -> int:
    with session.read(store.engine) as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_a_dry_run_says_it_and_removes_nothing(filled: Store) -> None:
    runs = filled.runs("chat")
    removal = filled.retain(KEEP, is_dry_run=True, now=NOW)
    assert (removal.num_runs, removal.num_records, removal.num_blocks) == (8, 8, None)
    assert filled.runs("chat") == runs
    assert filled.retain(KEEP, now=NOW).num_runs == removal.num_runs


@pytest.mark.parametrize("current", [None, Verdict.HOLD])
def test_undecided_evidence_is_kept_unless_forced(store: Store, current: Verdict | None) -> None:
    store.save_fingerprints([examples.config()])
    store.save_batch(measured("topic", 0, OLD), "group")
    if current is not None:
        store.append_decisions([examples.decision(Verdict.ENABLE), examples.decision(current)])
    assert store.retain(KEEP, is_dry_run=True, now=NOW).undecided_endpoints == ("chat",)
    with pytest.raises(UsageError, match="undecided hypotheses of chat rest on runs older than 2025-12-15"):
        store.retain(KEEP, now=NOW)
    assert len(store.runs("chat")) == 2
    assert store.retain(KEEP, is_forced=True, now=NOW).undecided_endpoints == ("chat",)
    assert store.runs("chat") == []


def test_a_slice_that_is_undecided_counts_too(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    batch = measured("topic", 0, OLD)
    result, records = batch.blocks[0]
    sliced = replace(result, block=structs.replace(result.block, slice_key="prompt_class=code"))
    store.save_batch(replace(batch, blocks=((sliced, records),)), "group")
    store.append_decisions([examples.decision(Verdict.ENABLE)])  # of the whole endpoint
    with pytest.raises(UsageError):
        store.retain(KEEP, now=NOW)
    store.append_decisions([replace(examples.decision(Verdict.DISABLE), slice_key="prompt_class=code")])
    assert store.retain(KEEP, now=NOW).num_runs == 2


def test_what_is_folded_needs_its_rows_no_more(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    batch = measured("topic", 0, OLD)
    result, records = batch.blocks[0]
    labels = {"sampling_regime": "greedy"}
    usable = tuple(
        structs.replace(r, slice_key=result.block.slice_key, labels=labels, event_time=OLD, session_hash=f"s{i}")
        for i, r in enumerate(records)
    )
    store.save_batch(replace(batch, blocks=((result, usable),)), "group")
    run_endpoint_gate(store, "chat", GatePolicy(window_s=0.0), input_ended=False, now=NOW)
    with pytest.raises(UsageError, match="run `shadowspec gate` first"):
        store.retain(KEEP, now=NOW)  # their cluster is open
    run_endpoint_gate(store, "chat", GatePolicy(window_s=0.0), input_ended=True, now=NOW)
    block_id, keys = result.block.block_id, tuple(run.key for run in result.runs)
    with store.evidence_session("chat") as session:
        session.save_open_blocks({block_id: OpenBlock(keys, OLD)}, ())
    with pytest.raises(UsageError, match="run `shadowspec gate` first"):
        store.retain(KEEP, now=NOW)  # their block is not in evidence
    with store.evidence_session("chat") as session:
        session.save_open_blocks({}, [block_id])
    [before] = [
        d
        for d in run_endpoint_gate(store, "chat", GatePolicy(window_s=0.0), input_ended=True, now=NOW).decisions
        if not d.slice_key
    ]
    assert store.retain(KEEP, now=NOW).num_runs == 2
    [after] = [
        d
        for d in run_endpoint_gate(store, "chat", GatePolicy(window_s=0.0), input_ended=True, now=NOW).decisions
        if not d.slice_key
    ]
    assert (after.tests, after.num_clusters) == (before.tests, before.num_clusters)
    assert after.num_clusters > 0


def test_an_age_must_be_positive(store: Store) -> None:
    with pytest.raises(UsageError):
        store.retain(timedelta(0), now=NOW)


def test_many_rows_go_in_batches(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_ROWS", 1)
    assert filled.retain(KEEP, now=NOW).num_blocks == 4
    assert len(filled.runs("chat")) == len(filled.records("chat")) == 4


def test_blocks_are_joined_with_runs_once_however_many(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The join reads all remaining runs."""
    monkeypatch.setattr(retention, "BATCH_ROWS", 1)
    sent: list[str] = []
    event.listen(filled.engine, "before_cursor_execute", lambda _c, _u, statement, *_: sent.append(statement))
    assert filled.retain(KEEP, now=NOW).num_blocks == 4
    assert len([statement for statement in sent if "FROM runs)" in statement and "blocks" in statement]) == 1
    assert len([statement for statement in sent if statement.startswith("DELETE FROM runs")]) > 1


@pytest.mark.integration
def test_only_whole_months_are_dropped(new_database: Callable[[str], str]) -> None:
    times = OLDER, OLD, OLD + timedelta(days=20)
    with postgres_store(new_database, *times, verdict=Verdict.DISABLE) as store:
        removal = store.retain(timedelta(days=1), now=OLD + timedelta(days=10))
        assert removal.partitions == ("runs_2025_04", "records_2025_04")
        assert removal.num_runs == 2
        assert {record.event_time for record in store.records("chat")} == {OLD, OLD + timedelta(days=20)}
        store.save_batch(replace(measured("topic", 0, OLDER), advances=()), "group")  # delivered once more
        assert len(store.runs("chat")) == 6


@pytest.mark.integration
def test_a_month_that_is_being_read_is_not_dropped(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOCK_ATTEMPTS", 2)
    monkeypatch.setattr(retention, "EMPTYING_TIMEOUT_MS", 50)
    with postgres_store(new_database, OLD) as store:
        with store.engine.connect() as reader:
            reader.execute(text("SELECT count(*) FROM runs"))
            with pytest.raises(ServiceUnavailableError, match="55P03"):
                store.retain(KEEP, now=NOW)
        assert len(store.runs("chat")) == len(store.records("chat")) == 2  # both months or none
        assert store.retain(KEEP, now=NOW).num_runs == 2


@pytest.mark.integration
def test_a_writer_that_never_rests_does_not_hold_old_rows(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is of the whole table; what remains of the month is dropped the next time."""
    monkeypatch.setattr(retention, "LOCK_ATTEMPTS", 2)
    monkeypatch.setattr(retention, "DROPPING_TIMEOUT_MS", 50)
    with postgres_store(new_database, OLD, YOUNG) as store:
        with store.engine.begin() as writer:
            for table in ("records", "runs"):
                writer.execute(text(f"INSERT INTO {table} SELECT * FROM {table}_2026_03 ON CONFLICT DO NOTHING"))
            removal = store.retain(KEEP, now=NOW)
            assert (removal.num_runs, removal.num_records, removal.num_blocks) == (2, 2, 1)
        assert {run.key.offset for run in store.runs("chat")} == {2, 3}
        again = store.retain(KEEP, now=NOW)
        assert (again.num_runs, again.partitions) == (0, ("runs_2025_05", "records_2025_05"))
        assert store.retain(KEEP, now=NOW).partitions == ()
