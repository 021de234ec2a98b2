"""One transaction for rows, rollups, funnel counts and ledger: all or nothing, once, whoever writes."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from shadowspec.errors import FencedError, StoreError
from shadowspec.store import Store
from shadowspec.types import (
    Advance,
    FunnelCounter,
    FunnelKey,
    LedgerEntry,
    PartitionId,
    RecordKey,
    Watermark,
    WriteBatch,
    WriteOutcome,
)
from tests.builders.store_batches import FILE, MEASURED, SHED, batch
from tests.store import examples


def everything(store: Store) -> tuple[object, ...]:
    return (
        *(store.records("chat"), store.blocks("chat"), store.runs("chat"), store.rollups("chat")),
        *(store.histogram("chat", "speedup"), store.funnel(), store.ledger("group"), store.watermark("chat")),
    )


@pytest.fixture
def known(store: Store) -> Store:
    store.save_fingerprints([examples.config()])
    return store


def test_a_batch_is_stored_whole(known: Store) -> None:
    only = structs.replace(
        examples.record(8, counter=FunnelCounter.SAMPLED_OUT, reason="not_timed"), session_position=1
    )
    first = batch(range(4), None, shed=4)
    outcome = known.save_batch(replace(first, records=(only,)), "group")
    assert outcome == WriteOutcome(num_new_runs=4, num_new_records=5, num_new_blocks=1)
    assert [run.key.offset for run in known.runs("chat")] == [0, 1, 2, 3]
    assert only in known.records("chat")
    assert known.funnel() == {MEASURED: 4, SHED: 4}
    assert known.ledger("group") == [LedgerEntry("group", FILE, 8, 8, 8, examples.NOON, False, False)]
    assert known.ledger_entry("group", FILE) == known.ledger("group")[0]
    assert known.ledger_entry("other", FILE) is None
    assert [rollup.sums.num_runs for rollup in known.rollups("chat")] == [4]


def test_a_batch_sent_again_is_fenced_and_changes_nothing(known: Store) -> None:
    known.save_batch(batch(range(4), None), "group")
    before = everything(known)
    with pytest.raises(FencedError, match=r"file\[0\] of consumer 'group' is at 4, expected no entry"):
        known.save_batch(batch(range(4), None), "group")
    assert everything(known) == before


def test_rows_sent_again_without_a_place_change_nothing(known: Store) -> None:
    rows = replace(batch(range(4), None), advances=())
    assert known.save_batch(rows, "group") == WriteOutcome(4, 4, 1)
    before = everything(known)
    assert known.save_batch(rows, "group") == WriteOutcome(0, 0, 0)
    assert everything(known) == before


@pytest.mark.parametrize("expected", [None, 0, 3, 5])
def test_a_fenced_batch_writes_nothing(known: Store, expected: int | None) -> None:
    known.save_batch(batch(range(4), None), "group")
    before = everything(known)
    other = PartitionId("other")
    late = batch(range(4, 8), expected, sequence=2)
    free = Advance(other, None, 1, 1, {SHED: 1}, None)  # this one alone could be written
    with pytest.raises(FencedError) as caught:
        known.save_batch(replace(late, advances=(free, *late.advances)), "group")
    assert (caught.value.source, caught.value.partition) == ("file", 0)
    assert everything(known) == before
    assert known.ledger_entry("group", other) is None


def test_a_partition_that_was_never_begun_is_fenced(known: Store) -> None:
    with pytest.raises(FencedError, match="is not in the ledger, expected 7"):
        known.save_batch(batch(range(7, 8), 7), "group")
    assert known.records("chat") == []


def test_consumers_stand_apart(known: Store) -> None:
    known.save_batch(batch(range(4), None), "group")
    assert known.save_batch(batch(range(4), None), "other") == WriteOutcome(0, 0, 0)
    assert [entry.next_offset for name in ("group", "other") for entry in known.ledger(name)] == [4, 4]
    assert known.funnel() == {MEASURED: 8}  # what both have consumed
    assert [rollup.sums.num_runs for rollup in known.rollups("chat")] == [4]


@pytest.mark.parametrize(
    "wrong",
    [Advance(FILE, 4, 3, 0, {}, None), Advance(FILE, 4, 5, -1, {}, None), Advance(FILE, 4, 5, 1, {SHED: -1}, None)],
)
def test_a_ledger_never_goes_backwards(known: Store, wrong: Advance) -> None:
    known.save_batch(batch(range(4), None), "group")
    before = everything(known)
    with pytest.raises(StoreError, match="never goes backwards"):
        known.save_batch(WriteBatch((), (), (wrong,)), "group")
    assert everything(known) == before


def test_a_batch_moves_each_partition_once(known: Store) -> None:
    step = Advance(FILE, None, 1, 1, {SHED: 1}, None)
    with pytest.raises(StoreError, match="once"):
        known.save_batch(WriteBatch((), (), (step, replace(step, expected=1, next_offset=2))), "group")
    assert known.funnel() == {}


@pytest.mark.parametrize("broken", ["record", "config"])
def test_a_run_needs_its_record_and_its_config(known: Store, broken: str) -> None:
    good = batch(range(4), None)
    result, records = good.blocks[0]
    if broken == "record":
        bad = replace(good, blocks=((result, records[1:]),))
    else:
        bad = replace(good, blocks=((examples.block("b", range(4), fingerprint="?"), records),))
    with pytest.raises(StoreError, match="has no record" if broken == "record" else r"configs that are not stored: \?"):
        known.save_batch(bad, "group")
    assert (known.ledger("group"), known.records("chat"), known.runs("chat")) == ([], [], [])
    assert known.funnel() == {}


def test_a_record_counts_as_it_was_stored_first(known: Store) -> None:
    known.save_batch(WriteBatch((examples.record(1, counter=FunnelCounter.SHED),), (), ()), "group")
    known.save_batch(batch(range(1, 2), None), "group")
    assert [record.counter for record in known.records("chat")] == [FunnelCounter.SHED]


def test_a_run_in_two_blocks_of_one_batch_counts_in_the_first(known: Store) -> None:
    one, two = batch(range(2), None, block_id="one"), batch(range(1, 3), None, block_id="two", sequence=2)
    swallowed = batch(range(2), None, block_id="swallowed", sequence=3)
    both = replace(one, blocks=(*one.blocks, *two.blocks, *swallowed.blocks))
    assert known.save_batch(both, "group") == WriteOutcome(3, 3, 2)
    assert [(run.block_id, run.key.offset) for run in known.runs("chat")] == [("one", 0), ("one", 1), ("two", 2)]


def test_several_records_of_one_message_are_several_records(known: Store) -> None:
    records = tuple(
        structs.replace(examples.record(1, counter=FunnelCounter.SHED), key=RecordKey("file", 0, 1, 0, item))
        for item in range(3)
    )
    moved = Advance(FILE, None, 2, 1, {SHED: 3}, None)
    assert known.save_batch(WriteBatch(records, (), (moved,)), "group").num_new_records == 3
    assert known.finished_records(FILE, 1) == {record.key: record for record in records}
    entry = known.ledger("group")[0]
    assert (entry.num_messages, entry.num_records) == (1, 3)


def test_finished_records_begin_at_the_offset(known: Store) -> None:
    known.save_batch(replace(batch(range(8), None), advances=()), "group")
    assert [key.offset for key in sorted(known.finished_records(FILE, 5))] == [5, 6, 7]
    assert known.finished_records(PartitionId("file", 1), 0) == {}
    assert known.finished_records(PartitionId("other"), 0) == {}


# the funnel and the ledger say the same, whatever is written

EXAMPLES = itertools.count()  # they share a database
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["group", "other"]),
        st.sampled_from([PartitionId("topic", number) for number in range(3)]),
        st.integers(0, 4),  # offsets moved
        st.booleans(),  # stands where it says
        st.dictionaries(
            st.tuples(
                st.sampled_from([None, "", "chat"]), st.sampled_from(FunnelCounter), st.sampled_from([None, "", "x"])
            ),
            st.integers(0, 5),
            max_size=3,
        ),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_funnel_adds_up_to_the_ledger(
    store: Store, steps: list[tuple[str, PartitionId, int, bool, dict[FunnelKey, int]]]
) -> None:
    example = next(EXAMPLES)
    before = Counter(store.funnel())
    expected: Counter[FunnelKey] = Counter()
    for name, partition, moved, is_right, funnel in steps:
        consumer = f"{name} {example}"
        entry = store.ledger_entry(consumer, partition)
        at = entry.next_offset if entry is not None else None
        start = at if is_right else (at or 0) + 1
        step = Advance(partition, start, (start or 0) + moved, moved, funnel, None)
        if is_right:
            store.save_batch(WriteBatch(advances=(step,)), consumer)
            for (endpoint, counter, reason), number in funnel.items():
                expected[endpoint or None, counter, reason or None] += number
        if not is_right or moved or entry is None:  # sent again, it is refused
            with pytest.raises(FencedError):
                store.save_batch(WriteBatch(advances=(step,)), consumer)
    counted = Counter(store.funnel())
    assert counted - before == +expected
    entries = [entry for name in ("group", "other") for entry in store.ledger(f"{name} {example}")]
    assert sum(entry.num_records for entry in entries) == expected.total()
    assert sum(entry.num_messages for entry in entries) == sum(step[2] for step in steps if step[3])


def test_evidence_is_one_snapshot(known: Store) -> None:
    known.save_batch(batch(range(4), None), "group")
    known.append_decisions([examples.decision(), examples.decision(endpoint="sql")])
    rows = known.evidence("chat")
    assert rows.endpoint == "chat"
    assert list(rows.records) == known.records("chat")
    assert list(rows.blocks) == known.blocks("chat")
    assert list(rows.runs) == known.runs("chat")
    assert len(rows.runs) == 4
    assert rows.watermark == Watermark(examples.NOON, False)
    assert rows.fingerprints == {"fp": examples.config()}
    assert rows.latest_decisions == (examples.decision(),)
    assert known.current_verdicts("chat") == {
        ("", 4, "fp"): (examples.decision().verdict, examples.decision().reason_code)
    }


def test_times_come_back_in_utc(known: Store) -> None:
    known.save_batch(batch(range(1), None), "group")
    entry = known.ledger("group")[0]
    assert entry.watermark is not None
    assert entry.watermark.tzinfo is UTC
    assert known.rollups("chat")[0].key.hour == datetime(2026, 1, 2, 12, tzinfo=UTC)
