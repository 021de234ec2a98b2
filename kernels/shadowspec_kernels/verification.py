"""Fused verification: `reference.verify` without truncation, and without materialising a probability.

1. `_measure_tiles` reads every logit once and stores, for each tile of the vocabulary, its highest logit, where
   that is, and the sum of exponentials; and the logits of the drafted tokens.
2. `_accept` combines the tiles of a position to its softmax and tests the drafted tokens in order.
3. `_measure_residual`, with draft probabilities only: the excess of a rejected row's target over its draft, per tile.
4. `_draw` walks the tiles' masses to the one in which the draw falls, and reads only this tile again.

Under the two matching rules the order is 1, 4 at every position, 2.  One launch each; the host never waits for the
device.  A draw is the inverse distribution function in token order, as in the reference: the two agree unless the
uniform number lies within rounding of an edge between two tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from shadowspec_kernels.errors import OperandError
from shadowspec_kernels.step import Step, Verified

TILE = 4096  # entries of the vocabulary that one program holds; 16 for each thread of eight warps
NUM_WARPS = 8
HIDDEN = tl.constexpr(float("-inf"))


class _Inputs(NamedTuple):
    """The step as the kernels see it; a missing part is None, and its code is compiled away."""

    logits: Any  # [rows, DEPTH + 1, vocabulary]
    logits_row: int
    logits_column: int
    drafted: Any  # [rows, DEPTH], contiguous
    temperature: Any
    vocabulary: int
    repetition: Any
    presence: Any
    frequency: Any
    in_prompt: Any  # uint8 [rows, vocabulary]
    in_prompt_row: int | None
    output_counts: Any  # [rows, vocabulary]
    output_counts_row: int | None
    min_tokens: Any
    emitted: Any
    ends: Any  # uint8 [rows, vocabulary]
    ends_row: int | None
    draft_probs: Any  # [rows, DEPTH, vocabulary]
    draft_probs_row: int | None
    draft_probs_column: int | None


class _Tiles(NamedTuple):
    """The statistics of each tile, [rows, DEPTH + 1, num_tiles]."""

    best_logit: Any  # float32, before temperature
    best_token: Any  # int32, the first of equals
    sum_exp: Any  # float32, of (logit - best logit) / temperature
    num_tiles: int


@triton.jit
def _temperature(inputs, row):
    """The row's temperature, and 1 where it is 0 and the arg-max is taken."""
    temperature = tl.load(inputs.temperature + row)
    return tl.where(temperature == 0.0, 1.0, temperature)


@triton.jit
def _process_logits(inputs, row, column, index, DEPTH: tl.constexpr):
    """Logits at `index` after minimum length and penalties, -inf past the vocabulary."""
    is_inside = index < inputs.vocabulary
    start = inputs.logits + row * inputs.logits_row + column * inputs.logits_column
    logits = tl.load(start + index, mask=is_inside, other=HIDDEN).to(tl.float32)
    if inputs.ends is not None:
        is_short = tl.load(inputs.emitted + row) + column < tl.load(inputs.min_tokens + row)
        is_end = tl.load(inputs.ends + row * inputs.ends_row + index, mask=is_inside & is_short, other=0)
        logits = tl.where(is_end != 0, HIDDEN, logits)
    if inputs.in_prompt is not None:
        counts = tl.load(inputs.output_counts + row * inputs.output_counts_row + index, mask=is_inside, other=0.0)
        for position in tl.static_range(DEPTH):
            token = tl.load(inputs.drafted + row * DEPTH + position)
            counts += tl.where((index == token) & (position < column), 1.0, 0.0)
        in_prompt = tl.load(inputs.in_prompt + row * inputs.in_prompt_row + index, mask=is_inside, other=0)
        repetition = tl.load(inputs.repetition + row)
        repeated = tl.where(logits > 0, logits / repetition, logits * repetition)
        logits = tl.where((in_prompt != 0) | (counts > 0), repeated, logits)
        logits -= tl.load(inputs.frequency + row) * counts
        logits -= tl.where(counts > 0, tl.load(inputs.presence + row), 0.0)
    return logits


