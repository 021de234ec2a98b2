"""Replay scoring: `reference.score` straight from hidden states, in tiles of rows and of the vocabulary.

`_score` multiplies a tile of rows with one tile of the head after the other and keeps, per row, the running maximum,
the sum of exponentials relative to it, the arg-max and the given token's logit; rows x vocabulary never exists.
The vocabulary is split between programs, and the splits, at most MAX_SPLITS, are combined at the end, so the allocated
memory does not depend on the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from shadowspec_kernels.backends import is_interpreted
from shadowspec_kernels.operands import Scored, check_score

MAX_SPLITS = 32
PROGRAMS_PER_PROCESSOR = 2  # enough to hide a tile's loads behind another's products
HIDDEN = tl.constexpr(float("-inf"))


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of a program's tiles, powers of two of at least 16, and the parts of the vocabulary (None: as many as
    fill the device)."""

    rows: int = 64
    tokens: int = 128
    inner: int = 64
    splits: int | None = None


@triton.jit
def _score(
    hidden,  # [rows, size]
    hidden_row,
    head,  # [vocabulary, size]
    head_row,
    given,  # int64 [rows]
    temperature,  # float32 [rows]
    best_logit,  # float32 [splits, rows], of the split, before temperature
    best_token,  # int32 [splits, rows]
    sum_exp,  # float32 [splits, rows], of (logit - best logit) / temperature
    given_logit,  # float32 [splits, rows], 0 where the token is in another split
    rows,
    size,
    vocabulary,
    tiles_per_split,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    INNER: tl.constexpr,
    IS_WIDENED: tl.constexpr,
):
    split = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < rows
    wanted = tl.load(given + row, mask=is_row, other=-1)
    scale = tl.load(temperature + row, mask=is_row, other=1.0)
    best = tl.full((ROWS,), HIDDEN, tl.float32)
    best_at = tl.zeros((ROWS,), tl.int32)
    total = tl.zeros((ROWS,), tl.float32)
    chosen = tl.zeros((ROWS,), tl.float32)
    start = split * tiles_per_split * TOKENS
    for first in range(start, tl.minimum(start + tiles_per_split * TOKENS, vocabulary), TOKENS):
        token = first + tl.arange(0, TOKENS)
        is_token = token < vocabulary
        token_start = token.to(tl.int64) * head_row
        logits = tl.zeros((ROWS, TOKENS), tl.float32)
        for inner_start in range(0, size, INNER):
            inner = inner_start + tl.arange(0, INNER)
            is_inner = inner < size
            left = tl.load(
                hidden + row[:, None] * hidden_row + inner[None, :], mask=is_row[:, None] & is_inner[None, :], other=0.0
            )
            right = tl.load(
                head + token_start[None, :] + inner[:, None], mask=is_token[None, :] & is_inner[:, None], other=0.0
            )
            if IS_WIDENED:
                left, right = left.to(tl.float32), right.to(tl.float32)
            logits = tl.dot(left, right, logits, input_precision="ieee")
        logits = tl.where(is_token[None, :], logits, HIDDEN)
        chosen += tl.sum(tl.where(token[None, :] == wanted[:, None], logits, 0.0), 1)
        tile_best = tl.max(logits, 1)
        is_better = tile_best > best  # equals stay with the earlier token
        best_at = tl.where(is_better, first + tl.argmax(logits, 1), best_at)
        highest = tl.maximum(best, tile_best)
        total *= tl.exp((best - highest) / scale)
        total += tl.sum(tl.exp((logits - highest[:, None]) / scale[:, None]), 1)
        best = highest
    place = split.to(tl.int64) * rows + row
    tl.store(best_logit + place, best, mask=is_row)
    tl.store(best_token + place, best_at, mask=is_row)
    tl.store(sum_exp + place, total, mask=is_row)
    tl.store(given_logit + place, chosen, mask=is_row)


def score(
    hidden: torch.Tensor,  # float32, bfloat16 or float16 [rows, size]
    head: torch.Tensor,  # of the same dtype [vocabulary, size]
    tokens: torch.Tensor,  # int64 [rows]
    temperature: torch.Tensor,  # float32 [rows], above 0
    tiling: Tiling | None = None,
) -> Scored:
    """`reference.score`.

    Raises:
        OperandError: the tensors do not fit together, or a row of states or of the head is not contiguous.
    """
    check_score(hidden, head, tokens, temperature)
    tiling = tiling or (Tiling(inner=16) if hidden.dtype == torch.float32 else Tiling())  # float32: no tensor cores
    (rows, size), vocabulary, device = hidden.shape, head.shape[0], hidden.device
    row_tiles, token_tiles = triton.cdiv(rows, tiling.rows), triton.cdiv(vocabulary, tiling.tokens)
    splits = tiling.splits or _splits(device, row_tiles)
    per_split = (min(splits, token_tiles), rows)
    splits = per_split[0]
    best_logit, sum_exp, given_logit = torch.empty((3, *per_split), dtype=torch.float32, device=device)
    best_token = torch.empty(per_split, dtype=torch.int32, device=device)
    _score[(row_tiles, splits)](
        hidden,
        hidden.stride(0),
        head,
        head.stride(0),
        tokens.contiguous(),
        temperature.contiguous(),
        best_logit,
        best_token,
        sum_exp,
        given_logit,
        rows,
        size,
        vocabulary,
        triton.cdiv(token_tiles, splits),
        ROWS=tiling.rows,
        TOKENS=tiling.tokens,
        INNER=tiling.inner,
        # The interpreter multiplies bfloat16 by its bits; a GPU multiplies it exactly and adds in float32, as here.
        IS_WIDENED=is_interpreted(),
        num_warps=4,
    )
    best = best_logit.max(0)  # the first of equals
    spread = sum_exp * torch.exp((best_logit - best.values) / temperature)  # splits without a token add nothing
    log_total = spread.sum(0).log()
    best_tokens = best_token.gather(0, best.indices[None]).squeeze(0).to(torch.int64)
    return Scored((given_logit.sum(0) - best.values) / temperature - log_total, best_tokens, -log_total)


def _splits(device: torch.device, row_tiles: int) -> int:
    """Parts of the vocabulary that fill the device."""
    if device.type != "cuda":
        return 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(MAX_SPLITS, PROGRAMS_PER_PROCESSOR * processors // row_tiles))
