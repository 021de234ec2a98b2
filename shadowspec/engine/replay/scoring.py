"""Teacher-forced scores of responses: what a model would have made of every token, given those before it.

Responses of like kind and length share a batch, of at most `TOKENS_PER_BATCH` padded tokens of prompt and response,
and logits are made for so many positions at a time as fit into `LOGITS_PER_PASS`, so that memory depends on neither
the number of responses nor, but for one position a row, on their length and the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.replay.responses import Response
from shadowspec.engine.runner import Runner
from shadowspec.engine.sampling import BatchSampling, greedy_tokens
from shadowspec.types import SamplingParameters

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels

TOKENS_PER_BATCH: Final = 16_384  # padded; what the key-value cache of a batch holds at most, one long row excepted
# On a CPU more tokens at once give nothing: fewer of more equal length, whose states stay in its caches, take 3/4 of
# the time.
TOKENS_PER_THREAD: Final = 1_024
LOGITS_PER_PASS: Final = 2**25  # float32 entries, 128 MB; of sampled rows some five such tensors live at once


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What a model makes of the tokens of one response under its sampling parameters; [tokens] each."""

    probs: npt.NDArray[np.float64] | None  # of the distribution that is sampled; None: not asked for
    is_best: npt.NDArray[np.bool_]  # the token is the arg-max after penalties, what a greedy draft proposes
    gaps: npt.NDArray[np.float64]  # from the highest logit down to the token's, after penalties


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is in memory at a time."""

    tokens: int = TOKENS_PER_BATCH
    logits: int = LOGITS_PER_PASS

    @classmethod
    def of(cls, device: torch.device) -> Budget:
        """What is fastest on a device."""
        if device.type != "cpu":
            return cls()
        return cls(tokens=min(TOKENS_PER_BATCH, TOKENS_PER_THREAD * torch.get_num_threads()))


@torch.inference_mode()
def token_scores(
    model: Any,
    responses: Sequence[Response],
    end_token_ids: frozenset[int],
    *,
    with_probs: bool,
    budget: Budget | None = None,
    kernels: Kernels | None = None,
) -> list[TokenScores]:
    """Score every token of every response.

    With `kernels`, responses whose distribution is the softmax of the model's own logits are scored straight from the
    hidden states, in float32 whatever the dtype of the logits, of models that can hand them out.

    Args:
        model: transformers' or a `DirectLlama`.
        responses: with their requests, whose sampling parameters apply.
        end_token_ids: those that end the target's texts, which minimum length forbids.
        with_probs: whether the probabilities of sampled responses are wanted; those of greedy ones never are.
        budget: None: what is fastest on the model's device.

    Returns:
        In the order of the responses.
    """
    budget = budget or Budget.of(model.device)
    vocabulary = int(model.config.vocab_size)
    can_fuse = kernels is not None and type(model) is DirectLlama
    fused: list[int] = []
    others: list[int] = []
    for row, response in enumerate(responses):
        (fused if can_fuse and _is_plain(response.request.sampling, vocabulary) else others).append(row)
    scores: dict[int, TokenScores] = {}
    for own in (fused, others):
        for places in packed([responses[row] for row in own], budget.tokens):
            rows = [own[place] for place in places]
            batch = [responses[row] for row in rows]
            if own is fused:
                assert kernels is not None, "only they fuse"
                found = _fused_scores(model, batch, with_probs, budget.logits, kernels)
            else:
                found = _batch_scores(model, batch, end_token_ids, with_probs, budget.logits)
            scores.update(zip(rows, found, strict=True))
    return [scores[row] for row in range(len(responses))]


def _is_plain(own: SamplingParameters, vocabulary: int) -> bool:
    """Whether the model's logits at a temperature are all that these parameters look at."""
    return not (own.is_penalised or own.truncates(vocabulary) or own.min_tokens > 0)


def packed(responses: Sequence[Response], tokens: int) -> Iterator[list[int]]:
    """Indices of responses to score together: greedy and sampled apart, prompts of like length together."""

    def kind(index: int) -> tuple[bool, int, int]:
        response = responses[index]
        return response.request.sampling.temperature > 0.0, len(response.request.prompt), len(response.output)

    rows: list[int] = []
    is_sampled, longest_output = False, 0
    for index in sorted(range(len(responses)), key=kind):
        sampled, prompt, output = kind(index)
        widest = prompt + max(longest_output, output)  # prompts only grow
        if rows and (sampled != is_sampled or widest * (len(rows) + 1) > tokens):
            yield rows
            rows, longest_output = [], 0
        rows.append(index)
        is_sampled, longest_output = sampled, max(longest_output, output)
    if rows:
        yield rows


