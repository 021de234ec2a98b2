"""Ragged append: `reference.append`, one launch for the keys and values of all rows of a layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from shadowspec_kernels.operands import check_append

BLOCK = 1024  # numbers that one program copies


@triton.jit
def _append(
    cache,  # [slots, heads, columns, head_dim]
    cache_slot,
    cache_head,
    cache_column,
    states,  # [rows, tokens, heads, head_dim]
    states_row,
    states_token,
    states_head,
    slots,  # int64 [rows]
    columns,  # int64 [rows, tokens]
    num_tokens,
    num_slots,
    num_columns,
    heads,
    head_dim,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    row, token = place // num_tokens, place % num_tokens
    slot, column = tl.load(slots + row), tl.load(columns + place)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    head, dimension = (entry // head_dim).to(tl.int64), entry % head_dim
    # A slot or column outside the cache is a defect of the caller; it must not write into someone else's memory.
    is_inside = (slot >= 0) & (slot < num_slots) & (column >= 0) & (column < num_columns)
    is_written = (entry < heads * head_dim) & is_inside
    state = tl.load(states + row * states_row + token * states_token + head * states_head + dimension, mask=is_written)
    tl.store(cache + slot * cache_slot + head * cache_head + column * cache_column + dimension, state, mask=is_written)


def append(
    cache: torch.Tensor,  # [slots, heads, columns, head_dim]
    states: torch.Tensor,  # [rows, tokens, heads, head_dim], of the cache's dtype
    slots: torch.Tensor,  # int64 [rows]
    columns: torch.Tensor,  # int64 [rows, tokens]; negative: padding, written nowhere
) -> None:
    """`reference.append`, in place.  A slot or column past the cache, which the reference refuses, is not written.

    Raises:
        OperandError: shapes, dtypes or strides do not fit.
    """
    check_append(cache, states, slots, columns)
    rows, tokens, heads, head_dim = states.shape
    if states.numel() == 0:
        return
    size = heads * head_dim
    block = min(BLOCK, triton.next_power_of_2(size))
    _append[(rows * tokens, triton.cdiv(size, block))](
        cache,
        *cache.stride()[:3],
        states,
        *states.stride()[:3],
        slots.contiguous(),
        columns.contiguous(),
        tokens,
        cache.shape[0],
        cache.shape[2],
        heads,
        head_dim,
        BLOCK=block,
    )
