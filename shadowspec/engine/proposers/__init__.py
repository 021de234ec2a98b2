"""Proposers: each proposes up to K tokens for every row and step.

In: tokens so far, and the target's hidden states where a head reads them.
Out: proposed tokens and their probabilities.
Imports: types, shadowspec_kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from shadowspec.engine.forward import HiddenStates

if TYPE_CHECKING:
    from shadowspec.engine.batch import Batch
    from shadowspec.engine.kv_cache import ColumnSpan


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens of one step.  Rows may propose fewer than the widest one, down to none."""

    tokens: torch.Tensor  # int64 [rows, width]: at least as wide as the row that proposes most
    num_drafted: torch.Tensor  # int64 [rows]
    draft_probs: torch.Tensor | None  # float32 [rows, width, vocabulary], processed; None: one-hot drafts


class Proposer(Protocol):
    """A proposer, as the decode loop uses it."""

    @property
    def hidden(self) -> HiddenStates | None:
        """The target's hidden states that it drafts from, which the batch then holds; None: it needs none."""

    def begin(self, batch: Batch) -> None:
        """Take up a batch, before any of its rows."""

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        """Take up the rows in these slots: their prompts are prefilled and their first tokens emitted."""

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        """Draft for every row from its tokens so far; the span begins at each row's last cached token."""

    def keep(self, slots: list[int]) -> None:
        """Follow the batch in dropping all slots but these."""

    def cache_bytes(self) -> int:
        """Bytes of the proposer's state for the batch, beyond its weights."""
