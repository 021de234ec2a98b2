"""The result of replay scoring, and the checks of the inputs of scoring and appending."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shadowspec_kernels.errors import OperandError

STATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Scored:
    """For every row, the head's scores of a given token and of the likeliest one."""

    log_probs: torch.Tensor  # float32 [rows]: of the given token
    best_tokens: torch.Tensor  # int64 [rows]: the arg-max, the first of equals
    best_log_probs: torch.Tensor  # float32 [rows]


def check_score(hidden: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor, temperature: torch.Tensor) -> None:
    """See that the tensors of `reference.score` fit together and that a kernel can read them.

    Raises:
        OperandError: they do not; the message names the tensor.
    """
    if hidden.dim() != 2 or head.dim() != 2 or hidden.shape[1] != head.shape[1]:
        raise OperandError(f"hidden {list(hidden.shape)} and head {list(head.shape)} must be [.., size] of one size")
    if 0 in (*hidden.shape, *head.shape):
        raise OperandError(f"hidden {list(hidden.shape)} and head {list(head.shape)} must hold something")
    if hidden.dtype not in STATE_DTYPES or head.dtype != hidden.dtype:
        raise OperandError(f"hidden {hidden.dtype} and head {head.dtype} must both be float32, bfloat16 or float16")
    for name, matrix in (("hidden", hidden), ("head", head)):
        if matrix.shape[1] > 1 and matrix.stride(1) != 1:
            raise OperandError(f"the rows of {name} are not contiguous (stride {matrix.stride(1)})")
    rows = (hidden.shape[0],)
    if tuple(tokens.shape) != rows or tokens.dtype != torch.int64:
        raise OperandError(f"tokens must be int64 {list(rows)}, not {tokens.dtype} {list(tokens.shape)}")
    if tuple(temperature.shape) != rows or temperature.dtype != torch.float32:
        raise OperandError(
            f"temperature must be float32 {list(rows)}, not {temperature.dtype} {list(temperature.shape)}"
        )
    if len({tensor.device for tensor in (hidden, head, tokens, temperature)}) != 1:
        raise OperandError("hidden, head, tokens and temperature must be on one device")


def check_append(cache: torch.Tensor, states: torch.Tensor, slots: torch.Tensor, columns: torch.Tensor) -> None:
    """See that the tensors fit together and that a kernel can address them.

    Raises:
        OperandError: they do not; the message names the tensor.
    """
    if cache.dim() != 4 or states.dim() != 4:
        raise OperandError(
            "the cache must be [slots, heads, columns, head_dim], states [rows, tokens, heads, head_dim]"
        )
    rows, tokens, heads, head_dim = states.shape
    if (cache.shape[1], cache.shape[3], cache.dtype) != (heads, head_dim, states.dtype):
        raise OperandError(
            f"states of {heads} heads of {head_dim} in {states.dtype} do not fit a cache of "
            f"{cache.shape[1]} heads of {cache.shape[3]} in {cache.dtype}"
        )
    for name, tensor in (("cache", cache), ("states", states)):
        if head_dim > 1 and tensor.stride(3) != 1:
            raise OperandError(f"the heads of {name} are not contiguous (stride {tensor.stride(3)})")
    for name, tensor, shape in (("slots", slots, (rows,)), ("columns", columns, (rows, tokens))):
        if tuple(tensor.shape) != shape or tensor.dtype != torch.int64:
            raise OperandError(f"{name} must be int64 {list(shape)}, not {tensor.dtype} {list(tensor.shape)}")
    if len({tensor.device for tensor in (cache, states, slots, columns)}) != 1:
        raise OperandError("cache, states, slots and columns must be on one device")
