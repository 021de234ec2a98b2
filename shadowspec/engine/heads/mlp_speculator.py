"""IBM's mlp_speculator (2404.19124): one stage per token, each from the state before it and the token before it.

    state_0 = hidden (scale_input: its norm over the square root of 2)
    state_i+1 = GELU(norm_i(proj_i(state_i) + ratio * emb_i(token_i))),  logits_i = head_i(state_i+1)

token_0 is the latest token, token_i is drafted by stage i - 1.  `ratio` is fixed by n_predict and inner_dim.  With
`tie_weights` (`tie_wts` in IBM's package) all stages share one set of weights; the first projection, which may have
another size, is separate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  # its name everywhere

from shadowspec.engine.heads.folder import HeadFolder

EPSILON: Final = 1e-6  # of both norms, as published
PREFIX: Final = "speculator."


@dataclass(frozen=True, slots=True)
class SpeculatorStage:
    """The weights of one stage; tied ones are the same tensors in all."""

    embedding: torch.Tensor  # [vocabulary, inner]
    projection: torch.Tensor  # [inner, in]
    head: torch.Tensor  # [vocabulary, inner]
    norm_weight: torch.Tensor  # [inner]
    norm_bias: torch.Tensor  # [inner]


@dataclass(frozen=True, slots=True)
class MlpSpeculator:
    """All stages."""

    num_heads: int
    stages: tuple[SpeculatorStage, ...]
    embedding_ratio: float
    scales_input: bool

    def start(self, hidden: torch.Tensor, count: int) -> torch.Tensor:
        """The first stage's state, [rows, hidden]."""
        return _normalise(hidden) / math.sqrt(2.0) if self.scales_input else hidden

    def stage(self, index: int, state: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [rows, vocabulary] and the next state [rows, inner]."""
        current_stage = self.stages[index]
        mixed = F.linear(state, current_stage.projection) + self.embedding_ratio * F.embedding(
            tokens, current_stage.embedding
        )
        state = F.gelu(_normalise(mixed) * current_stage.norm_weight + current_stage.norm_bias)
        return F.linear(state, current_stage.head), state

    def tensors(self) -> tuple[torch.Tensor, ...]:
        every = (
            tensor
            for stage in self.stages
            for tensor in (stage.embedding, stage.projection, stage.head, stage.norm_weight, stage.norm_bias)
        )
        return tuple({tensor.data_ptr(): tensor for tensor in every}.values())


def mlp_speculator(folder: HeadFolder, hidden_size: int, vocabulary: int) -> MlpSpeculator:
    """The stages of a folder for a target of this width and vocabulary.

    Raises:
        ModelError: a field or a weight does not fit.
    """
    count = folder.number("n_predict")
    if folder.number("emb_dim") != hidden_size:
        raise folder.wrong("emb_dim", f"the target's hidden size is {hidden_size}")
    if folder.number("vocab_size") != vocabulary:
        raise folder.wrong("vocab_size", f"the target's vocabulary has {vocabulary} tokens")
    inner = folder.number("inner_dim") if folder.config.get("inner_dim") else hidden_size
    is_tied = folder.flag("tie_weights", "tie_wts")
    folder.rename({name: name.removeprefix(PREFIX) for name in folder.names})
    stages: list[SpeculatorStage] = []
    for index in range(count):
        if is_tied and index > 0:
            first = stages[-1]
            projection = first.projection if index > 1 else folder.take("proj.1.weight", inner, inner)
            stages.append(SpeculatorStage(first.embedding, projection, first.head, first.norm_weight, first.norm_bias))
            # The program that saved the folder may have written tied weights once for every stage.
            names = ("emb.{}.weight", "proj.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias")
            folder.drop(*(name.format(index) for name in names))
            continue
        stages.append(
            SpeculatorStage(
                embedding=folder.take(f"emb.{index}.weight", vocabulary, inner),
                projection=folder.take(f"proj.{index}.weight", inner, inner if index else hidden_size),
                head=folder.take(f"head.{index}.weight", vocabulary, inner),
                norm_weight=folder.take(f"ln.{index}.weight", inner),
                norm_bias=folder.take(f"ln.{index}.bias", inner),
            )
        )
    folder.finish()
    state_weight = 0.5 ** (0.5 / count)
    embedding_weight = math.sqrt((1.0 - state_weight**2) * inner / 2)
    return MlpSpeculator(count, tuple(stages), embedding_weight / state_weight, folder.flag("scale_input"))


def _normalise(states: torch.Tensor) -> torch.Tensor:
    """[..., size] -> [..., size], of mean square 1."""
    normed: torch.Tensor = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + EPSILON)
    return normed
