"""Levels of hypotheses: alpha / max_hypotheses each, given at entry, fixed, never reallocated.

Invariant: what has been given never sums to more than alpha, whatever the policy says later.  A hypothesis's
first run uses half of what it is given; the other half is kept for restarts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from shadowspec.gate.policy import GatePolicy

FIRST_RUN_SHARE = 0.5

HypothesisId = TypeVar("HypothesisId", bound=Hashable)


def assign_levels(
    entered: Sequence[HypothesisId], held: Mapping[HypothesisId, float], policy: GatePolicy
) -> dict[HypothesisId, float | None]:
    """Level of the first run of each hypothesis of `entered` (in order of entry); None where none is left.

    `held` are the levels given at earlier looks, those of hypotheses that are no longer asked about included.
    """
    levels: dict[HypothesisId, float | None] = {}
    given = sum(held.values()) / FIRST_RUN_SHARE
    share = policy.alpha / policy.max_hypotheses
    for hypothesis in entered:
        if hypothesis in held:
            levels[hypothesis] = held[hypothesis]
        elif given + share <= policy.alpha * (1.0 + 1e-9):  # sums of equal shares round
            given += share
            levels[hypothesis] = share * FIRST_RUN_SHARE
        else:
            levels[hypothesis] = None
    return levels
