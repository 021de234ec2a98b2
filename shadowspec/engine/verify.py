"""Verification of drafted tokens: the four rules, each leaving the target's distribution unchanged.

| rule           | drafted token x is accepted when         | else emit                                   |
|----------------|------------------------------------------|---------------------------------------------|
| `rejection`    | u < target(x) / draft(x)                 | a sample of max(target - draft, 0)          |
| `greedy_draft` | u < target(x)   (the draft is one-hot)   | a sample of target with x removed           |
| `exact_match`  | x equals the target's own sample         | that sample                                 |
| `greedy`       | x = argmax target                        | argmax target                               |

Sources: Leviathan et al. 2211.17192, Chen et al. 2302.01318 (rejection); vLLM and TensorRT-LLM for the
one-hot rules.  A one-hot draft makes `rejection` and `greedy_draft` the same computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shadowspec.engine.randomness import sample
from shadowspec.types import VerifyRule


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of one step."""

    num_accepted: torch.Tensor  # int64 [rows]
    next_tokens: torch.Tensor  # int64 [rows]: the recovered or bonus token


def leading_accepted(accepts: torch.Tensor, num_drafted: torch.Tensor) -> torch.Tensor:
    """Accepted tokens before the first rejection; bool [rows, K], int64 [rows] -> int64 [rows]."""
    proposed = torch.arange(accepts.shape[1], device=accepts.device) < num_drafted[:, None]
    return (accepts & proposed).to(torch.int64).cumprod(1).sum(1)


def verify_matching(
    target_tokens: torch.Tensor,  # int64 [rows, K + 1]: the target's own choice at each position
    drafted: torch.Tensor,  # int64 [rows, K]
    num_drafted: torch.Tensor,  # int64 [rows]
) -> Verification:
    """`greedy` and `exact_match`: accept while the draft equals the target's own token."""
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
