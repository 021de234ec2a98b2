"""The specification of the compiled Llama, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # its name everywhere

from shadowspec_kernels.llama_weights import CachedPass, LlamaWeights, PassOutputs, widen


def product(states: torch.Tensor, weight: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
    """States [rows, inputs] times weight [outputs, inputs], transposed; added to `total` in place where it is given."""
    out = F.linear(states, widen(weight))
    return out if total is None else total.add_(out)


def llama_pass(weights: LlamaWeights, operands: CachedPass) -> PassOutputs:
    """Run the new tokens through all layers; their keys and values go into the caches."""
    rows, count, size = operands.hidden.shape
    heads, kv_heads, head_dim = weights.heads, weights.kv_heads, weights.head_dim
    hidden, inputs = operands.hidden, []
    for index, (layer, cache) in enumerate(zip(weights.layers, operands.caches, strict=True)):
        if index in operands.layers:
            inputs.append(hidden.clone())
        mixed = product(_norm(hidden, layer.attention_norm, weights.eps).view(-1, size), layer.qkv)
        if layer.qkv_bias is not None:
            mixed = mixed + layer.qkv_bias
        queries, keys, values = torch.split(mixed.view(rows, count, -1, head_dim), [heads, kv_heads, kv_heads], 2)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = _norm(queries, layer.query_norm, weights.eps), _norm(keys, layer.key_norm, weights.eps)
        queries, keys = _turn(queries, operands.angles), _turn(keys, operands.angles)
        for row, columns in enumerate(operands.columns):
            cache[row, :kv_heads, columns] = keys[row].transpose(0, 1)
            cache[row, kv_heads:, columns] = values[row].transpose(0, 1)
        keep = operands.keep if index + 1 == len(weights.layers) else count
        seen = torch.arange(operands.width) <= operands.columns[:, -keep:, None]  # [rows, keep, width]
        read = cache[:rows, :, : operands.width].repeat_interleave(heads // kv_heads, 1)
        attended = F.scaled_dot_product_attention(
            queries[:, -keep:].transpose(1, 2), read[:, :heads], read[:, heads:], attn_mask=seen[:, None]
        )
        attended = attended.transpose(1, 2).reshape(rows * keep, heads * head_dim)
        hidden = hidden[:, -keep:] + product(attended, layer.output).view(rows, keep, size)
        gate, up = product(_norm(hidden, layer.mlp_norm, weights.eps).view(-1, size), layer.gate_up).chunk(2, 1)
        hidden = hidden + product(F.silu(gate) * up, layer.down).view(rows, keep, size)
    final = _norm(hidden, weights.final_norm, weights.eps)
    logits = product(final.view(-1, size), weights.head).view(rows, operands.keep, -1)
    return PassOutputs(logits, tuple(inputs), final if operands.with_final else None)


def _norm(states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension, of n numbers, with a weight that is given times sqrt(n)."""
    squares = states.square().sum(-1, keepdim=True)
    return states / (squares + states.shape[-1] * eps).sqrt() * weight


def _turn(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of neighbours; [rows, tokens, heads, head_dim] by [rows, tokens, 1, head_dim / 2]."""
    pairs = torch.view_as_complex(states.reshape(*states.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(-2)
