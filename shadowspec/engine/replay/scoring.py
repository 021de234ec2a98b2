"""Teacher-forced scores of responses: what a model would have made of every token, given those before it.

Responses of like kind and length share a batch, of at most `TOKENS_PER_BATCH` padded tokens of prompt and response,
and logits are made for so many positions at a time as fit into `LOGITS_PER_PASS`, so that memory depends on neither
the number of responses nor, but for one position a row, on their length and the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from shadowspec.engine.replay.responses import Response
from shadowspec.engine.runner import Runner
from shadowspec.engine.sampling import BatchSampling, greedy_tokens

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
) -> list[TokenScores]:
    """Score every token of every response.

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
    scores: dict[int, TokenScores] = {}
    for rows in packed(responses, budget.tokens):
        batch = [responses[row] for row in rows]
        scores.update(zip(rows, _batch_scores(model, batch, end_token_ids, with_probs, budget.logits), strict=True))
    return [scores[row] for row in range(len(responses))]


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
    prompts = [response.request.prompt for response in batch]
    width = max(len(response.output) for response in batch)
    sampling = BatchSampling(
        [response.request.sampling for response in batch],
        prompts,
        [sorted(response.request.end_ids(end_token_ids)) for response in batch],
        vocabulary,
        device,
    )
    padded = [[*response.output, *[0] * (width - len(response.output))] for response in batch]
    outputs = torch.tensor(padded, device=device)  # [rows, width]
    lasts = torch.tensor([prompt[-1] for prompt in prompts], device=device)
    inputs = torch.cat((lasts[:, None], outputs[:, :-1]), 1)  # column i is followed by output i
    runner = Runner(model, len(batch), max(len(prompt) for prompt in prompts) + width)
    # The last token of a prompt goes in with the response; where it is the only one its place is written twice.
    runner.prefill([prompt[:-1] or prompt for prompt in prompts])
    before = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    longest = max(len(prompt) for prompt in prompts) - 1
    columns = max(1, logits_per_pass // (len(batch) * vocabulary))
    with_probs = with_probs and not sampling.all_greedy
    probs, bests, gaps = [], [], []
    for start in range(0, width, columns):
        stop = min(width, start + columns)
        chosen = outputs[:, start:stop, None]  # [rows, columns, 1]
        logits = runner.step(inputs[:, start:stop], before + start, longest + start, keep=stop - start)
        emitted = torch.full((len(batch),), start, device=device)
        processed = sampling.processed_logits(logits, outputs[:, start:stop], emitted)
        bests.append(greedy_tokens(processed) == chosen[..., 0])
        gaps.append((processed.amax(-1) - processed.gather(-1, chosen)[..., 0]).double())
        if with_probs:
            probs.append(sampling.probs(processed).gather(-1, chosen)[..., 0].double())
        sampling.note_emitted([response.output[start:stop] for response in batch])
    every_best, every_gap = torch.cat(bests, 1).cpu().numpy(), torch.cat(gaps, 1).cpu().numpy()
    every_prob = torch.cat(probs, 1).cpu().numpy() if with_probs else None
    return [
        TokenScores(
            every_prob[row, : len(response.output)] if every_prob is not None else None,
            every_best[row, : len(response.output)],
            every_gap[row, : len(response.output)],
        )
        for row, response in enumerate(batch)
    ]
