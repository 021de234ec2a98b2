"""What a fleet of endpoints costs its engines: blocks an hour, seconds a block, and the waits where they are too many.

An engine, one device or one pair of servers, measures one block at a time.  The endpoints of a group share its engines
and a queue.  Rates are per hour of event time, so that a backlog is counted as what it is: work to come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean

from shadowspec.planning.sizing import MAX_BUSY, devices_needed
from shadowspec.types import BlockSeconds

HOUR_S = 3_600.0
WEEK_H = 168.0
WEEK = timedelta(hours=WEEK_H)


@dataclass(frozen=True, slots=True)
class BlockBudget:
    """The blocks that a policy has measured: `num_blocks` of each slice and load in a `window` (None: no limit)."""

    window: timedelta | None
    num_blocks: int
    num_loads: int


@dataclass(frozen=True, slots=True)
class EndpointCost:
    """The work of an endpoint; None: not known.

    A rate is assumed where nothing of the last week is stored: by the budget, for as many slices as the others have.
    Seconds are assumed where no block says what it took: the mean of the others.
    """

    endpoint: str
    blocks_per_hour: float | None
    is_rate_assumed: bool
    seconds_per_block: float | None
    is_time_assumed: bool
    mean_square_s: float  # of a block's seconds, in square seconds

    @property
    def busy_devices(self) -> float | None:
        """The share of one engine's time."""
        if self.blocks_per_hour is None or self.seconds_per_block is None:
            return None
        return self.blocks_per_hour * self.seconds_per_block / HOUR_S

    @property
    def device_hours_per_week(self) -> float | None:
        """The same, of a week."""
        return None if self.busy_devices is None else self.busy_devices * WEEK_H


def endpoint_costs(
    blocks: Mapping[str, Sequence[BlockSeconds]], budgets: Mapping[str, BlockBudget]
) -> dict[str, EndpointCost]:
    """The costs of endpoints by the blocks of their last week, each endpoint's in order; of those without any, by the
    budget and the others."""
    until = max((of_endpoint[-1].at for of_endpoint in blocks.values() if of_endpoint), default=None)
    slices = [len({block.slice_key for block in of_endpoint}) for of_endpoint in blocks.values() if of_endpoint]
    timed = {
        name: [block.seconds for block in of_endpoint if block.seconds is not None]
        for name, of_endpoint in blocks.items()
    }
    means = [fmean(seconds) for seconds in timed.values() if seconds]
    costs = {}
    for name, budget in budgets.items():
        rate = None if until is None else _blocks_per_hour(blocks[name], budget.window, until)
        seconds = timed[name]
        assumed_s = fmean(means) if means else None
        seconds_per_block = fmean(seconds) if seconds else assumed_s
        squares = [took_s**2 for took_s in seconds] or [(seconds_per_block or 0.0) ** 2]
        costs[name] = EndpointCost(
            endpoint=name,
            blocks_per_hour=_budgeted(budget, round(fmean(slices)) if slices else 1) if rate is None else rate,
            is_rate_assumed=rate is None,
            seconds_per_block=seconds_per_block,
            is_time_assumed=not seconds,
            mean_square_s=fmean(squares),
        )
    return costs


def _blocks_per_hour(blocks: Sequence[BlockSeconds], window: timedelta | None, until: datetime) -> float | None:
    """By the blocks after the endpoint's first window, in which a worker that starts measures more; None: too few."""
    if not blocks:
        return None
    since = blocks[0].at + (window or timedelta(0))
    hours = (until - since) / timedelta(hours=1)
    number = sum(block.at > since for block in blocks)
    return number / hours if number and hours > 0.0 else None


def _budgeted(budget: BlockBudget, num_slices: int) -> float | None:
    if budget.window is None:
        return None
    return budget.num_blocks * budget.num_loads * num_slices / (budget.window / timedelta(hours=1))


@dataclass(frozen=True, slots=True)
class GroupCost:
    """The endpoints that share the same engines: devices, or one pair of servers."""

    num_engines: int
    costs: tuple[EndpointCost, ...]

    @property
    def busy_share(self) -> float:
        """The share of each engine's time, above 1 where they cannot keep up; what is not known counts as nothing."""
        return math.fsum(cost.busy_devices or 0.0 for cost in self.costs) / self.num_engines

    @property
    def is_too_busy(self) -> bool:
        """Whether its endpoints wait."""
        return self.busy_share > MAX_BUSY

    @property
    def engines_needed(self) -> int | None:
        """How many take its work; None where none of it is known."""
        return devices_needed(cost.busy_devices for cost in self.costs)

    @property
    def block_wait_s(self) -> float | None:
        """The mean time that a block waits for an engine (Pollaczek and Khinchine); None: it grows without end.

        Several engines are taken for one that is as many times as fast.
        """
        if self.busy_share >= 1.0:
            return None
        squares = math.fsum((cost.blocks_per_hour or 0.0) * cost.mean_square_s for cost in self.costs)
        return squares / HOUR_S / (2.0 * self.num_engines**2 * (1.0 - self.busy_share))


def slowdown(group: GroupCost, groups: Sequence[GroupCost], *, is_shed: bool) -> float:
    """By what factor the evidence of a group's endpoints takes longer, because engines cannot keep up.

    What an engine does not manage is shed (`is_shed`), or holds up the partitions and with them every group.
    """
    behind = [group] if is_shed else groups
    return max(1.0, *(other.busy_share for other in behind))
