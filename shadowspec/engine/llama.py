"""The Llama family run straight on a transformers model's weights, without its modules.

A small model's step through transformers costs several times its arithmetic: wrappers, output classes, a dozen
operations a norm, the rotary angles of every pass.  `DirectLlama` runs the same layers over fused weights with
as few operations as torch has for them, and appends to a `RaggedCache` in place.  `why_not_direct` says which
models it can run; the others go through their own forward.  Its logits are held against transformers' on the
weights at each load (`models.load_model`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

from shadowspec.engine.forward import FINAL, side_by_side
from shadowspec.engine.kv_cache import RaggedCache
from shadowspec.engine.llama_layer import Matrix, Norm, adopt_layer, projections, rotation_table, select_rotations

FAMILY = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# Angles that depend on the position alone; the others ("dynamic", "longrope") change with the longest row.
STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def why_not_direct(model: Any) -> str | None:
    """Why `DirectLlama` cannot run this transformers model, or None if it can.

    Exact types only: a subclass, an adapter or a quantised layer may compute something else.
    """
    if type(model) not in FAMILY:
        return f"{type(model).__name__} is not of the Llama family"
    if any("forward" in vars(module) for module in model.modules()):
        return "a forward of its modules has been replaced"
    config = model.config
    rope_type = (config.rope_parameters or {}).get("rope_type")
    if rope_type not in STATIC_ROPE_TYPES:
        return f"rotary angles of type {rope_type!r} change with the length of the batch"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}"
    plain = [model.lm_head]
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        plain += [attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        if any(type(module) is not torch.nn.Linear for module in projections(attention)):
            return "it has layers other than plain linear ones"
    if any(type(module) is not torch.nn.Linear for module in plain):
        return "it has layers other than plain linear ones"
    if any(module.bias is not None for module in plain):
        return "it has biases elsewhere than on queries, keys and values"
    return None


class DirectLlama:
    """The forward pass of a model for which `why_not_direct` is None.

    The weights are taken over layer by layer, lest they be held twice: the given model is of no use afterwards.
    """

    def __init__(self, model: Any) -> None:
        config, body = model.config, model.model
        self.config = config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        head_dim = int(body.layers[0].self_attn.head_dim)
        self._rotations = rotation_table(body.rotary_emb, int(config.max_position_embeddings), model.device)
        self.embedding = body.embed_tokens.weight.data  # [vocabulary, hidden]
        head = model.lm_head.weight.data  # [vocabulary, hidden]; the same tensor where the two are tied
        self._is_tied = head.data_ptr() == self.embedding.data_ptr()
        # As it lies on a GPU, where kernels read its rows.
        self._head = Matrix.of(head, is_held=self._is_tied or head.device.type != "cpu")
        self._norm = Norm.of(body.norm, body.norm.weight.data)
        self._layers = tuple(adopt_layer(layer, head_dim) for layer in body.layers)

    def parameters(self) -> Iterator[torch.Tensor]:
        """All weights, each once."""
        yield self.embedding
        if not self._is_tied:
            yield self._head.weight()
        yield self._norm.weight
        for layer in self._layers:
            yield from layer.tensors()

    def buffers(self) -> Iterator[torch.Tensor]:
        """What is held beside the weights."""
        yield self._rotations
        if self._head.packed is not None and self._is_tied:
            yield self._head.packed
        elif not self._is_tied:
            yield from self._head.copies()
        for layer in self._layers:
            yield from layer.copies()

    @property
    def kv_shape(self) -> tuple[int, int]:
        """Heads that have keys and values of their own, and their dimension."""
        return self._layers[0].kv_heads, self._layers[0].head_dim

    def final_states(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """What the head reads after these tokens of whole texts; nothing is kept of them.

        Args:
            tokens: int64 [rows, tokens], from the first of each text on and padded at the end.
            wanted: int64 [places]: row * tokens + column.

        Returns:
            [places, hidden].
        """
        rows, count = tokens.shape
        columns = torch.arange(count, device=tokens.device).clamp_(max=self._rotations.shape[0] - 1)
        angles = self.angles(columns.expand(rows, count))
        hidden = self.embedding.index_select(0, tokens.reshape(-1))  # [rows * tokens, hidden]
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            attended = layer.attend(None, layer.attention_norm(hidden), angles, None, count)
            if index == last:  # past the last layer's keys and values only the wanted places matter
                hidden, attended = hidden[wanted], attended[wanted]
            layer.add_to(hidden, attended)
        return self._norm(hidden)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """What the head makes of final states [places, hidden]; [places, vocabulary]."""
        return self._head(states)

    def head_weight(self) -> torch.Tensor:
        """The head, [vocabulary, hidden], its rows contiguous."""
        plain, packed = self._head.plain, self._head.packed
        if plain is not None:
            return plain.t().contiguous()
        assert packed is not None, "a weight has one form at least"
        return packed.to_dense()

    def num_parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.parameters())

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotations at positions (int64 [rows, count]), complex64 [rows, count, 1, head_dim / 2]."""
        return select_rotations(self._rotations, positions)

    def forward(
        self,
        tokens: torch.Tensor,  # int64 [rows, tokens]
        angles: torch.Tensor,  # complex64 [rows, tokens, 1, head_dim / 2]
        mask: torch.Tensor,  # float [rows, 1, tokens, read], added to the attention's scores
        cache: RaggedCache,
        keep: int,
        hidden_layers: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Append the tokens to the cache; see `runner.Forward`."""
        rows, count = tokens.shape
        hidden = self.embedding.index_select(0, tokens.reshape(-1))  # [rows * tokens, hidden]
        states: list[torch.Tensor] = []
        last = len(self._layers) - 1
        for index, (layer, store) in enumerate(zip(self._layers, cache.layers, strict=True)):
            if index in hidden_layers:
                states.append(hidden.view(rows, count, -1).clone())  # layers add to it in place
            width = keep if index == last else count
            attended = layer.attend(store, layer.attention_norm(hidden), angles, mask, width)
            if width < count:  # past the last layer's keys and values only the kept columns matter
                hidden = hidden.view(rows, count, -1)[:, -width:].reshape(rows * width, -1)
            layer.add_to(hidden, attended)
        normed = self._norm(hidden)
        if FINAL in hidden_layers:
            states.append(normed.view(rows, keep, -1))
        return self._head(normed).view(rows, keep, -1), side_by_side(states)
