"""Redelivery changes nothing, a transaction leaves all or nothing, and what was decided stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from shadowspec.errors import StoreError
from shadowspec.store import Store
from shadowspec.types import BlockResult, FunnelCounter, RecordKey, StoredRecord, Verdict
from tests.store import examples, strategies
from tests.store.saving import is_stored, save_block, save_records


def test_redelivered_records_change_nothing(store: Store) -> None:
    first, second = examples.record(1), examples.record(2)
    changed = structs.replace(first, counter=FunnelCounter.FAILED)
    assert save_records(store, [first, changed]) == 1  # the first delivery counts
    assert save_records(store, [changed, second]) == 1
    assert store.records("chat") == [first, second]


def test_a_recreated_topic_that_reuses_offsets_gives_new_records(store: Store) -> None:
    keys = [RecordKey("topic", 0, 5, 1), RecordKey("topic", 0, 5, 2), RecordKey("other", 0, 5, 1)]
    records = [StoredRecord(key, FunnelCounter.SHED, endpoint="chat") for key in keys]
    assert save_records(store, records) == 3


def test_a_redelivered_block_changes_nothing(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    records = [examples.record(line) for line in range(3)]
    result = examples.block("b", range(3))
    assert save_block(store, result, records) == 3
    before = store.runs("chat"), store.blocks("chat"), store.funnel()
    slower = replace(result, runs=tuple(replace(run, failure="timeout", baseline=None) for run in result.runs))
    assert save_block(store, slower, records) == 0
    assert (store.runs("chat"), store.blocks("chat"), store.funnel()) == before


def test_a_run_redelivered_in_another_block_counts_once(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    records = [examples.record(line) for line in range(4)]
    save_block(store, examples.block("b", range(3)), records)
    assert save_block(store, examples.block("overlapping", range(2, 4), sequence=2), records) == 1
    assert save_block(store, examples.block("swallowed", range(1, 3), sequence=3), records) == 0
    assert [(run.block_id, run.key.offset) for run in store.runs("chat")] == [
        ("b", 0),
        ("b", 1),
        ("b", 2),
        ("overlapping", 3),
    ]
    assert {block.block_id for block in store.blocks("chat")} == {"b", "overlapping"}


def test_a_failed_run_keeps_no_timings_of_a_second_measurement(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    result = examples.block("b", range(1))
    failed = replace(result.runs[0], failure="timeout", counts=None, baseline=None, speculative=None)
    save_block(store, replace(result, runs=(failed,)), [examples.record(0)])
    save_block(store, result, [examples.record(0)])
    assert store.runs("chat") == [failed]


def test_a_second_candidate_joins_a_stored_block(store: Store) -> None:
    store.save_fingerprints([examples.config("one"), examples.config("two")])
    for fingerprint in ("one", "two"):
        assert save_block(store, examples.block("b", range(1), fingerprint=fingerprint), [examples.record(0)]) == 1
    assert [run.fingerprint for run in store.runs("chat")] == ["one", "two"]
    assert set(store.blocks("chat")[0].memory) == {"one", "two"}


@pytest.mark.parametrize("broken", ["unknown fingerprint", "unknown record", "NaN", "no zone"])
def test_a_block_that_cannot_be_stored_leaves_nothing(store: Store, broken: str) -> None:
    store.save_fingerprints([examples.config()])
    result, records = _break(broken)
    with pytest.raises(StoreError):
        save_block(store, result, records)
    assert store.funnel() == {}
    assert store.blocks("chat") == []


def _break(how: str) -> tuple[BlockResult, list[StoredRecord]]:
    result, records = examples.block("b", range(2)), [examples.record(line) for line in range(2)]
    timing = result.runs[1].baseline
    assert timing is not None
    nan = replace(result.runs[1], baseline=replace(timing, decode_ms=float("nan")))
    changed = {
        "unknown fingerprint": replace(result, runs=tuple(replace(run, fingerprint="?") for run in result.runs)),
        "unknown record": result,
        "NaN": replace(result, runs=(result.runs[0], nan)),
        "no zone": replace(result, started_at=result.started_at.replace(tzinfo=None)),
    }
    return changed[how], records[:1] if how == "unknown record" else records


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_details_must_be_plain_json(store: Store, value: float) -> None:
    plain = examples.decision()
    store.save_fingerprints([examples.config()])
    with pytest.raises(StoreError) as caught:
        store.append_decisions([replace(plain, tests=(replace(plain.tests[0], figures={"p99_ms": value}),))])
    assert "JSON compliant" not in str(caught.value)  # Python's own words, which go on to quote the value
    assert store.latest_decisions() == []


def test_errors_hold_no_values(store: Store) -> None:
    secret = "not for the log \ud800"  # a lone surrogate has no UTF-8 form
    with pytest.raises(StoreError) as caught:
        save_records(store, [structs.replace(examples.record(1), reason=secret)])
    assert "not for the log" not in str(caught.value)
    with pytest.raises(StoreError) as caught:
        save_records(store, [structs.replace(examples.record(2**63), reason="not for the log")])
    assert "not for the log" not in str(caught.value)
    assert store.funnel() == {}


def test_the_database_refuses_to_change_a_decision(store: Store, database_url: str) -> None:
    store.save_fingerprints([examples.config()])
    store.append_decisions([examples.decision()])
    engine = sqlalchemy.create_engine(database_url)
    for statement in (
        "UPDATE decisions SET verdict = 'ENABLE'",
        "DELETE FROM decisions",
        "UPDATE test_snapshots SET outcome = 'pass'",
        "DELETE FROM test_snapshots",
    ):
        with engine.connect() as connection, pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"):
            connection.execute(sqlalchemy.text(statement))
    engine.dispose()
    assert store.latest_decisions() == [examples.decision()]


def test_a_decision_of_an_older_fingerprint_stands_beside_the_new(store: Store) -> None:
    store.save_fingerprints([examples.config("a"), examples.config("b")])
    old, new = examples.decision(Verdict.ENABLE, fingerprint="a"), examples.decision(fingerprint="b")
    changed = replace(old, verdict=Verdict.DISABLE, decided_at=old.decided_at + timedelta(hours=1))
    store.append_decisions([old])
    store.append_decisions([new])
    store.append_decisions([changed])
    assert store.latest_decisions() == [changed, new]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(strategies.records(), max_size=8))
def test_the_funnel_adds_up_to_the_records_consumed(store: Store, batch: list[StoredRecord]) -> None:
    before = Counter(store.funnel())
    known = {record.key for record in batch if is_stored(store, record)}
    consumed: dict[RecordKey, StoredRecord] = {}
    for record in batch:
        if record.key not in known:
            consumed.setdefault(record.key, record)
    save_records(store, batch)
    added = Counter((record.endpoint, record.counter, record.reason or None) for record in consumed.values())
    assert Counter(store.funnel()) == before + added


def test_endpoints_and_orders(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    late, early = (
        structs.replace(examples.record(1), event_time=examples.NOON + timedelta(seconds=1)),
        examples.record(2),
    )
    untimed = structs.replace(examples.record(3), event_time=None)
    save_records(store, [late, early, untimed, examples.record(4, "Zoo"), examples.record(5, None)])
    assert store.records("chat") == [untimed, early, late]
    assert store.endpoints() == ["Zoo", "chat"]
    for sequence, line in ((10, 6), (9, 7)):
        result = examples.block(f"b{sequence}", range(line, line + 1), sequence=sequence)
        save_block(store, result, [examples.record(line)])
    assert [block.sequence for block in store.blocks("chat")] == [9, 10]
    assert [run.key.offset for run in store.runs("chat")] == [7, 6]
