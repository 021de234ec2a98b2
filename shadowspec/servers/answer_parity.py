"""Whether greedy answers of two servers are equal, how near a tie the target was, and the scores of sampled ones.

The baseline server answers all of it, outside the timed arms.  To score a sampled output it is sent back as part of a
prompt, and the server returns the likeliest tokens at each of its places.  Those are before temperature and truncation,
which are applied here, as exactly as the number of tokens allows.  The baseline scores both arms' outputs: a server
that samples wrongly would also return wrong probabilities of its samples.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from shadowspec.metrics import ratio
from shadowspec.quality.outputs import first_divergence
from shadowspec.servers.client import ServerClient, fresh_salt
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.servers.top_token import likeliest_probs, num_needed
from shadowspec.types import Parity, SamplingParameters, SamplingRegime

MAX_SCORE_ERROR: Final = 0.2  # per token: the gate's clip of mean scores; above it there is no score
# Of a gap: log probabilities come in float32, and their difference may miss one step of bfloat16 (0.125) by 1e-7.
GAP_DIGITS: Final = 5
MAX_SUM: Final = 1.001  # of the probabilities reported of one place; a larger sum is no distribution


async def parity_of(
    client: ServerClient,
    request: ServerRequest,
    base: Completion,
    spec: Completion,
    score_logprobs: int,
    max_model_len: int | None,
    baseline_score: Callable[[], Awaitable[OutputScore | None]],
) -> Parity | None:
    """Where greedy answers diverge, how far from a tie, and whether the baseline diverges from itself; others' scores.

    None where a server returns no token ids.

    Args:
        client: of the baseline server.
        score_logprobs: number of likeliest tokens to request at each place of a sampled answer; 0: no score.
        max_model_len: the baseline server's limit.
        baseline_score: that of the baseline's output, which is the same for every candidate.
    """
    if base.token_ids is None or spec.token_ids is None:
        return None
    if request.sampling.regime is not SamplingRegime.GREEDY:
        speculative_score = await score(client, request, spec.token_ids, score_logprobs, max_model_len)
        if speculative_score is None:
            return Parity()
        plain = await baseline_score()
        return Parity(
            z_sum=speculative_score.total,
            z_tokens=speculative_score.tokens,
            baseline_z_sum=None if plain is None else plain.total,
            baseline_z_tokens=None if plain is None else plain.tokens,
            z_error=speculative_score.error,
        )
    position = first_divergence(base.token_ids, spec.token_ids)
    if position is None:
        return Parity()
    gap = await top_two_gap(client, request, base.token_ids[:position])
    is_masked = request.constraint is not None
    try:
        alone = await client.complete(replace(request, num_logprobs=2) if is_masked else request, fresh_salt())
    except ServerError:
        return Parity(first_divergence=position, divergence_gap=gap)
    if is_masked and client.engine.reports_masked_places:
        gap = masked_gap(alone, base.token_ids[:position], request.sampling)
    return Parity(position, gap, rerun_differs=alone.token_ids != base.token_ids)


def masked_gap(alone: Completion, output: tuple[int, ...], sampling: SamplingParameters) -> float | None:
    """The top-2 gap after `output` under the mask, from an answer that begins with it; None if it is not reported.

    Generated tokens are reported after the mask, and before penalties and the minimum length.
    """
    position = len(output)
    ids, reported = alone.token_ids or (), alone.place_logprobs
    if sampling.is_penalised or position < sampling.min_tokens:
        return None
    if ids[:position] != output or len(reported) != len(ids) or position >= len(ids) or len(reported[position]) < 2:
        return None
    return _gap(reported[position])


async def top_two_gap(client: ServerClient, request: ServerRequest, output: tuple[int, ...]) -> float | None:
    """The target's top-2 logit gap after `output`, as a difference of log probabilities; None if it is not reported.

    Servers report log probabilities before penalties and minimum length, so that with these the gap is unknown.  A
    grammar would begin again after the output so far (`masked_gap`).
    """
    if request.is_adjusted or len(output) < request.sampling.min_tokens:
        return None
    sampling = SamplingParameters(temperature=0.0, max_tokens=1, ignore_eos=True)
    asked = ServerRequest((*request.prompt_token_ids, *output), sampling, request.seed, num_logprobs=2)
    try:
        first = (await client.complete(asked, fresh_salt())).first_logprobs
    except ServerError:
        return None
    return _gap(first) if len(first) > 1 else None


def _gap(falling: Sequence[float]) -> float:
    return round(falling[0] - falling[1], GAP_DIGITS)


@dataclass(frozen=True, slots=True)
class OutputScore:
    """Sum over an output's tokens y of 1[y = likeliest] - processed probability of the likeliest, within `error`."""

    total: float
    tokens: int
    error: float


