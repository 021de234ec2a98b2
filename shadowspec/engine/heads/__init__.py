"""Heads that draft from the target's hidden states, in their published formats: Medusa, mlp_speculator, EAGLE-3.

In: a folder of weights.
Out: modules that propose tokens.
Imports: model_folder, errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class StagedHeads(Protocol):
    """Heads that draft one token each, all from the hidden state at which the target made the latest token."""

    @property
    def num_heads(self) -> int:
        """How many tokens can be drafted."""

    def start(self, hidden: torch.Tensor, count: int) -> torch.Tensor:
        """The initial state of the first `count` heads; hidden: the final norm's states, [rows, hidden]."""

    def stage(self, index: int, state: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One head.

        Args:
            index: of the head; they are run in order.
            state: from `start` or from the head before.
            tokens: the latest token, then the head before's draft, int64 [rows]; not every head reads them.

        Returns:
            Logits over the target's vocabulary, [rows, vocabulary], and the state for the next head.
        """

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that the heads hold, each once."""


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The tokens that heads can draft, of the target's `size`."""

    size: int
    ids: torch.Tensor | None  # int64 [drafted], the target's id of each; None: all of them

    @property
    def num_drafted(self) -> int:
        """Entries of the heads' logits."""
        return self.size if self.ids is None else len(self.ids)

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [..., drafted] over the target's vocabulary, [..., size]; tokens that cannot be drafted get -inf."""
        if self.ids is None:
            return logits
        every = logits.new_full((*logits.shape[:-1], self.size), float("-inf"))
        return every.index_copy_(-1, self.ids, logits)
