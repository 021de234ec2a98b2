"""Drafting with a small language model that shares the target's vocabulary."""

from __future__ import annotations

from typing import Any

import torch

from shadowspec.engine.batch import Batch
from shadowspec.engine.kv_cache import Span
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.proposers.choice import Draft
from shadowspec.engine.runner import Runner


class DraftModelProposer:
    """K sequential passes of a draft model.

    `is_sampling` drafts by sampling the draft's processed distribution (needed by the `rejection` rule);
    otherwise the draft takes its arg-max, a one-hot draft.
    """

    hidden = None  # of the target: none are needed

    def __init__(self, model: Any, num_speculative_tokens: int, *, is_sampling: bool) -> None:
        self._model = model
        self._num_speculative_tokens = num_speculative_tokens
        self._is_sampling = is_sampling

    def begin(self, batch: Batch) -> None:
        self._runner = Runner(self._model, batch.num_rows, batch.capacity)
        self._runner.prefill([prompt[:-1] or prompt for prompt in batch.prompts])

    def propose(self, batch: Batch, span: Span) -> Proposal:
        draft = Draft(batch, self._num_speculative_tokens, is_sampling=self._is_sampling)
        # The last two tokens go in together: after a fully accepted step the draft has not yet seen the
        # last drafted token; elsewhere the first of them rewrites the same keys and values.
        tokens = torch.stack((batch.previous_tokens, batch.last_tokens), 1)  # [rows, 2]
        self._runner.begin(span)
        for _ in range(self._num_speculative_tokens):
            logits = self._runner.append(tokens, keep=1)  # [rows, 1, vocabulary]
            tokens = draft.choose(logits[:, 0])[:, None]
        return draft.proposal()

    def keep(self, slots: list[int]) -> None:
        self._runner.keep(slots)

    def cache_bytes(self) -> int:
        return self._runner.cache.allocated_bytes()
