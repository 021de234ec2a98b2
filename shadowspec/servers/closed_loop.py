"""One arm of a block through one server: a closed loop with as many requests in flight as the load."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

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
    return await run_conversations(client, [[request] for request in requests], slots, salt)


async def run_conversations(
    client: ServerClient,
    conversations: Sequence[Sequence[ServerRequest]],
    slots: int,
    salt: str,
    *,
    shares_prefix: bool = False,
) -> tuple[Outcome, ...]:
    """Every request's answer or fault, in the order given; the next one is sent as soon as one has ended.

    A slot sends the turns of one conversation after the other, then takes the next conversation.  With
    `shares_prefix` they are salted alike: the first one finds nothing in the server's prefix cache, the later ones may
    find those before them.
    """
    outcomes: dict[tuple[int, int], Outcome] = {}
    waiting = iter(enumerate(conversations))

    async def serve_slot() -> None:
        for index, turns in waiting:  # shared by all slots: nothing waits between taking a request and sending it
            for turn, request in enumerate(turns):
                try:
                    outcomes[index, turn] = await client.complete(request, f"{salt}-{index}", is_turn=shares_prefix)
                except ServerError as fault:
                    outcomes[index, turn] = fault

    async with asyncio.TaskGroup() as group:
        for _ in range(slots):
            group.create_task(serve_slot())
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
