"""Drafting with a small language model that shares the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from shadowspec.engine.batch import Batch
from shadowspec.engine.kv_cache import Span
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.proposers.choice import Draft
from shadowspec.engine.static_passes import StaticPasses, runner_for
from shadowspec.engine.transfer import to_device

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels


class DraftModelProposer:
    """Up to K sequential passes of a draft model.

    `is_sampling` drafts by sampling the draft's processed distribution (needed by the `rejection` rule);
    otherwise the draft takes its arg-max, a one-hot draft.  A row that would leave the draft's context drafts nothing
    and makes plain steps from there on.

    With a `confidence_threshold` above 0 a row stops drafting before the first position at which no token has that
    probability in the draft's distribution (`Draft`), and may draft none; the passes end when no row goes on.
    """

    hidden = None  # of the target: none are needed

    def __init__(
        self,
        model: Any,
        num_speculative_tokens: int,
        *,
        is_sampling: bool,
        confidence_threshold: float = 0.0,
        context_limit: int | None = None,
        passes: StaticPasses | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """
        Args:
            context_limit: tokens up to which the draft can follow its target (None: to the end).
            passes: the draft's, where they are recorded.
            kernels: what its cache is appended to with (None: torch).
        """
        self._model, self._passes, self._kernels = model, passes, kernels
        self._num_speculative_tokens = num_speculative_tokens
        self._is_sampling = is_sampling
        self._confidence_threshold = confidence_threshold
        self._context_limit = context_limit

    def begin(self, batch: Batch) -> None:
        self._runner = runner_for(
            self._model, batch.num_rows, batch.capacity, passes=self._passes, kernels=self._kernels
        )

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        prompts = (batch.prompts[slot] for slot in slots)
        self._runner.prefill([prompt[:-1] or prompt for prompt in prompts], slots)

    def propose(self, batch: Batch, span: Span) -> Proposal:
        if not self._has_room(batch):
            nothing = torch.zeros((batch.num_rows, 0), dtype=torch.int64, device=batch.device)
            return Proposal(nothing, torch.zeros_like(batch.lengths), None)
        draft = Draft(
            batch,
            self._num_speculative_tokens,
            is_sampling=self._is_sampling,
            begun=self._begun(batch),
            confidence_threshold=self._confidence_threshold,
        )
        # The last two tokens go in together: after a fully accepted step the draft has not yet seen the
        # last drafted token; elsewhere the first of them rewrites the same keys and values.  What the passes write
        # for a row that drafts no more is rewritten too.
        tokens = torch.stack((batch.previous_tokens, batch.last_tokens), 1)  # [rows, 2]
        self._runner.begin(span)
        for _ in range(self._num_speculative_tokens):
            if not draft.consider(self._runner.append(tokens, keep=1)[:, 0]):
                break
            tokens = draft.take()[:, None]
        return draft.proposal()

    def _has_room(self, batch: Batch) -> bool:
        """Whether any active row can draft; one that cannot never will again, so that it misses no pass."""
        if self._context_limit is None:
            return True
        room = self._context_limit - self._num_speculative_tokens
        active = (row for row in batch.rows if row.finish_reason is None)
        return any(len(row.request.prompt) + len(row.output) - 1 <= room for row in active)

    def keep(self, slots: list[int]) -> None:
        self._runner.keep(slots)

    def cache_bytes(self) -> int:
        return self._runner.cache_bytes()

    def _begun(self, batch: Batch) -> torch.Tensor:
        """The rows that draft at all, bool [rows]: those with room; a finished one must not keep the passes going."""
        begun = torch.ones_like(batch.lengths, dtype=torch.bool)
        if self._confidence_threshold > 0.0:
            begun = to_device([batch.is_active(row) for row in range(batch.num_rows)], batch.device)
        if self._context_limit is not None:
            begun &= batch.lengths + self._num_speculative_tokens <= self._context_limit
        return begun
