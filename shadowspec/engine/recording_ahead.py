"""Recording what an arm's steps will run, before its time is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shadowspec.engine.batch import Request, needed_capacity
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.static_passes import Reach, StaticPasses

# What a draft model is given, and how much of it is kept: the last two tokens at first, then each that it drafted.
DRAFT_COUNTS = ((2, 1), (1, 1))


def record_ahead(target: LoadedModel, candidate: Candidate | None, requests: Sequence[Request], slots: int) -> int:
    """Record the passes that decoding the requests may need, so many at a time, where passes are recorded.

    Args:
        candidate: None: the baseline arm.

    Returns:
        Bytes that these passes, their buffers and their caches hold, which stay from batch to batch.
    """
    depth = candidate.config.config.num_speculative_tokens if candidate is not None else 0
    reach = Reach(
        min(slots, len(requests)),
        min(len(request.prompt) for request in requests),
        needed_capacity(requests, depth),
    )
    held = 0
    for passes, counts, layers in _needed(target, candidate, depth):
        passes.prepare(reach, counts, layers)
        held += passes.bytes_for(reach, counts)
    return held


def _needed(
    target: LoadedModel, candidate: Candidate | None, depth: int
) -> Iterator[tuple[StaticPasses, Sequence[tuple[int, int]], tuple[int, ...]]]:
    """Recorded passes with what they will be given: new tokens and how many are kept, and the layers handed out."""
    if target.passes is not None:
        hidden = candidate.proposer().hidden if candidate is not None else None
        verified = candidate.num_verified() if candidate is not None else (1,)
        yield target.passes, [(count, count) for count in verified], hidden.layers if hidden is not None else ()
    if candidate is not None and isinstance(candidate.draft, LoadedModel) and candidate.draft.passes is not None:
        yield candidate.draft.passes, DRAFT_COUNTS[:depth], ()
