"""What proposers that run a model share: each drafted token is the arg-max, or a sample of the draft's distribution."""

from __future__ import annotations

import torch

from shadowspec.engine.batch import Batch
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.randomness import DRAFT_STREAM, at_positions, sample
from shadowspec.engine.sampling import greedy_tokens


class Draft:
    """The tokens of one step as they are drafted, one per row and depth.

    With a `confidence_threshold` above 0 a row stops drafting before the first position at which no token has that
    probability in the draft's distribution.  That is decided before the token is drawn.  Decided by the drawn token's
    own probability, the tokens that are proposed would not follow the draft's distribution, by which `rejection`
    verifies them.
    """

    def __init__(
        self,
        batch: Batch,
        num_speculative_tokens: int,
        *,
        is_sampling: bool,
        begun: torch.Tensor | None = None,
        confidence_threshold: float = 0.0,
    ) -> None:
        """
        Args:
            is_sampling: sample the draft's processed distribution, which then joins the proposal.
            begun: the rows that draft at all, bool [rows]; None: every row.
        """
        self._batch = batch
        self._is_sampling = is_sampling and not batch.sampling.all_greedy
        self._confidence_threshold = confidence_threshold
        self._goes_on = torch.ones_like(batch.lengths, dtype=torch.bool) if begun is None else begun
        self._num_drafted = torch.zeros_like(batch.lengths)
        self._tokens = torch.empty((batch.num_rows, num_speculative_tokens), dtype=torch.int64, device=batch.device)
        self._depth = 0
        self._probs: list[torch.Tensor] = []

    def consider(self, logits: torch.Tensor) -> bool:
        """Take the draft's logits at the next depth, [rows, vocabulary]; whether any row drafts there."""
        batch = self._batch
        self._processed = batch.sampling.draft_logits(logits, self._tokens[:, : self._depth], batch.emitted)
        self._draft_probs = batch.sampling.probs(self._processed[:, None])[:, 0] if self._is_sampling else None
        if self._confidence_threshold > 0.0:
            confidence = batch.sampling.confidence(self._processed, self._draft_probs)
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
        """Both, for a draft that always goes on."""
        self.consider(logits)
        return self.take()

    def proposal(self) -> Proposal:
        """What was drafted, as wide as the deepest row."""
        tokens = self._tokens[:, : self._depth]
        return Proposal(tokens, self._num_drafted, torch.stack(self._probs, 1) if self._probs else None)