@triton.jit
def _combine_tiles(tiles, inputs, row, column, TILES: tl.constexpr, DEPTH: tl.constexpr):
    """A position's softmax: probability mass of each tile, highest scaled logit, sum over it, arg-max token."""
    lane = tl.arange(0, TILES)
    place = (row * (DEPTH + 1) + column) * tiles.num_tiles + lane
    is_tile = lane < tiles.num_tiles
    best_logit = tl.load(tiles.best_logit + place, mask=is_tile, other=HIDDEN)
    sum_exp = tl.load(tiles.sum_exp + place, mask=is_tile, other=0.0)
    best_tokens = tl.load(tiles.best_token + place, mask=is_tile, other=0)
    temperature = _temperature(inputs, row)
    first = tl.argmax(best_logit, 0)  # ties: the leftmost tile
    best_token = tl.sum(tl.where(lane == first, best_tokens, 0), 0)
    highest = tl.max(best_logit, 0) / temperature
    scale = tl.exp(best_logit / temperature - highest)
    total = tl.sum(sum_exp * scale, 0)
    # A tile has mass only if its best token has, so that a draw that falls into it finds one.
    masses = tl.where(scale / total > 0.0, sum_exp * (scale / total), 0.0)
    return masses, highest, total, best_token


@triton.jit
def _weights(inputs, row, column, index, highest, total, is_residual, DEPTH: tl.constexpr):
    """Probabilities at `index`; optionally of the residual after a rejection at this column."""
    scaled = _process_logits(inputs, row, column, index, DEPTH) / _temperature(inputs, row)
    weights = tl.exp(scaled - highest) / total
    if DEPTH > 0:
        if inputs.draft_probs is None:
            removed = tl.load(inputs.drafted + row * DEPTH + column, mask=is_residual, other=-1)
            weights = tl.where(index == removed, 0.0, weights)
        else:
            start = inputs.draft_probs + row * inputs.draft_probs_row + column * inputs.draft_probs_column
            is_read = (index < inputs.vocabulary) & is_residual
            weights = tl.maximum(weights - tl.load(start + index, mask=is_read, other=0.0), 0.0)
    return weights


@triton.jit
def _first_past(weights, threshold, SIZE: tl.constexpr):
    """The first entry whose cumulated weight passes the threshold, among those with weight; -1: none has."""
    lane = tl.arange(0, SIZE)
    has_weight = weights > 0.0
    # A parallel sum is monotone but for rounding; entries without weight are left out by name.
    past = tl.min(tl.where((tl.cumsum(weights, 0) > threshold) & has_weight, lane, SIZE), 0)
    return tl.minimum(past, tl.max(tl.where(has_weight, lane, -1), 0))


@triton.jit
def _measure_tiles(inputs, tiles, slots, drafted_scaled, DEPTH: tl.constexpr, TILE: tl.constexpr):
    tile = tl.program_id(0)
    column = tl.program_id(1).to(tl.int64)
    row = tl.load(slots + tl.program_id(2))
    index = tile * TILE + tl.arange(0, TILE)
    processed = _process_logits(inputs, row, column, index, DEPTH)
    temperature = _temperature(inputs, row)
    best = tl.max(processed, 0)
    floor = tl.where(best == HIDDEN, 0.0, best / temperature)  # so that -inf is never subtracted from -inf
    place = (row * (DEPTH + 1) + column) * tiles.num_tiles + tile
    tl.store(tiles.best_logit + place, best)
    tl.store(tiles.best_token + place, tile * TILE + tl.argmax(processed, 0))
    tl.store(tiles.sum_exp + place, tl.sum(tl.exp(processed / temperature - floor), 0))
    if DEPTH > 0:
        token = tl.load(inputs.drafted + row * DEPTH + column, mask=column < DEPTH, other=-1)
        chosen = tl.sum(tl.where(index == token, processed / temperature, 0.0), 0)
        is_here = (token >= tile * TILE) & (token < tile * TILE + TILE)
        tl.store(drafted_scaled + row * DEPTH + column, chosen, mask=is_here)


