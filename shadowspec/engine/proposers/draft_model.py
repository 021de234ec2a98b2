"""Drafting with a small language model that shares the target's vocabulary."""

from __future__ import annotations

from typing import Any

import torch

from shadowspec.engine.batch import Batch
from shadowspec.engine.kv_cache import Span
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.randomness import DRAFT_STREAM, at_positions, sample
from shadowspec.engine.runner import Runner
from shadowspec.engine.sampling import greedy_tokens


class DraftModelProposer:
    """K sequential passes of a draft model.

    `is_sampling` drafts by sampling the draft's processed distribution (needed by the `rejection` rule);
    otherwise the draft takes its arg-max, a one-hot draft.  A row that would leave the draft's context drafts nothing
    and makes plain steps from there on.
    """

    def __init__(
        self, model: Any, num_speculative_tokens: int, *, is_sampling: bool, context_limit: int | None = None
    ) -> None:
        """`context_limit`: tokens up to which the draft can follow its target (None: to the end)."""
        self._model = model
        self._num_speculative_tokens = num_speculative_tokens
        self._is_sampling = is_sampling
        self._context_limit = context_limit

    def begin(self, batch: Batch) -> None:
        self._runner = Runner(self._model, batch.num_rows, batch.capacity)
        self._runner.prefill([prompt[:-1] or prompt for prompt in batch.prompts])

    def propose(self, batch: Batch, span: Span) -> Proposal:
        if not self._has_room(batch):
            nothing = torch.zeros((batch.num_rows, 0), dtype=torch.int64, device=batch.device)
            return Proposal(nothing, torch.zeros_like(batch.lengths), None)
        drafted = torch.empty((batch.num_rows, self._num_speculative_tokens), dtype=torch.int64, device=batch.device)
        probs: list[torch.Tensor] = []
        # The last two tokens go in together: after a fully accepted step the draft has not yet seen the
        # last drafted token; elsewhere the first of them rewrites the same keys and values.
        tokens = torch.stack((batch.previous_tokens, batch.last_tokens), 1)  # [rows, 2]
        self._runner.begin(span)
        for depth in range(self._num_speculative_tokens):
            logits = self._runner.append(tokens, keep=1)  # [rows, 1, vocabulary]
            chosen = self._choose(batch, logits, drafted, depth, probs)
            drafted[:, depth] = chosen
            tokens = chosen[:, None]
        num_drafted = torch.full_like(batch.lengths, self._num_speculative_tokens)
        if self._context_limit is not None:
            num_drafted *= batch.lengths + self._num_speculative_tokens <= self._context_limit
        return Proposal(drafted, num_drafted, torch.stack(probs, 1) if probs else None)

    def _has_room(self, batch: Batch) -> bool:
        """Whether any active row can draft: rows only grow, so that where none can, none ever will again."""
        if self._context_limit is None:
            return True
        room = self._context_limit - self._num_speculative_tokens
        active = (row for row in batch.rows if row.finish_reason is None)
        return any(len(row.request.prompt) + len(row.output) - 1 <= room for row in active)

    def keep(self, slots: list[int]) -> None:
        self._runner.keep(slots)

    def cache_bytes(self) -> int:
        return self._runner.cache.allocated_bytes()

    def _choose(
        self, batch: Batch, logits: torch.Tensor, drafted: torch.Tensor, depth: int, probs: list[torch.Tensor]
    ) -> torch.Tensor:
        """The token drafted at `depth`, int64 [rows]; where the draft samples, its distribution joins `probs`."""
        processed = batch.sampling.draft_logits(logits[:, 0], drafted[:, :depth], batch.emitted)
        if not self._is_sampling or batch.sampling.all_greedy:
            return greedy_tokens(processed)
        draft_probs = batch.sampling.probs(processed[:, None])[:, 0]  # [rows, vocabulary]
        probs.append(draft_probs)
        uniform = at_positions(batch.uniforms, DRAFT_STREAM, batch.emitted + depth, 1)[:, 0]
        return sample(draft_probs, uniform)
