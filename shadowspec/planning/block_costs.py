"""The shadow's cost of measuring a session, from its blocks: seconds of the device, all arms and the checks after them.

A block is stored with the time that it took, parity and audits included.  Of blocks from before that was stored only
the arms' times are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shadowspec.metrics import ratio
from shadowspec.types import BlockTime


class CostSource(StrEnum):
    """The source of a cost."""

    BLOCKS = "blocks"  # the blocks' times: everything
    ARMS = "arms"  # only the timed arms: parity, audits and fillers' checks come on top


@dataclass(frozen=True, slots=True)
class SessionCost:
    """Device seconds of a measured session: its request, in the baseline's and every candidate's arm."""

    seconds: float
    num_blocks: int
    source: CostSource


@dataclass(frozen=True, slots=True)
class SessionCosts:
    """The cost of a session of an endpoint, by slice and load."""

    by_slice: Mapping[tuple[str, int], SessionCost]
    by_load: Mapping[int, SessionCost]
    overall: SessionCost

    def at(self, slice_key: str, concurrency: int) -> SessionCost:
        """Of a slice ("" for the whole endpoint) at a load; without a block there, of the next larger whole."""
        return self.by_slice.get((slice_key, concurrency)) or self.by_load.get(concurrency) or self.overall


def session_costs(blocks: Sequence[BlockTime]) -> SessionCosts | None:
    """The costs by an endpoint's blocks; None without any."""
    timed = [block for block in blocks if block.num_requests and block.arms_s > 0.0]
    if not timed:
        return None
    seconds = [(block, block.seconds) for block in timed if block.seconds is not None]
    source = CostSource.BLOCKS if seconds else CostSource.ARMS
    seconds = seconds or [(block, block.arms_s) for block in timed]
    by_slice: dict[tuple[str, int], list[tuple[BlockTime, float]]] = defaultdict(list)
    by_load: dict[int, list[tuple[BlockTime, float]]] = defaultdict(list)
    for block, took_s in seconds:
        by_slice[block.slice_key, block.concurrency].append((block, took_s))
        by_load[block.concurrency].append((block, took_s))
    return SessionCosts(
        {key: _cost(timed_blocks, source) for key, timed_blocks in by_slice.items()},
        {key: _cost(timed_blocks, source) for key, timed_blocks in by_load.items()},
        _cost(seconds, source),
    )


def _cost(blocks: Iterable[tuple[BlockTime, float]], source: CostSource) -> SessionCost:
    timed_blocks = list(blocks)
    seconds = ratio(sum(took_s for _, took_s in timed_blocks), sum(timed.num_requests for timed, _ in timed_blocks))
    assert seconds is not None, "blocks without requests are left out"
    return SessionCost(seconds, len(timed_blocks), source)
