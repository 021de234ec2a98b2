"""The inputs of a Llama's pass: its weights, and the operands of one pass.

The weights of products are rows [outputs, inputs] in one of the `FORMATS`.  `widen` gives their values in float32,
exactly.  A row of int8 weights holds `inputs` numbers and then a scale for each `SCALED` of them, a bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from shadowspec_kernels.errors import OperandError

FORMATS: Final = (torch.float32, torch.bfloat16, torch.int8)  # in the order of `llama_cpu.cpp`
SCALED: Final = 32  # int8 weights that share a scale
_SCALE_BYTES: Final = 2
_LARGEST: Final = 127


def packed_width(inputs: int, dtype: torch.dtype) -> int:
    """Entries of a row of this number of weights.

    Raises:
        OperandError: int8 rows of this size have no whole number of scales.
    """
    if dtype != torch.int8:
        return inputs
    if inputs % SCALED:
        raise OperandError(f"rows of {inputs} weights do not divide into groups of {SCALED}, which share a scale")
    return inputs + inputs // SCALED * _SCALE_BYTES


def num_inputs(weight: torch.Tensor) -> int:
    """Weights of each row of a weight in any format."""
    if weight.dtype != torch.int8:
        return weight.shape[1]
    return weight.shape[1] // (SCALED + _SCALE_BYTES) * SCALED


def pack(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Weights [outputs, inputs] in a format, each rounded to the nearest value; `pack(widen(x))` is x.

    The scale of an int8 group is its largest absolute value over 127, as a bfloat16: a product with it has no rounding.

    Raises:
        OperandError: as `packed_width`.
    """
    if dtype != torch.int8:
        return weight.to(dtype)
    packed_width(weight.shape[1], dtype)
    groups = weight.float().view(weight.shape[0], -1, SCALED)
    scales = (groups.abs().amax(2) / _LARGEST).bfloat16()
    divisors = scales.float().masked_fill_(scales == 0, 1.0)[:, :, None]
    numbers = (groups / divisors).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    return torch.cat((numbers.flatten(1), scales.view(torch.int8)), 1)


def widen(weight: torch.Tensor) -> torch.Tensor:
    """The values of weights in any format, float32 [outputs, inputs]; float32 weights themselves."""
    if weight.dtype != torch.int8:
        return weight.float()
    inputs = num_inputs(weight)
    numbers = weight[:, :inputs].float().view(weight.shape[0], -1, SCALED)
    scales = weight[:, inputs:].contiguous().view(torch.bfloat16).float()
    widened: torch.Tensor = (numbers * scales[:, :, None]).flatten(1)
    return widened


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer; those of products have one format.  The weight of a norm over n numbers is times sqrt(n).

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
    keep: int  # the last tokens of each row, whose logits are computed
    layers: tuple[int, ...] = ()  # whose inputs are returned
    with_final: bool = False  # whether the head's input is returned


@dataclass(frozen=True, slots=True)
class PassOutputs:
    """The outputs of a pass."""

    logits: torch.Tensor  # [rows, keep, vocabulary]
    inputs: tuple[torch.Tensor, ...]  # of the layers asked for, [rows, tokens, hidden]
    final_states: torch.Tensor | None  # [rows, keep, hidden]


def check_product(states: torch.Tensor, weight: torch.Tensor, total: torch.Tensor | None) -> None:
    """Refuse operands of a product [rows, inputs] by [outputs, inputs] that do not fit or cannot be addressed.

    Raises:
        OperandError: dtypes, devices, shapes or strides.
    """
    given = (states, weight) if total is None else (states, weight, total)
    if any(operand.device.type != "cpu" or operand.dim() != 2 for operand in given) or weight.dtype not in FORMATS:
        raise OperandError("a product is one of matrices on a CPU, whose weight is float32, bfloat16 or int8")
    if any(operand is not weight and operand.dtype != torch.float32 for operand in given):
        raise OperandError("the states and the total of a product are float32")
    if states.shape[1] != num_inputs(weight):
        raise OperandError(f"states {tuple(states.shape)} do not fit a weight {tuple(weight.shape)}")
    if not weight.is_contiguous():
        raise OperandError("the weight is not contiguous")
    if total is not None and (total.shape != (states.shape[0], weight.shape[0]) or total.stride(1) != 1):
        raise OperandError(f"a total {tuple(total.shape)} does not fit {states.shape[0]} by {weight.shape[0]}")


def check_pass(weights: LlamaWeights, operands: CachedPass) -> None:
    """Refuse operands of a pass that do not fit together or cannot be addressed.

    Raises:
        OperandError: dtypes, shapes or strides.
    """
    rows, count, size = operands.hidden.shape
    if size != weights.final_norm.shape[0] or operands.hidden.dtype != torch.float32:
        raise OperandError(f"states of size {size}, {operands.hidden.dtype} do not fit the model")
    if operands.columns.shape != (rows, count) or operands.columns.dtype != torch.int64:
        raise OperandError(f"columns are not int64 [{rows}, {count}]")
    if operands.angles.numel() * 2 != rows * count * weights.head_dim or operands.angles.dtype != torch.complex64:
        raise OperandError(f"angles are not complex64 [{rows}, {count}, 1, {weights.head_dim // 2}]")
    if not 1 <= operands.keep <= count or len(operands.caches) != len(weights.layers):
        raise OperandError(f"{operands.keep} of {count} tokens, {len(operands.caches)} caches")
    first = operands.caches[0]
    slots, heads, columns, head_dim = first.shape
    if slots < rows or heads != 2 * weights.kv_heads or head_dim != weights.head_dim or operands.width > columns:
        raise OperandError(f"a cache {tuple(first.shape)} does not fit {rows} rows of {operands.width} columns")
    strides = first.stride()
    if strides[3] != 1 or any(
        cache.dtype != torch.float32 or cache.stride() != strides or cache.shape != first.shape
        for cache in operands.caches
    ):
        raise OperandError("the layers' caches differ in form, or their heads are not contiguous")
