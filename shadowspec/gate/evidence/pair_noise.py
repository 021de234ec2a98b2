"""The center of a hypothesis's log speedups, about which the noise of pairs is judged, before each of its blocks.

Two runs of one arm differ too.  Whether noise alone slows a request depends on how much speculation speeds it up: the
center is the speedup of a typical one, the mean of the medians of blocks with either first arm, and at least 0.  A
median is robust to slow requests, which would widen what passes as noise; with one for either order a cost of running
first cancels.  Before MIN_RUNS of either order it is unknown.

It is made of the blocks before only, so that a bet on a block's values knows it before the block.  The counts by bin
are sums, which add up and merge.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shadowspec.gate.evidence.series import TimedBlocks
from shadowspec.gate.stats.betting import Floats
from shadowspec.types import Arm

MIN_RUNS = 10
BIN = 0.02  # of the log speedup
NUM_BINS = 200  # a log speedup beyond them counts in the last one
_CHUNK = 512  # blocks at a time
_ARMS = tuple(Arm)
_PREFIX = "center"


def centers(blocks: TimedBlocks, before: Mapping[str, float]) -> Floats:
    """The center before each block, [blocks]; NaN where it is unknown.

    Args:
        before: the counts of the hypothesis's earlier blocks.
    """
    counts = np.zeros((len(_ARMS), NUM_BINS))
    for name, number in before.items():
        if name.startswith(_PREFIX):
            _, arm, place = name.split("_")
            counts[_ARMS.index(Arm(arm)), int(place)] = number
    arms, bins, is_known = _places(blocks)
    found = [np.zeros(0)]
    for start in range(0, len(blocks.units), _CHUNK):
        stop = min(start + _CHUNK, len(blocks.units))
        inside = is_known & (blocks.places >= start) & (blocks.places < stop)
        added = np.zeros((stop - start, *counts.shape))
        np.add.at(added, (blocks.places[inside] - start, arms[inside], bins[inside]), 1.0)
        after = counts + added.cumsum(axis=0)
        found.append(_center(after - added))
        counts = after[-1]
    return np.concatenate(found)


def bin_totals(blocks: TimedBlocks) -> dict[str, float]:
    """The counts of these blocks, by first arm and bin; of those that hold any."""
    arms, bins, is_known = _places(blocks)
    places, numbers = np.unique(np.stack([arms[is_known], bins[is_known]]), axis=1, return_counts=True)
    return {
        f"{_PREFIX}_{_ARMS[arm]}_{place}": float(number)
        for (arm, place), number in zip(places.T.tolist(), numbers.tolist(), strict=True)
    }


def _places(blocks: TimedBlocks) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By run: the place of its block's first arm, the bin of its log speedup, and whether that is known."""
    logs = blocks.log_speedups
    is_known = ~np.isnan(logs)
    first = np.array([_ARMS.index(unit.block.first_arm) for unit in blocks.units], dtype=np.intp)
    bins = np.floor(np.where(is_known, logs, 0.0) / BIN).clip(-NUM_BINS // 2, NUM_BINS // 2 - 1) + NUM_BINS // 2
    return first[blocks.places], bins.astype(np.intp), is_known


def _center(counts: Floats) -> Floats:
    """Of counts [blocks, arms, bins]: the middles of the bins of the medians."""
    totals = counts.sum(axis=2)
    medians = (counts.cumsum(axis=2) >= 0.5 * totals[..., None]).argmax(axis=2)
    center = ((medians - NUM_BINS // 2 + 0.5) * BIN).mean(axis=1)
    found: Floats = np.where(totals.min(axis=1) >= MIN_RUNS, np.maximum(center, 0.0), np.nan)
    return found
