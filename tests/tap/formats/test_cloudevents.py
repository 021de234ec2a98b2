"""Events that the cloudevents SDK made, in both of its APIs, as KServe's inference logger fills them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cloudevents.v1.http import CloudEvent
from cloudevents.v1.kafka import to_structured

from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.formats.cloudevents import EventSuffixes
from shadowspec.tap.records import EPOCH
from tests.tap.formats import samples
from tests.tap.formats.samples import ANSWER, KSERVE_SOURCE, REQUEST, TIME, half_of, message, opened, record_of, refusal

MAKERS = [samples.binary, samples.structured, samples.core_binary, samples.core_structured]
BATCH = (("content-type", b"application/cloudevents-batch+json; charset=UTF-8"),)
EVENT = {"specversion": "1.0", **samples.attributes("request"), "data": REQUEST}


@pytest.mark.parametrize("format", [MessageFormat.CLOUDEVENTS, MessageFormat.AUTO])
@pytest.mark.parametrize("make", MAKERS)
def test_either_mode_of_either_api_gives_the_same_half(make: Any, format: MessageFormat) -> None:
    half = half_of(*make("request", REQUEST), format)
    assert (half.is_request, half.body, half.join_id) == (True, REQUEST, "call-1")
    assert half.scope == (KSERVE_SOURCE, "models", "chat", "predictor")
    assert (half.endpoint, half.event_time) == ("chat", TIME)
    assert half.headers["x-session-id"] == "s-2"  # of the logged header's values the last counts
    answer = half_of(*make("response", ANSWER), format)
    assert (answer.is_request, answer.body) == (False, ANSWER)
    assert (answer.scope, answer.join_id) == (half.scope, half.join_id)


def test_the_first_api_writes_the_data_s_content_type_on_structured_events() -> None:
    """The trap that makes `content-type` alone a bad guide."""
    made = to_structured(CloudEvent(samples.attributes("request"), REQUEST))
    assert made.headers["content-type"] == b"application/json"
    assert half_of(made.value, tuple(made.headers.items())).is_request


def test_a_structured_content_type_wins_over_attribute_headers() -> None:
    value, headers = samples.core_structured("request", REQUEST)
    stale = (("ce_specversion", b"1.0"), ("ce_id", b"other"), ("ce_type", b"x.response"), ("ce_source", b"/"))
    assert half_of(value, headers + stale).join_id == "call-1"


def test_a_batch_holds_several_events() -> None:
    events = [{**EVENT, "id": f"call-{number}"} for number in range(3)]
    found = open_message(message([*events, {"id": "x"}, 3], BATCH), MessageFormat.AUTO)
    assert [each.key.item for each in found] == [0, 1, 2, 3, 4]
    assert [each.half.join_id for each in found if each.half] == ["call-0", "call-1", "call-2"]
    assert [each.error.reason for each in found if each.error] == ["invalid:ce_source", "not_an_object"]


def test_data_may_be_base64_or_json_in_a_string() -> None:
    encoded = {key: value for key, value in EVENT.items() if key != "data"}
    encoded["data_base64"] = base64.b64encode(json.dumps(REQUEST).encode()).decode()
    assert half_of(encoded).body == REQUEST
    assert half_of({**EVENT, "data": json.dumps(REQUEST)}).body == REQUEST
    value, headers = samples.structured("request", json.dumps(REQUEST).encode())
    assert b"data_base64" in value
    assert half_of(value, headers).body == REQUEST


def test_a_streamed_answer_is_put_together() -> None:
    chunks = [
        {"id": "r", "model": "model-a", "choices": [{"index": 0, "delta": {"content": "Hel"}, "token_ids": [1]}]},
        {"choices": [{"index": 0, "delta": {"content": "lo"}, "token_ids": [2], "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 2}},
    ]
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    value, headers = samples.binary("response", REQUEST)
    assert half_of(stream.encode(), headers).body == {
        "id": "r",
        "model": "model-a",
        "usage": {"completion_tokens": 2},
        "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [1, 2], "text": "Hello"}],
    }
    assert value != stream.encode()


def test_types_of_one_s_own_are_told_by_their_ends() -> None:
    suffixes = EventSuffixes("/asked", "/answered")
    for kind, is_request in (("asked", True), ("answered", False)):
        event = {**EVENT, "type": f"com.example/{kind}"}
        (found,) = open_message(message(event), MessageFormat.AUTO, event_suffixes=suffixes)
        assert found.half is not None
        assert found.half.is_request is is_request
    assert refusal({**EVENT, "type": "com.example/asked"}) == ("unsupported", "event_type")


def test_an_event_of_another_type_may_carry_a_whole_record() -> None:
    event = {**EVENT, "type": "com.example.call", "data": {"request": REQUEST, "response": ANSWER}}
    record = record_of(event)
    assert (record.request, record.response) == (REQUEST, ANSWER)
    assert (record.request_id, record.endpoint, record.event_time(0)) == ("call-1", "chat", TIME)
    assert record.session() == "s-2"


def test_an_event_of_the_future_or_without_an_id_is_no_half() -> None:
    """The first would end the wait of all others, the second would be joined with any."""
    assert refusal({**EVENT, "time": "2099-01-01T00:00:00Z"}) == ("malformed", "future:ce_time")
    assert refusal({**EVENT, "id": "undefined"}) == ("malformed", "invalid:ce_id")


def test_an_event_without_time_has_the_transport_s() -> None:
    timeless = {key: value for key, value in EVENT.items() if key != "time"}
    at = int(TIME.timestamp() * 1_000)
    (found,) = open_message(message(timeless, timestamp_ms=at), MessageFormat.AUTO)
    assert found.half is not None
    assert found.half.event_time == TIME
    for nonsense in (0, -1, 2**62):
        (found,) = open_message(message(timeless, timestamp_ms=nonsense), MessageFormat.AUTO)
        assert found.half is not None
        assert found.half.event_time == EPOCH


def test_a_go_sender_s_nanoseconds_are_a_time() -> None:
    assert half_of({**EVENT, "time": "2023-11-14T22:20:00.123456789Z"}).event_time.microsecond == 123456


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": ""}, ("malformed", "invalid:ce_id")),
        ({"source": 3}, ("malformed", "invalid:ce_source")),
        ({"type": None}, ("malformed", "invalid:ce_type")),
        ({"specversion": "0.3"}, ("unsupported", "event_version")),
        ({"time": "yesterday"}, ("malformed", "invalid:ce_time")),
        ({"time": "9999-12-31T00:00:00Z"}, ("malformed", "invalid:ce_time")),
        ({"data": None}, ("malformed", "no_data")),
        ({"data": [1]}, ("malformed", "invalid:data")),
        ({"data": "{"}, ("malformed", "invalid:data")),
        ({"data": "data: {broken\n\n"}, ("malformed", "invalid:stream")),
        ({"data": None, "data_base64": "%%%"}, ("malformed", "invalid:data_base64")),
        ({"data": None, "data_base64": 7}, ("malformed", "invalid:data_base64")),
        ({"data": None, "data_base64": "//79"}, ("malformed", "invalid:data")),
        ({"type": "com.example.call"}, ("unsupported", "event_type")),
    ],
)
def test_what_is_no_half_says_why(change: dict[str, Any], expected: tuple[str, str]) -> None:
    assert refusal({**EVENT, **change}, format=MessageFormat.CLOUDEVENTS) == expected


def test_an_event_in_another_form_than_json_is_refused() -> None:
    assert refusal(b"\x00", (("Content-Type", b"application/cloudevents+avro"),)) == ("unsupported", "event_format")


def test_a_binary_event_lacking_attributes_is_malformed() -> None:
    _, headers = samples.binary("request", REQUEST)
    without = tuple(header for header in headers if header[0] != "ce_source")
    assert refusal(REQUEST, without) == ("malformed", "invalid:ce_source")
    without = tuple(header for header in headers if header[0] != "ce_id")
    assert refusal(REQUEST, without) == ("malformed", "invalid:ce_id")
    odd = tuple(("ce_source", b"\xff\xfe") if name == "ce_source" else (name, value) for name, value in headers)
    assert refusal(REQUEST, odd) == ("malformed", "invalid:ce_source")


def test_odd_metadata_is_no_reason_to_refuse() -> None:
    for metadata in ("{", 3, [], {"x-session-id": []}, {"x-session-id": [3]}, json.dumps({"X-A": None})):
        assert "x-session-id" not in half_of({**EVENT, "metadata": metadata}).headers


def test_ids_and_bodies_are_in_no_repr() -> None:
    shown = repr(opened({**EVENT, "id": "secret-id", "subject": "secret-subject"}))
    assert "secret" not in shown
    assert "sky" not in shown
