"""The Llama family run straight on a transformers model's weights, without its modules.

A small model's step through transformers costs several times its arithmetic: wrappers, output classes, a dozen
operations a norm, the rotary angles of every pass.  `DirectLlama` runs the same layers over fused weights with
as few operations as torch has for them, and appends to a `RaggedCache` in place.  `why_not_direct` says which
models it can run; the others go through their own forward.  Its logits are held against transformers' on the
weights at each load (`models.load_model`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # its name everywhere
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

from shadowspec.engine.kv_cache import RaggedCache, RaggedLayer

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
        if any(type(module) is not torch.nn.Linear for module in _projections(attention)):
            return "it has layers other than plain linear ones"
    if any(type(module) is not torch.nn.Linear for module in plain):
        return "it has layers other than plain linear ones"
    if any(module.bias is not None for module in plain):
        return "it has biases elsewhere than on queries, keys and values"
    return None


@dataclass(frozen=True, slots=True)
class _Norm:
    """Root-mean-square norm over the last dimension, with a weight."""

    weight: torch.Tensor  # [size]; times sqrt(size) where `floor` is given
    eps: float
    floor: torch.Tensor | None  # [], sqrt(size * eps), where the norm is taken in torch's own four operations

    @classmethod
    def of(cls, module: Any, weight: torch.Tensor) -> _Norm:
        """The norm of a transformers module with its weight, perhaps in another order.

        Torch's rms_norm is one kernel on a GPU and some ten on a CPU, which cost more than a small layer's
        products.  x / sqrt(mean(x^2) + eps) is x * sqrt(size) / hypot(|x|, sqrt(size * eps)).
        """
        eps, size = float(module.variance_epsilon), weight.shape[0]
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            return cls(weight, eps, None)
        return cls(weight * size**0.5, eps, torch.tensor((size * eps) ** 0.5))

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        if self.floor is None:
            return F.rms_norm(states, self.weight.shape, self.weight, self.eps)
        size: torch.Tensor = torch.linalg.vector_norm(states, 2, -1, keepdim=True)
        return (states / size.hypot_(self.floor)).mul_(self.weight)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; matrices are [in, out], which is faster than [out, in] for a few rows on a CPU."""

    attention_norm: _Norm
    qkv: torch.Tensor  # [hidden, (heads + 2 * kv_heads) * head_dim]: queries, keys, values
    qkv_bias: torch.Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    query_norm: _Norm | None
    key_norm: _Norm | None
    output: torch.Tensor  # [heads * head_dim, hidden]
    mlp_norm: _Norm
    gate_up: torch.Tensor  # [hidden, 2 * intermediate]
    down: torch.Tensor  # [intermediate, hidden]

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from (self.qkv, self.output, self.gate_up, self.down)
        if self.qkv_bias is not None:
            yield self.qkv_bias
        for norm in (self.attention_norm, self.query_norm, self.key_norm, self.mlp_norm):
            if norm is not None:
                yield norm.weight


