"""A causal language model with a ragged cache: the one way in which both arms and the draft call a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from shadowspec.engine.kv_cache import RaggedCache, Span
from shadowspec.engine.llama import DirectLlama

# Rows are prefilled together while padding them to the longest wastes at most this share of the tokens.
MAX_PADDING_SHARE = 0.25


class Forward(Protocol):
    """A model's forward pass over a ragged cache."""

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """What the pass needs of positions (int64 [rows, count]): [rows, count, ...], to be cut by column."""

    def forward(
        self,
        tokens: torch.Tensor,  # int64 [rows, tokens]
        angles: torch.Tensor,  # [rows, tokens, ...]
        mask: torch.Tensor,  # float [rows, 1, tokens, read], added to the attention's scores
        cache: RaggedCache,
        keep: int,
    ) -> torch.Tensor:
        """Append the tokens to the cache; logits of the last `keep` columns, float [rows, keep, vocabulary]."""


class TransformersForward:
    """A transformers model's own forward, for every architecture that has no direct one."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        return positions  # the model makes its own of them

    def forward(
        self, tokens: torch.Tensor, angles: torch.Tensor, mask: torch.Tensor, cache: RaggedCache, keep: int
    ) -> torch.Tensor:
        logits: torch.Tensor = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=angles,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        return logits


class Runner:
    """Runs `model`, transformers' or a `DirectLlama`, over `slots` rows of up to `capacity` tokens."""

    def __init__(self, model: Any, slots: int, capacity: int) -> None:
        self.device: torch.device = model.device
        self.cache = RaggedCache(model.config.num_hidden_layers, slots, capacity, self.device)
        self._forward: Forward = model if isinstance(model, DirectLlama) else TransformersForward(model)
        self._dtype: torch.dtype = model.dtype
        self._last_position = int(model.config.max_position_embeddings) - 1

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
            mask = self.cache.begin_prefill(rows, positions.clamp(min=-1), self._dtype)
            # Past the context of a draft that is shorter than its target's nothing is drafted: any angle will do.
            angles = self._forward.angles(positions.clamp(0, self._last_position))
            group_logits = self._forward.forward(tokens, angles, mask, self.cache, 1)[:, 0]
            if logits is None:
                logits = group_logits.new_empty((len(prompts), group_logits.shape[-1]))
            logits[rows] = group_logits
        if logits is None:
            raise ValueError("nothing to prefill")
        return logits

    def begin(self, span: Span, column: int = 0) -> None:
        """Let the next `append` write from this column of the span on."""
        self._span, self._column = span, column
        # Tokens past the model's context can never be emitted; their rotary angle does not matter.
        self._angles = self._forward.angles(span.columns.clamp(max=self._last_position))

    def append(self, tokens: torch.Tensor, keep: int) -> torch.Tensor:
        """Append `tokens` (int64 [slots, tokens]) to every row; logits of the last `keep` columns.

        Returns:
            Float [slots, keep, vocabulary].
        """
        start, stop = self._column, self._column + tokens.shape[1]
        self._column = stop
        mask = self.cache.begin_step(self._span, start, stop)
        return self._forward.forward(tokens, self._angles[:, start:stop], mask, self.cache, keep)

    def step(
        self,
        tokens: torch.Tensor,  # int64 [slots, tokens]
        lengths: torch.Tensor,  # int64 [slots]: tokens already in each row
        longest: int,  # upper bound of `lengths` known to the host
        keep: int,
    ) -> torch.Tensor:
        """`append` after `lengths`, for a single pass."""
        self.begin(Span.after(lengths, longest, tokens.shape[1], self._dtype))
        return self.append(tokens, keep)

    def keep(self, slots: list[int]) -> None:
        """Drop all slots but these, which come to lie in this order."""
        self.cache.keep(slots)


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