@triton.jit
def _accept(
    inputs,
    tiles,
    slots,
    drafted_scaled,
    num_drafted,
    accept_uniform,
    target_tokens,  # [rows, DEPTH + 1]; None: the tokens are tested against the probabilities
    num_accepted,
    next_tokens,
    DEPTH: tl.constexpr,
    TILES: tl.constexpr,
):
    row = tl.load(slots + tl.program_id(0))
    proposed = tl.load(num_drafted + row)
    is_greedy = tl.load(inputs.temperature + row) == 0.0
    accepted = proposed * 0
    for column in tl.static_range(DEPTH):
        token = tl.load(inputs.drafted + row * DEPTH + column)
        if target_tokens is not None:
            accepts = token == tl.load(target_tokens + row * (DEPTH + 1) + column)
        else:
            _, highest, total, best_token = _combine_tiles(tiles, inputs, row, column, TILES, DEPTH)
            target_chosen = tl.exp(tl.load(drafted_scaled + row * DEPTH + column) - highest) / total
            target_chosen = tl.where(is_greedy, tl.where(token == best_token, 1.0, 0.0), target_chosen)
            uniform = tl.load(accept_uniform + row * DEPTH + column)
            if inputs.draft_probs is not None:
                start = inputs.draft_probs + row * inputs.draft_probs_row + column * inputs.draft_probs_column
                uniform *= tl.load(start + token)
            accepts = uniform < target_chosen
        accepted += tl.where(accepts & (accepted == column) & (column < proposed), 1, 0)
    tl.store(num_accepted + row, accepted)
    if target_tokens is not None:
        tl.store(next_tokens + row, tl.load(target_tokens + row * (DEPTH + 1) + accepted))


