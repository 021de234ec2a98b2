"""Entries of Envoy's access log become calls; whatever else arrives costs nothing but itself."""

from __future__ import annotations

import json
from collections.abc import Iterable

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.capture.envoy_log_service import SERVICE, entries, entry_message, listen
from shadowspec.servers.client import run_async
from tests.capture.outlets import KeptOutlet, until
from tests.tap.formats.samples import REQUEST, record_of

BODY = json.dumps(REQUEST)
ANSWER = (
    'data: {"choices": [{"index": 0, "delta": {"content": "H\u00fc"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)


def varint(number: int) -> bytes:
    low, number = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(number) if number else bytes([low])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def pairs(number: int, **texts: str) -> Iterable[bytes]:
    for name, text in texts.items():
        yield field(number, field(1, name.replace("_", "-").encode()) + field(2, text.encode()))


def tags(**texts: str) -> bytes:
    return b"".join(field(22, field(1, name.encode()) + field(2, text.encode())) for name, text in texts.items())


def entry(tagged: bytes, status: int = 200) -> bytes:
    """As Envoy writes it, with fields beside those that are read: `common_properties`, protocol, request, response."""
    common = field(2, b"address") + field(5, field(1, 1_790_000_000) + field(2, 250_000_000)) + tagged
    headers = b"".join(pairs(13, x_session_id="s-1", authorization="secret"))
    request = field(1, 3) + field(5, b"/v1/chat/completions?a=b") + headers
    return field(1, common) + field(2, 2) + field(3, request) + field(4, field(1, field(1, status)))


def message(*logged: bytes) -> bytes:
    return field(1, b"identifier") + field(2, b"".join(field(1, each) for each in logged))


def test_an_entry_is_a_call() -> None:
    made = entry_message(entry(tags(request_body=BODY, response_body=ANSWER)))
    assert made.key == b"s-1"
    assert b"secret" not in (made.value or b"")
    record = record_of(made.value)
    record.check_served()
    assert (record.request, record.session(), record.request_path) == (REQUEST, "s-1", "/v1/chat/completions")
    assert record.event_time(0).timestamp() == 1_790_000_000.25
    assert record.response == {"choices": [{"index": 0, "text": "H\u00fc", "finish_reason": "stop"}]}


def test_a_failed_call_keeps_its_status() -> None:
    record = record_of(entry_message(entry(tags(request_body=BODY, response_body="busy"), status=503)).value)
    assert record.status == 503


def test_entries_are_found_in_a_message() -> None:
    assert list(entries(message(b"a", b"b"))) == [b"a", b"b"]


@given(st.binary(max_size=60))
def test_any_bytes_are_entries_or_none(content: bytes) -> None:
    for read in (lambda: list(entries(content)), lambda: entry_message(content)):
        try:
            read()
        except ValueError:
            continue


def test_the_service_receives_the_stream_of_a_client() -> None:
    outlet = KeptOutlet()
    whole = entry(tags(request_body=BODY, response_body="x" * 5_000_000))  # longer than gRPC's default limit

    async def send() -> None:
        server, port = await listen("127.0.0.1:0", outlet)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stream = channel.stream_unary(f"/{SERVICE}/StreamAccessLogs")
            assert await stream(iter([message(whole), message(b"\xff", whole)])) == b""
            with pytest.raises(grpc.aio.AioRpcError):
                await stream(iter([b"\xff\xff"]))
        await server.stop(None)

    run_async(send())
    until(lambda: outlet.counts.sent == 2 and outlet.held_bytes == 0)
    assert outlet.counts.dropped_unreadable == 1


def test_an_address_in_use_is_named() -> None:
    async def take_twice() -> None:
        server, port = await listen("127.0.0.1:0", KeptOutlet())
        try:
            with pytest.raises(Exception, match=f"127.0.0.1:{port}: cannot be listened on"):
                await listen(f"127.0.0.1:{port}", KeptOutlet())
        finally:
            await server.stop(None)

    run_async(take_twice())
