"""A real server with the middleware, a real broker, and the tap behind it; and `tail` between a log and the broker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from shadowspec.capture.asgi import Mirror
from shadowspec.capture.outlet import Outlet
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.openai import parse_request, parse_response
from shadowspec.tap.records import MirroredRecord
from tests.capture.outlets import outlet_to, until
from tests.kafka.reading import Reader, settings_for
from tests.kafka_topics import Topics, read_topic
from tests.services import PATIENCE_S, free_port
from tests.tap.formats.samples import record_of

pytestmark = pytest.mark.integration
SECRET = "Why is the sky blue"
PIECE, NUM_PIECES = "#", 50


def body(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": f"{SECRET}, {number} \u00fc?"}],
        "temperature": 0.7,
        "max_tokens": 9,
        **fields,
    }


async def answer(request: Request) -> Any:
    """A stream of pieces, or all of them at once."""
    asked = await request.json()
    choice = {"index": 0, "finish_reason": "stop"}
    if not asked.get("stream"):
        return JSONResponse({"choices": [{**choice, "message": {"role": "assistant", "content": PIECE * NUM_PIECES}}]})

    async def pieces() -> AsyncIterator[str]:
        for number in range(int(asked.get("metadata", {}).get("pieces", NUM_PIECES))):
            reason = "stop" if number == NUM_PIECES - 1 else None
            piece = {"index": 0, "delta": {"content": PIECE}, "finish_reason": reason}
            yield f"data: {json.dumps({'choices': [piece]})}\n\n"
            await asyncio.sleep(0)  # a model gives others time between two tokens
        yield "data: [DONE]\n\n"

    return StreamingResponse(pieces(), media_type="text/event-stream")


@contextmanager
def served(outlet: Outlet) -> Iterator[str]:
    """uvicorn with the middleware; yields its URL."""
    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(Mirror(app, outlet), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


def test_every_call_is_read_by_the_tap_as_the_same_request(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    topic = topics.create(3)
    bodies = {
        str(number): body(number, stream=number % 2 == 0, user=f"u-{number % 3}", metadata={"number": str(number)})
        for number in range(30)
    }
    with caplog.at_level(logging.DEBUG), outlet_to(topics.bootstrap, topic) as outlet:
        with served(outlet) as url, httpx.Client(timeout=PATIENCE_S) as client:
            for number, asked in bodies.items():
                headers = {"x-session-id": f"s-{int(number) % 7}"} if int(number) % 5 else {}
                assert client.post(url, json=asked, headers=headers).text.count(PIECE) == NUM_PIECES
        # The server has ended: what waited was sent before.
        assert (outlet.counts.sent, outlet.counts.dropped, outlet.held_bytes) == (30, 0, 0)
    with KafkaTap(settings_for(topics.bootstrap, topic)) as tap:
        reader = Reader(tap)
        reader.read(30)
    found: dict[str, MirroredRecord] = {}
    for raw in reader.records:
        (opened,) = open_message(raw, MessageFormat.AUTO)
        assert opened.record is not None
        found[opened.record.client_annotation("number")] = opened.record
        known = opened.record.session() or opened.record.user_id()
        assert raw.message_key == (known or "").encode()
    assert set(found) == set(bodies)
    for number, record in found.items():
        record.check_served()
        expected = record_of({"timestamp": 1, "path": "/v1/chat/completions", "request": bodies[number]})
        read, wanted = parse_request(record), parse_request(expected)
        assert (read.messages, read.sampling, read.is_chat) == (wanted.messages, wanted.sampling, wanted.is_chat)
        logged = parse_response(record).logged
        assert logged is not None
        assert logged.finish_reason == "stop"
        assert msgspec.json.encode(record.response).count(PIECE.encode()) == NUM_PIECES
        assert abs(record.event_time(0).timestamp() - time.time()) < PATIENCE_S
    assert not any(SECRET in entry.getMessage() for entry in caplog.records)


def test_without_a_broker_every_answer_comes_whole() -> None:
    with (
        outlet_to(max_waiting_bytes=20_000) as outlet,
        served(outlet) as url,
        httpx.Client(timeout=PATIENCE_S) as client,
    ):
        for number in range(40):
            assert client.post(url, json=body(number, stream=True)).text.count(PIECE) == NUM_PIECES
        assert outlet.counts.sent == 0
        assert outlet.counts.dropped_full > 0
        assert outlet.held_bytes <= 20_000


def test_a_client_that_goes_away_in_a_stream_leaves_a_request(topics: Topics) -> None:
    topic = topics.create()
    with outlet_to(topics.bootstrap, topic) as outlet, served(outlet) as url:
        asked = json.dumps(body(0, stream=True, metadata={"pieces": "10000000"})).encode()
        port = int(url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(asked)}\r\n\r\n"
            connection.sendall(head.encode() + asked)
            assert b"200" in connection.recv(1_000)
        until(lambda: outlet.counts.sent == 1)
        record = record_of(read_topic(topics.bootstrap, topic)[0].encode())
    assert parse_request(record).messages[0]["content"].startswith(SECRET)
    assert record.response is None
    assert outlet.held_bytes == 0


def line(number: int) -> str:
    return json.dumps({"timestamp": 1_790_000_000, "session_id": f"s-{number % 3}", "request": body(number)}) + "\n"


def test_tail_sends_what_is_added_to_a_log(topics: Topics, tmp_path: Path) -> None:
    topic, log = topics.create(2), tmp_path / "traffic.jsonl"
    command = [sys.executable, "-m", "shadowspec", "tail", str(log), "--topic", topic]
    command += ["--bootstrap-servers", topics.bootstrap]
    written = 0

    def wait_for(count: int) -> None:
        until(lambda: len(set(read_topic(topics.bootstrap, topic))) == count)

    for _ in range(2):  # the second process goes on where the first ended
        with subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE) as process:
            for _ in range(2):
                with log.open("a") as file:
                    file.writelines(line(number) for number in range(written, written + 10))
                written += 10
                wait_for(written)
                log.rename(log.with_name(f"{log.name}.{written}"))  # the next file begins without it
            until(lambda: json.loads(log.with_name(f"{log.name}.position").read_text())["offset"] > 0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr is not None
            assert SECRET.encode() not in process.stderr.read()
    messages = read_topic(topics.bootstrap, topic, "%k\x1f%s")
    assert sorted(messages) == sorted(f"s-{number % 3}\x1f{line(number).strip()}" for number in range(written))
