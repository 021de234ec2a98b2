"""What a worker finds when it takes a partition up, and how far an endpoint's input is known."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from shadowspec.errors import UsageError
from shadowspec.store import Store
from shadowspec.types import (
    Advance,
    FunnelCounter,
    FunnelKey,
    PartitionId,
    RecordKey,
    SessionRate,
    StoredRecord,
    UnitMemory,
    Watermark,
    WriteBatch,
)
from tests.store import examples


def remembered(offset: int, unit: str, position: int, slice_key: str, rate: float, minutes: int) -> StoredRecord:
    return StoredRecord(
        key=RecordKey("topic", 1, offset, 1),
        counter=FunnelCounter.SAMPLED_OUT,
        reason="not_timed",
        endpoint="chat",
        slice_key=slice_key,
        event_time=examples.NOON + timedelta(minutes=minutes),
        request_id_hash=f"request{offset}",
        unit_key=unit,
        session_position=position,
        sampling_rate=rate,
    )


def test_units_are_remembered(store: Store) -> None:
    records = (
        remembered(1, "session:a", 1, "code", 0.5, 0),
        replace(remembered(2, "session:a", 2, "chat", 0.25, 1), is_thinned=True),
        remembered(3, "session:a", 3, "code", 0.1, 2),  # the rate is fixed at the slice's first record
        remembered(4, "user:b", 7, "code", 1.0, 3),
        remembered(5, "session:old", 1, "code", 1.0, -90),
        replace(remembered(6, "session:a", 9, "code", 1.0, 9), endpoint="sql"),
    )
    store.save_batch(WriteBatch(records, (), ()), "group")
    since = examples.NOON - timedelta(hours=1)
    at, late = (examples.NOON + timedelta(minutes=minutes) for minutes in (2, 3))
    assert store.unit_memories("chat", since) == {
        "session:a": UnitMemory(
            3, examples.NOON, at, {"code": SessionRate(0.5), "chat": SessionRate(0.25, is_thinned=True)}
        ),
        "user:b": UnitMemory(7, late, late, {"code": SessionRate(1.0)}),
    }
    below = store.unit_memories("chat", since, partition=PartitionId("topic", 1), before_offset=2)
    assert below == {"session:a": UnitMemory(1, examples.NOON, examples.NOON, {"code": SessionRate(0.5)})}
    assert store.unit_memories("chat", since, partition=PartitionId("topic", 0)) == {}
    assert store.recent_request_ids("chat", since) == {"request1", "request2", "request3", "request4"}
    assert store.recent_request_ids("chat", since, partition=PartitionId("topic", 1), before_offset=3) == {
        "request1",
        "request2",
    }


def test_attempts_are_counted_and_cleared(store: Store) -> None:
    one, two = RecordKey("topic", 0, 1, 5), RecordKey("topic", 0, 1, 5, item=1)
    assert store.attempts([one, two]) == {one: 0, two: 0}
    assert store.record_attempt([one]) == {one: 1}
    assert store.record_attempt([two, one, one]) == {one: 2, two: 1}
    store.clear_attempts([one])
    assert store.attempts([one, two]) == {one: 0, two: 1}
    assert store.record_attempt([]) == {}


# watermarks


def place(
    store: Store,
    consumer: str,
    partition: int,
    minutes: int | None,
    *,
    behind: bool,
    ended: bool,
    endpoint: str | None = "chat",
    source: str = "topic",
) -> None:
    time = None if minutes is None else examples.NOON + timedelta(minutes=minutes)
    funnel: dict[FunnelKey, int] = {(endpoint, FunnelCounter.SHED, None): 1} if endpoint else {}
    moved = Advance(PartitionId(source, partition), None, 1, 1, funnel, time, behind, ended)
    store.save_batch(WriteBatch(advances=(moved,)), consumer)


def test_the_watermark_is_that_of_the_partition_furthest_behind(store: Store) -> None:
    assert store.watermark("chat") == Watermark(None, False)
    place(store, "group", 0, 30, behind=False, ended=False)
    place(store, "group", 1, 10, behind=True, ended=False, endpoint=None)  # its records of the endpoint are to come
    place(store, "group", 2, 5, behind=True, ended=True)
    place(store, "group", 3, 20, behind=True, ended=False)
    place(store, "group", 0, 1, behind=True, ended=False, endpoint="sql", source="another")
    assert store.watermark("chat") == Watermark(examples.NOON + timedelta(minutes=10), False)
    assert store.watermark("sql") == Watermark(examples.NOON + timedelta(minutes=1), False)


def test_the_watermark_of_what_is_read_up_is_the_newest(store: Store) -> None:
    place(store, "group", 0, 30, behind=False, ended=False)
    place(store, "group", 1, 10, behind=False, ended=True)
    assert store.watermark("chat") == Watermark(examples.NOON + timedelta(minutes=30), False)


def test_the_watermark_is_unknown_where_what_is_behind_has_no_time(store: Store) -> None:
    place(store, "group", 0, 30, behind=True, ended=False)
    place(store, "group", 1, None, behind=True, ended=False)
    assert store.watermark("chat") == Watermark(None, False)


def test_a_source_that_is_only_taken_up_may_hold_any_endpoint(store: Store) -> None:
    place(store, "group", 0, 30, behind=False, ended=False)
    place(store, "another group", 0, 40, behind=False, ended=False, endpoint="sql", source="sql topic")
    claim = Advance(PartitionId("fresh topic"), None, 0, 0, {}, None, is_behind=True)
    store.save_batch(WriteBatch(advances=(claim,)), "group")
    assert store.watermark("chat").time is None
    assert store.watermark("sql").time == examples.NOON + timedelta(minutes=40)
    begun = Advance(PartitionId("fresh topic"), 0, 8, 1, {("sum", FunnelCounter.MEASURED, None): 1}, None, True)
    store.save_batch(WriteBatch(advances=(begun,)), "group")
    assert store.watermark("chat").time == examples.NOON + timedelta(minutes=30)


def test_what_holds_the_watermark_is_named_until_it_is_forgotten(store: Store) -> None:
    place(store, "group", 0, 30, behind=False, ended=False)
    assert store.watermark("chat").held_by is None
    place(store, "retired", 0, 10, behind=True, ended=False)
    place(store, "retired", 1, 20, behind=True, ended=False)
    held_by = store.watermark("chat").held_by
    assert held_by is not None
    assert (held_by.consumer, held_by.partition) == ("retired", PartitionId("topic", 0))
    assert str(held_by).startswith("consumer 'retired' in topic[0] is at 2026-")
    with pytest.raises(UsageError, match="stop it first"):
        store.forget_consumer("retired")
    with pytest.raises(UsageError, match="no consumer 'retied'; it has 'group', 'retired'"):
        store.forget_consumer("retied", is_forced=True)
    assert store.forget_consumer("retired", is_forced=True) == 2
    assert store.watermark("chat") == Watermark(examples.NOON + timedelta(minutes=30), False)
    assert store.watermark("chat").held_by is None
    back = Advance(PartitionId("topic"), 1, 2, 1, {}, examples.NOON, is_behind=True)
    store.save_batch(WriteBatch(advances=(back,)), "retired")
    assert store.watermark("chat").time == examples.NOON, "one that comes back holds it again"


def test_an_input_has_ended_when_all_of_it_has(store: Store) -> None:
    place(store, "run", 0, 30, behind=False, ended=True, source="file")
    assert store.watermark("chat") == Watermark(examples.NOON + timedelta(minutes=30), True)
    place(store, "group", 0, 10, behind=False, ended=False)
    assert store.watermark("chat") == Watermark(examples.NOON + timedelta(minutes=30), False)
