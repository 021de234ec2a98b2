"""Drafting with a small language model that shares the target's vocabulary.

All proposers that run a model share `Draft`: each drafted token is the arg-max, or a sample of the draft's
distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from shadowspec.engine.batch import Batch
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.randomness import DRAFT_STREAM, at_positions, sample
from shadowspec.engine.runner import runner_for
from shadowspec.engine.sampling import greedy_tokens, to_device
from shadowspec.types import DraftSampling

if TYPE_CHECKING:
    from shadowspec.engine.static_passes import StaticPasses
    from shadowspec_kernels.dispatch import Kernels


class DraftModelProposer:
    """Up to K sequential passes of a draft model.

    `is_sampling` drafts by sampling the draft's processed distribution (needed by the `rejection` rule); otherwise the
    draft takes its arg-max, a one-hot draft.  `draft_sampling` names the request's parameters that process that
    distribution.  Verification uses the distribution that was sampled, so that the output is the target's in either
    case.  A row that would leave the draft's context drafts nothing and makes plain steps from there on.

    With a `confidence_threshold` above 0 a row may stop early (`Draft`), and the passes end when no row continues.
    """

    hidden = None  # of the target: none are needed

    def __init__(
        self,
        model: Any,
        num_speculative_tokens: int,
        *,
        is_sampling: bool,
        draft_sampling: DraftSampling = DraftSampling.REQUEST,
        confidence_threshold: float = 0.0,
        context_limit: int | None = None,
        passes: StaticPasses | None = None,
        kernels: Kernels | None = None,
        shares_prefixes: bool = False,
    ) -> None:
        """
        Args:
            context_limit: tokens up to which the draft can follow its target (None: to the end).
            passes: the draft's, where they are recorded.
            kernels: append to its cache (None: torch).
            shares_prefixes: see `Runner`.
        """
        self._shares_prefixes = shares_prefixes
        self._model, self._passes, self._kernels = model, passes, kernels
        self._num_speculative_tokens = num_speculative_tokens
        self._is_sampling = is_sampling
        self._draft_sampling = draft_sampling
        self._confidence_threshold = confidence_threshold
        self._context_limit = context_limit

    def begin(self, batch: Batch) -> None:
        self._runner = runner_for(
            self._model,
            batch.num_rows,
            batch.capacity,
            passes=self._passes,
            kernels=self._kernels,
            shares_prefixes=self._shares_prefixes,
        )

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        prompts = (batch.prompts[slot] for slot in slots)
        self._runner.prefill([prompt[:-1] or prompt for prompt in prompts], slots)

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        if not self._has_room(batch):
            nothing = torch.zeros((batch.num_rows, 0), dtype=torch.int64, device=batch.device)
            return Proposal(nothing, torch.zeros_like(batch.lengths), None)
        draft = Draft(
            batch,
            self._num_speculative_tokens,
            is_sampling=self._is_sampling,
            draft_sampling=self._draft_sampling,
            begun=self._find_drafting_rows(batch),
            confidence_threshold=self._confidence_threshold,
        )
        # The last two tokens go in together: after a fully accepted step the draft has not yet seen the last drafted
        # token; elsewhere the first of them rewrites the same keys and values.  The states that the passes write for a
        # row that drafts no more are rewritten too.
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

    def _find_drafting_rows(self, batch: Batch) -> torch.Tensor:
        """The rows that draft at all, bool [rows]: those with room; a finished one must not keep the passes going."""
        begun = torch.ones_like(batch.lengths, dtype=torch.bool)
        if self._confidence_threshold > 0.0:
            begun = to_device([batch.is_active(row) for row in range(batch.num_rows)], batch.device)
        if self._context_limit is not None:
            begun &= batch.lengths + self._num_speculative_tokens <= self._context_limit
        return begun


class Draft:
    """The tokens of one step while they are drafted, one per row and depth.

    With a `confidence_threshold` above 0 a row stops drafting before the first position at which no token has that
    probability in the draft's distribution.  This is decided before the token is drawn.  If the drawn token's
    probability decided it, the proposed tokens would not follow the draft's distribution, by which `rejection` verifies
    them.
    """

    def __init__(
        self,
        batch: Batch,
        num_speculative_tokens: int,
        *,
        is_sampling: bool,
        draft_sampling: DraftSampling = DraftSampling.REQUEST,
        begun: torch.Tensor | None = None,
        confidence_threshold: float = 0.0,
    ) -> None:
        """
        Args:
            is_sampling: sample the draft's processed distribution, which then joins the proposal.
            draft_sampling: the row's parameters that process it.
            begun: the rows that draft at all, bool [rows]; None: every row.
        """
        self._batch = batch
        is_whole = draft_sampling is DraftSampling.REQUEST
        self._sampling = batch.sampling if is_whole else batch.sampling.temperature_alone()
        self._is_sampling = is_sampling and not batch.sampling.all_greedy
        self._confidence_threshold = confidence_threshold
        self._goes_on = torch.ones_like(batch.lengths, dtype=torch.bool) if begun is None else begun
        self._num_drafted = torch.zeros_like(batch.lengths)
        self._tokens = torch.empty((batch.num_rows, num_speculative_tokens), dtype=torch.int64, device=batch.device)
        self._depth = 0
        self._probs: list[torch.Tensor] = []

    def consider(self, logits: torch.Tensor) -> bool:
        """Take the draft's logits at the next depth, [rows, vocabulary]; whether any row drafts there."""
        sampling = self._sampling
        self._processed = sampling.draft_logits(logits, self._tokens[:, : self._depth], self._batch.emitted)
        self._draft_probs = sampling.probs(self._processed[:, None])[:, 0] if self._is_sampling else None
        if self._confidence_threshold > 0.0:
            confidence = sampling.confidence(self._processed, self._draft_probs)
            self._goes_on = self._goes_on & (confidence >= self._confidence_threshold)
            return bool(self._goes_on.any())
        return True

    def take(self) -> torch.Tensor:
        """The token of every row at the depth that was considered, int64 [rows]; a row that stopped keeps none."""
        batch, depth = self._batch, self._depth
        if self._draft_probs is None:
            chosen = greedy_tokens(self._processed)
        else:
            self._probs.append(self._draft_probs)
            uniform = at_positions(batch.uniforms, DRAFT_STREAM, batch.emitted + depth, 1)[:, 0]
            chosen = sample(self._draft_probs, uniform)
        self._tokens[:, depth] = chosen
        self._num_drafted += self._goes_on
        self._depth += 1
        return chosen

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """`consider` logits [rows, vocabulary] and `take` int64 [rows], for a draft that always continues."""
        self.consider(logits)
        return self.take()

    def proposal(self) -> Proposal:
        """The drafted tokens, as wide as the deepest row."""
        tokens = self._tokens[:, : self._depth]
        return Proposal(tokens, self._num_drafted, torch.stack(self._probs, 1) if self._probs else None)
