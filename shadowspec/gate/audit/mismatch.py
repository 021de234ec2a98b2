"""Audit (b): acceptance of production's responses, replayed, against that of the engine's outputs.

A difference means that production's outputs do not follow the shadow's target (another model, template, sampling or
length).  It means nothing about the estimator or the engine: audit (a) checks these.  It is reported as production
mismatch.

The test compares two samples over sessions: a ratio of sums on each side, with confidence sequences
(`gate.evidence.asymptotic`) at half the level each.  The interval of their difference therefore holds at all looks, up
to the asymptotic approximation, and until the oldest rows leave the sums.  Sessions on both sides only make the
interval wider than necessary, because both ratios move the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from shadowspec.gate.evidence.asymptotic import RatioMoments, bounds
from shadowspec.metrics import ratio
from shadowspec.types import AcceptanceSums

MISMATCH_LEVEL: Final = 0.05  # of all comparisons that one look makes at an endpoint, divided evenly among them
TOLERANCE: Final = 0.05  # of the loop's mean acceptance length: less changes no choice of K


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Replay's mean acceptance length less the engine's; bounds are None before the burn-in of either side."""

    slice_key: str
    fingerprint: str
    replay_length: float
    loop_length: float
    lower: float | None
    upper: float | None
    level: float
    num_replay_units: int
    num_loop_units: int

    @property
    def difference(self) -> float:
        """In tokens per step."""
        return self.replay_length - self.loop_length

    @property
    def limit(self) -> float:
        """The absolute difference above which there is a mismatch."""
        return TOLERANCE * self.loop_length

    @property
    def is_alarm(self) -> bool:
        """Whether the interval lies wholly beyond the limit."""
        if self.lower is None or self.upper is None:
            return False
        return self.lower > self.limit or self.upper < -self.limit


def mismatches(replayed: Iterable[AcceptanceSums], looped: Iterable[AcceptanceSums]) -> list[Mismatch]:
    """Every slice and config that both sides have, sorted by it."""
    loops = {(sums.slice_key, sums.fingerprint): sums for sums in looped if sums.num_drafts}
    pairs = [
        (sums, loops[sums.slice_key, sums.fingerprint])
        for sums in replayed
        if sums.num_drafts and (sums.slice_key, sums.fingerprint) in loops
    ]
    pairs.sort(key=lambda pair: (pair[0].slice_key, pair[0].fingerprint))
    return [_mismatch(replay, loop, MISMATCH_LEVEL / len(pairs)) for replay, loop in pairs]


def _mismatch(replay: AcceptanceSums, loop: AcceptanceSums, level: float) -> Mismatch:
    (replay_length, replay_lower, replay_upper), (loop_length, loop_lower, loop_upper) = (
        _length(sums, level / 2.0) for sums in (replay, loop)
    )
    lower, upper = replay_lower - loop_upper, replay_upper - loop_lower
    is_known = math.isfinite(lower) and math.isfinite(upper)
    return Mismatch(
        slice_key=replay.slice_key,
        fingerprint=replay.fingerprint,
        replay_length=replay_length,
        loop_length=loop_length,
        lower=lower if is_known else None,
        upper=upper if is_known else None,
        level=level,
        num_replay_units=replay.num_units,
        num_loop_units=loop.num_units,
    )


def _length(sums: AcceptanceSums, level: float) -> tuple[float, float, float]:
    """Mean acceptance length with its bounds; infinite before the burn-in."""
    accepted = ratio(sums.num_accepted_tokens, sums.num_drafts)
    assert accepted is not None, "a side without drafts is not compared"
    figures = (sums.num_units, sums.num_accepted_tokens, sums.num_drafts)
    squares = (sums.accepted_squares, sums.accepted_drafts, sums.drafts_squares)
    lower, upper = bounds(RatioMoments(*(np.array(float(each)) for each in (*figures, *squares))), level)
    return 1.0 + accepted, 1.0 + float(lower), 1.0 + float(upper)
