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
    """Up to K sequential passes of a draft model.

    `is_sampling` drafts by sampling the draft's processed distribution (needed by the `rejection` rule);
    otherwise the draft takes its arg-max, a one-hot draft.  A row that would leave the draft's context drafts nothing
    and makes plain steps from there on.

    With a `confidence_threshold` above 0 a row stops drafting before the first position at which no token has that
    probability in the draft's distribution, and may draft none; the passes end when no row goes on.  That is decided
    before the token is drawn.  Decided by the drawn token's own probability, the tokens that are proposed would not
    follow the draft's distribution, by which `rejection` verifies them.
    """

    def __init__(
        self,
        model: Any,
        num_speculative_tokens: int,
        *,
        is_sampling: bool,
        confidence_threshold: float = 0.0,
        context_limit: int | None = None,
    ) -> None:
        """`context_limit`: tokens up to which the draft can follow its target (None: to the end)."""
        self._model = model
        self._num_speculative_tokens = num_speculative_tokens
        self._is_sampling = is_sampling
        self._confidence_threshold = confidence_threshold
        self._context_limit = context_limit

    def begin(self, batch: Batch) -> None:
        self._runner = Runner(self._model, batch.num_rows, batch.capacity)
        self._runner.prefill([prompt[:-1] or prompt for prompt in batch.prompts])

    def propose(self, batch: Batch, span: Span) -> Proposal:
        if not self._has_room(batch):
            nothing = torch.zeros((batch.num_rows, 0), dtype=torch.int64, device=batch.device)
            return Proposal(nothing, torch.zeros_like(batch.lengths), None)
        drafted = torch.empty((batch.num_rows, self._num_speculative_tokens), dtype=torch.int64, device=batch.device)
        num_drafted = torch.zeros_like(batch.lengths)
        goes_on = self._begun(batch)
        probs: list[torch.Tensor] = []
        # The last two tokens go in together: after a fully accepted step the draft has not yet seen the
        # last drafted token; elsewhere the first of them rewrites the same keys and values.  What the passes write
        # for a row that drafts no more is rewritten too.
        tokens = torch.stack((batch.previous_tokens, batch.last_tokens), 1)  # [rows, 2]
        self._runner.begin(span)
        width = 0
        for depth in range(self._num_speculative_tokens):
            logits = self._runner.append(tokens, keep=1)  # [rows, 1, vocabulary]
            processed = batch.sampling.draft_logits(logits[:, 0], drafted[:, :depth], batch.emitted)
            draft_probs = self._probs(batch, processed)
            if self._confidence_threshold > 0.0:
                goes_on = goes_on & (batch.sampling.confidence(processed, draft_probs) >= self._confidence_threshold)
                if not bool(goes_on.any()):
                    break
            if draft_probs is None:
                chosen = greedy_tokens(processed)
            else:
                probs.append(draft_probs)
                chosen = sample(draft_probs, at_positions(batch.uniforms, DRAFT_STREAM, batch.emitted + depth, 1)[:, 0])
            drafted[:, depth] = chosen
            num_drafted += goes_on
            width += 1
            tokens = chosen[:, None]
        return Proposal(drafted[:, :width], num_drafted, torch.stack(probs, 1) if probs else None)

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

    def _begun(self, batch: Batch) -> torch.Tensor:
        """The rows that draft at all, bool [rows]: those with room; a finished one must not keep the passes going."""
        begun = torch.ones_like(batch.lengths, dtype=torch.bool)
        if self._confidence_threshold > 0.0:
            begun = torch.tensor([batch.is_active(row) for row in range(batch.num_rows)], device=batch.device)
        if self._context_limit is not None:
            begun &= batch.lengths + self._num_speculative_tokens <= self._context_limit
        return begun

    def _probs(self, batch: Batch, processed: torch.Tensor) -> torch.Tensor | None:
        """The distribution that is sampled, float32 [rows, vocabulary]; None where the draft takes its arg-max."""
        if not self._is_sampling or batch.sampling.all_greedy:
            return None
        return batch.sampling.probs(processed[:, None])[:, 0]
