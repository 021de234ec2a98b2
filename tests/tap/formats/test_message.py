"""Which format a message is in, and what becomes of messages that nobody would send on purpose."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest

from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey
from tests.builders.opened_messages import formats_of
from tests.tap.formats import samples
from tests.tap.formats.samples import ANSWER, REQUEST, kong_entry, message, opened, record_of, refusal
from tests.tap.mirror import chat

SECONDS = 60  # a hang, or time that grows with the square; what a message takes is benchmarked
ONE_OF_EACH: dict[MessageFormat, list[tuple[Any, samples.Headers]]] = {
    MessageFormat.OPENAI: [
        (chat(), ()),
        (chat(), (("x-session-id", b"s"), ("content-type", b"application/json"))),
        ({"request": {"model": "m", "prompt": "x"}, "timestamp": 1}, ()),
        ({"request": {"prompt_token_ids": [1]}, "started_at": 1}, ()),
        ([chat()], ()),
    ],
    MessageFormat.KONG: [(kong_entry(), ()), (kong_entry(ai=None), ()), (kong_entry(latencies=None, tries=None), ())],
    MessageFormat.CLOUDEVENTS: [
        samples.binary("request", REQUEST),
        samples.binary("response", ANSWER),
        samples.structured("request", REQUEST),
        samples.core_structured("response", ANSWER),
        samples.core_binary("request", REQUEST),
    ],
}


@pytest.mark.parametrize("format", ONE_OF_EACH)
def test_every_sample_is_in_its_own_format_alone(format: MessageFormat) -> None:
    for value, headers in ONE_OF_EACH[format]:
        # Our own envelope is read leniently: whoever says that Kong's entries are in it is believed, and no more.  What
        # a binary event holds is a body.
        believed = {MessageFormat.KONG: MessageFormat.OPENAI, MessageFormat.CLOUDEVENTS: MessageFormat.BODY}
        assert {format} == set(formats_of(value, headers)) - {believed.get(format)}
        assert opened(value, headers) == opened(value, headers, format)


@pytest.mark.parametrize(
    "value", [{}, {"a": 1}, {"model": "m", "messages": []}, {"request": 3}, {"request": {}}, {"call_type": "x"}]
)
def test_what_is_in_no_format_is_refused(value: Any) -> None:
    assert refusal(value) == ("malformed", "unknown_format")


def test_what_is_in_two_formats_is_refused() -> None:
    assert refusal({**kong_entry(), "request": REQUEST}) == ("malformed", "ambiguous_format")
    assert refusal({**chat(), "call_type": "completion", "startTime": 1}) == ("malformed", "ambiguous_format")
    assert refusal({**chat(), "started_at": 1, "latencies": {}}) == ("malformed", "ambiguous_format")
    event = {"specversion": "1.0", "id": "1", "source": "/", "type": "a.request"}
    assert refusal({**chat(), **event}) == ("malformed", "ambiguous_format")


def test_a_tombstone_and_a_problem_are_one_refusal_each() -> None:
    for format in MessageFormat:
        assert refusal(None, format=format) == ("unsupported", "tombstone")
    raw = RawRecord(RecordKey("0" * 64, 0, 1), b"", problem="too_large")
    (found,) = open_message(raw, MessageFormat.AUTO)
    assert (found.key, found.error and found.error.reason) == (raw.key, "too_large")


def test_headers_fill_what_the_body_lacks() -> None:
    headers = (("X-Session-Id", b"from-header"), ("x-user-id", b"u-7"), ("x-request-id", b"r-7"), ("x-endpoint", b"e"))
    record = record_of(chat(session_id=None), headers)
    assert (record.session(), record.user_id(), record.request_identity()) == ("from-header", "u-7", "r-7")
    assert record.endpoint == "e"


def test_the_body_wins_over_headers() -> None:
    headers = (("x-session-id", b"from-header"), ("x-endpoint", b"from-header"), ("x-tenant-id", b"t"))
    entry = chat(session_id=None, headers={"X-SESSION-ID": "own"}, endpoint="own")
    record = record_of(entry, headers)
    assert (record.session(), record.endpoint, record.tenant_id()) == ("own", "own", "t")
    assert record_of(chat(), headers).session() == "s-1"


def test_of_several_headers_the_last_readable_one_counts() -> None:
    headers = (("x-session-id", b"first"), ("x-session-id", b"last"), ("X-Session-ID", b"\xff"), ("x-session-id", None))
    assert record_of(chat(session_id=None), headers).session() == "last"


def test_headers_do_not_hide_what_is_wrong_with_the_body_s_own() -> None:
    assert refusal(chat(headers=3), (("x-session-id", b"s"),)) == ("malformed", "invalid:headers")


DEEP = 100_000


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not_json"),
        (b" \n\n ", "not_json"),
        (b"[]", "empty"),
        (b"null", "not_an_object"),
        (b"{", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b'{"request": NaN}', "not_json"),
        (b'{"request": -Infinity}', "not_json"),
        (b"[" * DEEP, "not_json"),
        (b"[" * DEEP + b"]" * DEEP, "not_json"),
        (b'{"request":' * DEEP, "not_json"),
        (b'{"request": {"model": ' + b"9" * 100_000 + b"}}", "not_json"),
        (b'{"request": {"model": "\\ud800"}}', "invalid_unicode"),
        (b'{"request": {"model": "\\udc00\\ud800"}}', "invalid_unicode"),
        (gzip.compress(json.dumps(chat()).encode()), "not_json"),
        (b"\x00" * 1_000, "not_json"),
        (json.dumps(chat()).encode("utf-16"), "not_json"),
        (json.dumps(chat()).encode()[:-1], "not_json"),
        (json.dumps(chat(), indent=1).encode()[:-1], "not_json"),
        (b"{}\n" * 10_001, "too_many_records"),
        (b"[" + b"1," * 10_000 + b"1]", "too_many_records"),
    ],
)
def test_oddities_end_as_one_refusal(value: bytes, reason: str) -> None:
    for format in MessageFormat:
        assert refusal(value, format=format) == ("malformed", reason)


def test_a_byte_order_mark_and_white_space_do_no_harm() -> None:
    plain = json.dumps(chat()).encode()
    for value in (b"\xef\xbb\xbf" + plain, b"\n\n" + plain + b"\r\n", json.dumps(chat(), indent=2).encode()):
        assert record_of(value).request == REQUEST


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    value = b'{"request": {"model": "a"}, "request": {"model": "b", "model": "c"}}'
    assert record_of(value).model == "c"


def test_a_message_of_10_mb_is_opened_in_time() -> None:
    text = "Fl\u00fcsse und S\u00e9ances. " * 450_000
    large = chat(request_messages=[{"role": "user", "content": text}])
    for value in (
        json.dumps(large).encode(),
        json.dumps(large, ensure_ascii=False).encode(),
        b"x" * 10_000_000,
        b'{"request": {"model": "' + b"x" * 10_000_000,
        b"{}\n" * 3_300_000,
        json.dumps({"request": {"prompt": [[0] * 100] * 33_000}}).encode(),
    ):
        for format in (MessageFormat.AUTO, MessageFormat.OPENAI):
            started = time.perf_counter()
            found = open_message(message(value), format)
            assert time.perf_counter() - started < SECONDS
            assert len(found) == 1


def test_only_the_first_item_s_key_is_the_message_s_own() -> None:
    raw = message([chat(), chat()], offset=7)
    found = open_message(raw, MessageFormat.OPENAI)
    assert [each.key for each in found] == [raw.key, RecordKey(raw.key.source, 0, 7, 0, 1)]
