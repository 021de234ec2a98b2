"""Heads that draft from the target's hidden states, in their published formats: Medusa, mlp_speculator, EAGLE-3.

In: a folder of weights.
Out: modules that propose tokens.
Imports: errors.
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
        """What the first `count` heads go on from; hidden: the final norm's states, [rows, hidden]."""

    def stage(self, index: int, state: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One head.

        Args:
            index: of the head; they are run in order.
            state: from `start` or from the head before.
            tokens: the latest token, then what the head before drafted, int64 [rows]; heads may not look at them.

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
        """Entries of the heads' own logits."""
        return self.size if self.ids is None else len(self.ids)

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [..., drafted] over the target's vocabulary, [..., size]; what cannot be drafted gets -inf."""
        if self.ids is None:
            return logits
        every = logits.new_full((*logits.shape[:-1], self.size), float("-inf"))
        return every.index_copy_(-1, self.ids, logits)
