"""Verification of drafted tokens: the four rules, each leaving the target's distribution unchanged.

| rule           | drafted token x is accepted when         | else emit                                   |
|----------------|------------------------------------------|---------------------------------------------|
| `rejection`    | u < target(x) / draft(x)                 | a sample of max(target - draft, 0)          |
| `greedy_draft` | u < target(x)   (the draft is one-hot)   | a sample of target with x removed           |
| `exact_match`  | x equals the target's sample             | that sample                                 |
| `greedy`       | x = argmax target                        | argmax target                               |

Sources: Leviathan et al. 2211.17192, Chen et al. 2302.01318 (rejection); vLLM and TensorRT-LLM for the
one-hot rules.  A one-hot draft makes `rejection` and `greedy_draft` the same computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from shadowspec.engine.batch import Drawing
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.randomness import ACCEPT_STREAM, TARGET_STREAM, at_positions, sample
from shadowspec.engine.sampling import greedy_tokens
from shadowspec.types import VerifyRule

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels
    from shadowspec_kernels.step import MinimumLength, Penalties, Rule, Truncation


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of one step."""

    num_accepted: torch.Tensor  # int64 [rows]
    next_tokens: torch.Tensor  # int64 [rows]: the recovered or bonus token


def verify(
    drawing: Drawing, logits: torch.Tensor, proposal: Proposal, rule: VerifyRule, kernels: Kernels | None
) -> Verification:
    """Verify one step: logits [rows, K + 1, vocabulary] against K drafted tokens per row."""
    if kernels is not None:
        return _verify_fused(kernels, drawing, logits, proposal, rule)
    processed = drawing.sampling.processed_logits(logits, proposal.tokens, drawing.emitted)
    if drawing.sampling.all_greedy:
        return verify_matching(greedy_tokens(processed), proposal.tokens, proposal.num_drafted)
    width = logits.shape[1]
    return verify_sampled(
        rule,
        drawing.sampling.probs(processed),
        proposal.tokens,
        proposal.draft_probs,
        proposal.num_drafted,
        at_positions(drawing.uniforms, ACCEPT_STREAM, drawing.emitted, width - 1),
        at_positions(drawing.uniforms, TARGET_STREAM, drawing.emitted, width),
    )


def leading_accepted(accepts: torch.Tensor, num_drafted: torch.Tensor) -> torch.Tensor:
    """Accepted tokens before the first rejection; bool [rows, K], int64 [rows] -> int64 [rows]."""
    proposed = torch.arange(accepts.shape[1], device=accepts.device) < num_drafted[:, None]
    return (accepts & proposed).to(torch.int64).cumprod(1).sum(1)


def verify_matching(
    target_tokens: torch.Tensor,  # int64 [rows, K + 1]: the target's choice at each position
    drafted: torch.Tensor,  # int64 [rows, K]
    num_drafted: torch.Tensor,  # int64 [rows]
) -> Verification:
    """`greedy` and `exact_match`: accept while the draft equals the target's token."""
    accepted = leading_accepted(drafted == target_tokens[:, :-1], num_drafted)
    return Verification(accepted, target_tokens.gather(1, accepted[:, None]).squeeze(1))


