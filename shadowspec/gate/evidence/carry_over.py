"""What the order of the arms adds to the measured speedup: an arm may pay for running right after the other one.

A constant cost of running first cancels, as the order is a fair draw.  A cost of running right after speculation (heat,
clocks, evicted caches) does not, if the baseline pays it: production never runs it so.  Two estimates of what it adds
to the mean log speedup, each with its standard error, come from sums over blocks, which add up and merge:

- By order: least squares of the block's mean on [baseline ran right after speculation], [speculation did] and the first
  arm.  Production has each arm after its own kind: the fit there is the speedup without what the order adds.  It needs
  blocks that follow each other on a device.
- By repeats: where a baseline ran right after speculation and then once more, the first time over the second is the
  cost alone.  It counts in the share of the blocks in which the baseline runs so.

Both need independent orders only, which a hash draws.  Read at any look, two standard errors are exceeded by chance in
a few percent of the looks: such a HOLD passes with the next blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from shadowspec.gate.evidence.series import TimedBlocks
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import Floats
from shadowspec.types import Arm, Figure

MIN_BLOCKS = 10  # of known order
MIN_REPEATS = 2
ERRORS = 2.0  # standard errors by which the estimate must exceed the limit, to be shown

# One, whether the baseline and whether speculation ran right after speculation, the first arm (1 or -1), and the mean.
_COLUMNS = ("one", "baseline", "speculative", "first", "log")
_PAIRS = list(combinations_with_replacement(range(len(_COLUMNS)), 2))
_SUMS = [f"order_{_COLUMNS[row]}_{_COLUMNS[column]}" for row, column in _PAIRS]
_PRODUCTION = np.array([1.0, 0.0, 1.0, 0.0])  # each arm after its own kind, and none of them first


@dataclass(frozen=True, slots=True)
class CarryOver:
    """What the order adds to the mean log speedup: estimate and standard error; `without` is the mean that is left."""

    added: float
    error: float
    without: float

    @property
    def lower(self) -> float:
        """What it adds at least."""
        return self.added - ERRORS * self.error

    @classmethod
    def of(cls, totals: Mapping[str, float]) -> CarryOver | None:
        """The estimate whose lower end says most; None where too little is known."""
        known = [each for each in _estimates(totals) if each is not None]
        return max(known, key=lambda each: each.lower, default=None)

    @classmethod
    def read(cls, figures: Mapping[str, Figure]) -> CarryOver | None:
        """That of a result's figures."""
        added, error, without = (figures.get(name) for name in ("carry_over", "carry_over_error", "without_carry_over"))
        if not isinstance(added, float) or not isinstance(error, float) or not isinstance(without, float):
            return None
        return cls(math.log1p(added), error, math.log(without))


def explains(found: CarryOver | None, policy: GatePolicy, slack: float = 0.0) -> bool:
    """Whether the order of the arms may explain a speedup that is proven otherwise.

    It is shown to add more than `max_carry_over`, or adds more by its estimate and leaves less than the margin.  With
    `slack` it must do so by more than that.
    """
    limit, margin = math.log1p(policy.max_carry_over) + slack, policy.log_min_speedup - slack
    return found is not None and found.added > limit and (found.lower > limit or found.without <= margin)


def order_totals(blocks: TimedBlocks, clip: float) -> dict[str, float]:
    """The sums over these blocks, of log ratios that are clipped to plus or minus `clip`."""
    means = _block_means(blocks, np.clip(blocks.log_speedups, -clip, clip))
    rows, after = [], []
    for place, (unit, order) in enumerate(zip(blocks.units, blocks.orders, strict=True)):
        if order is None:
            continue
        is_after = order.baseline_ran_after is Arm.SPECULATIVE
        if is_after:
            after.append(place)
        if None not in (order.baseline_ran_after, order.speculative_ran_after) and not math.isnan(means[place]):
            spec_after = order.speculative_ran_after is Arm.SPECULATIVE
            first = 1.0 if unit.block.first_arm is Arm.BASELINE else -1.0
            rows.append((1.0, is_after, spec_after, first, means[place]))
    table = np.array(rows, dtype=np.float64).reshape(-1, len(_COLUMNS))
    products = table.T @ table
    carried = _block_means(blocks, np.clip(blocks.repeat_logs, -clip, clip))[after]
    carried = carried[~np.isnan(carried)]
    sums = dict(zip(_SUMS, (float(products[pair]) for pair in _PAIRS), strict=True))
    return {**sums, "num_carried": len(carried), "carried_log": float(carried.sum())}


def describe(totals: Mapping[str, float]) -> dict[str, Figure]:
    """The figures of the sums: the factor that the order adds less 1, its error, and the speedup without it.

    Nothing where too little is known.
    """
    if (found := CarryOver.of(totals)) is None:
        return {}
    return {
        "carry_over": math.expm1(found.added),
        "carry_over_error": found.error,
        "without_carry_over": math.exp(found.without),
    }


def _block_means(blocks: TimedBlocks, values: Floats) -> Floats:
    """Of the known values of each block, [n] to [blocks]; NaN without any."""
    is_known = ~np.isnan(values)
    total, number = blocks.sum_by_block(np.where(is_known, values, 0.0)), blocks.sum_by_block(is_known)
    means: Floats = np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0.0)
    return means


def _estimates(totals: Mapping[str, float]) -> list[CarryOver | None]:
    """By order, and by repeats; None each where too little is known."""
    if totals.get(_SUMS[0], 0.0) < MIN_BLOCKS:
        return []
    products = np.zeros((len(_COLUMNS), len(_COLUMNS)))
    for (row, column), name in zip(_PAIRS, _SUMS, strict=True):
        products[row, column] = products[column, row] = totals[name]
    normal, against, num_blocks = products[:4, :4], products[:4, 4], products[0, 0]
    inverse = np.linalg.pinv(normal, hermitian=True)
    fit = inverse @ against
    variance = max(float(products[4, 4] - against @ fit), 0.0) / (num_blocks - 4.0)
    means, mean = normal[0] / num_blocks, float(against[0] / num_blocks)

    by_order = by_repeats = None
    if np.linalg.matrix_rank(normal, hermitian=True) == len(normal):
        change = means - _PRODUCTION
        added = float(change @ fit)
        by_order = CarryOver(added, math.sqrt(variance * float(change @ inverse @ change)), mean - added)
    if (num_repeats := totals["num_carried"]) >= MIN_REPEATS:
        # A pair of one arm differs no more than one of two arms does, whose variance is better known.
        added = float(means[1] * totals["carried_log"] / num_repeats)
        by_repeats = CarryOver(added, float(means[1] * math.sqrt(variance / num_repeats)), mean - added)
    return [by_order, by_repeats]
