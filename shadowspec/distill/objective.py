"""What a draft is to learn: the target's distribution at every token of a logged response (forward KL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import response_logits


def target_logits(target: Any, responses: Sequence[Response]) -> torch.Tensor:
    """The target's own logits at each token of each response; float32 [tokens, vocabulary]."""
    return response_logits(target, responses).float().clone()  # a clone can be learnt from


def draft_logits(draft: Any, responses: Sequence[Response]) -> torch.Tensor:
    """The same of a draft in training, a transformers model; float32 [tokens, vocabulary], with its gradient.

    Rows are padded at their end, where a causal model's earlier places do not see it.  The head, most of a small
    model's work, is left out before the first place that any row needs.
    """
    sequences = [(*response.request.prompt, *response.output[:-1]) for response in responses]
    longest = max(len(sequence) for sequence in sequences)
    padded = [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]
    tokens = torch.tensor(padded, device=draft.device)  # int64 [rows, longest]
    starts = torch.tensor([len(response.request.prompt) - 1 for response in responses], device=tokens.device)
    first = int(starts.min())
    logits = draft(input_ids=tokens, use_cache=False, logits_to_keep=longest - first).logits
    rows, columns = output_places([len(response.output) for response in responses], logits.device)
    # [rows, longest - first, vocabulary]; the place `first` is its column 0
    row_logits: torch.Tensor = logits[rows, starts[rows] - first + columns].float()
    return row_logits


def output_places(lengths: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and place of every token of responses of these lengths, one after the other; int64 [tokens] each."""
    counts = torch.tensor(lengths, device=device)
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
    columns = torch.cat([torch.arange(length, device=device) for length in lengths])
    return rows, columns


def divergence(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Forward KL in nats, of the target to the draft, summed over tokens; float32 [], with the draft's gradient.

    Args:
        target: logits, float32 [tokens, vocabulary]; no gradient goes there.
        draft: the draft's for the same tokens, of the same or a larger (padded) vocabulary.
    """
    wanted, draft_log_probs = (functional.log_softmax(logits, -1) for logits in _same_words(target, draft))
    return functional.kl_div(draft_log_probs, wanted, reduction="sum", log_target=True)


@torch.no_grad()
def overlaps(target: torch.Tensor, draft: torch.Tensor, responses: Sequence[Response]) -> torch.Tensor:
    """The chance that a token drawn by the draft is accepted, at each token of each response; float32 [tokens].

    That is the sum of min(target, draft), both at the request's own temperature: where that is 0, whether their
    likeliest tokens are one.  Of its other sampling parameters nothing is asked.

    Args:
        target: logits at the tokens of the responses, one after the other; float32 [tokens, vocabulary].
        draft: as in `divergence`.
    """
    rows, _ = output_places([len(response.output) for response in responses], target.device)
    tensor = torch.tensor([response.request.sampling.temperature for response in responses], device=target.device)
    temperatures = tensor[rows, None]  # [tokens, 1]
    is_greedy = temperatures == 0.0
    target, draft = _same_words(target, draft)
    scales = torch.where(is_greedy, 1.0, temperatures)
    common = torch.minimum((target / scales).softmax(-1), (draft / scales).softmax(-1)).sum(-1)
    return torch.where(is_greedy[:, 0], (target.argmax(-1) == draft.argmax(-1)).float(), common)


def _same_words(target: torch.Tensor, draft: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Without the rows that pad an embedding, which stand for no token."""
    words = min(target.shape[-1], draft.shape[-1])
    return target[:, :words], draft[:, :words]
