"""Drafting with heads over the target's hidden states: Medusa and mlp_speculator, and EAGLE-3's layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shadowspec.engine.batch import Batch
from shadowspec.engine.forward import FINAL, HiddenStates
from shadowspec.engine.heads import StagedHeads
from shadowspec.engine.heads.eagle3 import Eagle3Draft
from shadowspec.engine.kv_cache import ColumnSpan, RaggedCache
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.proposers.draft_model import Draft
from shadowspec.types import DraftSampling


class HeadsProposer:
    """One head per token, all from the hidden state at which the target made the row's last token.

    `is_sampling` drafts by sampling each head's processed distribution (needed by the `rejection` rule); otherwise
    every head drafts its arg-max.  `draft_sampling` as in `DraftModelProposer`.
    """

    hidden = HiddenStates((FINAL,), of_prompt=False)

    def __init__(
        self,
        heads: StagedHeads,
        num_speculative_tokens: int,
        *,
        is_sampling: bool,
        draft_sampling: DraftSampling = DraftSampling.REQUEST,
    ) -> None:
        self._heads = heads
        self._num_speculative_tokens = num_speculative_tokens
        self._is_sampling = is_sampling
        self._draft_sampling = draft_sampling

    def begin(self, batch: Batch) -> None:
        """Nothing to prepare: the batch holds the hidden states."""

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        """Nothing is held per slot."""

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        draft = Draft(
            batch,
            self._num_speculative_tokens,
            is_sampling=self._is_sampling,
            draft_sampling=self._draft_sampling,
        )
        state, tokens = self._heads.start(batch.last_hidden(), self._num_speculative_tokens), batch.last_tokens
        for index in range(self._num_speculative_tokens):
            logits, state = self._heads.stage(index, state, tokens)
            tokens = draft.choose(logits)
        return draft.proposal()

    def keep(self, slots: list[int]) -> None:
        """Nothing is held per slot."""

    def cache_bytes(self) -> int:
        return 0


class Eagle3Proposer:
    """K passes of the draft's layer with a separate cache.

    `is_sampling` and `draft_sampling` as in `DraftModelProposer`.  Each step begins by appending the tokens emitted
    since the last one, with the hidden states of the target's pass.  They overwrite the entries that drafting made of
    the draft's states.
    """

    def __init__(
        self,
        draft: Eagle3Draft,
        num_speculative_tokens: int,
        *,
        is_sampling: bool,
        draft_sampling: DraftSampling = DraftSampling.REQUEST,
    ) -> None:
        self.hidden = draft.hidden
        self._draft = draft
        self._num_speculative_tokens = num_speculative_tokens
        self._is_sampling = is_sampling
        self._draft_sampling = draft_sampling

    def begin(self, batch: Batch) -> None:
        self._cache = RaggedCache(1, batch.num_rows, batch.capacity, batch.device)
        # Entries in the cache that are final, and the tokens that follow the target's latest columns.
        self._lengths, self._longest = torch.zeros_like(batch.lengths), 0
        self._following = torch.zeros_like(batch.last_tokens)[:, None]  # int64 [rows, columns]

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        """Take in the prompts but for their last positions, whose next tokens the batch has emitted by now."""
        hidden = batch.prompt_states
        assert hidden is not None, "the target's prefill handed out no hidden states"
        prompts = [batch.prompts[slot] for slot in slots]
        rows = torch.tensor(list(slots), device=batch.device)
        lengths = torch.tensor([len(prompt) - 1 for prompt in prompts], device=batch.device)
        self._lengths[rows] = lengths
        longest = max(len(prompt) for prompt in prompts) - 1
        self._longest = max(self._longest, longest)
        if longest == 0:
            return
        following = [[*prompt[1:], *[0] * (longest + 1 - len(prompt))] for prompt in prompts]
        order = torch.arange(longest, device=batch.device)
        positions = torch.where(order < lengths[:, None], order, -1)  # int64 [slots, columns]
        mask = self._cache.begin_prefill(rows, positions, hidden.dtype)
        tokens, angles = torch.tensor(following, device=batch.device), self._draft.angles(positions.clamp(min=0))
        self._draft.forward(tokens, self._draft.fuse(hidden[:, :longest]), angles, mask, self._cache)

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        draft = Draft(
            batch,
            self._num_speculative_tokens,
            is_sampling=self._is_sampling,
            draft_sampling=self._draft_sampling,
        )
        states = self._take_in(batch)
        chosen = draft.choose(self._draft.logits(states[:, 0]))
        if self._num_speculative_tokens > 1:
            ahead = ColumnSpan.after(batch.lengths, batch.longest, self._num_speculative_tokens - 1, span.dtype)
            for depth in range(self._num_speculative_tokens - 1):
                states = self._pass(ahead, depth, chosen[:, None], states)
                chosen = draft.choose(self._draft.logits(states[:, 0]))
        proposal = draft.proposal()
        self._following = torch.cat((proposal.tokens, batch.last_tokens[:, None]), 1)
        self._lengths, self._longest = batch.lengths, batch.longest
        return proposal

    def _take_in(self, batch: Batch) -> torch.Tensor:
        """Write the entries of the emitted tokens; the draft's states at each row's last one, [rows, 1, hidden]."""
        hidden = batch.hidden_states
        assert hidden is not None, "the target's pass handed out no hidden states"
        columns = hidden.shape[1]
        rows = torch.arange(batch.num_rows, device=batch.device)
        tokens = self._following[:, :columns].index_put((rows, batch.last_emitted_columns), batch.last_tokens)
        span = ColumnSpan.after(self._lengths, self._longest, columns, hidden.dtype)
        # Columns beyond a row's last emitted one hold rejected tokens; they are overwritten before they are read.
        states = self._pass(span, 0, tokens, self._draft.fuse(hidden))
        return states[rows, batch.last_emitted_columns][:, None]

    def _pass(self, span: ColumnSpan, start: int, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """One pass over the span's columns from `start` on: tokens [rows, count], states [rows, count, hidden]."""
        stop = start + tokens.shape[1]
        mask = self._cache.begin_step(span, start, stop)
        return self._draft.forward(tokens, states, self._draft.angles(span.columns[:, start:stop]), mask, self._cache)

    def keep(self, slots: list[int]) -> None:
        index = torch.tensor(slots, device=self._lengths.device)
        self._cache.keep(slots)
        self._following, self._lengths = self._following[index], self._lengths[index]

    def cache_bytes(self) -> int:
        return self._cache.allocated_bytes()
