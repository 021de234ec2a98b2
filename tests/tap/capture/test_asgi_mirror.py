"""The middleware passes every message on unchanged, and writes each call."""

from __future__ import annotations

import importlib
import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from shadowspec.servers.client import run_async
from tests.tap.capture.record import EXAMPLES
from tests.tap.formats.samples import REQUEST, record_of

PATH = "/v1/chat/completions"
BODY = json.dumps(REQUEST).encode()
RECEIVED = [
    {"type": "http.request", "body": BODY[:9], "more_body": True},
    {"type": "http.request", "body": BODY[9:]},
]
ANSWER: list[dict[str, Any]] = [
    {"type": "http.response.start", "status": 200, "headers": []},
    {"type": "http.response.body", "body": b'data: {"choices": [{"index": 0, "delta": {', "more_body": True},
    {"type": "http.response.body", "body": b'"content": "Hi"}}]}\n\ndata: [DONE]\n\n'},
]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("MIRROR_FILE", str(tmp_path / "traffic.jsonl"))
    return importlib.reload(importlib.import_module("asgi_mirror"))


class Server:
    """Reads the request and sends its answer; then it may fail."""

    def __init__(self, answer: list[dict[str, Any]], error: Exception | None = None) -> None:
        self.answer, self.error = answer, error
        self.received: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while True:
            self.received.append(await receive())
            if not self.received[-1].get("more_body"):
                break
        for message in self.answer:
            await send(message)
        if self.error is not None:
            raise self.error


def call(app: Any, path: str = PATH, method: str = "POST") -> list[dict[str, Any]]:
    """What the client gets."""
    scope = {"type": "http", "method": method, "path": path, "headers": [
        (b"x-session-id", b"s-1"), (b"authorization", b"Bearer secret")]}  # fmt: skip
    given, sent = iter(RECEIVED), []

    async def receive() -> dict[str, Any]:
        return next(given)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    run_async(app(scope, receive, send))
    return sent


def lines(folder: Path, count: int) -> list[dict[str, Any]]:
    """The lines of the file, once it has as many."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        found = (folder / "traffic.jsonl").read_text().splitlines()
        if len(found) >= count:
            return [json.loads(line) for line in found]
        time.sleep(0.01)
    raise AssertionError(f"fewer than {count} lines")


def test_a_call_is_passed_on_unchanged_and_written(example: Any, tmp_path: Path) -> None:
    server = Server(ANSWER)
    assert call(example.Mirror(server)) == ANSWER
    assert server.received == RECEIVED
    (line,) = lines(tmp_path, 1)
    assert "secret" not in str(line)
    record = record_of(line)
    assert (record.request, record.session(), record.request_path) == (REQUEST, "s-1", PATH)
    assert record.response == {"choices": [{"index": 0, "text": "Hi"}]}
    assert stat.S_IMODE((tmp_path / "traffic.jsonl").stat().st_mode) == 0o600


def test_an_answer_that_breaks_off_is_not_written(example: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        call(example.Mirror(Server(ANSWER[:2], RuntimeError("broken"))))
    (line,) = lines(tmp_path, 1)
    assert record_of(line).response is None
    assert record_of(line).request == REQUEST


def test_other_paths_and_methods_are_not_written(example: Any, tmp_path: Path) -> None:
    mirror = example.Mirror(Server(ANSWER))
    assert call(mirror, "/v1/embeddings") == ANSWER
    assert call(mirror, method="GET") == ANSWER
    assert call(mirror) == ANSWER
    assert len(lines(tmp_path, 1)) == 1


def test_a_slow_disk_delays_no_call(
    example: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(example, "MAX_WAITING", 1)
    monkeypatch.setattr(example.Mirror, "_write", lambda self, file: file.close())
    mirror = example.Mirror(Server(ANSWER))
    assert [call(mirror) for _ in range(4)] == [ANSWER] * 4
    assert mirror.num_left_out == 3
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split(";")[0] for message in messages] == [
        "calls left out of the mirror: 1",
        "calls left out of the mirror: 2",
    ]


def test_the_receiver_takes_copies(example: Any, tmp_path: Path) -> None:
    assert [each.get("status") for each in call(example.receiver())] == [204, None]
    record = record_of(lines(tmp_path, 1)[0])
    assert (record.request, record.response) == (REQUEST, None)
    record.check_served()
