"""Sampling: before the body where key and headers say enough, at rates that are fixed at a slice's first record."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from shadowspec.errors import ConfigError
from shadowspec.tap.admission import Admitted, Rejected
from shadowspec.tap.endpoints import MatchRule
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.routing import NO_HINTS, Hints, Routing
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, PartitionId, RecordKey, SessionRate, UnitMemory
from tests.builders.sampled_records import RULE, admission, record
from tests.tap.mirror import SECRET, START, admit, raw

PARTITION = PartitionId("0" * 64, 0)


def sent_at(message: RawRecord, at_s: int) -> RawRecord:
    return message._replace(key=message.key._replace(timestamp_ms=1_000 * at_s))


def test_key_and_headers_give_the_fate_that_the_body_gives() -> None:
    early, late = admission(), admission()
    dropped = 0
    for session in range(300):
        message = sent_at(raw(record(session), session + 1), START + 300 * session)
        hints = Hints("chat", f"s{session}")
        before = early.reader.presample(message.key, hints)
        (opened,) = open_message(message, MessageFormat.OPENAI)
        fate = late.admit(opened, hints)
        is_out = isinstance(fate, Rejected) and fate.record.reason == "not_sampled"
        assert (before is not None) == is_out
        if before is not None:
            dropped += 1
            assert before == ("chat", FunnelCounter.SAMPLED_OUT, "not_sampled")
    assert 170 < dropped < 250  # 210 expected at a rate of 0.3


def test_nothing_is_dropped_early_where_the_body_may_say_otherwise() -> None:
    key = RecordKey("t", 0, 1, START * 1_000)
    by_model = admission(replace(RULE, match=MatchRule(model="model-*")))
    for session in range(50):
        assert by_model.reader.presample(key, Hints("chat", f"s{session}")) is None
        assert admission().reader.presample(key, Hints(None, f"s{session}")) is None
        assert admission().reader.presample(key, Hints("chat", None)) is None
        assert admission(replace(RULE, sample_rate=1.0)).reader.presample(key, Hints("chat", f"s{session}")) is None
        timeless = key._replace(timestamp_ms=0)
        assert admission().reader.presample(timeless, Hints("chat", f"s{session}")) is None


def test_hints_are_believed_before_the_body() -> None:
    (opened,) = open_message(raw(record(1, endpoint="another")), MessageFormat.OPENAI)
    fate = admission(replace(RULE, sample_rate=1.0)).admit(opened, Hints("chat", "other-session"))
    plain = admission(replace(RULE, sample_rate=1.0)).admit(opened, NO_HINTS)
    stored = fate.record
    assert stored.endpoint == "chat"
    assert stored.session_hash == KeyedHash(SECRET).identifier("session", "other-session")
    assert isinstance(plain, Rejected)
    assert plain.record.reason == "no_endpoint"


def test_a_rate_is_fixed_at_the_first_record_of_session_and_slice() -> None:
    rates = {"now": 0.3}
    decide = admission(slice_rate=lambda rule, slice_key: rates["now"])
    first = [admit(decide, raw(record(session), session + 1)) for session in range(200)]
    rates["now"] = 0.01  # the slice is decided
    second = [admit(decide, raw(record(session, 1), 1000 + session)) for session in range(200)]
    fresh = [admit(decide, raw(record(session, 2), 2000 + session)) for session in range(200, 500)]

    def is_out(fate: Admitted | Rejected) -> bool:
        return isinstance(fate, Rejected) and fate.record.reason == "not_sampled"

    assert [is_out(fate) for fate in first] == [is_out(fate) for fate in second]
    kept = [fate for fate in second if not is_out(fate)]
    assert {fate.record.sampling_rate for fate in kept} == {0.3}
    assert sum(not is_out(fate) for fate in fresh) < 15  # 3 expected at 0.01, 90 at 0.3


def test_a_session_counts_for_its_endpoint_below_the_smallest_rate_of_any_slice() -> None:
    """One draw: what an endpoint counts of a slice at rate 1 is what it would have counted at the smallest rate."""
    rule = replace(RULE, sample_rate=1.0, timed_positions=1)
    smallest = {"now": 0.25}
    decide = admission(rule, lambda rule, slice_key: 1.0 if slice_key else smallest["now"])
    few = admission(rule, lambda rule, slice_key: 0.25)
    for session in range(200):
        fate, alone = (admit(each, raw(record(session), session + 1)) for each in (decide, few))
        assert isinstance(fate, Admitted)
        assert fate.record.sampling_rate == 1.0
        assert fate.record.is_thinned is (None if isinstance(alone, Admitted) else True)
        assert alone.record.is_thinned is None  # nothing is thinned where all rates are the same
    smallest["now"] = 1.0  # fixed at the slice's first record, as the rate is
    later = [admit(decide, raw(record(session, 1), 1000 + session)).record for session in range(200)]
    assert 30 < sum(stored.is_thinned is None for stored in later) < 70  # 50 expected


def test_what_a_restart_restores_goes_on_as_if_there_had_been_none() -> None:
    records = [raw(record(session, turn), 1 + session + 40 * turn) for turn in range(3) for session in range(40)]
    rule = replace(RULE, sample_rate=1.0, timed_positions=3)
    whole = admission(rule)
    expected = [admit(whole, each) for each in records]
    half = 60
    before, after = admission(rule), admission(rule)
    seen = [admit(before, each).record for each in records[:half]]
    units: dict[str, UnitMemory] = {}
    for stored in seen:
        assert stored.unit_key is not None
        assert stored.session_position is not None
        assert stored.event_time is not None
        assert stored.slice_key is not None
        assert stored.sampling_rate is not None
        units[stored.unit_key] = UnitMemory(
            stored.session_position,
            stored.event_time,
            stored.event_time,
            {stored.slice_key: SessionRate(stored.sampling_rate)},
        )
    after.restore(PARTITION, "chat", units, [])
    assert [admit(after, each) for each in records[half:]] == expected[half:]
    # Without it the sessions would begin anew.
    assert [admit(admission(rule), each) for each in records[half:]] != expected[half:]


def test_a_lost_partition_takes_its_sessions_and_request_ids_along() -> None:
    rule = replace(RULE, sample_rate=1.0, timed_positions=1)
    decide = admission(rule)
    first = record(1, request_id="r")
    assert isinstance(admit(decide, raw(first)), Admitted)
    again = admit(decide, raw(first))
    assert isinstance(again, Rejected)
    assert again.record.counter is FunnelCounter.DUPLICATE
    decide.forget(PartitionId("another", 0))
    assert isinstance(admit(decide, raw(first)), Rejected)
    decide.forget(PARTITION)
    assert isinstance(admit(decide, raw(first)), Admitted)


def test_routing_reads_key_headers_and_topic() -> None:
    message = RawRecord(
        RecordKey("t", 0, 1), b"{}", message_key=b" s1 ",
        headers=(("X-Session", b"old"), ("x-session", b"new"), ("odd", b"\xff"), ("none", None)),
    )  # fmt: skip
    assert Routing().hints(message, "topic") == NO_HINTS
    assert [each.has_hints for each in (Routing(), Routing("topic"), Routing(session="key"))] == [False, True, True]
    assert Routing("topic", "key").hints(message, "topic") == Hints("topic", "s1")
    assert Routing("header:odd", "header:X-SESSION").hints(message, "topic") == Hints(None, "new")
    assert Routing("header:none", "header:absent").hints(message, "topic") == Hints(None, None)
    assert "s1" not in repr(Hints("chat", "s1"))
    counts = Counter(Routing("body", "key").hints(RawRecord(RecordKey("t", 0, 1), b"", message_key=k), None).session
                     for k in (None, b"", b"\xff", b"x" * 2000))  # fmt: skip
    assert counts == {None: 4}


@pytest.mark.parametrize(
    ("endpoint", "session"), [("key", "body"), ("body", "topic"), ("header:", "body"), ("", "key")]
)
def test_routing_refuses_what_it_does_not_know(endpoint: str, session: str) -> None:
    with pytest.raises(ConfigError):
        Routing(endpoint, session)
