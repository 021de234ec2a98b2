"""The chance that each token of a logged response is accepted, and whether the response can be the target's at all.

Given the response, of which y is the i-th token, it is accepted where it is drafted with probability

| rule | request | chance |
|---|---|---|
| `rejection` | sampled | min(1, draft(y) / target(y)) |
| `greedy_draft`, `exact_match` | sampled | 1 if y is the draft's arg-max, else 0 |
| any | temperature 0 | 1 if y is the draft's arg-max, else 0 |
| any | any, looked up (n-gram, suffix) | 1 if y is the token proposed, else 0 |

for P(y emitted and accepted) is min(target(y), draft(y)), and target(y) times the chance that a draft certain of its
token proposes y.  The target's distribution is that after penalties, temperature and truncation, the draft's too unless
token proposes y.  The target's distribution is that after penalties, temperature and truncation.  So is the draft's,
unless its `draft_sampling` is only by temperature.

The draft by suffix depends on where a step starts and, unlike prompt lookup, on the largest number of tokens that it
may propose: a smaller number may come from another match.  So every number of speculative tokens is drafted separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowspec.engine.proposers.suffix import SuffixOptions, SuffixText
from shadowspec.engine.proposers.suffix_automaton import SuffixAutomaton
from shadowspec.engine.replay.law import StepChances
from shadowspec.engine.replay.response_tokens import Response, refusal_error
from shadowspec.engine.replay.scoring import TokenScores
from shadowspec.types import LogprobsMode, NgramOccurrence, SamplingParameters, VerifyRule

Reals = npt.NDArray[np.float64]


def check_target(response: Response, scores: TokenScores, near_tie_logit: float) -> int:
    """Whether the target, as it is processed here, can have given the response.

    Args:
        scores: the target's, with probabilities if the request is sampled.
        near_tie_logit: how far below the highest logit a greedy token may lie for rounding to have chosen it.

    Returns:
        Tokens of a greedy response that are not the arg-max, each within `near_tie_logit` of it.

    Raises:
        RecordError: unsupported, "not_argmax" or "zero_probability".
    """
    if response.request.sampling.temperature == 0.0:
        if len(far := np.flatnonzero(~scores.is_best & (scores.gaps > near_tie_logit))):
            raise refusal_error(
                response.key,
                "not_argmax",
                f"output token {far[0]} is not the target's arg-max but {scores.gaps[far[0]]:.3g} below it, and the "
                "request is greedy. Another model, revision, chat template or sampling gave this response",
            )
        return int((~scores.is_best).sum())
    assert scores.probs is not None, "a sampled response was scored without probabilities"
    _check_possible(response, scores.probs)
    return 0


def _check_possible(response: Response, target_probs: Reals) -> None:
    """Refuse a response one of whose tokens the target never draws; `target_probs` [tokens]."""
    if len(impossible := np.flatnonzero(~(target_probs > 0.0))):
        raise refusal_error(
            response.key,
            "zero_probability",
            f"output token {impossible[0]} has probability 0 under the target with the stated sampling: another "
            "model, revision, chat template or sampling gave this response",
        )


def logged_target_probs(response: Response, mode: LogprobsMode) -> Reals:
    """The target's probabilities of the response's tokens, from the logprobs that the server gave with it; [tokens].

    Raises:
        RecordError: unsupported; "no_logprobs", "raw_logprobs" or "zero_probability".
    """
    logprobs = response.token_logprobs
    if logprobs is None or len(logprobs) != len(response.output):
        raise refusal_error(
            response.key, "no_logprobs", "the record does not hold a logprob of every token of the response"
        )
    if mode is LogprobsMode.RAW and not _is_unprocessed(response.request.sampling):
        raise refusal_error(
            response.key,
            "raw_logprobs",
            "its logprobs are of the distribution before temperature, truncation and penalties, and the request has "
            "some of these. Only a server that logs processed logprobs can be replayed without the target",
        )
    probs: Reals = np.exp(np.minimum(np.array(logprobs), 0.0))
    _check_possible(response, probs)
    return probs


def _is_unprocessed(sampling: SamplingParameters) -> bool:
    """Whether the sampled distribution is the softmax of the model's logits."""
    return (
        sampling.temperature == 1.0
        and sampling.top_p >= 1.0
        and sampling.top_k == 0
        and sampling.min_p == 0.0
        and not sampling.is_penalised
        and sampling.min_tokens == 0
    )


def needs_probs(rule: VerifyRule, response: Response) -> bool:
    """Whether the rule uses probabilities of this response's tokens, and not only the draft's arg-max."""
    return rule is VerifyRule.REJECTION and response.request.sampling.temperature > 0.0


def prefix_accept(rule: VerifyRule, response: Response, draft: TokenScores, target_probs: Reals | None) -> Reals:
    """The chance of each token for a draft model; [tokens].

    Args:
        rule: how sampled requests are verified.
        draft: the draft's scores.
        target_probs: [tokens]; not looked at unless `needs_probs`.
    """
    if not needs_probs(rule, response):
        return draft.is_best.astype(np.float64)
    assert draft.probs is not None, "rejection was asked for without the draft's probabilities"
    assert target_probs is not None, "rejection was asked for without the target's probabilities"
    chances: Reals = np.minimum(1.0, draft.probs / target_probs)
    return chances


