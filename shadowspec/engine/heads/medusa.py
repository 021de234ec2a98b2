"""Medusa's heads (2401.10774): each a few residual layers and a separate head over the target's last hidden state.

    logits_i = head_i(x),  x = hidden;  per layer: x = x + SiLU(layer(x))

Head i drafts the token i + 1 places after the latest one, independently of the heads before it.  Two published layouts
are read: that of Medusa's training (`0.0.linear.weight`, `0.1.weight`) and vLLM's (`blocks.0.layers.0.weight`,
`lm_heads.0.weight`), which supports one head for all (`original_lm_head`) and a reduced vocabulary (`token_map`,
`truncated_vocab_size`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  # its name everywhere

from shadowspec.engine.heads import DraftVocabulary
from shadowspec.engine.heads.folder import HeadFolder

_PREFIX: Final = re.compile(r"^medusa_heads?\.")
_OWN_LAYER: Final = re.compile(r"^(\d+)\.(\d+)\.linear\.(weight|bias)$")
_OWN_HEAD: Final = re.compile(r"^(\d+)\.\d+\.weight$")


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """The weights of all heads side by side."""

    num_heads: int
    layers: tuple[tuple[torch.Tensor, torch.Tensor | None], ...]  # [heads, in, out], and perhaps [heads, 1, out]
    heads: torch.Tensor  # [heads, hidden, drafted], or [1, hidden, drafted] where all share one
    vocabulary: DraftVocabulary

    def start(self, hidden: torch.Tensor, count: int) -> torch.Tensor:
        """The logits of the first `count` heads, [count, rows, vocabulary]: none needs another's token."""
        states = hidden.expand(count, *hidden.shape)  # [count, rows, hidden]
        for weight, bias in self.layers:
            mixed = torch.bmm(states, weight[:count])
            states = states + F.silu(mixed if bias is None else mixed + bias[:count])
        return self.vocabulary.spread(torch.matmul(states, self.heads[:count]))

    def stage(self, index: int, state: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of one head, [rows, vocabulary]; the tokens are not looked at."""
        return state[index], state

    def tensors(self) -> tuple[torch.Tensor, ...]:
        layers = [tensor for layer in self.layers for tensor in layer if tensor is not None]
        return (*layers, self.heads, *([self.vocabulary.ids] if self.vocabulary.ids is not None else []))


def medusa_heads(folder: HeadFolder, hidden_size: int, vocabulary: int) -> MedusaHeads:
    """The heads of a folder for a target of this width and vocabulary.

    Raises:
        ModelError: a field or a weight does not fit.
    """
    num_heads = folder.number("num_heads", "medusa_num_heads")
    num_layers = folder.number("num_hidden_layers", "medusa_num_layers")
    folder.expect("hidden_size", hidden_size, f"the target's hidden size is {hidden_size}")
    folder.expect("vocab_size", vocabulary, f"the target's vocabulary has {vocabulary} tokens")
    folder.expect("logit_scale", 1.0, "logits are not scaled here")
    folder.rename({name: _common_name(name) for name in folder.names})
    drafted = DraftVocabulary(vocabulary, None)
    if (size := folder.config.get("truncated_vocab_size")) not in (None, vocabulary):
        size = folder.number("truncated_vocab_size")
        drafted = folder.vocabulary("token_map", size, vocabulary, are_offsets=False)
    layers = []
    for layer in range(num_layers):
        names = [f"blocks.{head}.layers.{layer}" for head in range(num_heads)]
        weight = torch.stack([folder.take(f"{name}.weight", hidden_size, hidden_size).t() for name in names])
        bias = None
        if f"{names[0]}.bias" in folder.names:
            bias = torch.stack([folder.take(f"{name}.bias", hidden_size)[None] for name in names])
        layers.append((weight, bias))
    is_shared = folder.flag("original_lm_head")
    if is_shared:
        folder.rename({"lm_heads.0.weight": "lm_head.weight"})
    names = ["lm_head.weight"] if is_shared else [f"lm_heads.{head}.weight" for head in range(num_heads)]
    heads = torch.stack([_head(folder, name, drafted, hidden_size) for name in names])
    folder.finish()
    return MedusaHeads(num_heads, tuple(layers), heads, drafted)


def _head(folder: HeadFolder, name: str, vocabulary: DraftVocabulary, hidden_size: int) -> torch.Tensor:
    """[hidden, drafted]; a head over the whole vocabulary is cut down to the tokens that can be drafted."""
    rows = folder.rows(name)
    if vocabulary.ids is not None and rows == vocabulary.size:
        return folder.take(name, rows, hidden_size)[vocabulary.ids].t()
    return folder.take(name, vocabulary.num_drafted, hidden_size).t()


def _common_name(name: str) -> str:
    """The name of a weight in vLLM's layout."""
    name = _PREFIX.sub("", name)
    if match := _OWN_LAYER.match(name):
        return f"blocks.{match[1]}.layers.{match[2]}.{match[3]}"
    if match := _OWN_HEAD.match(name):
        return f"lm_heads.{match[1]}.weight"
    return name
