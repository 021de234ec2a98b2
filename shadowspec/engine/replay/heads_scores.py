"""Teacher-forced scores of heads that draft from the target's hidden states, by the start of the step and the depth.

The draft of heads depends on where the step started.  Given the response, a later token of a step is reached only if
the earlier drafted tokens equal the response's: so every start's chain is fed the response.  The target is run over
each response once more for its hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shadowspec.engine.forward import FINAL, HiddenStates
from shadowspec.engine.heads import StagedHeads
from shadowspec.engine.heads.eagle3 import Eagle3Draft
from shadowspec.engine.kv_cache import ColumnSpan, RaggedCache
from shadowspec.engine.replay.law import StepChances
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import Budget
from shadowspec.engine.runner import Runner
from shadowspec.engine.sampling import BatchSampling, greedy_tokens

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StartScores:
    """The heads' scores of the tokens of one response, [tokens, depth]: entry [s, m] is of y[s + m] in a step from s.

    Entries past the end of the response, and the first row, whose token no head drafts, are not filled.
    """

    probs: Reals | None  # of the distribution that is sampled; None: not asked for
    is_best: npt.NDArray[np.bool_]  # the token is the arg-max after penalties


@torch.inference_mode()
def start_scores(
    target: Any,
    heads: StagedHeads | Eagle3Draft,
    responses: Sequence[Response],
    end_token_ids: frozenset[int],
    depth: int,
    *,
    with_probs: bool,
    budget: Budget | None = None,
) -> list[StartScores]:
    """Score every token of every response for every start of a step.

    Args:
        target: transformers' or a `DirectLlama`.
        depth: the most tokens that a step proposes; at most the number of heads.
        with_probs: compute the probabilities of sampled responses; those of greedy ones are never computed.

    Returns:
        In the order of the responses.
    """
    budget = budget or Budget()
    return [_score(target, heads, response, end_token_ids, depth, with_probs, budget) for response in responses]


def start_chances(
    responses: Sequence[Response], scores: Sequence[StartScores], target_probs: Sequence[Reals | None], depth: int
) -> StepChances:
    """The chances of acceptance.

    Args:
        target_probs: of each response's tokens, [tokens], where the rule looks at probabilities; else None.
        depth: as wide as the result is to be; where the heads are fewer, no more than they are is proposed.
    """
    lengths = np.array([len(response.output) for response in responses], dtype=np.int64)
    width, own_depth = int(lengths.max(initial=0)), scores[0].is_best.shape[1] if scores else depth
    accept = np.zeros((len(responses), width, depth))
    for row, (start_scores, probs) in enumerate(zip(scores, target_probs, strict=True)):
        chances: Reals = start_scores.is_best.astype(np.float64)
        if probs is not None:
            assert start_scores.probs is not None, "rejection was asked for without the draft's probabilities"
            places = np.minimum(np.arange(len(probs))[:, None] + np.arange(own_depth), len(probs) - 1)
            chances = np.minimum(1.0, start_scores.probs / probs[places])
        accept[row, : lengths[row], :own_depth] = chances
    return StepChances(accept, np.full((len(responses), width), own_depth, dtype=np.int64), lengths)


def _score(
    target: Any,
    heads: StagedHeads | Eagle3Draft,
    response: Response,
    end_token_ids: frozenset[int],
    depth: int,
    with_probs: bool,
    budget: Budget,
) -> StartScores:
    device: torch.device = target.device
    request, output = response.request, response.output
    is_best = np.zeros((len(output), depth), dtype=np.bool_)
    with_probs = with_probs and request.sampling.temperature > 0.0
    probs = np.zeros((len(output), depth)) if with_probs else None
    vocabulary = int(target.config.vocab_size)
    text = torch.tensor([*request.prompt, *output, *[0] * depth], device=device)
    chains = _chains(target, heads, response, text, budget)
    ends = sorted(request.end_ids(end_token_ids))
    # A row is a start: as many as the budget has logits for, and for an EAGLE draft copies of its cache.
    rows = max(1, min(budget.logits // vocabulary, budget.tokens // len(text)))
    for first in range(1, len(output), rows):
        starts = torch.arange(first, min(len(output), first + rows), device=device)
        count = len(starts)
        sampling = BatchSampling(
            [request.sampling] * count, [request.prompt] * count, [ends] * count, vocabulary, device
        )
        if sampling.has_penalties:
            sampling.note_emitted([output[: first + row] for row in range(count)])
        following = text[len(request.prompt) + starts[:, None] + torch.arange(depth, device=device)]  # [rows, depth]
        for ahead, logits in enumerate(chains.logits(starts, following)):
            processed = sampling.draft_logits(logits, following[:, :ahead], starts)
            chosen = following[:, ahead]
            is_best[first : first + count, ahead] = (greedy_tokens(processed) == chosen).cpu().numpy()
            if probs is not None:
                chosen_prob = sampling.chosen_probs(processed[:, None], chosen[:, None])[:, 0]
                probs[first : first + count, ahead] = chosen_prob.double().cpu().numpy()
    return StartScores(probs, is_best)


def _chains(
    target: Any, heads: StagedHeads | Eagle3Draft, response: Response, text: torch.Tensor, budget: Budget
) -> _StagedChains | _EagleChains:
    """The heads with the target's hidden states over the response; `text` int64, the token of each position."""
    prompt = response.request.prompt
    wanted = heads.hidden if isinstance(heads, Eagle3Draft) else HiddenStates((FINAL,), of_prompt=False)
    before, stop = len(prompt) - 1, len(prompt) + len(response.output) - 1
    runner = Runner(target, 1, stop + 1, wanted)
    # As when scoring: the prompt's last token goes in with the response.
    runner.prefill([prompt[:-1] or prompt])
    parts = [runner.hidden_states[:, :before]] if wanted.of_prompt and runner.hidden_states is not None else []
    columns = max(1, budget.logits // int(target.config.vocab_size))
    for start in range(before, stop, columns):
        tokens = text[None, start : min(stop, start + columns)]
        runner.step(tokens, torch.tensor([start], device=text.device), start, keep=tokens.shape[1])
        assert runner.hidden_states is not None, "they were asked for"
        parts.append(runner.hidden_states)
    hidden = torch.cat(parts, 1)
    if isinstance(heads, Eagle3Draft):
        return _EagleChains(heads, hidden, text, len(prompt))
    return _StagedChains(heads, hidden[0], text[len(prompt) - 1 :])


class _StagedChains:
    """Medusa's and mlp_speculator's: from the hidden state that made the token before the start."""

    def __init__(self, heads: StagedHeads, final: torch.Tensor, following: torch.Tensor) -> None:
        """`final`: [tokens, hidden], row i gave y[i]; `following`: int64, entry i + 1 is y[i]."""
        self._heads, self._final, self._following = heads, final, following

    def logits(self, starts: torch.Tensor, following: torch.Tensor) -> Iterator[torch.Tensor]:
        """Logits of every depth, [rows, vocabulary], of steps from `starts` (int64 [rows]) that draft `following`."""
        depth = following.shape[1]
        state, tokens = self._heads.start(self._final[starts - 1], depth), self._following[starts]
        for ahead in range(depth):
            logits, state = self._heads.stage(ahead, state, tokens)
            yield logits
            tokens = following[:, ahead]


class _EagleChains:
    """EAGLE's: each start continues from a copy of the entries before it."""

    def __init__(self, draft: Eagle3Draft, hidden: torch.Tensor, text: torch.Tensor, prompt_tokens: int) -> None:
        """`hidden`: [1, positions, size] of the target's; `text`: int64, the token of each position."""
        self._draft, self._prompt_tokens = draft, prompt_tokens
        self._capacity = len(text)
        count = hidden.shape[1]
        self._entries = RaggedCache(1, 1, self._capacity, text.device)
        span = ColumnSpan.after(torch.zeros(1, dtype=torch.int64, device=text.device), 0, count, hidden.dtype)
        mask = self._entries.begin_step(span, 0, count)
        tokens = text[None, 1 : count + 1]
        self._states = draft.forward(tokens, draft.fuse(hidden), draft.angles(span.columns), mask, self._entries)

    def logits(self, starts: torch.Tensor, following: torch.Tensor) -> Iterator[torch.Tensor]:
        """As `_StagedChains.logits`."""
        draft, (rows, depth) = self._draft, following.shape
        places = self._prompt_tokens + starts - 1  # the first entry of each chain that has a draft's state
        states = self._states[0, places - 1][:, None]
        yield draft.logits(states[:, 0])
        cache = RaggedCache(1, rows, self._capacity, starts.device)
        entries = self._entries.layers[0].states.expand(rows, -1, -1, -1)
        heads = entries.shape[1] // 2
        cache.layers[0].lazy_initialization(entries[:, :heads], entries[:, heads:])
        cache.layers[0].states.copy_(entries)
        span = ColumnSpan.after(places, int(places[-1]), depth, states.dtype)
        angles = draft.angles(span.columns)
        for ahead in range(depth - 1):
            mask = cache.begin_step(span, ahead, ahead + 1)
            states = draft.forward(following[:, ahead, None], states, angles[:, ahead : ahead + 1], mask, cache)
            yield draft.logits(states[:, 0])
