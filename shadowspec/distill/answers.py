"""Further answers of the target to prompts of slices that are rare in the traffic.

A draft memorises a few responses that it sees again and again; the target generates different ones for the same
prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from shadowspec.distill.examples import Example
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import SamplingParameters, VerifyRule

MIN_TEMPERATURE: Final = 0.5  # that answers are drawn at: a greedy request's one answer is logged already
TIMES_AS_LONG: Final = 2  # limit of an answer's length over the logged one's: an endless answer would outweigh others
MAX_ROWS: Final = 64  # answered together
TOKENS_PER_BATCH: Final = 2**15  # of prompts and answers together, whose keys and values are held


def sample_answers(
    target: LoadedModel,
    examples: Sequence[Example],
    times: Mapping[str, int],
    *,
    context_length: int,
    seed: int,
    on_progress: Callable[[int, int], None],
) -> list[Response]:
    """Further answers to each example's prompt, so that with the logged one there are `times` at each place.

    Args:
        context_length: tokens of prompt and answer together, at most.
        seed: each answer's random numbers depend only on it, the record and the turn.
        on_progress: called with the answers so far and their total, after every batch.
    """
    wanted = [
        replace(example.response, request=_request(example.response, turn, context_length, seed))
        for example in examples
        for turn in range(1, times[example.place])
    ]
    found: list[Response] = []
    for batch in _batches(sorted(wanted, key=lambda response: len(response.request.prompt))):
        answers = decode_batch(
            target.model,
            [response.request for response in batch],
            proposer=None,
            num_speculative_tokens=0,
            verify_rule=VerifyRule.REJECTION,
            end_token_ids=target.end_token_ids,
            detokenize=target.tokenizer.decode,
            releases_slots=True,
        ).decoded
        found += [
            replace(response, output=answer.output, token_logprobs=None)
            for response, answer in zip(batch, answers, strict=True)
        ]  # fmt: skip
        on_progress(len(found), len(wanted))
    return found


def _request(logged: Response, turn: int, context_length: int, seed: int) -> Request:
    request, asked = logged.request, logged.request.sampling
    room = max(len(logged.output), context_length - len(request.prompt))
    sampling: SamplingParameters = structs.replace(
        asked,
        temperature=max(asked.temperature, MIN_TEMPERATURE),
        max_tokens=min(asked.max_tokens, TIMES_AS_LONG * len(logged.output), room),
    )
    digest = hashlib.sha256(f"{seed}\0{logged.key}\0{turn}".encode()).digest()
    return Request(request.prompt, sampling, int.from_bytes(digest[:8], "big"))


def _batches(ordered: Sequence[Response]) -> Iterator[list[Response]]:
    """Runs of responses that may be answered together: rows times the longest is bounded."""
    batch: list[Response] = []
    longest = 0
    for response in ordered:
        longest = max(longest, len(response.request.prompt) + response.request.sampling.max_tokens)
        if batch and (len(batch) == MAX_ROWS or (len(batch) + 1) * longest > TOKENS_PER_BATCH):
            yield batch
            batch, longest = [], len(response.request.prompt) + response.request.sampling.max_tokens
        batch.append(response)
    if batch:
        yield batch