def lookup_chances(
    responses: Sequence[Response],
    shortest: int,
    longest: int,
    depth: int,
    occurrence: NgramOccurrence = NgramOccurrence.LATEST,
) -> StepChances:
    """Of prompt lookup: a step proposes the result of `proposers.ngram.lookup` at its start.

    Args:
        shortest, longest, occurrence: as `lookup` takes them.
        depth: the most tokens that a step proposes.
    """
    lengths = np.array([len(response.output) for response in responses], dtype=np.int64)
    width = int(lengths.max(initial=0))
    accept = np.zeros((len(responses), width, depth))
    proposed = np.zeros((len(responses), width), dtype=np.int64)
    for row, response in enumerate(responses):
        prompt, output = response.request.prompt, response.output
        tokens = (*prompt, *output)
        is_followed = occurrence is NgramOccurrence.LATEST_FOLLOWED
        is_filled = occurrence is NgramOccurrence.LATEST_FILLED
        starts = _proposal_starts(tokens, len(prompt), shortest, longest, occurrence)
        for place, found_at in enumerate(starts):
            now = len(prompt) + place
            if found_at is None and not is_filled:
                continue
            start, size = found_at or (now, 0)
            draft = tokens[start : min(start + depth, now - is_followed)]
            if is_filled:
                draft = (*draft, *tokens[now - 1 : now] * (depth - len(draft)))
            if is_followed and (len(draft) < size or now <= size + depth + 2):
                continue
            proposed[row, place] = len(draft)
            for ahead, token in enumerate(draft[: len(tokens) - now]):
                accept[row, place, ahead] = token == tokens[now + ahead]
    return StepChances(accept, proposed, lengths)


def _proposal_starts(
    tokens: Sequence[int], first: int, shortest: int, longest: int, occurrence: NgramOccurrence
) -> list[tuple[int, int] | None]:
    """For every position from `first` on, given the tokens before it, where prompt lookup begins to copy, and how many
    tokens it found again.

    The places that followed each run of tokens are noted as they are passed, so that a response costs as much as it is
    long and not its square.
    """
    is_first, is_followed = (occurrence is kind for kind in (NgramOccurrence.EARLIEST, NgramOccurrence.LATEST_FOLLOWED))
    places: list[dict[tuple[int, ...], int]] = [{} for _ in range(shortest, longest + 1)]
    starts: list[tuple[int, int] | None] = []
    for now in range(len(tokens)):
        if now >= first:
            sizes = range(min(longest, now - 1), shortest - 1, -1)
            earlier = ((places[size - shortest].get(tuple(tokens[now - size : now])), size) for size in sizes)
            starts.append(next(((start, size) for start, size in earlier if start is not None), None))
        end = now - is_followed  # an occurrence that a single token follows is found one position later
        for size in range(shortest, min(longest, end - is_followed) + 1):
            run, noted = tuple(tokens[end - size : end]), places[size - shortest]
            if not is_first or run not in noted:
                noted[run] = end
    return starts


Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SuffixSteps:
    """The step that may start at each token of one response, for each of the depths asked for."""

    proposed: Integers  # [depths, tokens]: tokens proposed
    borne_out: Integers  # [depths, tokens]: how many of them, from the first on, agree with the response


def suffix_steps(
    response: Response, options: SuffixOptions, recent: SuffixAutomaton | None, depths: Sequence[int]
) -> SuffixSteps:
    """Draft at every token of a response as the engine does there.

    Args:
            recent: the outputs before this one; None: without.
        depths: the most tokens that a step proposes.
    """
    output = response.output
    proposed, borne_out = np.zeros((2, len(depths), len(output)), dtype=np.int64)
    text = SuffixText(options, recent, response.request.prompt)
    for place, token in enumerate(output):
        for index, depth in enumerate(depths):
            draft = text.draft(depth)
            proposed[index, place] = len(draft)
            borne_out[index, place] = _num_equal(draft, output[place : place + len(draft)])
        text.extend((token,))
    return SuffixSteps(proposed, borne_out)


def _num_equal(drafted: Sequence[int], tokens: Sequence[int]) -> int:
    """Number of equal leading tokens; positions after the shorter one's end are unequal."""
    pairs = enumerate(zip(drafted, tokens, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(drafted), len(tokens)))


def suffix_chances(steps: Sequence[SuffixSteps], index: int, depth: int) -> StepChances:
    """The chances of responses at the depth with this index; positions after a mismatched token are not reached."""
    lengths = np.array([step.proposed.shape[1] for step in steps], dtype=np.int64)
    proposed, borne_out = np.zeros((2, len(steps), int(lengths.max(initial=0))), dtype=np.int64)
    for row, step in enumerate(steps):
        proposed[row, : lengths[row]] = step.proposed[index]
        borne_out[row, : lengths[row]] = step.borne_out[index]
    accept = (np.arange(depth) < borne_out[:, :, None]).astype(np.float64)
    return StepChances(accept, proposed, lengths)
