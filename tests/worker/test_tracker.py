"""The tracker: the ledger moves over what is finished, in the order of delivery, and counts everything once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.types import FunnelCounter, FunnelKey, LedgerEntry, PartitionId, RecordKey, StoredRecord
from shadowspec.worker.tracker import LedgerStep, PartitionTracker

PARTITION = PartitionId("topic", 3)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEYS: tuple[FunnelKey, ...] = (("chat", FunnelCounter.MEASURED, None), (None, FunnelCounter.MALFORMED, "not_json"))


def tracker(next_offset: int | None = None) -> PartitionTracker:
    entry = None if next_offset is None else LedgerEntry("g", PARTITION, next_offset, 0, 0, NOON, False, False)
    return PartitionTracker(PARTITION, entry)


def row(offset: int) -> StoredRecord:
    return StoredRecord(RecordKey("topic", 3, offset), FunnelCounter.SHED)


def taken(step: LedgerStep | None) -> LedgerStep:
    assert step is not None
    return step


def test_the_ledger_waits_for_the_first_unfinished_message_and_leaps_over_gaps() -> None:
    partition_tracker = tracker()
    for offset in (5, 6, 9):  # 7 and 8 were compacted away
        assert partition_tracker.deliver(offset, 1)
    partition_tracker.end(6, KEYS[0], NOON + timedelta(hours=1), row(6))
    assert partition_tracker.step() is None
    partition_tracker.end(5, KEYS[0], NOON, None)
    first = taken(partition_tracker.step())
    assert (first.advance.expected, first.advance.next_offset, first.advance.num_messages) == (None, 7, 2)
    assert first.advance.watermark == NOON + timedelta(hours=1)
    assert first.advance.is_behind
    assert [record.key.offset for record in first.records] == [6]
    assert partition_tracker.step() is None  # until it is written
    partition_tracker.settle()
    partition_tracker.end(9, None, None, None)
    second = taken(partition_tracker.step())
    assert (second.advance.expected, second.advance.next_offset, second.advance.funnel) == (7, 10, {})
    assert not second.advance.is_behind


def test_the_ledger_says_once_that_something_came_which_is_not_finished() -> None:
    """Else the newest event of other partitions would be taken for known, with a slow block under way in this one."""
    partition_tracker = tracker(next_offset=4)
    partition_tracker.deliver(4, 1)
    notice = taken(partition_tracker.step())
    assert (notice.advance.expected, notice.advance.next_offset, notice.advance.num_messages) == (4, 4, 0)
    assert notice.advance.is_behind
    assert notice.advance.watermark == NOON
    partition_tracker.settle()
    partition_tracker.deliver(5, 1)
    assert partition_tracker.step() is None
    partition_tracker.end(4, KEYS[0], NOON, None)
    partition_tracker.end(5, KEYS[0], NOON, None)
    last = taken(partition_tracker.step())
    assert (last.advance.expected, last.advance.next_offset, last.advance.is_behind) == (4, 6, False)


def test_what_the_ledger_has_passed_is_ignored() -> None:
    partition_tracker = tracker(next_offset=10)
    assert not partition_tracker.deliver(9, 1)
    partition_tracker.end(9, KEYS[0], NOON, row(9))
    assert partition_tracker.step() is None
    assert partition_tracker.deliver(10, 1)


def test_a_message_of_several_records_is_finished_with_its_last_and_one_of_none_at_once() -> None:
    partition_tracker = tracker()
    partition_tracker.deliver(0, 2)
    partition_tracker.deliver(1, 0)
    partition_tracker.end(0, KEYS[0], NOON, None)
    assert partition_tracker.step() is None
    partition_tracker.end(0, KEYS[1], NOON, None)
    advance = taken(partition_tracker.step()).advance
    assert (advance.next_offset, advance.num_messages, advance.funnel) == (2, 2, {KEYS[0]: 1, KEYS[1]: 1})


def test_an_input_ends_once_and_only_when_nothing_is_unfinished() -> None:
    partition_tracker = tracker()
    partition_tracker.deliver(1, 1)
    assert partition_tracker.step(is_ended=True) is None
    partition_tracker.end(1, KEYS[0], NOON, None)
    assert taken(partition_tracker.step(is_ended=True)).advance.is_ended
    partition_tracker.settle()
    assert partition_tracker.step(is_ended=True) is None
    empty = tracker(next_offset=4)
    advance = taken(empty.step(is_ended=True)).advance
    assert (advance.next_offset, advance.num_messages, advance.is_ended) == (4, 0, True)


def test_where_the_ledger_stands_between_two_messages_of_one_record_both_are_read_again() -> None:
    partition_tracker = tracker()
    for offset in range(5):
        partition_tracker.deliver(offset, 1)
    partition_tracker.tie(3, 0)
    for offset in (0, 3):
        partition_tracker.end(offset, KEYS[0] if offset == 0 else None, NOON, None)
    first = taken(partition_tracker.step()).advance
    assert (first.next_offset, first.resume_offset) == (1, 0)
    partition_tracker.settle()
    partition_tracker.end(1, KEYS[1], NOON, None)
    partition_tracker.end(2, KEYS[1], NOON, None)
    second = taken(partition_tracker.step()).advance
    assert (second.next_offset, second.resume_offset) == (4, None)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_the_order_every_message_is_passed_once_and_counted_once(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 200), min_size=1, max_size=40)))
    partition_tracker = tracker()
    waiting: list[int] = []
    ended: Counter[FunnelKey] = Counter()
    counted: Counter[FunnelKey] = Counter()
    passed, messages, place, rows = [], 0, 0, []
    undelivered = list(offsets)
    while undelivered or waiting:
        action = data.draw(st.sampled_from(["deliver", "end", "step"]))
        if action == "deliver" and undelivered:
            offset = undelivered.pop(0)
            size = data.draw(st.integers(0, 3))
            partition_tracker.deliver(offset, size)
            waiting += [offset] * size
        elif action == "end" and waiting:
            offset = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            key = data.draw(st.sampled_from(KEYS))
            ended[key] += 1
            partition_tracker.end(offset, key, NOON, row(offset))
        step = partition_tracker.step()
        if step is not None:
            is_notice = step.advance.is_behind and not step.advance.num_messages
            assert step.advance.next_offset >= place + (not is_notice)
            place = step.advance.next_offset
            assert not [offset for offset in waiting if offset < place]  # never past what is unfinished
            counted.update(step.advance.funnel)
            messages += step.advance.num_messages
            rows += [record.key.offset for record in step.records]
            passed.append(place)
            partition_tracker.settle()
    assert counted == ended
    assert messages == len(offsets)
    assert place == offsets[-1] + 1
    assert sorted(rows) == rows
    assert len(rows) == ended.total()
    assert partition_tracker.num_held == partition_tracker.num_unfinished == 0


def test_memory_grows_with_what_is_unfinished_not_with_the_traffic() -> None:
    partition_tracker = tracker()
    partition_tracker.deliver(0, 1)
    for offset in range(1, 10_000):
        partition_tracker.deliver(offset, 1)
        partition_tracker.end(offset, KEYS[1], NOON, None)
    assert partition_tracker.num_held == 10_000
    assert len(partition_tracker._spans) == 2
    with pytest.raises(AssertionError, match="no step"):
        partition_tracker.settle()


def test_the_ledger_is_told_where_its_consumer_began() -> None:
    tracker = PartitionTracker(PartitionId("topic"), None)
    tracker.deliver(100, 0)
    step = tracker.step()
    assert step is not None
    assert (step.advance.expected, step.advance.first_offset, step.advance.next_offset) == (None, 100, 101)


def test_a_partition_that_was_taken_up_is_told_of_before_anything_came() -> None:
    """Else its first records, still in a slow block, would hold nothing back."""
    partition_tracker = tracker()
    assert partition_tracker.step(is_behind=True) is None
    partition_tracker.claim()
    assert partition_tracker.has_step
    claim = taken(partition_tracker.step(is_behind=True)).advance
    assert (claim.expected, claim.next_offset, claim.num_messages, claim.is_behind) == (None, 0, 0, True)
    partition_tracker.settle()
    partition_tracker.deliver(100, 0)
    first = taken(partition_tracker.step()).advance
    assert (first.expected, first.first_offset, first.next_offset, first.is_behind) == (0, 100, 101, False)


def test_a_claim_says_where_its_consumer_begins_if_a_message_came() -> None:
    partition_tracker = tracker()
    partition_tracker.claim()
    partition_tracker.deliver(100, 1)
    claim = taken(partition_tracker.step()).advance
    assert (claim.expected, claim.first_offset, claim.next_offset, claim.is_behind) == (None, 100, 100, True)


def test_where_a_claim_is_taken_over_the_ledger_is_told_where_its_consumer_began() -> None:
    entry = LedgerEntry("g", PARTITION, 0, 0, 0, None, True, False)
    tracker = PartitionTracker(PARTITION, entry)
    tracker.deliver(100, 0)
    advance = taken(tracker.step()).advance
    assert (advance.expected, advance.first_offset, advance.next_offset) == (0, 100, 101)


def test_the_ledger_says_when_more_is_known_to_follow_and_when_it_is_not() -> None:
    partition_tracker = tracker(next_offset=4)
    assert partition_tracker.step() is None
    behind = taken(partition_tracker.step(is_behind=True)).advance
    assert (behind.expected, behind.next_offset, behind.is_behind) == (4, 4, True)
    partition_tracker.settle()
    assert partition_tracker.step(is_behind=True) is None
    after = taken(partition_tracker.step()).advance
    assert (after.next_offset, after.num_messages, after.is_behind, after.watermark) == (4, 0, False, NOON)
    partition_tracker.settle()
    assert partition_tracker.step() is None
