"""Azure API Management's tables: what a call's rows are joined to, and what nobody can join."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import RecordError
from shadowspec.tap.formats import MessageFormat, Opened, open_message
from shadowspec.tap.joining import Joiner
from shadowspec.tap.openai import parse_response, response_of
from shadowspec.tap.records import MirroredRecord
from shadowspec.tap.responses import response_text
from tests.tap.formats.log_samples import LOGS, apim, body
from tests.tap.formats.samples import message, record_of, refusal, refused_later

WINDOW = timedelta(minutes=5)
ASKED = body(1)["messages"]
LONG = [{"role": "system", "content": "a" * 40}, {"role": "user", "content": "b" * 40}]


def joined(rows: list[dict[str, Any]], **options: int) -> list[Opened]:
    joiner = Joiner(WINDOW, **options)
    settled: list[Opened] = []
    for offset, row in enumerate(rows, start=1):
        (opened,) = open_message(message(row, offset=offset), MessageFormat.AUTO)
        settled += [opened] if opened.half is None else joiner.add(opened.key, opened.half)
    settled += joiner.drain()
    assert joiner.num_waiting == 0
    assert all(partition.size == 0 for partition in joiner._partitions.values())
    return settled


def record_in(rows: list[dict[str, Any]]) -> MirroredRecord:
    (opened,) = joined(rows)
    assert opened.record is not None
    return opened.record


def asked_in(*pieces: Any) -> list[dict[str, Any]]:
    """A call whose request fills some rows."""
    head, first, last = apim(1)
    rows = [first | {"SequenceNumber": number, "RequestMessages": each} for number, each in enumerate(pieces, start=1)]
    return [head, *rows, last | {"SequenceNumber": len(pieces) + 1}]


@given(st.permutations(range(6)))
def test_rows_may_come_in_any_order_and_between_those_of_other_calls(order: list[int]) -> None:
    rows = [*apim(1), *apim(2)]
    opened = joined([rows[place] for place in order])
    found = {each.record.request_identity(): each.record for each in opened if each.record is not None}
    for number in (1, 2):
        record = found[f"corr-{number}"]
        assert (record.request["messages"], record.model) == (body(number)["messages"], "model-a")
        logged = parse_response(record).logged
        assert logged is not None
        assert (response_text(response_of(record)), logged.num_output_tokens) == ("Rayleigh.", 2)
    assert sorted(len(each.members) for each in opened) == [3, 3]


@pytest.mark.parametrize("place", [1, 10, 50, 100])
def test_a_text_that_is_cut_anywhere_is_joined(place: int) -> None:
    text = json.dumps(LONG)
    assert record_in(asked_in(text[:place], text[place:])).request["messages"] == LONG


def test_lists_are_joined_where_no_message_can_have_been_cut() -> None:
    assert record_in(asked_in(LONG[:1], LONG[1:])).request["messages"] == LONG
    halves = [{"role": "user", "content": "b"}], [{"role": "user", "content": "c"}]
    assert refused_later(record_in(asked_in(*halves))) == ("unsupported", "truncated")


@pytest.mark.parametrize("missing", [1, 2])
def test_a_row_that_is_missing_is_not_lost_in_silence(missing: int) -> None:
    text = json.dumps(LONG)
    rows = asked_in(text[:30], text[30:60], text[60:])
    assert record_in(rows).request["messages"] == LONG
    del rows[missing + 1]
    assert refused_later(record_in(rows)) == ("unsupported", "truncated")
    rows = asked_in(LONG[:1], LONG[1:], [{"role": "assistant", "content": "c"}], LONG[1:])
    del rows[missing + 1]
    assert refused_later(record_in(rows)) == ("unsupported", "truncated")


def test_a_log_without_messages_or_with_calls_of_unknown_tools_is_refused() -> None:
    assert refused_later(record_in(apim(1)[:1])) == ("unsupported", "no_payload")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = asked_in(json.dumps([*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]))
    assert refused_later(record_in(rows)) == ("unsupported", "no_tool_definitions")
    (alone,) = joined(apim(1)[2:])
    assert alone.error is not None
    assert alone.error.reason == "response_without_request"


def test_a_row_that_comes_twice_is_a_duplicate_and_one_that_comes_late_is_named() -> None:
    rows = apim(1)
    reasons = [each.error and each.error.reason for each in joined([*rows[:2], rows[1], rows[2]])]
    assert reasons == ["seen_before", None]
    other = [row | {"TimeGenerated": "2026-11-29T11:00:00Z"} for row in apim(2)]
    reasons = [each.error and each.error.reason for each in joined([*rows[:2], *other, rows[2]])]
    assert reasons == [None, "late_piece", None]


def test_pieces_count_towards_the_memory_that_halves_may_take() -> None:
    opened = joined([row for number in range(9) for row in apim(number)], max_waiting_bytes=2_000)
    assert sum(each.record is not None for each in opened) == 9


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"CorrelationId": ""}, "invalid:CorrelationId"),
        ({"SequenceNumber": "x"}, "invalid:SequenceNumber"),
        ({"SequenceNumber": -1}, "invalid:SequenceNumber"),
        ({"SequenceNumber": "٣"}, "invalid:SequenceNumber"),
        ({"TimeGenerated": "yesterday"}, "invalid:TimeGenerated"),
    ],
)
def test_rows_that_are_none(changes: dict[str, Any], reason: str) -> None:
    assert refusal(apim(1)[1] | changes) == ("malformed", reason)


def test_a_body_that_the_gateway_s_log_cut_is_named() -> None:
    row = LOGS["apim gateway"][1]
    long = json.dumps(body(1) | {"messages": [{"role": "user", "content": "x" * 9_000}]})
    assert refused_later(record_of(row | {"RequestBody": long[:8_192]})) == ("unsupported", "truncated")
    answered = record_of(row | {"ResponseBody": long[:8_192]})
    assert (answered.response, answered.request) == (None, body(1))
    answered.check_served()
    assert refusal(row | {"RequestBody": long[:80]}) == ("malformed", "invalid:request")
    with pytest.raises(RecordError, match="no_payload"):
        record_of(row | {"RequestBody": None}).check_served()
    with pytest.raises(RecordError, match="failed_request"):
        record_of(row | {"ResponseCode": 429, "ResponseBody": ""}).check_served()


@given(
    st.lists(
        st.fixed_dictionaries(
            {"CorrelationId": st.sampled_from(["a", "b", 3]), "SequenceNumber": st.integers(0, 4)},
            optional={
                name: st.sampled_from([None, "", "[", '{"a": 1}', [], [3], [{"role": "user"}], {"x": 1}, "xsecretx"])
                for name in ("RequestMessages", "ResponseMessages", "ModelName", "PromptTokens", "TimeGenerated")
            },
        ),
        max_size=8,
    )
)
def test_rows_of_any_value_end_as_records_or_refusals(rows: list[dict[str, Any]]) -> None:
    for opened in joined(rows):
        assert (opened.record is None) is (opened.error is not None)
        assert "xsecretx" not in str(opened.error)
