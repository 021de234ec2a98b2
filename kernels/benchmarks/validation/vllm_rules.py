"""What vLLM does otherwise than we do, reproduced: how it looks up n-grams, and what its drafts are sampled from.

**N-grams.**  Of all earlier occurrences of the longest matching suffix vLLM copies what followed the *earliest*
(`vllm/v1/spec_decode/ngram_proposer.py`, which keeps the last position of the reversed text that matches as long);
our proposer copies what followed the latest.

**Sampled drafts** (`draft_sample_method` "probabilistic").  vLLM samples drafts from the draft's softmax at the
request's temperature and from nothing else (`compute_probs_and_sample_next_token`): top-p, top-k and min-p cut the
target's distribution alone.  Ours cut both.  Both are lossless; theirs accepts less where something is cut.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from msgspec import structs

from shadowspec.engine.batch import Batch, Request
from shadowspec.engine.kv_cache import Span
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.replay.law import StepChances
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import SamplingParameters


def earliest_lookup(tokens: npt.NDArray[np.int64], shortest: int, longest: int, count: int) -> npt.NDArray[np.int64]:
    """Up to `count` tokens that followed the earliest occurrence of the longest suffix that occurs earlier.

    Arguments and result are those of `proposers.ngram.lookup`.
    """
    length = len(tokens)
    for size in range(min(longest, length - 1), shortest - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)  # all but the suffix itself
        matches = np.flatnonzero((windows == tokens[length - size :]).all(axis=1))
        if len(matches):
            start = int(matches[0]) + size
            return tokens[start : start + count]
    return tokens[:0]


def earliest_chances(responses: Sequence[Response], shortest: int, longest: int, depth: int) -> StepChances:
    """`replay.acceptance.lookup_chances` with vLLM's lookup."""
    lengths = np.array([len(response.output) for response in responses], dtype=np.int64)
    width = int(lengths.max(initial=0))
    accept = np.zeros((len(responses), width, depth))
    proposed = np.zeros((len(responses), width), dtype=np.int64)
    for row, response in enumerate(responses):
        tokens = np.array((*response.request.prompt, *response.output), dtype=np.int64)
        for place in range(len(response.output)):
            now = len(response.request.prompt) + place
            found = earliest_lookup(tokens[:now], shortest, longest, depth)
            proposed[row, place] = len(found)
            ahead = tokens[now : now + len(found)]
            accept[row, place, : len(ahead)] = found[: len(ahead)] == ahead
    return StepChances(accept, proposed, lengths)


def without_truncation(sampling: SamplingParameters) -> SamplingParameters:
    """What vLLM samples a draft by, of the parameters that truncate: temperature alone."""
    return structs.replace(sampling, top_p=1.0, top_k=0, min_p=0.0)


def untruncated(response: Response) -> Response:
    """The response as vLLM's draft is held against it."""
    request = response.request
    return replace(response, request=Request(request.prompt, without_truncation(request.sampling), request.seed))


class UntruncatedDraftProposer(DraftModelProposer):
    """Drafts by sampling the draft's softmax at the request's temperature, whatever truncates the target."""

    def propose(self, batch: Batch, span: Span) -> Proposal:
        view = copy.copy(batch)
        view.sampling = copy.copy(batch.sampling)
        view.sampling.has_top_p = view.sampling.has_top_k = view.sampling.has_min_p = False
        return super().propose(view, span)
