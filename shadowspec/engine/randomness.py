"""Random numbers of a request: a function of its seed, the stream and the output position, nothing else.

Neighbours in the batch, the number of steps and rejected drafts do not change them.  A position's number in
each stream decides at most one emitted token: a draft beyond a rejection is thrown away untested, so drawing
it again at the same position with the same number leaves the emitted tokens independent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

DRAFT_STREAM, ACCEPT_STREAM, TARGET_STREAM = 0, 1, 2
NUM_STREAMS = 3


def uniforms(seeds: Sequence[int], positions: int, device: torch.device) -> torch.Tensor:
    """Uniform numbers in [0, 1) by counter-based generator; float32 [rows, NUM_STREAMS, positions]."""
    drawn = np.empty((len(seeds), NUM_STREAMS, positions), dtype=np.float32)
    for row, seed in enumerate(seeds):
        for stream in range(NUM_STREAMS):
            generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), stream]))
            drawn[row, stream] = generator.random(positions, dtype=np.float32)
    return torch.from_numpy(drawn).to(device)


def at_positions(table: torch.Tensor, stream: int, start: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers of `count` consecutive positions from `start` (int64 [rows]); float32 [rows, count].

    Positions past the table belong to tokens that can no longer be emitted; they read its last entry.
    """
    index = start[:, None] + torch.arange(count, device=start.device)
    return table[:, stream].gather(1, index.clamp_(max=table.shape[2] - 1))


def sample(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Draw by inverse distribution function.

    Args:
        probs: non-negative weights, not necessarily normalised, float [..., vocabulary].
        uniform: numbers in [0, 1), float [...].

    Returns:
        Token ids, int64 [...]; a token of weight 0 is never drawn.
    """
    cumulative = probs.to(torch.float32).cumsum(-1)
    total = cumulative[..., -1:]
    # The product may round up to the total itself; the largest float below it keeps the draw inside.
    threshold = torch.minimum(uniform[..., None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
