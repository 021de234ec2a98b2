"""The kernels of `shadowspec_kernels` in the engine: who runs them, and a step as they take it.

They are imported only where they are asked for; without them the engine runs its own code on torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shadowspec.engine.batch import Drawing
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.randomness import ACCEPT_STREAM, TARGET_STREAM, at_positions
from shadowspec.engine.verify import Verification
from shadowspec.errors import ModelError
from shadowspec.types import VerifyRule

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels
    from shadowspec_kernels.step import MinimumLength, Penalties, Truncation


def choose_kernels(name: str, device: torch.device) -> Kernels | None:
    """What runs kernels for a configured name; None: the engine's own code on torch.

    "auto": Triton's on a GPU that can run them.

    Raises:
        ModelError: "triton" is asked for and cannot run here; the message says what is missing.
    """
    if name == "torch" or (name == "auto" and device.type != "cuda"):
        return None
    from shadowspec_kernels.backends import why_unavailable
    from shadowspec_kernels.dispatch import Kernels

    if (reason := why_unavailable("triton", device)) is None:
        return Kernels("triton", device)
    if name == "auto":
        return None
    raise ModelError(f'kernels = "{name}" is configured, but they cannot run on {device}: {reason}')


def verify_fused(
    kernels: Kernels,
    own: Drawing,
    logits: torch.Tensor,  # [rows, K + 1, vocabulary]
    proposal: Proposal,
    rule: VerifyRule,
) -> Verification:
    """Verify one step as `decode` does, straight from the logits."""
    from shadowspec_kernels.step import Step

    sampling, width = own.sampling, logits.shape[1]
    verified = kernels.verify(
        Step(
            rule="greedy" if sampling.all_greedy else rule.value,
            logits=logits,
            drafted=proposal.tokens,
            num_drafted=proposal.num_drafted,
            draft_probs=proposal.draft_probs,
            accept_uniform=at_positions(own.uniforms, ACCEPT_STREAM, own.emitted, width - 1),
            target_uniform=at_positions(own.uniforms, TARGET_STREAM, own.emitted, width),
            temperature=torch.where(sampling.is_greedy, 0.0, sampling.temperature[:, 0]),
            penalties=_penalties(own),
            minimum_length=_minimum_length(own),
            truncation=_truncation(own, logits.shape[2]),
        )
    )
    return Verification(verified.num_accepted, verified.next_tokens)


def _penalties(own: Drawing) -> Penalties | None:
    from shadowspec_kernels.step import Penalties

    sampling = own.sampling
    if not sampling.has_penalties:
        return None
    return Penalties(
        sampling.repetition[:, 0],
        sampling.presence[:, 0],
        sampling.frequency[:, 0],
        sampling.in_prompt,
        sampling.output_counts,
    )


def _minimum_length(own: Drawing) -> MinimumLength | None:
    from shadowspec_kernels.step import MinimumLength

    sampling = own.sampling
    return MinimumLength(sampling.min_tokens, own.emitted, sampling.ends) if sampling.has_min_tokens else None


def _truncation(own: Drawing, vocabulary: int) -> Truncation | None:
    from shadowspec_kernels.step import Truncation

    sampling = own.sampling
    if not (sampling.has_min_p or sampling.has_top_k or sampling.has_top_p):
        return None
    slots = tuple(slot for slot, row in enumerate(own.rows) if row.request.sampling.truncates(vocabulary))
    if not slots:
        return None
    top_p = torch.where(sampling.nucleus > 0.0, sampling.nucleus, 1.0)
    return Truncation(sampling.min_p[:, 0], sampling.top_k[:, 0], top_p, slots)
