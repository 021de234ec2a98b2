"""Checks of outputs by token ids only: where two diverge, and whether one is stuck in a repetition loop.

A loop is easy to draft, and so inflates acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD = 32  # tokens; longer cycles are boilerplate rather than a stuck model
MIN_TAIL = 12  # tokens; a shorter repeat ("ha ha ha") is ordinary text


def is_repetition_loop(token_ids: Sequence[int]) -> bool:
    """Whether the output's tail repeats with a period p <= MAX_PERIOD over its last max(3p, MIN_TAIL) tokens."""
    length = len(token_ids)
    for period in range(1, MAX_PERIOD + 1):
        tail = max(3 * period, MIN_TAIL)
        if tail > length:
            return False
        start = length - tail
        if all(token_ids[i] == token_ids[i + period] for i in range(start, length - period)):
            return True
    return False


def first_divergence(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first output position at which two outputs differ (a missing token differs), or None."""
    for position, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return position
    return None if len(first) == len(second) else min(len(first), len(second))
