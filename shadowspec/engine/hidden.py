"""The target's hidden states that a proposer drafts from, handed out by its passes to whoever asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

FINAL: Final = -1  # what the final norm gives, which the target's head reads


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Which hidden states are asked for.

    They are numbered as in transformers' `output_hidden_states`: `i` is what goes into layer i, 0 the embedding, and
    `FINAL` the last of all, which is made of kept columns alone and so never of a whole prompt.
    """

    layers: tuple[int, ...]  # ascending, or FINAL alone
    of_prompt: bool  # of all its tokens; otherwise of its last one alone

    def __post_init__(self) -> None:
        assert FINAL not in self.layers or (self.layers == (FINAL,) and not self.of_prompt)


def side_by_side(states: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """States [rows, columns, hidden] of several layers as one, [rows, columns, layers * hidden]; None: of none."""
    return torch.cat(list(states), -1) if states else None