def verify_sampled(
    rule: VerifyRule,
    target_probs: torch.Tensor,  # float32 [rows, K + 1, vocabulary], processed
    drafted: torch.Tensor,  # int64 [rows, K]
    draft_probs: torch.Tensor | None,  # float32 [rows, K, vocabulary], processed; None: one-hot drafts
    num_drafted: torch.Tensor,  # int64 [rows]: entries of `drafted` that were really proposed
    accept_uniform: torch.Tensor,  # float32 [rows, K]
    target_uniform: torch.Tensor,  # float32 [rows, K + 1]
) -> Verification:
    """Verify a step of rows that are sampled (rows at temperature 0 hold one-hot target distributions)."""
    if rule is VerifyRule.EXACT_MATCH:
        return verify_matching(sample(target_probs, target_uniform), drafted, num_drafted)
    chosen = drafted[:, :, None]
    target_chosen = target_probs[:, :-1].gather(2, chosen).squeeze(2)  # [rows, K]
    draft_chosen = torch.ones_like(target_chosen) if draft_probs is None else draft_probs.gather(2, chosen).squeeze(2)
    accepted = leading_accepted(accept_uniform * draft_chosen < target_chosen, num_drafted)  # [rows]

    rows = torch.arange(drafted.shape[0], device=drafted.device)
    next_probs = target_probs[rows, accepted]  # [rows, vocabulary]
    if drafted.shape[1]:
        was_rejected = accepted < num_drafted
        position = accepted.clamp(max=drafted.shape[1] - 1)
        if draft_probs is None:
            residual = next_probs.scatter(1, drafted[rows, position][:, None], 0.0)
        else:
            residual = (next_probs - draft_probs[rows, position]).clamp_(min=0.0)
        # Where target and draft agree to the last bit a rejection has probability 0 but may be drawn by
        # rounding; the target itself is then the right distribution.
        usable = was_rejected & (residual.sum(1) > 0.0)
        next_probs = torch.where(usable[:, None], residual, next_probs)
    next_uniform = target_uniform.gather(1, accepted[:, None]).squeeze(1)
    return Verification(accepted, sample(next_probs, next_uniform))


def _verify_fused(
    kernels: Kernels,
    drawing: Drawing,
    logits: torch.Tensor,  # [rows, K + 1, vocabulary]
    proposal: Proposal,
    rule: VerifyRule,
) -> Verification:
    """`verify`, straight from the logits."""
    from shadowspec_kernels.step import Step

    sampling, width = drawing.sampling, logits.shape[1]
    assert rule is not VerifyRule.SERVER, "a server's rule is not ours to apply"
    verified = kernels.verify(
        Step(
            rule="greedy" if sampling.all_greedy else cast("Rule", rule.value),
            logits=logits,
            drafted=proposal.tokens,
            num_drafted=proposal.num_drafted,
            draft_probs=proposal.draft_probs,
            accept_uniform=at_positions(drawing.uniforms, ACCEPT_STREAM, drawing.emitted, width - 1),
            target_uniform=at_positions(drawing.uniforms, TARGET_STREAM, drawing.emitted, width),
            temperature=torch.where(sampling.is_greedy, 0.0, sampling.temperature[:, 0]),
            penalties=_penalties(drawing),
            minimum_length=_minimum_length(drawing),
            truncation=_truncation(drawing, logits.shape[2]),
        )
    )
    return Verification(verified.num_accepted, verified.next_tokens)


def _penalties(drawing: Drawing) -> Penalties | None:
    from shadowspec_kernels.step import Penalties

    sampling = drawing.sampling
    if not sampling.has_penalties:
        return None
    return Penalties(
        sampling.repetition[:, 0],
        sampling.presence[:, 0],
        sampling.frequency[:, 0],
        sampling.in_prompt,
        sampling.output_counts,
    )


def _minimum_length(drawing: Drawing) -> MinimumLength | None:
    from shadowspec_kernels.step import MinimumLength

    sampling = drawing.sampling
    return MinimumLength(sampling.min_tokens, drawing.emitted, sampling.ends) if sampling.has_min_tokens else None


def _truncation(drawing: Drawing, vocabulary: int) -> Truncation | None:
    from shadowspec_kernels.step import Truncation

    sampling = drawing.sampling
    if not (sampling.has_min_p or sampling.has_top_k or sampling.has_top_p):
        return None
    slots = tuple(slot for slot, row in enumerate(drawing.rows) if row.request.sampling.truncates(vocabulary))
    if not slots:
        return None
    top_p = torch.where(sampling.nucleus > 0.0, sampling.nucleus, 1.0)
    return Truncation(sampling.min_p[:, 0], sampling.top_k[:, 0], top_p, slots)
