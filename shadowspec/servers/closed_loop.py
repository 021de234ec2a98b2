"""One arm of a block through one server: a closed loop with as many requests in flight as the load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np

from shadowspec.servers.client import ServerClient
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import ArmTiming

Outcome = Completion | ServerError


async def run_arm(
    client: ServerClient, requests: Sequence[ServerRequest], slots: int, salt: str
) -> tuple[Outcome, ...]:
    """Every request's answer or fault, in the order given, none of which finds another in the server's prefix cache."""
    salts = [f"{salt}-{index}" for index in range(len(requests))]
    return await run_conversations(client, [[request] for request in requests], slots, salts)


async def run_conversations(
    client: ServerClient,
    conversations: Sequence[Sequence[ServerRequest]],
    slots: int,
    salts: Sequence[str],
    *,
    shares_prefix: bool = False,
    between_turns: Callable[[], Awaitable[ServerError | None]] | None = None,
) -> tuple[Outcome, ...]:
    """Every request's answer or fault, in the order given; the next one is sent as soon as one has ended.

    A slot sends the turns of one conversation after the other, then takes the next conversation.  With
    `shares_prefix` requests of the same salt may find each other in the server's prefix cache, further attempts
    included.

    Args:
        salts: one for each conversation.
        between_turns: what comes between the same turns of all conversations and the next ones; its fault is that of
            all later turns.
    """
    outcomes: dict[tuple[int, int], Outcome] = {}

    async def send_all(first: int, last: int | None) -> None:
        waiting = iter(enumerate(conversations))

        async def serve_slot() -> None:
            for index, turns in waiting:  # shared by all slots: nothing waits between taking a request and sending it
                for turn, request in enumerate(turns[first:last], start=first):
                    try:
                        outcomes[index, turn] = await client.complete(request, salts[index], is_turn=shares_prefix)
                    except ServerError as fault:
                        outcomes[index, turn] = fault

        async with asyncio.TaskGroup() as group:
            for _ in range(slots):
                group.create_task(serve_slot())

    if between_turns is None:
        await send_all(0, None)
    else:
        await send_all(0, 1)
        for turn in range(1, max(map(len, conversations))):
            if (fault := await between_turns()) is not None:
                places = ((index, later) for index, turns in enumerate(conversations) for later in range(len(turns)))
                outcomes |= {place: fault for place in places if place not in outcomes}
                break
            await send_all(turn, turn + 1)
    return tuple(outcomes[place] for place in sorted(outcomes))


def concurrencies(outcomes: Sequence[Outcome]) -> Mapping[int, float]:
    """The mean number of answered requests in flight while each one was, itself included, by index."""
    answered = {index: outcome for index, outcome in enumerate(outcomes) if isinstance(outcome, Completion)}
    if not answered:
        return {}
    begun, ended = np.array([[answer.sent_s, answer.last_token_s] for answer in answered.values()]).T
    shared = np.minimum(ended[:, None], ended) - np.maximum(begun[:, None], begun)  # [requests, requests], s
    lasted = np.maximum(ended - begun, np.finfo(np.float64).tiny)
    return dict(zip(answered, (np.clip(shared, 0.0, None).sum(1) / lasted).tolist(), strict=True))


def timing(completion: Completion, concurrency: float) -> ArmTiming:
    """The latency of one answer, by this process's clock: from the first attempt on, as a client waits for it.

    Failed attempts and the server's queue are included, because speculation can cause both.  No server reports the
    parts of a step (drafting, verifying), so that all of the decoding is "other".
    """
    waited_ms = 1e3 * completion.waited_s
    decode_ms = 1e3 * (completion.last_token_s - completion.first_token_s)
    return ArmTiming(
        queue_ms=waited_ms + (completion.queue_ms or 0.0),
        prefill_ms=waited_ms + 1e3 * (completion.first_token_s - completion.sent_s),
        decode_ms=decode_ms,
        other_ms=decode_ms,
        num_output_tokens=completion.num_output_tokens,
        concurrency=concurrency,
        longest_gap_ms=None if completion.longest_gap_s is None else 1e3 * completion.longest_gap_s,
    )
