"""What measuring a session costs the shadow, from its blocks: seconds of the device, all arms and what follows them.

A block's length is stored nowhere.  Where the shadow is busy the next block begins when one has ended, parity and
audits included, so that the time until then is what the block took.  Where it waits for traffic, or was stopped, that
time says nothing, and the block is left out; where blocks of several devices overlap it says too little, and the arms
are all that is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shadowspec.metrics import ratio
from shadowspec.types import BlockTime

IDLE_FACTOR = 3.0  # a block followed for longer than so many times its arms was followed by waiting; 1 to 1.3 is usual
OVERLAP_FACTOR = 0.9  # a block followed sooner than this share of its arms' longest requests lies beside another one
MOST_OVERLAPPING = 0.05  # share of blocks above which several devices are at work


class CostSource(StrEnum):
    """What a cost was taken from."""

    BLOCKS = "blocks"  # from one block's start to the next one's: everything
    ARMS = "arms"  # the timed arms alone: parity, audits and fillers' checks come on top


@dataclass(frozen=True, slots=True)
class SessionCost:
    """Device seconds of a measured session: its request, in the baseline's and every candidate's arm."""

    seconds: float
    num_blocks: int
    source: CostSource


@dataclass(frozen=True, slots=True)
class SessionCosts:
    """What a session of an endpoint costs, by slice and load."""

    by_slice: Mapping[tuple[str, int], SessionCost]
    by_load: Mapping[int, SessionCost]
    overall: SessionCost

    def at(self, slice_key: str, concurrency: int) -> SessionCost:
        """Of a slice ("" for the whole endpoint) at a load; without a block of its own, of the next larger whole."""
        return self.by_slice.get((slice_key, concurrency)) or self.by_load.get(concurrency) or self.overall


def session_costs(blocks: Sequence[BlockTime]) -> SessionCosts | None:
    """The costs by an endpoint's blocks; None where there is none."""
    timed = [own for own in blocks if own.num_requests and own.arms_s > 0.0]
    if not timed:
        return None
    lengths = {id(own): (own.next_started_at - own.started_at).total_seconds() for own in timed if own.next_started_at}
    overlapping = sum(lengths[id(own)] < OVERLAP_FACTOR * own.least_s for own in timed if id(own) in lengths)
    whole = [own for own in timed if id(own) in lengths and lengths[id(own)] <= IDLE_FACTOR * own.arms_s]
    if whole and overlapping <= MOST_OVERLAPPING * len(lengths):
        source, seconds = CostSource.BLOCKS, [(own, lengths[id(own)]) for own in whole]
    else:
        source, seconds = CostSource.ARMS, [(own, own.arms_s) for own in timed]
    by_slice: dict[tuple[str, int], list[tuple[BlockTime, float]]] = defaultdict(list)
    by_load: dict[int, list[tuple[BlockTime, float]]] = defaultdict(list)
    for own, took_s in seconds:
        by_slice[own.slice_key, own.concurrency].append((own, took_s))
        by_load[own.concurrency].append((own, took_s))
    return SessionCosts(
        {key: _cost(own, source) for key, own in by_slice.items()},
        {key: _cost(own, source) for key, own in by_load.items()},
        _cost(seconds, source),
    )


def _cost(blocks: Iterable[tuple[BlockTime, float]], source: CostSource) -> SessionCost:
    found = list(blocks)
    seconds = ratio(sum(took_s for _, took_s in found), sum(own.num_requests for own, _ in found))
    assert seconds is not None, "blocks without requests are left out"
    return SessionCost(seconds, len(found), source)
