"""Acceptance of a request whose answer does not say it: sent once more, alone, between two looks at the counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

from shadowspec.servers.acceptance import Accepted, UncountableError, from_counters
from shadowspec.servers.client import Client, fresh_salt
from shadowspec.servers.counters import Counters, scrape
from shadowspec.servers.request import ServerRequest

Result = TypeVar("Result")

TRIES: Final = 3  # of a request whose window another one fell into
SETTLING_S: Final = 2.0  # that counters may lag behind an answer
LOOK_AGAIN_S: Final = 0.05


async def count_alone(client: Client, request: ServerRequest, model: str, num_speculative_tokens: int) -> Accepted:
    """What the server counted of this request.

    Raises:
        UncountableError: another request was served meanwhile at every try, or the counters do not say enough.
        ServerError: the server gives no usable answer.
    """
    refused: UncountableError | None = None
    for _ in range(TRIES):
        before = (await scrape(client, model)).counters
        answer = await client.complete(request, fresh_salt())
        counted = await _settled(client, model, before)
        try:
            return from_counters(counted, answer, len(request.prompt_token_ids), num_speculative_tokens)
        except UncountableError as error:
            refused = error
    assert refused is not None, "a try returns or is refused"
    raise refused


async def steps_counted(
    client: Client, model: str, num_requests: int, work: Awaitable[Result]
) -> tuple[Result, Counters | None]:
    """The result of work that sends so many requests, and what the server counted meanwhile.

    None where it counted other requests too, or began anew.

    Raises:
        ServerError: the server does not show its counters.
    """
    before = (await scrape(client, model)).counters
    result = await work
    try:
        counted = await _settled(client, model, before, num_requests)
    except UncountableError:
        return result, None
    return result, counted if counted.num_finished == num_requests else None


async def _settled(client: Client, model: str, before: Counters | None, num_requests: int = 1) -> Counters:
    """What was counted since, once the answer is among it; counters may lag behind."""
    deadline = time.monotonic() + SETTLING_S
    while True:
        after = (await scrape(client, model)).counters
        counted = after.since(before) if before is not None and after is not None else None
        if counted is None:
            raise UncountableError("the server's counters are gone, or began anew")
        if counted.num_finished >= num_requests or time.monotonic() > deadline:
            return counted
        await asyncio.sleep(LOOK_AGAIN_S)
