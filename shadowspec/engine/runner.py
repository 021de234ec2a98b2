"""A causal language model with a ragged cache: the one way in which both arms and the draft call a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shadowspec.engine.kv_cache import RaggedCache

# Rows are prefilled together while padding them to the longest wastes at most this share of the tokens.
MAX_PADDING_SHARE = 0.25


class Runner:
    """Runs `model` over `slots` rows of up to `capacity` tokens."""

    def __init__(self, model: Any, slots: int, capacity: int) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.cache = RaggedCache(model.config.num_hidden_layers, slots, capacity, self.device)
        self._last_position = int(model.config.max_position_embeddings) - 1
        self._capacity = capacity

    def prefill(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Fill row i with prompt i; logits after the last token of each, float [rows, vocabulary]."""
        logits: torch.Tensor | None = None
        for group in prefill_groups([len(prompt) for prompt in prompts]):
            rows = torch.tensor(group, device=self.device)
            longest = max(len(prompts[row]) for row in group)
            # Left padding aligns the last tokens, so that one column of logits serves every row.
            padded = [[0] * (longest - len(prompts[row])) + list(prompts[row]) for row in group]
            tokens = torch.tensor(padded, device=self.device)  # [group, longest]
            lengths = torch.tensor([len(prompts[row]) for row in group], device=self.device)
            positions = torch.arange(longest, device=self.device)[None] - (longest - lengths)[:, None]
            positions = positions.clamp(min=-1)
            mask = self.cache.begin_prefill(rows, positions)
            group_logits = self._forward(tokens, positions.clamp(min=0), mask, keep=1)[:, 0]
            if logits is None:
                logits = group_logits.new_empty((len(prompts), group_logits.shape[-1]))
            logits[rows] = group_logits
        if logits is None:
            raise ValueError("nothing to prefill")
        return logits

    def step(
        self,
        tokens: torch.Tensor,  # int64 [slots, tokens]
        lengths: torch.Tensor,  # int64 [slots]: tokens already in each row
        longest: int,  # upper bound of `lengths` known to the host
        keep: int,
    ) -> torch.Tensor:
        """Append `tokens` to every row; logits of the last `keep` columns, float [slots, keep, vocabulary]."""
        positions = lengths[:, None] + torch.arange(tokens.shape[1], device=self.device)
        mask = self.cache.begin_step(positions, min(longest + tokens.shape[1], self._capacity))
        # Tokens past the model's context can never be emitted; their rotary angle does not matter.
        return self._forward(tokens, positions.clamp(max=self._last_position), mask, keep)

    def keep(self, slots: torch.Tensor) -> None:
        """Drop all slots but these, int64 [kept]."""
        self.cache.keep(slots)

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        return logits


def prefill_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Rows to prefill together, longest first, so that padding stays within MAX_PADDING_SHARE."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    groups: list[list[int]] = []
    used = 0
    for row in order:
        if groups:
            longest = lengths[groups[-1][0]]
            padded = longest * (len(groups[-1]) + 1)
            if padded - (used + lengths[row]) <= MAX_PADDING_SHARE * padded:
                groups[-1].append(row)
                used += lengths[row]
                continue
        groups.append([row])
        used = lengths[row]
    return groups