class DirectLlama:
    """The forward pass of a model for which `why_not_direct` is None.

    The weights are taken over layer by layer, lest they be held twice: the given model is of no use afterwards.
    Queries and keys lie with the two halves of each head interleaved, so that a rotation is one product of
    complex numbers; their inner products are the same.
    """

    def __init__(self, model: Any) -> None:
        config, body = model.config, model.model
        self.config = config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._head_dim = int(body.layers[0].self_attn.head_dim)
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._rotations = _rotations(body.rotary_emb, int(config.max_position_embeddings), model.device)
        self._embedding = body.embed_tokens.weight.data  # [vocabulary, hidden]
        self._head = model.lm_head.weight.data  # [vocabulary, hidden]; the same tensor where the two are tied
        self._norm = _Norm.of(body.norm, body.norm.weight.data)
        self._layers = tuple(_taken_over(layer, self._head_dim) for layer in body.layers)

    def parameters(self) -> Iterator[torch.Tensor]:
        """All weights, each once."""
        yield self._embedding
        if self._head.data_ptr() != self._embedding.data_ptr():
            yield self._head
        yield self._norm.weight
        for layer in self._layers:
            yield from layer.tensors()

    def buffers(self) -> Iterator[torch.Tensor]:
        """What is held beside the weights."""
        yield self._rotations

    def num_parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.parameters())

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotations at positions (int64 [rows, count]), complex64 [rows, count, 1, head_dim / 2]."""
        return self._rotations.index_select(0, positions.reshape(-1)).view(*positions.shape, 1, -1)

    def forward(
        self,
        tokens: torch.Tensor,  # int64 [rows, tokens]
        angles: torch.Tensor,  # complex64 [rows, tokens, 1, head_dim / 2]
        mask: torch.Tensor,  # float [rows, 1, tokens, read], added to the attention's scores
        cache: RaggedCache,
        keep: int,
    ) -> torch.Tensor:
        """Append the tokens to the cache; logits of the last `keep` columns, float [rows, keep, vocabulary]."""
        rows, count = tokens.shape
        hidden = self._embedding.index_select(0, tokens.reshape(-1))  # [rows * tokens, hidden]
        last = self._layers[-1]
        for layer, store in zip(self._layers, cache.layers, strict=True):
            if layer is last and keep < count:  # past its keys and values only the kept columns matter
                attended = self._attended(layer, store, hidden, angles, mask, keep)
                hidden = hidden.view(rows, count, -1)[:, -keep:].reshape(rows * keep, -1)
            else:
                attended = self._attended(layer, store, hidden, angles, mask, count)
            hidden.addmm_(attended, layer.output)
            gate, up = torch.mm(layer.mlp_norm(hidden), layer.gate_up).chunk(2, 1)
            hidden.addmm_(F.silu(gate).mul_(up), layer.down)
        return F.linear(self._norm(hidden), self._head).view(rows, keep, -1)

    def _attended(
        self,
        layer: _Layer,
        store: RaggedLayer,
        hidden: torch.Tensor,  # [rows * tokens, hidden]
        angles: torch.Tensor,
        mask: torch.Tensor,
        keep: int,
    ) -> torch.Tensor:
        """Outputs of the heads side by side, of the last `keep` columns, [rows * keep, heads * head_dim]."""
        rows, count = angles.shape[:2]
        heads, kv_heads, head_dim = self._heads, self._kv_heads, self._head_dim
        normed = layer.attention_norm(hidden)
        mixed = torch.mm(normed, layer.qkv)
        if layer.qkv_bias is not None:
            mixed += layer.qkv_bias
        mixed = mixed.view(rows, count, heads + 2 * kv_heads, head_dim)
        turning = mixed[:, :, : heads + kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            turning[:, :, :heads] = layer.query_norm(turning[:, :, :heads])
            turning[:, :, heads:] = layer.key_norm(turning[:, :, heads:])
        _turn(turning, angles)
        keys, values = store.append(mixed[:, :, heads:])
        queries = mixed[:, -keep:, :heads].transpose(1, 2)  # [rows, heads, keep, head_dim]
        mask = mask[:, :, -keep:]
        group = heads // kv_heads
        if group == 1:
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
            return attended.transpose(1, 2).reshape(rows * keep, heads * head_dim)
        if not store.read_width:
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
            return attended.transpose(1, 2).reshape(rows * keep, heads * head_dim)
        # Heads that share keys are more queries of one head, so that the cache need not be copied for them.
        queries = queries.reshape(rows, kv_heads, group * keep, head_dim)
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask.repeat(1, 1, group, 1))
        attended = attended.view(rows, kv_heads, group, keep, head_dim).permute(0, 3, 1, 2, 4)
        return attended.reshape(rows * keep, heads * head_dim)


def _turn(states: torch.Tensor, angles: torch.Tensor) -> None:
    """Rotate each pair of neighbours in place; [rows, tokens, heads, head_dim] by [rows, tokens, 1, head_dim / 2]."""
    pairs = states.view(*states.shape[:-1], -1, 2)
    if states.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(angles)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()) * angles))


def _projections(attention: Any) -> tuple[Any, Any, Any]:
    return attention.q_proj, attention.k_proj, attention.v_proj


def _taken_over(layer: Any, head_dim: int) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    linears = _projections(attention)
    has_norms = hasattr(attention, "q_norm")
    for linear in linears[:2]:
        linear.weight.data = _interleaved(linear.weight.data, head_dim)
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    if biases:
        biases = [_interleaved(biases[0], head_dim), _interleaved(biases[1], head_dim), biases[2]]
    return _Layer(
        attention_norm=_Norm.of(layer.input_layernorm, layer.input_layernorm.weight.data),
        qkv=_fused(*linears),
        qkv_bias=torch.cat(biases) if biases else None,
        query_norm=_head_norm(attention.q_norm, head_dim) if has_norms else None,
        key_norm=_head_norm(attention.k_norm, head_dim) if has_norms else None,
        output=_fused(attention.o_proj),
        mlp_norm=_Norm.of(layer.post_attention_layernorm, layer.post_attention_layernorm.weight.data),
        gate_up=_fused(mlp.gate_proj, mlp.up_proj),
        down=_fused(mlp.down_proj),
    )


def _head_norm(module: Any, head_dim: int) -> _Norm:
    return _Norm.of(module, _interleaved(module.weight.data, head_dim))


def _interleaved(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows [heads * head_dim, ...] with the halves of each head interleaved: 0, half, 1, half + 1, ..."""
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _fused(*linears: Any) -> torch.Tensor:
    """The weights of linear layers side by side, [in, all outs]; the layers let go of theirs."""
    fused = torch.cat([linear.weight.data for linear in linears]).t().contiguous()
    for linear in linears:
        linear.weight = None
    return fused


def _rotations(rotary: Any, positions: int, device: torch.device) -> torch.Tensor:
    """cos + i sin of every position and pair, as the model's own module gives them; [positions, head_dim / 2]."""
    every = torch.arange(positions, device=device)[None]
    cos, sin = rotary(torch.empty(0, dtype=torch.float32, device=device), every)  # [1, positions, head_dim]
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half], sin[0, :, :half])
