"""Failures of one cell's runs, hour by hour: rare, but for early rejections where the draft is poor.

They are drawn beside the runs, from numbers of their own: none is more frequent than runs that were timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kernels.benchmarks.large_store.columns import Column, Columns
from shadowspec.store import table_definitions as tables
from shadowspec.types import Arm, Contract, Intervention, Validity, parse_slice_key
from shadowspec.types import failures as names
from shadowspec.types.failures import EARLY_STEPS, MIN_EARLY_REJECTIONS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Shares of runs.
LONG_ENOUGH = 0.7  # to be judged for an early rejection
BEYOND_DRAFT_CONTEXT = 0.004
INTERVENED: Mapping[Intervention, float] = {
    Intervention.FILTERED: 0.003,
    Intervention.REWRITTEN: 0.0015,
    Intervention.REJECTED: 0.0005,
}
INVALID, UNFINISHED = 0.03, 0.05  # of the outputs of a class with a contract
CONTRACTS = {"structured": Contract.JSON, "tool_calling": Contract.TOOL_CALL}


def failures(
    slice_key: str,
    numbers: Ints,  # [hours]: ids of the rollups
    timed: Ints,  # [hours]: answered runs
    drafts: Ints,  # [hours]
    first_accepted: Ints,  # [hours]: steps that accepted their first token
    acceptance: Floats,  # [hours]
) -> Iterator[Columns]:
    """What the runs of each hour count as failures, a name after the other."""
    draw = np.random.default_rng([int(numbers[0]) if len(numbers) else 0, 5])
    counts = {names.LOOKED_AT: timed, names.EARLY_KNOWN: draw.binomial(timed, LONG_ENOUGH)}
    counts[names.EARLY_REJECTIONS] = draw.binomial(counts[names.EARLY_KNOWN], _early_chance(acceptance))
    counts[names.BEYOND_DRAFT_CONTEXT] = draw.binomial(timed, BEYOND_DRAFT_CONTEXT)
    left = timed
    for intervention, share in INTERVENED.items():
        counts[intervention.value] = np.minimum(draw.binomial(timed, share), left)
        left = left - counts[intervention.value]
    changed = timed - left
    of_run = np.maximum(timed, 1)
    counts[names.INTERVENED_DRAFTS] = drafts * changed // of_run
    counts[names.INTERVENED_FIRST_ACCEPTED_TOKENS] = first_accepted * changed // of_run
    contract = CONTRACTS.get(parse_slice_key(slice_key).get("prompt_class", ""))
    if contract is not None:
        for arm in Arm:
            unfinished = draw.binomial(timed, UNFINISHED)
            invalid = draw.binomial(timed - unfinished, INVALID)
            numbers_by_validity = (invalid, timed - unfinished - invalid, unfinished)
            for validity, number in zip(Validity, numbers_by_validity, strict=True):
                counts[names.validity_name(contract, arm, validity)] = number
    for name, totals in counts.items():
        there = np.flatnonzero(totals)
        values: dict[str, Column] = {"rollup_id": numbers[there], "name": name, "total": totals[there]}
        yield Columns(tables.rollup_failures, len(there), values)


def _early_chance(acceptance: Floats) -> Floats:
    """Of nearly all of the first steps accepting nothing, were they independent."""
    rejected = 1.0 - acceptance
    terms = [
        math.comb(EARLY_STEPS, n) * rejected**n * acceptance ** (EARLY_STEPS - n)
        for n in range(MIN_EARLY_REJECTIONS, EARLY_STEPS + 1)
    ]
    chance: Floats = np.clip(np.sum(terms, axis=0), 0.0, 1.0)
    return chance
