"""Drafting with heads over the target's last hidden state: Medusa and mlp_speculator."""

from __future__ import annotations

from collections.abc import Sequence

from shadowspec.engine.batch import Batch
from shadowspec.engine.heads import StagedHeads
from shadowspec.engine.hidden import FINAL, HiddenStates
from shadowspec.engine.kv_cache import Span
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.proposers.choice import Draft


class HeadsProposer:
    """One head per token, all from the hidden state at which the target made the row's last token.

    `is_sampling` drafts by sampling each head's processed distribution (needed by the `rejection` rule); otherwise
    every head drafts its arg-max.
    """

    hidden = HiddenStates((FINAL,), of_prompt=False)

    def __init__(self, heads: StagedHeads, num_speculative_tokens: int, *, is_sampling: bool) -> None:
        self._heads = heads
        self._num_speculative_tokens = num_speculative_tokens
        self._is_sampling = is_sampling

    def begin(self, batch: Batch) -> None:
        """Nothing to prepare: the batch holds the hidden states."""

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        """Nothing is held per slot."""

    def propose(self, batch: Batch, span: Span) -> Proposal:
        draft = Draft(batch, self._num_speculative_tokens, is_sampling=self._is_sampling)
        state, tokens = self._heads.start(batch.last_hidden(), self._num_speculative_tokens), batch.last_tokens
        for index in range(self._num_speculative_tokens):
            logits, state = self._heads.stage(index, state, tokens)
            tokens = draft.choose(logits)
        return draft.proposal()

    def keep(self, slots: list[int]) -> None:
        """Nothing is held per slot."""

    def cache_bytes(self) -> int:
        return 0