@dataclass(frozen=True, slots=True)
class ReportedPlace:
    """One place as the server reports it: log probabilities of the likeliest tokens, falling; is its token the first?

    Among equally likely ones the lowest id counts as the likeliest, whichever was drawn.
    """

    logprobs: tuple[float, ...]
    is_likeliest: bool


class UnscorableError(Exception):
    """The server reported something other than requested."""


async def score(
    client: ServerClient, request: ServerRequest, output: Sequence[int], most: int, max_model_len: int | None
) -> OutputScore | None:
    """The score of an output of this request; None where the server reports too little.

    Args:
        most: number of likeliest tokens to request at each place.
        max_model_len: the server's limit; a last token that does not fit beside one to be generated is left out.
    """
    sampling = request.sampling
    if most == 0 or request.is_adjusted or sampling.min_tokens > 0:
        return None
    length = len(request.prompt_token_ids)
    kept = output if max_model_len is None else output[: max(0, max_model_len - 1 - length)]
    if not kept:
        return None
    number = num_needed(sampling, most)
    token_ids = (*request.prompt_token_ids, *kept)
    try:
        logprobs = await client.prompt_logprobs(token_ids, length, number, fresh_salt())
        return score_output(read_places(logprobs, kept, number), sampling)
    except (ServerError, UnscorableError):
        return None


async def can_score(client: ServerClient, token_ids: Sequence[int], most: int) -> bool:
    """Whether the server reports the log probabilities from which scores are computed."""
    try:
        logprobs = await client.prompt_logprobs(token_ids, 1, most, fresh_salt())
        return bool(read_places(logprobs, token_ids[1:], most))
    except (ServerError, UnscorableError):
        return False


def score_output(places: Sequence[ReportedPlace], sampling: SamplingParameters) -> OutputScore | None:
    """The score of an output from its reported places; None where the bounds lie too far apart."""
    low, high = likeliest_probs(np.array([place.logprobs for place in places]), sampling)
    hits = sum(place.is_likeliest for place in places)
    total, error = hits - float((low + high).sum()) / 2.0, float((high - low).sum()) / 2.0
    share = ratio(error, len(places))
    return None if share is None or share > MAX_SCORE_ERROR else OutputScore(total, len(places), error)


def read_places(
    logprobs: Sequence[Mapping[int, Any] | None], token_ids: Sequence[int], number: int
) -> list[ReportedPlace]:
    """The reported places of these tokens.

    Raises:
        UnscorableError: places are missing, more or fewer than requested, or without log probabilities.
    """
    return [_place(logprob, token_id, number) for logprob, token_id in zip(logprobs, token_ids, strict=True)]


def _place(logprobs: Mapping[int, Any] | None, token_id: int, number: int) -> ReportedPlace:
    """One place; the drawn token is reported beside the likeliest where it is not among them."""
    known = dict(logprobs or {})
    if token_id not in known or not all(map(_is_logprob, known.values())):
        raise UnscorableError("a place lacks the log probability of its token")
    if len(known) > number:
        if len(known) > number + 1:
            raise UnscorableError("a place has more tokens than requested")
        del known[token_id]
    if len(known) < number:
        raise UnscorableError("a place has fewer tokens than requested")
    falling = sorted(known.values(), reverse=True)
    if sum(map(math.exp, falling)) > MAX_SUM:
        raise UnscorableError("the reported values are not log probabilities: --logprobs-mode")
    likeliest = min(token for token, logprob in known.items() if logprob == falling[0])
    return ReportedPlace(tuple(falling), likeliest == token_id)


def _is_logprob(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value < MAX_SUM - 1.0
