"""The audit: accepted tokens of the engine against replay's expectation, by betting that the mean difference is zero.

A unit is one speculative output, of which `num_output_tokens - 1` tokens could have been accepted drafts.  Its value is
the share of them that were accepted, less the share that replay expects given the output.  If engine and replay are
right its mean is zero, whatever the earlier outputs were.  It lies in [-expected share, 1 - expected share]; the output
itself gives these bounds, so nothing is clipped.  The null is a mean within the unit's tolerance of zero.  Each
direction is bet against with capital as in `shadowspec.gate.stats.betting`: it alarms at 1 / level at any unit.  Where
the null holds, that happens with probability at most level.  An alarm is not taken back.

Level: `FAMILY_LEVEL` for all sequences of an endpoint together, without a time limit.  The j-th cell (slice and config,
and the whole endpoint with each config) in the order of its first unit has FAMILY_LEVEL / (j (j + 1)), half of it each
way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np

from shadowspec.gate.stats.betting import FRACTIONS, Floats
from shadowspec.metrics import ratio
from shadowspec.types import AUDIT_TOLERANCE, AuditedRun
from shadowspec.types.codec import from_document, to_document

FAMILY_LEVEL: Final = 0.05
# The least that a bet takes for the size of a unit's worst value: where next to nothing is expected to be accepted, one
# token that rounding turned over would otherwise win a fortune.
LEAST_WORST: Final = 0.2

VERSION: Final = 1  # of a state's document

WEIGHTS: Final = (0.15, 0.2, 0.25, 0.4)  # initial capital on each fraction: an audit reads few units at each look
_LOG_WEIGHTS = np.log(WEIGHTS)
_LN10 = math.log(10.0)
_START = (0.0,) * len(FRACTIONS)


@dataclass(frozen=True, slots=True)
class AuditState:
    """One cell's audit: sums over its units, and summed log bets by fraction, for both directions.

    `peak_more` and `peak_fewer` are the highest log capitals at any unit.  `num_refused` outputs could not come from
    the target according to replay; they are no units, because parity judges them.
    """

    place: int  # of the cell among the endpoint's, from 1
    num_units: int = 0
    num_refused: int = 0
    num_tokens: int = 0  # output tokens after the first
    num_accepted_tokens: int = 0
    expected_accepted_tokens: float = 0.0
    log_more: tuple[float, ...] = _START
    log_fewer: tuple[float, ...] = _START
    peak_more: float = 0.0
    peak_fewer: float = 0.0
    alarmed_at: datetime | None = None

    @property
    def level(self) -> float:
        """Of each direction."""
        return FAMILY_LEVEL / (self.place * (self.place + 1)) / 2.0

    @property
    def difference(self) -> float | None:
        """Share of the tokens that the engine accepted beyond replay's expectation; None without tokens."""
        return ratio(self.num_accepted_tokens - self.expected_accepted_tokens, self.num_tokens)

    @property
    def log10_peak(self) -> float:
        """The highest capital so far, either way."""
        return max(self.peak_more, self.peak_fewer) / _LN10

    @property
    def log10_threshold(self) -> float:
        """The capital at which it alarms."""
        return -math.log10(self.level)

    @property
    def has_alarmed(self) -> bool:
        """Whether loop and replay were found to differ: an alarm is not taken back."""
        return self.alarmed_at is not None

    def fold(self, runs: Sequence[AuditedRun], now: datetime) -> AuditState:
        """The state after these, in their order; in pieces or at once is the same."""
        units = [run for run in runs if run.expected_accepted_tokens is not None and run.num_output_tokens > 1]
        refused = sum(run.expected_accepted_tokens is None for run in runs)
        if not units:
            return replace(self, num_refused=self.num_refused + refused)
        tokens = np.array([run.num_output_tokens - 1 for run in units], dtype=np.float64)
        accepted = np.array([run.num_accepted_tokens for run in units], dtype=np.float64)
        expected = np.array([run.expected_accepted_tokens for run in units], dtype=np.float64)
        tolerances = np.array([run.tolerance for run in units], dtype=np.float64)
        more, fewer = bet_ratios(accepted / tokens, expected / tokens, tolerances)
        log_more, peak_more = _after(self.log_more, more)
        log_fewer, peak_fewer = _after(self.log_fewer, fewer)
        after = replace(
            self,
            num_units=self.num_units + len(units),
            num_refused=self.num_refused + refused,
            num_tokens=self.num_tokens + int(tokens.sum()),
            num_accepted_tokens=self.num_accepted_tokens + int(accepted.sum()),
            expected_accepted_tokens=self.expected_accepted_tokens + float(expected.sum()),
            log_more=log_more,
            log_fewer=log_fewer,
            peak_more=max(self.peak_more, peak_more),
            peak_fewer=max(self.peak_fewer, peak_fewer),
        )
        crosses = max(after.peak_more, after.peak_fewer) >= -math.log(self.level)
        return replace(after, alarmed_at=now) if crosses and not self.has_alarmed else after

    def document(self) -> dict[str, Any]:
        """The state as the store has it."""
        return to_document(self, VERSION)

    @staticmethod
    def of(document: Mapping[str, Any]) -> AuditState:
        """The state that a stored document describes.

        Raises:
            InputError: it describes none, or another version wrote it.
        """
        return from_document(document, AuditState, VERSION, "a stored audit")


def bet_ratios(
    accepted_shares: Floats, expected_shares: Floats, tolerances: Floats | float = AUDIT_TOLERANCE
) -> tuple[Floats, Floats]:
    """y / b of every unit, [n] each and at least -1: for more acceptance than expected, and for less.

    Args:
        accepted_shares: of the tokens of each unit that could have been accepted, [n].
        expected_shares: replay's expectation of them, [n].
        tolerances: by which the mean of their difference may depart from zero, [n] or of all.
    """
    differences = accepted_shares - expected_shares
    most_below = np.maximum(expected_shares + tolerances, LEAST_WORST)
    most_above = np.maximum(1.0 - expected_shares + tolerances, LEAST_WORST)
    more: Floats = (differences - tolerances) / most_below
    fewer: Floats = (-differences - tolerances) / most_above
    return np.maximum(more, -1.0), np.maximum(fewer, -1.0)


def _after(logs: tuple[float, ...], ratios: Floats) -> tuple[tuple[float, ...], float]:
    """Summed log bets after units of `ratios` [n], and the highest log capital at any of them."""
    paths = np.array(logs)[:, None] + np.log1p(np.multiply.outer(FRACTIONS, ratios)).cumsum(axis=1)
    capitals = np.logaddexp.reduce(_LOG_WEIGHTS[:, None] + paths, axis=0)
    return tuple(paths[:, -1].tolist()), float(capitals.max())
