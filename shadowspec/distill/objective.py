"""What a draft is to learn: the target's distribution at every token of a logged response (forward KL)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from shadowspec.engine.replay.responses import Response
from shadowspec.engine.replay.scoring import response_logits


@dataclass(frozen=True, slots=True)
class Losses:
    """What a draft is from its target; none of it is a ratio yet."""

    divergence: torch.Tensor  # forward KL in nats, of the target to the draft, summed over tokens; float32 []
    overlaps: torch.Tensor  # sum of min(target, draft), of each token: a drawn one's chance to be accepted; [tokens]
    num_tokens: int


def target_logits(target: Any, responses: Sequence[Response]) -> torch.Tensor:
    """The target's own logits at each token of each response; float32 [tokens, vocabulary]."""
    return response_logits(target, responses).float().clone()  # a clone can be learnt from


def draft_logits(draft: Any, responses: Sequence[Response]) -> torch.Tensor:
    """The same of a draft in training, a transformers model; float32 [tokens, vocabulary], with its gradient.

    Rows are padded at their end, where a causal model's earlier places do not see it.
    """
    sequences = [(*response.request.prompt, *response.output[:-1]) for response in responses]
    longest = max(len(sequence) for sequence in sequences)
    padded = [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]
    tokens = torch.tensor(padded, device=draft.device)  # int64 [rows, longest]
    logits = draft(input_ids=tokens, use_cache=False).logits  # [rows, longest, vocabulary]
    rows, columns = output_places([len(response.output) for response in responses], logits.device)
    starts = torch.tensor([len(response.request.prompt) - 1 for response in responses], device=logits.device)
    own: torch.Tensor = logits[rows, starts[rows] + columns].float()
    return own


def output_places(lengths: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and place of every token of responses of these lengths, one after the other; int64 [tokens] each."""
    counts = torch.tensor(lengths, device=device)
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
    columns = torch.cat([torch.arange(length, device=device) for length in lengths])
    return rows, columns


def losses(target: torch.Tensor, draft: torch.Tensor) -> Losses:
    """
    Args:
        target: logits, float32 [tokens, vocabulary]; no gradient goes there.
        draft: the draft's for the same tokens, of the same or a larger (padded) vocabulary.
    """
    words = min(target.shape[-1], draft.shape[-1])  # rows that pad an embedding stand for no token
    target_log_probs = functional.log_softmax(target[:, :words], -1)
    draft_log_probs = functional.log_softmax(draft[:, :words], -1)
    divergence = functional.kl_div(draft_log_probs, target_log_probs, reduction="sum", log_target=True)
    with torch.no_grad():
        overlaps = torch.minimum(draft_log_probs, target_log_probs).exp().sum(-1)
    return Losses(divergence, overlaps, len(target))
