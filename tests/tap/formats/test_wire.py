"""Records whose bodies are text, as proxies write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shadowspec.tap.formats import MessageFormat
from tests.tap.formats.samples import ANSWER, REQUEST, TIME, record_of, refusal, refused_later
from tests.tap.mirror import START

STREAM = 'data: {"model": "model-a", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n'


def line(**changes: Any) -> dict[str, Any]:
    bodies = {"request_body": json.dumps(REQUEST), "response_body": json.dumps(ANSWER)}
    return {"timestamp": START, "status": 200, "session_id": "s-1", **bodies, **changes}


@pytest.mark.parametrize("format", [MessageFormat.AUTO, MessageFormat.OPENAI])
def test_bodies_are_parsed(format: MessageFormat) -> None:
    record = record_of(line(), format=format)
    assert (record.request, record.response) == (REQUEST, ANSWER)
    assert (record.session(), record.event_time(0)) == ("s-1", TIME)
    record.check_served()


def test_a_stream_is_assembled() -> None:
    assert record_of(line(response_body=STREAM)).response == {
        "model": "model-a",
        "choices": [{"index": 0, "text": "x"}],
    }


@pytest.mark.parametrize("nothing", [None, "", "-"])
def test_absent_bodies(nothing: str | None) -> None:
    assert record_of(line(response_body=nothing)).response is None
    empty = record_of(line(request_body=nothing, metadata={"tier": "pro"}))
    assert refused_later(empty) == ("unsupported", "no_payload")
    assert empty.annotation("tier") == "pro"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"request_body": '{"model": "model-a", "mess'}, "invalid:request_body"),
        ({"request_body": "[1]"}, "invalid:request_body"),
        ({"request_body": 7}, "invalid:request_body"),
        ({"response_body": "upstream connect error"}, "invalid:response_body"),
        ({"response_body": "data: 7\n\n"}, "invalid:stream"),
    ],
)
def test_bodies_that_are_not_json_objects(changes: dict[str, Any], reason: str) -> None:
    assert refusal(line(**changes)) == ("malformed", reason)


def test_the_proxy_s_own_error_is_a_failed_request() -> None:
    assert refused_later(record_of(line(status=503, response_body="upstream connect error"))) == (
        "unsupported",
        "failed_request",
    )


def test_a_request_beside_a_body_takes_precedence() -> None:
    assert record_of({**line(request_body="no"), "request": REQUEST}).request == REQUEST
    assert refusal({**line(), "call_type": "acompletion", "startTime": 1}) == ("malformed", "ambiguous_format")
