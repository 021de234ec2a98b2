"""A model's forward pass over a ragged cache, and the hidden states that it hands out to a proposer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from shadowspec.engine.kv_cache import RaggedCache

FINAL: Final = -1  # the final norm's output, which the target's head reads


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """A selection of hidden states.

    They are numbered as in transformers' `output_hidden_states`: `i` is the input of layer i, 0 the embedding, and
    `FINAL` the last of all.  `FINAL` exists only for kept columns and so never for a whole prompt.
    """

    layers: tuple[int, ...]  # ascending, or only FINAL
    of_prompt: bool  # of all its tokens; otherwise only of its last one

    def __post_init__(self) -> None:
        assert FINAL not in self.layers or (self.layers == (FINAL,) and not self.of_prompt)


def side_by_side(states: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """States [rows, columns, hidden] of several layers as one, [rows, columns, layers * hidden]; None: of none."""
    return torch.cat(list(states), -1) if states else None


class Forward(Protocol):
    """A model's forward pass over a ragged cache."""

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """The pass's tables for positions (int64 [rows, count]): [rows, count, ...], to be cut by column."""

    def forward(
        self,
        tokens: torch.Tensor,  # int64 [rows, tokens]
        angles: torch.Tensor,  # [rows, tokens, ...]
        mask: torch.Tensor,  # float [rows, 1, tokens, read], added to the attention's scores
        cache: RaggedCache,
        keep: int,
        hidden_layers: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Append the tokens to the cache.

        Returns:
            Logits of the last `keep` columns, float [rows, keep, vocabulary], and the hidden states of those layers (as
            `HiddenStates` numbers them), [rows, columns, layers * hidden], or None without layers.  They are of all
            columns, `FINAL` of the last `keep`.
        """


class TransformersForward:
    """A transformers model's forward, for every architecture without a direct one.

    Shapes are those of `Forward`; its angles are the positions themselves, int64 [rows, count].
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        return positions  # the model computes its angles from them

    def forward(
        self,
        tokens: torch.Tensor,
        angles: torch.Tensor,
        mask: torch.Tensor,
        cache: RaggedCache,
        keep: int,
        hidden_layers: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=angles,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=bool(hidden_layers),
        )
        states = [output.hidden_states[index] for index in hidden_layers]  # FINAL: of all columns
        return output.logits, side_by_side(states)