@triton.jit
def _measure_residual(
    inputs,
    tiles,
    slots,
    num_drafted,
    num_accepted,
    residual_masses,  # float32 [rows, num_tiles]
    DEPTH: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    tile = tl.program_id(0)
    row = tl.load(slots + tl.program_id(1))
    column = tl.load(num_accepted + row)
    if column < tl.load(num_drafted + row):
        _, highest, total, _ = _combine_tiles(tiles, inputs, row, column, TILES, DEPTH)
        index = tile * TILE + tl.arange(0, TILE)
        weights = _weights(inputs, row, column, index, highest, total, True, DEPTH)
        tl.store(residual_masses + row * tiles.num_tiles + tile, tl.sum(weights, 0))


@triton.jit
def _draw(
    inputs,
    tiles,
    slots,
    num_drafted,
    num_accepted,  # the position of each row; None: every position
    residual_masses,
    target_uniform,
    drawn,  # [rows], or [rows, DEPTH + 1] at every position
    DEPTH: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    ARG_MAX: tl.constexpr,
):
    row = tl.load(slots + tl.program_id(0))
    if num_accepted is None:
        column = tl.program_id(1).to(tl.int64)
        place = row * (DEPTH + 1) + column
        is_residual = column < 0
    else:
        column = tl.load(num_accepted + row)
        place = row
        is_residual = column < tl.load(num_drafted + row)
    masses, highest, total, best_token = _combine_tiles(tiles, inputs, row, column, TILES, DEPTH)
    token = best_token
    if not ARG_MAX:
        lane = tl.arange(0, TILES)
        entry = tl.arange(0, TILE)
        if (DEPTH > 0) and (num_accepted is not None):
            if inputs.draft_probs is None:
                # Only the tile of the removed token has lost mass; summed again, since a difference would cancel.
                tile = tl.load(inputs.drafted + row * DEPTH + column, mask=is_residual, other=0) // TILE
                rest = _weights(inputs, row, column, tile * TILE + entry, highest, total, is_residual, DEPTH)
                residual = tl.where(lane == tile, tl.sum(rest, 0), masses)
            else:
                is_kept = (lane < tiles.num_tiles) & is_residual
                residual = tl.load(residual_masses + row * tiles.num_tiles + lane, mask=is_kept, other=0.0)
            is_residual = is_residual & (tl.sum(residual, 0) > 0.0)
            masses = tl.where(is_residual, residual, masses)
        threshold = tl.load(target_uniform + row * (DEPTH + 1) + column) * tl.sum(masses, 0)
        tile = tl.maximum(_first_past(masses, threshold, TILES), 0)
        ahead = tl.sum(tl.where(lane < tile, masses, 0.0), 0)
        weights = _weights(inputs, row, column, tile * TILE + entry, highest, total, is_residual, DEPTH)
        offset = _first_past(weights, threshold - ahead, TILE)
        is_greedy = tl.load(inputs.temperature + row) == 0.0
        token = tl.where(is_greedy | (offset < 0), best_token, tile * TILE + offset)
    tl.store(drawn + place, token.to(tl.int64))


def why_not(step: Step) -> str | None:
    """Why the kernels cannot verify this step on any device, or None if they can."""
    tensors = {"logits": step.logits}
    if step.is_residual_of_draft and step.draft_probs is not None:
        tensors["draft_probs"] = step.draft_probs
    if step.penalties is not None:
        tensors |= {"in_prompt": step.penalties.in_prompt, "output_counts": step.penalties.output_counts}
    if step.minimum_length is not None:
        tensors["ends"] = step.minimum_length.ends
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            return f"the vocabulary of {name} is not contiguous (stride {tensor.stride(-1)})"
    return None


def verify(step: Step, slots: torch.Tensor | None = None, tile: int = TILE) -> Verified:
    """`reference.verify` of a checked step.

    Args:
        step: its truncation is not looked at.
        slots: the rows to verify, int64 [n]; the results of the others are undefined.  None: all.
        tile: entries of the vocabulary per program, a power of two.

    Raises:
        OperandError: the kernels cannot run on these tensors.
    """
    if (reason := why_not(step)) is not None:
        raise OperandError(reason)
    device, rows, depth = step.logits.device, step.num_rows, step.depth
    if slots is None:
        slots = torch.arange(rows, device=device)
    tile = min(tile, triton.next_power_of_2(step.vocabulary))
    num_tiles = triton.cdiv(step.vocabulary, tile)
    inputs = _inputs(step)

    def scratch(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    per_tile = (rows, depth + 1, num_tiles)
    tiles = _Tiles(scratch(*per_tile), scratch(*per_tile, dtype=torch.int32), scratch(*per_tile), num_tiles)
    drafted_scaled = scratch(rows, depth)
    num_accepted, next_tokens = scratch(rows, dtype=torch.int64), scratch(rows, dtype=torch.int64)
    num_drafted = step.num_drafted.contiguous()
    accept_uniform, target_uniform = step.accept_uniform.contiguous(), step.target_uniform.contiguous()
    sizes = {"DEPTH": depth, "TILES": triton.next_power_of_2(num_tiles)}
    is_matching = step.rule in ("exact_match", "greedy")
    drawn = scratch(rows, depth + 1, dtype=torch.int64) if is_matching else next_tokens
    residual_masses = scratch(rows, num_tiles) if inputs.draft_probs is not None else None

    def accept(target_tokens: torch.Tensor | None) -> None:
        outcome = (target_tokens, num_accepted, next_tokens)
        _accept[(len(slots),)](
            inputs, tiles, slots, drafted_scaled, num_drafted, accept_uniform, *outcome, **sizes, num_warps=1
        )

    def draw_at(positions: torch.Tensor | None) -> None:
        grid = (len(slots), depth + 1) if positions is None else (len(slots),)
        given = (num_drafted, positions, residual_masses, target_uniform, drawn)
        is_arg_max = step.rule == "greedy"
        _draw[grid](inputs, tiles, slots, *given, **sizes, TILE=tile, ARG_MAX=is_arg_max, num_warps=NUM_WARPS)

    grid = (num_tiles, depth + 1, len(slots))
    _measure_tiles[grid](inputs, tiles, slots, drafted_scaled, DEPTH=depth, TILE=tile, num_warps=NUM_WARPS)
    if is_matching:
        draw_at(None)
        accept(drawn)
    else:
        accept(None)
        if residual_masses is not None:
            outcome = (num_drafted, num_accepted, residual_masses)
            _measure_residual[(num_tiles, len(slots))](
                inputs, tiles, slots, *outcome, **sizes, TILE=tile, num_warps=NUM_WARPS
            )
        draw_at(num_accepted)
    return Verified(num_accepted, next_tokens)


def _inputs(step: Step) -> _Inputs:
    penalties, minimum = step.penalties, step.minimum_length
    draft_probs = step.draft_probs if step.is_residual_of_draft and step.depth else None

    def stride(tensor: torch.Tensor | None, dimension: int) -> int | None:
        return tensor.stride(dimension) if tensor is not None else None

    in_prompt = penalties.in_prompt.view(torch.uint8) if penalties is not None else None
    output_counts = penalties.output_counts if penalties is not None else None
    ends = minimum.ends.view(torch.uint8) if minimum is not None else None
    return _Inputs(
        step.logits,
        step.logits.stride(0),
        step.logits.stride(1),
        step.drafted.contiguous(),
        step.temperature.contiguous(),
        step.vocabulary,
        penalties and penalties.repetition.contiguous(),
        penalties and penalties.presence.contiguous(),
        penalties and penalties.frequency.contiguous(),
        in_prompt,
        stride(in_prompt, 0),
        output_counts,
        stride(output_counts, 0),
        minimum and minimum.min_tokens.contiguous(),
        minimum and minimum.emitted.contiguous(),
        ends,
        stride(ends, 0),
        draft_probs,
        stride(draft_probs, 0),
        stride(draft_probs, 1),
    )
