"""What a pass of a Llama reads: its weights, and the operands of one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shadowspec_kernels.errors import InputError


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer.  The weight of a norm over n numbers is given times sqrt(n).

    The two halves of each head of queries and keys lie interleaved, so that a rotation turns neighbours.
    """

    attention_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]: queries, keys, values
    qkv_bias: torch.Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    query_norm: torch.Tensor | None  # [head_dim]
    key_norm: torch.Tensor | None  # [head_dim]
    output: torch.Tensor  # [hidden, heads * head_dim]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """Weights of a model without its embedding."""

    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden]
    head: torch.Tensor  # [vocabulary, hidden]
    heads: int
    kv_heads: int
    head_dim: int
    eps: float  # of all norms


@dataclass(frozen=True, slots=True)
class CachedPass:
    """New tokens of rows of a ragged cache.  Each row looks at the columns of its slot up to each token's."""

    hidden: torch.Tensor  # [rows, tokens, hidden], the tokens' embeddings; it may be changed
    columns: torch.Tensor  # int64 [rows, tokens], where keys and values go
    angles: torch.Tensor  # complex64 [rows, tokens, 1, head_dim / 2]
    caches: Sequence[torch.Tensor]  # of each layer [slots, 2 * kv_heads, columns, head_dim]: keys, then values
    width: int  # columns that may be read
    keep: int  # the last tokens of each row, whose logits are wanted
    layers: tuple[int, ...] = ()  # whose inputs are wanted
    with_final: bool = False  # whether what the head reads is wanted


@dataclass(frozen=True, slots=True)
class PassOutputs:
    """What a pass gives."""

    logits: torch.Tensor  # [rows, keep, vocabulary]
    inputs: tuple[torch.Tensor, ...]  # of the layers asked for, [rows, tokens, hidden]
    final_states: torch.Tensor | None  # [rows, keep, hidden]


def check_product(states: torch.Tensor, weight: torch.Tensor, total: torch.Tensor | None) -> None:
    """Refuse operands of a product [rows, inputs] by [outputs, inputs] that do not fit or cannot be addressed.

    Raises:
        InputError: dtypes, devices, shapes or strides.
    """
    given = (states, weight) if total is None else (states, weight, total)
    if any(each.dtype != torch.float32 or each.device.type != "cpu" or each.dim() != 2 for each in given):
        raise InputError("a product is one of float32 matrices on a CPU")
    if states.shape[1] != weight.shape[1]:
        raise InputError(f"states {tuple(states.shape)} do not fit a weight {tuple(weight.shape)}")
    if not weight.is_contiguous():
        raise InputError("the weight is not contiguous")
    if total is not None and (total.shape != (states.shape[0], weight.shape[0]) or total.stride(1) != 1):
        raise InputError(f"a total {tuple(total.shape)} does not fit {states.shape[0]} by {weight.shape[0]}")


def check_pass(weights: LlamaWeights, operands: CachedPass) -> None:
    """Refuse operands of a pass that do not fit together or cannot be addressed.

    Raises:
        InputError: dtypes, shapes or strides.
    """
    rows, count, size = operands.hidden.shape
    if size != weights.final_norm.shape[0] or operands.hidden.dtype != torch.float32:
        raise InputError(f"states of size {size}, {operands.hidden.dtype} do not fit the model")
    if operands.columns.shape != (rows, count) or operands.columns.dtype != torch.int64:
        raise InputError(f"columns are not int64 [{rows}, {count}]")
    if operands.angles.numel() * 2 != rows * count * weights.head_dim or operands.angles.dtype != torch.complex64:
        raise InputError(f"angles are not complex64 [{rows}, {count}, 1, {weights.head_dim // 2}]")
    if not 1 <= operands.keep <= count or len(operands.caches) != len(weights.layers):
        raise InputError(f"{operands.keep} of {count} tokens, {len(operands.caches)} caches")
    first = operands.caches[0]
    slots, heads, columns, head_dim = first.shape
    if slots < rows or heads != 2 * weights.kv_heads or head_dim != weights.head_dim or operands.width > columns:
        raise InputError(f"a cache {tuple(first.shape)} does not fit {rows} rows of {operands.width} columns")
    strides = first.stride()
    if strides[3] != 1 or any(
        cache.dtype != torch.float32 or cache.stride() != strides or cache.shape != first.shape
        for cache in operands.caches
    ):
        raise InputError("the layers' caches differ in form, or their heads are not contiguous")
