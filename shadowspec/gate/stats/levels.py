"""Levels of hypotheses: alpha / max_hypotheses each, given at entry, fixed, never reallocated.

Invariant: what has been given never sums to more than alpha, whatever the policy says later.  A hypothesis's
first run uses half of its share, its j-th restart share * 2**-(j + 1), so that all runs that it can ever have
together use no more than the share.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from shadowspec.gate.policy import GatePolicy

FIRST_RUN_SHARE = 0.5
MAX_RESTARTS = 30  # a share / 2**31 takes three times the units of a first run: more restarts are a fault elsewhere

HypothesisId = TypeVar("HypothesisId", bound=Hashable)


def level_of_run(share: float, num_restarts: int) -> float | None:
    """Level of a hypothesis's run after so many restarts; None where none is left."""
    return share * FIRST_RUN_SHARE * 2.0**-num_restarts if num_restarts <= MAX_RESTARTS else None


def assign_shares(
    entered: Sequence[HypothesisId], held: Mapping[HypothesisId, float], policy: GatePolicy
) -> dict[HypothesisId, float | None]:
    """Share of alpha of each hypothesis of `entered` (in order of entry); None where none is left.

    `held` are the shares given at earlier looks, those of hypotheses that are no longer asked about included.
    """
    shares: dict[HypothesisId, float | None] = {}
    given = sum(held.values())
    share = policy.alpha / policy.max_hypotheses
    for hypothesis in entered:
        if hypothesis in held:
            shares[hypothesis] = held[hypothesis]
        elif given + share <= policy.alpha * (1.0 + 1e-9):  # sums of equal shares round
            given += share
            shares[hypothesis] = share
        else:
            shares[hypothesis] = None
    return shares
