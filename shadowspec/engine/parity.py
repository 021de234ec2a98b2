"""Whether the speculative output is the target's: greedy outputs compared, sampled outputs scored.

Everything here runs outside the timed arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shadowspec.engine.arms import within_memory
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.runner import Runner
from shadowspec.engine.sampling import BatchSampling
from shadowspec.quality.outputs import first_divergence
from shadowspec.types import Parity


@dataclass(frozen=True, slots=True)
class Score:
    """Sum over emitted tokens y of 1[y = argmax] - target(argmax); its mean is zero if sampling is right."""

    total: float
    tokens: int


def parities_of(
    target: LoadedModel, requests: Sequence[Request], plain: Mapping[int, Decoded], drafted: Mapping[int, Decoded]
) -> dict[int, Parity]:
    """Parity of the requests that both arms decoded, by index.

    Greedy requests are compared token by token, sampled ones scored by teacher forcing.  Where the device
    has no memory for that, parity is unknown, which the gate counts.
    """
    sampled = [index for index in drafted if requests[index].sampling.temperature > 0.0]
    parities = _score(target, requests, plain, drafted, sampled)
    for index in drafted:
        if index not in parities:
            parities[index] = _greedy_parity(target, requests[index], plain[index].output, drafted[index].output)
    return parities


def _greedy_parity(target: LoadedModel, request: Request, base: Sequence[int], spec: Sequence[int]) -> Parity:
    """Where the arms diverge, how far from a tie that is, and whether the baseline diverges from itself."""
    position = first_divergence(base, spec)
    if position is None:
        return Parity()
    context = (base if len(base) > position else spec)[: position + 1]
    end_ids = target.end_token_ids
    gap = within_memory(target, "scoring", 1, lambda: divergence_gap(target.model, request, context, end_ids))
    alone = within_memory(
        target,
        "a rerun",
        1,
        lambda: decode_batch(
            target.model, [request], end_token_ids=end_ids, detokenize=target.tokenizer.decode, kernels=target.kernels
        ),
    )
    differs = tuple(alone.decoded[0].output) != tuple(base) if alone is not None else None
    return Parity(first_divergence=position, divergence_gap=gap, rerun_differs=differs)


def _score(
    target: LoadedModel,
    requests: Sequence[Request],
    plain: Mapping[int, Decoded],
    drafted: Mapping[int, Decoded],
    sampled: Sequence[int],
) -> dict[int, Parity]:
    """Teacher-forced z of both arms for the sampled requests, by index; together, else in halves."""
    if not sampled:
        return {}
    scores = within_memory(
        target,
        "scoring",
        len(sampled),
        lambda: z_scores(
            target.model,
            [requests[index] for index in sampled],
            target.end_token_ids,
            [drafted[index].output for index in sampled],
            [plain[index].output for index in sampled],
        ),
    )
    if scores is None:
        if len(sampled) == 1:
            return {sampled[0]: Parity()}
        middle = len(sampled) // 2
        halves = sampled[:middle], sampled[middle:]
        first, second = (_score(target, requests, plain, drafted, half) for half in halves)
        return first | second
    return {
        index: Parity(z_sum=spec.total, z_tokens=spec.tokens, baseline_z_sum=base.total, baseline_z_tokens=base.tokens)
        for index, spec, base in zip(sampled, *scores, strict=True)
    }


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
    target: Any, requests: Sequence[Request], end_token_ids: frozenset[int], *alternatives: Sequence[Sequence[int]]
) -> tuple[list[Score], ...]:
    """Teacher-forced score of each sampled output under its processed distribution, for each alternative."""
    scores = []
    forced = teacher_forced_logits(target, requests, *alternatives)
    for outputs, rows in zip(alternatives, forced, strict=True):
        scored = []
        for request, output, logits in zip(requests, outputs, rows, strict=True):
            sampling = _sampling(target, request, end_token_ids)
            probs = sampling.probs(_process_logits(sampling, output, logits))[0]  # [tokens, vocabulary]
            highest = probs.max(-1)
            hits = (torch.tensor(list(output), device=logits.device) == highest.indices).float()
            scored.append(Score(float((hits - highest.values).sum()), len(output)))
        scores.append(scored)
    return tuple(scores)


@torch.inference_mode()
def divergence_gap(target: Any, request: Request, output: Sequence[int], end_token_ids: frozenset[int]) -> float:
    """The target's top-2 logit gap at the last token of `output`, given all before it: where greedy arms part."""
    logits = teacher_forced_logits(target, [request], [output])[0][0]  # [tokens, vocabulary]
    return top_two_gap(_process_logits(_sampling(target, request, end_token_ids), output, logits)[0, -1])


def _sampling(target: Any, request: Request, end_token_ids: frozenset[int]) -> BatchSampling:
    """The request's sampling as a batch of one."""
    ends = sorted(request.end_ids(end_token_ids))
    return BatchSampling([request.sampling], [request.prompt], [ends], int(target.config.vocab_size), target.device)


def _process_logits(sampling: BatchSampling, output: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Teacher-forced logits after penalties and minimum length; float [1, tokens, vocabulary]."""
    tokens = torch.tensor([list(output)], device=logits.device)
    nothing_emitted = torch.zeros(1, dtype=torch.int64, device=logits.device)
    return sampling.processed_logits(logits[None], tokens, nothing_emitted)
