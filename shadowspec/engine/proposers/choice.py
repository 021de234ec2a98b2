"""What proposers that run a model share: each drafted token is the arg-max, or a sample of the draft's distribution."""

from __future__ import annotations

import torch

from shadowspec.engine.batch import Batch
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.randomness import DRAFT_STREAM, at_positions, sample
from shadowspec.engine.sampling import greedy_tokens


class Draft:
    """The tokens of one step as they are drafted, one per row and depth."""

    def __init__(self, batch: Batch, num_speculative_tokens: int, *, is_sampling: bool) -> None:
        """`is_sampling`: sample the draft's processed distribution, which then joins the proposal."""
        self._batch = batch
        self._is_sampling = is_sampling and not batch.sampling.all_greedy
        self._tokens = torch.empty((batch.num_rows, num_speculative_tokens), dtype=torch.int64, device=batch.device)
        self._depth = 0
        self._probs: list[torch.Tensor] = []

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """The next drafted token of every row, int64 [rows], from the draft's logits, [rows, vocabulary]."""
        batch, depth = self._batch, self._depth
        processed = batch.sampling.draft_logits(logits, self._tokens[:, :depth], batch.emitted)
        if self._is_sampling:
            draft_probs = batch.sampling.probs(processed[:, None])[:, 0]  # [rows, vocabulary]
            self._probs.append(draft_probs)
            chosen = sample(draft_probs, at_positions(batch.uniforms, DRAFT_STREAM, batch.emitted + depth, 1)[:, 0])
        else:
            chosen = greedy_tokens(processed)
        self._tokens[:, depth] = chosen
        self._depth += 1
        return chosen

    def proposal(self) -> Proposal:
        """All rows draft equally many tokens."""
        num_drafted = torch.full_like(self._batch.lengths, self._depth)
        return Proposal(self._tokens, num_drafted, torch.stack(self._probs, 1) if self._probs else None)
