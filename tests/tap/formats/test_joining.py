"""Requests and responses joined, by scripts of halves and against a plain model of the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.tap.formats import EventHalf, Opened
from shadowspec.tap.joining import QUIET_WINDOWS, Joiner
from shadowspec.tap.records import EPOCH
from shadowspec.types import PartitionId, RecordKey
from tests.tap.formats.samples import ANSWER, KSERVE_SOURCE, REQUEST, TIME

WINDOW = timedelta(seconds=10)
SOURCE = "0" * 64


def key(offset: int, partition: int = 0) -> RecordKey:
    return RecordKey(SOURCE, partition, offset)


def half(name: str, is_request: bool, at: float = 0.0, **changes: Any) -> EventHalf:
    """A half of the call `name`, `at` seconds after the start."""
    body = REQUEST if is_request else ANSWER
    given: dict[str, Any] = {"scope": (KSERVE_SOURCE, "", "chat", ""), "size": 100, "endpoint": "chat", **changes}
    return EventHalf(join_id=name, is_request=is_request, body=body, event_time=TIME + timedelta(seconds=at), **given)


def list_joined(joined: Iterable[Opened]) -> list[tuple[int, str, tuple[int, ...]]]:
    """Offset, what became of it, and the offsets of its members."""
    return [
        (
            each.key.offset,
            each.error.reason if each.error else "pair" if each.record and each.record.response else "alone",
            tuple(member.offset for member in each.members),
        )
        for each in joined
    ]


@pytest.mark.parametrize("request_first", [True, False])
def test_a_pair_is_one_record_under_the_request_s_key(request_first: bool) -> None:
    joiner = Joiner(WINDOW)
    halves = [(key(1), half("a", request_first)), (key(2), half("a", not request_first, at=3))]
    assert joiner.add(*halves[0]) == []
    assert joiner.num_waiting == 1
    (joined,) = joiner.add(*halves[1])
    request_key = key(1) if request_first else key(2)
    assert joined.key == request_key
    assert set(joined.members) == {key(1), key(2)}
    assert joined.record is not None
    assert (joined.record.request, joined.record.response) == (REQUEST, ANSWER)
    assert (joined.record.request_id, joined.record.endpoint) == ("a", "chat")
    assert joined.record.event_time(0) == TIME + timedelta(seconds=0 if request_first else 3)
    assert joiner.num_waiting == 0


def test_headers_of_the_request_win_over_those_of_the_response() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("a", True, headers={"x-session-id": "s"}))
    (joined,) = joiner.add(key(2), half("a", False, headers={"x-session-id": "t", "x-user-id": "u"}))
    assert joined.record is not None
    assert (joined.record.session(), joined.record.user_id()) == ("s", "u")


def test_the_window_ends_by_the_partition_s_own_time() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("request", True))
    joiner.add(key(2), half("response", False, at=1))
    assert joiner.add(key(1, partition=1), half("elsewhere", True, at=1_000)) == []
    assert joiner.add(key(3), half("on time", True, at=10)) == []
    assert list_joined(joiner.add(key(4), half("later", True, at=10.5))) == [(1, "alone", (1,))]
    assert list_joined(joiner.add(key(5), half("later still", True, at=11.5))) == [
        (2, "response_without_request", (2,))
    ]


def test_halves_of_old_events_wait_as_long_as_those_of_new_ones() -> None:
    """A backlog's stragglers: the window counts from where the partition's time stood when they came."""
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("new", True, at=100))
    assert joiner.add(key(2), half("old", True, at=0)) == []
    assert list_joined(joiner.add(key(3), half("old", False, at=1))) == [(2, "pair", (2, 3))]


def test_a_half_that_came_before_is_a_duplicate() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("a", True))
    assert list_joined(joiner.add(key(2), half("a", True))) == [(2, "seen_before", (2,))]
    assert list_joined(joiner.add(key(3), half("a", False))) == [(1, "pair", (1, 3))]
    assert list_joined(joiner.add(key(4), half("a", False))) == [(4, "seen_before", (4,))]
    assert list_joined(joiner.add(key(5), half("a", True))) == [(5, "seen_before", (5,))]
    duplicate = joiner.add(key(6), half("a", True))[0]
    assert duplicate.error is not None
    assert duplicate.error.counter == "duplicate"


def test_a_half_that_comes_after_the_window_stays_alone() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("a", True))
    joiner.add(key(2), half("b", False))
    assert list_joined(joiner.add(key(3), half("c", True, at=11))) == [
        (1, "alone", (1,)),
        (2, "response_without_request", (2,)),
    ]
    assert list_joined(joiner.add(key(4), half("a", False, at=11))) == [(4, "response_without_request", (4,))]
    assert list_joined(joiner.add(key(5), half("b", True, at=11))) == [(5, "alone", (5,))]
    assert list_joined(joiner.add(key(6), half("a", False, at=11))) == [(6, "seen_before", (6,))]


def test_what_is_over_is_forgotten_after_another_window() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("a", True))
    joiner.add(key(2), half("a", False))
    joiner.add(key(3), half("b", True, at=10.5))
    assert joiner.add(key(4), half("a", True, at=10.5)) == []  # a new call of the old number


def test_halves_in_two_partitions_find_each_other() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1, partition=0), half("a", True))
    (joined,) = joiner.add(key(9, partition=1), half("a", False))
    assert joined.members == (key(1, 0), key(9, 1))
    assert list_joined(joiner.add(key(2, partition=0), half("a", False))) == [(2, "seen_before", (2,))]


def test_the_same_id_of_another_sender_is_another_call() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("a", True))
    assert joiner.add(key(2), half("a", False, scope=(KSERVE_SOURCE, "", "other", ""))) == []


def test_a_partition_that_is_forgotten_gives_nothing_and_may_come_back() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("a", True))
    joiner.add(key(1, partition=1), half("b", True))
    joiner.add(key(2), half("c", True))
    joiner.add(key(3), half("c", False))
    joiner.forget(PartitionId(SOURCE, 0))
    joiner.forget(PartitionId(SOURCE, 7))
    assert joiner.num_waiting == 1
    assert joiner.add(key(1), half("a", True)) == []  # delivered again
    assert joiner.add(key(2), half("c", True)) == []
    assert list_joined(joiner.drain()) == [(1, "alone", (1,)), (1, "alone", (1,)), (2, "alone", (2,))]


def test_a_call_of_a_forgotten_partition_may_go_on_in_another() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("waiting", True))
    joiner.add(key(2), half("joined", True))
    joiner.add(key(3), half("joined", False))
    joiner.add(key(4), half("expired", True))
    joiner.add(key(5), half("newer", True, at=11))
    joiner.add(key(6), half("newest", True, at=22))
    joiner.forget(PartitionId(SOURCE, 0))
    for offset, name in enumerate(("waiting", "joined", "expired", "newer", "newest")):
        assert joiner.add(key(offset, partition=1), half(name, False, at=22)) == []


def test_only_quiet_partitions_are_judged_by_the_time_of_others() -> None:
    joiner = Joiner(WINDOW)
    joiner.add(key(1), half("a", True))
    assert joiner.expire(TIME + 3 * WINDOW) == []
    assert joiner.expire(TIME + QUIET_WINDOWS * WINDOW) == []
    assert joiner.expire(EPOCH) == []
    assert list_joined(joiner.expire(TIME + QUIET_WINDOWS * WINDOW + timedelta(seconds=1))) == [(1, "alone", (1,))]
    assert joiner.drain() == []


def test_memory_is_bounded_by_bytes_the_oldest_first() -> None:
    joiner = Joiner(WINDOW, max_waiting_bytes=250)
    assert joiner.add(key(1), half("a", True)) == []
    assert joiner.add(key(2), half("b", True)) == []
    assert list_joined(joiner.add(key(3), half("c", True))) == [(1, "alone", (1,))]
    assert list_joined(joiner.add(key(4), half("d", False, size=1_000))) == [
        (2, "alone", (2,)),
        (3, "alone", (3,)),
        (4, "response_without_request", (4,)),
    ]
    assert joiner.num_waiting == 0


def test_halves_without_any_time_wait_for_their_partition() -> None:
    joiner = Joiner(WINDOW)
    timeless = EventHalf("a", (KSERVE_SOURCE,), True, REQUEST, EPOCH)
    assert joiner.add(key(1), timeless) == []
    (joined,) = joiner.add(key(2), EventHalf("a", (KSERVE_SOURCE,), False, ANSWER, EPOCH))
    assert joined.record is not None
    assert joined.record.timestamp is None  # the response's own `created`, else the transport's, tells it


def test_the_window_must_be_positive() -> None:
    with pytest.raises(ValueError, match="window"):
        Joiner(timedelta(0))


events = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.booleans(), st.floats(0, 60, allow_nan=False), st.integers(0, 1)
    ),
    max_size=25,
)  # fmt: skip


def run(script: Sequence[tuple[str, bool, float, int]]) -> list[Opened]:
    joiner = Joiner(WINDOW)
    out: list[Opened] = []
    for offset, (name, is_request, at, partition) in enumerate(script):
        out += joiner.add(key(offset, partition), half(f"{name}{partition}", is_request, at))
    assert joiner.num_waiting == len({member for each in joiner.drain() for member in each.members})
    joiner = Joiner(WINDOW)
    again: list[Opened] = []
    for offset, (name, is_request, at, partition) in enumerate(script):
        again += joiner.add(key(offset, partition), half(f"{name}{partition}", is_request, at))
    assert list_joined(again) == list_joined(out)
    return out + joiner.drain()


@given(events)
def test_every_half_ends_exactly_once(script: list[tuple[str, bool, float, int]]) -> None:
    settled = run(script)
    members = [member.offset for each in settled for member in each.members]
    assert sorted(members) == list(range(len(script)))
    for each in settled:
        assert (each.record is None) is not (each.error is None)
        assert each.key in each.members
        sides = [script[member.offset][1] for member in each.members]
        assert len(sides) == 1 or sorted(sides) == [False, True]
        assert each.record is None or script[each.key.offset][1]


@given(events)
def test_a_partition_s_pairs_do_not_depend_on_the_others(script: list[tuple[str, bool, float, int]]) -> None:
    """The promise that makes a restart harmless: however partitions are interleaved, each gives the same."""
    both = [each for each in run(script) if each.key.partition == 0]
    joiner = Joiner(WINDOW)
    alone: list[Opened] = []
    for offset, (name, is_request, at, partition) in enumerate(script):
        if partition == 0:
            alone += joiner.add(key(offset), half(f"{name}0", is_request, at))
    assert sorted(list_joined(alone + joiner.drain())) == sorted(list_joined(both))
