"""A separate pass that counts: requests between two reads of a server's counters, which are nobody else's meanwhile.

A request whose answer does not report the accepted tokens is sent again, by itself and untimed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

from shadowspec.servers.client import ServerClient, fresh_salt
from shadowspec.servers.metrics_page import counts_between
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.step_counts import Accepted, UncountableError, from_counters
from shadowspec.servers.stream import ServerError
from shadowspec.types import LiveCounts

Result = TypeVar("Result")

TRIES: Final = 3  # of a request whose window another one fell into
SETTLING_S: Final = 2.0  # that counters may lag behind an answer
LOOK_AGAIN_S: Final = 0.05


async def read_counters(client: ServerClient, model: str) -> LiveCounts | None:
    """The server's counters of drafts since it started; None where it shows none.

    Raises:
        ServerError: it cannot be reached, or its page is in another format.
    """
    page = await client.look("metrics")
    try:
        return None if page is None else client.engine.counters_on(page, model)
    except ValueError as error:
        raise ServerError(client.name, "garbage", "/metrics is not in Prometheus' text format") from error


async def count_alone(
    client: ServerClient, request: ServerRequest, model: str, num_speculative_tokens: int
) -> Accepted:
    """The server's counts of this request.

    Raises:
        UncountableError: another request was served meanwhile at every try, or the counters do not suffice.
        ServerError: the server gives no usable answer.
    """
    refused: UncountableError | None = None
    for _ in range(TRIES):
        before = await read_counters(client, model)
        answer = await client.complete(request, fresh_salt())
        counted = await _await_counters(client, model, before)
        try:
            return from_counters(counted, answer, answer.num_prompt_tokens, num_speculative_tokens)
        except UncountableError as error:
            refused = error
    assert refused is not None, "a try returns or is refused"
    raise refused


async def steps_counted(
    client: ServerClient, model: str, num_requests: int, work: Awaitable[Result]
) -> tuple[Result, LiveCounts | None]:
    """The result of work that sends this number of requests, and the server's counts meanwhile.

    None where it counted other requests too, or restarted.

    Raises:
        ServerError: the server does not show its counters.
    """
    before = await read_counters(client, model)
    result = await work
    try:
        counted = await _await_counters(client, model, before, num_requests)
    except UncountableError:
        return result, None
    return result, counted if counted.num_requests == num_requests else None


async def _await_counters(
    client: ServerClient, model: str, before: LiveCounts | None, num_requests: int = 1
) -> LiveCounts:
    """The counts since `before`, once the answer is among them; counters may lag behind."""
    deadline = time.monotonic() + SETTLING_S
    while True:
        after = await read_counters(client, model)
        counted = None if before is None or after is None else counts_between(after, before)
        if counted is None:
            raise UncountableError("the server's counters are gone, or restarted")
        if (counted.num_requests or 0) >= num_requests or time.monotonic() > deadline:
            return counted
        await asyncio.sleep(LOOK_AGAIN_S)