def _batch_scores(
    model: Any, batch: Sequence[Response], end_token_ids: frozenset[int], with_probs: bool, logits_per_pass: int
) -> list[TokenScores]:
    device: torch.device = model.device
    vocabulary = int(model.config.vocab_size)
    sampling = BatchSampling(
        [response.request.sampling for response in batch],
        [response.request.prompt for response in batch],
        [sorted(response.request.end_ids(end_token_ids)) for response in batch],
        vocabulary,
        device,
    )
    forced = Forced(model, batch)
    columns = max(1, logits_per_pass // (len(batch) * vocabulary))
    with_probs = with_probs and not sampling.all_greedy
    probs, bests, gaps = [], [], []
    for start in range(0, forced.width, columns):
        logits, tokens = forced.step(start, columns)
        chosen = tokens[:, :, None]  # [rows, columns, 1]
        emitted = torch.full((len(batch),), start, device=device)
        processed = sampling.processed_logits(logits, tokens, emitted)
        bests.append(greedy_tokens(processed) == chosen[..., 0])
        gaps.append((processed.amax(-1) - processed.gather(-1, chosen)[..., 0]).double())
        if with_probs:
            probs.append(sampling.probs(processed).gather(-1, chosen)[..., 0].double())
        sampling.note_emitted([response.output[start : start + columns] for response in batch])
    return _by_response(batch, bests, gaps, probs if with_probs else None)


def _fused_scores(
    model: DirectLlama, batch: Sequence[Response], with_probs: bool, entries_per_pass: int, kernels: Kernels
) -> list[TokenScores]:
    """The same for responses whose parameters are plain: rows x vocabulary is never made."""
    forced, head = Forced(model.without_head(), batch), model.head_weight()
    # What grows with the columns is the attention's mask.
    columns = max(1, entries_per_pass // (len(batch) * forced.capacity))
    given = [response.request.sampling.temperature for response in batch]
    with_probs = with_probs and any(given)
    temperature = torch.tensor([own or 1.0 for own in given], dtype=torch.float32, device=head.device)
    probs, bests, gaps = [], [], []
    for start in range(0, forced.width, columns):
        states, tokens = forced.step(start, columns)  # [rows, columns, hidden], int64 [rows, columns]
        scales = temperature[:, None].expand(tokens.shape)
        scored = kernels.score(states.flatten(0, 1), head, tokens.flatten(), scales.flatten())
        bests.append(scored.best_tokens.view(tokens.shape) == tokens)
        gaps.append(((scored.best_log_probs - scored.log_probs).view(tokens.shape) * scales).double())
        probs.append(scored.log_probs.view(tokens.shape).double().exp())
    return _by_response(batch, bests, gaps, probs if with_probs else None)


class Forced:
    """A batch of responses forced through a model, some columns at a time."""

    def __init__(self, model: Any, batch: Sequence[Response]) -> None:
        device: torch.device = model.device
        prompts = [response.request.prompt for response in batch]
        self.width = max(len(response.output) for response in batch)
        padded = [[*response.output, *[0] * (self.width - len(response.output))] for response in batch]
        self._outputs = torch.tensor(padded, device=device)  # [rows, width]
        lasts = torch.tensor([prompt[-1] for prompt in prompts], device=device)
        self._inputs = torch.cat((lasts[:, None], self._outputs[:, :-1]), 1)  # column i is followed by output i
        self.capacity = max(len(prompt) for prompt in prompts) + self.width
        self._runner = Runner(model, len(batch), self.capacity)
        # The last token of a prompt goes in with the response; where it is the only one its place is written twice.
        self._runner.prefill([prompt[:-1] or prompt for prompt in prompts])
        self._before = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        self._longest = max(len(prompt) for prompt in prompts) - 1

    def step(self, start: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the model makes of the next columns, [rows, columns, ...], and the tokens that come, int64."""
        stop = min(self.width, start + columns)
        given = self._inputs[:, start:stop]
        made = self._runner.step(given, self._before + start, self._longest + start, keep=stop - start)
        return made, self._outputs[:, start:stop]


def _by_response(
    batch: Sequence[Response],
    bests: Sequence[torch.Tensor],
    gaps: Sequence[torch.Tensor],
    probs: Sequence[torch.Tensor] | None,
) -> list[TokenScores]:
    """Scores of each response, from those of all columns, [rows, columns] each."""
    every_best, every_gap = torch.cat(list(bests), 1).cpu().numpy(), torch.cat(list(gaps), 1).cpu().numpy()
    every_prob = torch.cat(list(probs), 1).cpu().numpy() if probs is not None else None
    return [
        TokenScores(
            every_prob[row, : len(response.output)] if every_prob is not None else None,
            every_best[row, : len(response.output)],
            every_gap[row, : len(response.output)],
        )
        for row, response in enumerate(batch)
    ]
