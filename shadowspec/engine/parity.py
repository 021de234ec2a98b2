"""Whether the speculative output is the target's own: greedy outputs compared, sampled outputs scored.

Everything here runs outside the timed arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shadowspec.engine.batch import Request
from shadowspec.engine.runner import Runner
from shadowspec.engine.sampling import BatchSampling


@dataclass(frozen=True, slots=True)
class Score:
    """Sum over emitted tokens y of 1[y = argmax] - target(argmax); its mean is zero if sampling is right."""

    total: float
    tokens: int


@torch.inference_mode()
def teacher_forced_logits(
    target: Any, requests: Sequence[Request], *alternatives: Sequence[Sequence[int]]
) -> tuple[list[torch.Tensor], ...]:
    """The target's logits for each output token given all before it, with no speculation anywhere.

    Prompts go through one prefill; each of `alternatives` (one output per request) through one pass after it.

    Returns:
        For each alternative one float [output tokens, vocabulary] a request.
    """
    longest_output = max(len(output) for outputs in alternatives for output in outputs)
    longest = max(len(request.prompt) for request in requests)
    runner = Runner(target, len(requests), longest + longest_output)
    prefill_logits = runner.prefill([request.prompt for request in requests])  # [rows, vocabulary]
    lengths = torch.tensor([len(request.prompt) for request in requests], device=target.device)
    forced = []
    for outputs in alternatives:
        width = max(len(output) for output in outputs) - 1
        if width == 0:
            forced.append([logits[None] for logits in prefill_logits])
            continue
        padded = [[*output[:-1], *[0] * (width + 1 - len(output))] for output in outputs]
        logits = runner.step(torch.tensor(padded, device=target.device), lengths, longest, keep=width)
        forced.append(
            [
                torch.cat((prefill_logits[row, None], logits[row, : len(output) - 1]))
                for row, output in enumerate(outputs)
            ]
        )
    return tuple(forced)


def top_two_gap(logits: torch.Tensor) -> float:
    """Difference of the two highest logits; float [vocabulary]."""
    highest = logits.float().topk(2).values
    return float(highest[0] - highest[1])


@torch.inference_mode()
def z_scores(
    target: Any,
    requests: Sequence[Request],
    end_token_ids: frozenset[int],
    *alternatives: Sequence[Sequence[int]],
) -> tuple[list[Score], ...]:
    """Teacher-forced score of each sampled output under its own processed distribution, for each alternative."""
    scores = []
    forced = teacher_forced_logits(target, requests, *alternatives)
    for outputs, rows in zip(alternatives, forced, strict=True):
        scored = []
        for request, output, logits in zip(requests, outputs, rows, strict=True):
            sampling = _sampling(target, request, end_token_ids)
            probs = sampling.probs(_processed(sampling, output, logits))[0]  # [tokens, vocabulary]
            highest = probs.max(-1)
            hits = (torch.tensor(list(output), device=logits.device) == highest.indices).float()
            scored.append(Score(float((hits - highest.values).sum()), len(output)))
        scores.append(scored)
    return tuple(scores)


@torch.inference_mode()
def divergence_gap(target: Any, request: Request, output: Sequence[int], end_token_ids: frozenset[int]) -> float:
    """The target's top-2 logit gap at the last token of `output`, given all before it: where greedy arms part."""
    logits = teacher_forced_logits(target, [request], [output])[0][0]  # [tokens, vocabulary]
    return top_two_gap(_processed(_sampling(target, request, end_token_ids), output, logits)[0, -1])


def _sampling(target: Any, request: Request, end_token_ids: frozenset[int]) -> BatchSampling:
    """The request's sampling as a batch of one."""
    ends = sorted(request.end_ids(end_token_ids))
    return BatchSampling([request.sampling], [request.prompt], [ends], int(target.config.vocab_size), target.device)


def _processed(sampling: BatchSampling, output: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Teacher-forced logits after penalties and minimum length; float [1, tokens, vocabulary]."""
    tokens = torch.tensor([list(output)], device=logits.device)
    nothing_emitted = torch.zeros(1, dtype=torch.int64, device=logits.device)
    return sampling.processed_logits(logits[None], tokens, nothing_emitted)
