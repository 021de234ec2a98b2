"""The middleware passes every message on unchanged, and copies each call within its bounds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from shadowspec.capture.asgi import Mirror, receiver
from shadowspec.errors import ConfigError, RecordError
from shadowspec.servers.client import run_async
from shadowspec.tap.kafka.arrivals import arrival
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey
from tests.capture.outlets import KeptOutlet, until
from tests.tap.formats.samples import REQUEST, record_of

PATH = "/v1/chat/completions"
BODY = json.dumps(REQUEST).encode()
ANSWER: list[dict[str, Any]] = [
    {"type": "http.response.start", "status": 200, "headers": []},
    {"type": "http.response.body", "body": b'data: {"choices": [{"index": 0, "delta": {', "more_body": True},
    {"type": "http.response.body", "body": b'"content": "Hi"}}]}\n\ndata: [DONE]\n\n'},
]


class Server:
    """Reads the request and sends its answer; then it may fail, or wait for ever."""

    def __init__(self, answer: list[dict[str, Any]], error: Exception | None = None, *, hangs: bool = False) -> None:
        self.answer, self.error, self.hangs = answer, error, hangs
        self.received: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while True:
            self.received.append(await receive())
            if not self.received[-1].get("more_body"):
                break
        for message in self.answer:
            await send(message)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


def request_of(body: bytes) -> list[dict[str, Any]]:
    return [{"type": "http.request", "body": body[:9], "more_body": True}, {"type": "http.request", "body": body[9:]}]


def call(app: Any, path: str = PATH, method: str = "POST", body: bytes = BODY, **headers: str) -> list[dict[str, Any]]:
    """What the client gets."""
    named = {"x-session-id": "s-1", "authorization": "Bearer secret"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    pairs = [(name.encode(), value.encode()) for name, value in named.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs}
    given, sent = iter(request_of(body)), []

    async def receive() -> dict[str, Any]:
        return next(given)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    run_async(app(scope, receive, send))
    return sent


def lines(outlet: KeptOutlet, count: int) -> list[dict[str, Any]]:
    """The messages, once there are as many and nothing is held any more."""
    until(lambda: len(outlet.messages) >= count and outlet.held_bytes == 0)
    return [json.loads(message.value or b"") for message in outlet.messages]


def test_a_call_passes_unchanged_and_is_copied() -> None:
    server, outlet = Server(ANSWER), KeptOutlet()
    assert call(Mirror(server, outlet)) == ANSWER
    assert server.received == request_of(BODY)
    (line,) = lines(outlet, 1)
    assert "secret" not in str(line)
    record = record_of(line)
    record.check_served()
    assert (record.request, record.session(), record.request_path) == (REQUEST, "s-1", PATH)
    assert record.response == {"choices": [{"index": 0, "text": "Hi"}]}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"user": "u"}, {"x_session_id": "s"}),
        ({"metadata": {"session_id": "of the body"}}, {"x_session_id": "s"}),
        ({"user": "u"}, {"x_session_id": "-", "x_user_id": "v"}),
        ({}, {"x_session_id": "", "x_request_id": "r"}),
        ({}, {"x_session_id": ""}),
    ],
)
def test_the_key_is_that_of_produce(body: dict[str, Any], headers: dict[str, str]) -> None:
    outlet = KeptOutlet()
    call(Mirror(Server(ANSWER), outlet), body=json.dumps({**REQUEST, **body}).encode(), **headers)
    lines(outlet, 1)
    (message,) = outlet.messages
    assert message.key == arrival(RawRecord(RecordKey("", 0, 0), message.value)).message.key


def test_an_answer_that_breaks_off_is_left_out() -> None:
    outlet = KeptOutlet()
    with pytest.raises(RuntimeError, match="broken"):
        call(Mirror(Server(ANSWER[:2], RuntimeError("broken")), outlet))
    (line,) = lines(outlet, 1)
    assert record_of(line).response is None
    assert record_of(line).request == REQUEST


def test_the_call_of_a_client_that_goes_away_is_copied_without_its_answer() -> None:
    outlet = KeptOutlet()
    server = Server(ANSWER[:2], hangs=True)

    async def leave() -> None:
        given = iter(request_of(BODY))
        sent: list[Any] = []

        async def receive() -> Any:
            return next(given)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
        task = asyncio.ensure_future(Mirror(server, outlet)(scope, receive, send))
        while len(sent) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_async(leave())
    (line,) = lines(outlet, 1)
    assert (record_of(line).request, record_of(line).response) == (REQUEST, None)


def test_other_paths_and_methods_are_not_copied() -> None:
    outlet = KeptOutlet()
    mirror = Mirror(Server(ANSWER), outlet)
    assert call(mirror, "/v1/embeddings") == ANSWER
    assert call(mirror, method="GET") == ANSWER
    assert call(mirror) == ANSWER
    assert len(lines(outlet, 1)) == 1


def test_a_huge_request_is_counted_by_the_tap_and_a_huge_answer_left_out() -> None:
    outlet = KeptOutlet(max_body_bytes=4_000)
    huge = json.dumps({**REQUEST, "padding": "x" * 4_000}).encode()
    flood = [ANSWER[0], {"type": "http.response.body", "body": b"y" * 4_000}]
    mirror = Mirror(Server(ANSWER), outlet)
    assert call(mirror, body=huge) == ANSWER
    assert call(Mirror(Server(flood), outlet)) == flood
    first, second = lines(outlet, 2)
    assert outlet.messages[0].key == b"s-1"
    with pytest.raises(RecordError, match="truncated"):
        record_of(first).check_served()
    assert (record_of(second).request, record_of(second).response) == (REQUEST, None)


def test_a_compressed_body_is_not_taken_for_text() -> None:
    outlet = KeptOutlet()
    zipped = [{**ANSWER[0], "headers": [(b"Content-Encoding", b"gzip")]}, ANSWER[2]]
    assert call(Mirror(Server(zipped), outlet)) == zipped
    call(Mirror(Server(ANSWER), outlet), content_encoding="br")
    first, second = lines(outlet, 2)
    assert (record_of(first).request, record_of(first).response) == (REQUEST, None)
    with pytest.raises(RecordError, match="truncated"):
        record_of(second).check_served()


def test_without_room_calls_pass_and_are_counted() -> None:
    outlet = KeptOutlet(max_waiting_bytes=5_000)
    outlet.gate.clear()
    mirror = Mirror(Server(ANSWER), outlet)
    assert [call(mirror) for _ in range(9)] == [ANSWER] * 9
    assert outlet.held_bytes <= 5_000
    held = 9 - outlet.counts.dropped_full
    assert 1 <= held <= 2
    outlet.gate.set()
    assert len(lines(outlet, held)) == held
    assert call(mirror) == ANSWER
    assert len(lines(outlet, held + 1)) == held + 1


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[1]", b"{", b'"\\ud800"', b"null"])
def test_whatever_a_client_writes_becomes_a_message(body: bytes) -> None:
    outlet = KeptOutlet()
    assert call(Mirror(Server(ANSWER), outlet), body=body) == ANSWER
    assert len(lines(outlet, 1)) == 1
    assert outlet.counts.dropped == 0


def test_the_receiver_takes_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS", "localhost:1")
    monkeypatch.setenv("SHADOWSPEC_CAPTURE_TOPIC", "shadow.prompts")
    outlet = KeptOutlet()
    mirror = Mirror(receiver().app, outlet)
    assert [message.get("status") for message in call(mirror)] == [204, None]
    record = record_of(lines(outlet, 1)[0])
    assert (record.request, record.response) == (REQUEST, None)
    record.check_served()


def test_a_server_without_settings_says_which_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS", raising=False)
    with pytest.raises(ConfigError, match="SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS: is not set"):
        receiver()
