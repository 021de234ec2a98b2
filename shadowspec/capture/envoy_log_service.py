"""A receiver of Envoy's access log over gRPC (AccessLogService) that copies each call.

    python -m shadowspec.capture.envoy_log_service 127.0.0.1:19001

Envoy sends an entry after its call has ended and waits for nothing: where this service is slow or away, Envoy drops
entries and counts them (`logs_dropped`).  The entry's custom tags are the bodies, which a Lua filter keeps, and the
headers that name session and user (docs/capture/envoy.yaml).  Of the protocol's messages only these fields are read.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

from shadowspec.capture.captured_call import HEADERS, call_message
from shadowspec.capture.outlet import Outlet
from shadowspec.capture.sender import give_way
from shadowspec.errors import ConfigError
from shadowspec.tap.kafka.producer import OutgoingMessage
from shadowspec.types.extras import missing_extra

try:
    import grpc
except ImportError:
    raise missing_extra("the receiver of Envoy's log", "capture") from None

SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # Envoy gathers entries until they have 16 KiB, so mostly one entry
# Numbers of fields in als.proto and accesslog.proto of Envoy's API v3.
HTTP_LOGS, LOG_ENTRY = 2, 1
COMMON, REQUEST, RESPONSE = 1, 3, 4
START_TIME, CUSTOM_TAGS = 5, 22
SECONDS, NANOS = 1, 2
PATH, REQUEST_HEADERS = 5, 13
RESPONSE_CODE = 1
KEY, VALUE = 1, 2  # of a map's entry; a wrapped number is in KEY too
ADDRESS: Final = "127.0.0.1:19001"

log = logging.getLogger(__name__)


def entries(message: bytes) -> Iterator[bytes]:
    """The entries of a message of the stream.

    Raises:
        ValueError: it is no such message.
    """
    for logs in _texts(message, HTTP_LOGS):
        yield from _texts(logs, LOG_ENTRY)


def entry_message(entry: bytes) -> OutgoingMessage:
    """The call of an entry as a message.

    Raises:
        ValueError: it is no entry.
    """
    common, request = _first(entry, COMMON), _first(entry, REQUEST)
    began = _first(common, START_TIME)
    tags, headers = _texts_by_name(common, CUSTOM_TAGS), _texts_by_name(request, REQUEST_HEADERS)
    return call_message(
        _number(began, SECONDS) + _number(began, NANOS) / 1e9,
        _first(request, PATH).decode(errors="replace"),
        {name: headers[name] for name in HEADERS if name in headers},
        _number(_first(_first(entry, RESPONSE), RESPONSE_CODE), KEY) or None,
        request=tags.get("request_body") or None,
        response=tags.get("response_body"),
    )


async def listen(address: str, outlet: Outlet) -> tuple[grpc.aio.Server, int]:
    """A started server at the address, and its port.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    async def receive(messages: AsyncIterator[bytes], _context: Any) -> bytes:
        async for message in messages:
            for entry in entries(message):
                outlet.offer(len(entry), partial(entry_message, entry))
        return b""

    reuse = ("grpc.so_reuseport", 0)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), reuse])
    handler = grpc.stream_unary_rpc_method_handler(receive)  # bytes in, bytes out
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"StreamAccessLogs": handler}),))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"{address}: cannot be listened on; give a free HOST:PORT") from error
    await server.start()
    return server, port


async def serve(address: str, outlet: Outlet) -> None:
    """Receive until SIGTERM or SIGINT.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    server, _ = await listen(address, outlet)
    log.info("receiving Envoy's access log on %s", address)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.stop(1.0)
    await asyncio.to_thread(outlet.close)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, in protobuf's encoding.

    Raises:
        ValueError: it is not in that encoding.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("a group, or no message")
        if place + size > len(message):
            raise ValueError("a field does not end")
        yield tag >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < 64:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError("a number does not end")


def _texts(message: bytes, number: int) -> Iterator[bytes]:
    return (value for field, value in _fields(message) if field == number and isinstance(value, bytes))


def _first(message: bytes, number: int) -> bytes:
    return next(_texts(message, number), b"")


def _number(message: bytes, number: int) -> int:
    return next((value for field, value in _fields(message) if field == number and isinstance(value, int)), 0)


def _texts_by_name(message: bytes, number: int) -> dict[str, str]:
    pairs = ((_first(entry, KEY), _first(entry, VALUE)) for entry in _texts(message, number))
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in pairs}


def main() -> None:
    """Serve on the address of the command line.

    Raises:
        ConfigError: a variable of the environment is missing or wrong, or the address.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    give_way()  # to a gateway on the same machine
    asyncio.run(serve(sys.argv[1] if len(sys.argv) > 1 else ADDRESS, Outlet.from_environment()))


if __name__ == "__main__":
    main()
