"""Requests whose draft is rejected from the start: it does not speak the language of what is asked.

A flag is of one request, whose steps are few and depend on each other, so it takes nearly all of the first
`EARLY_STEPS` to be set.  Were steps independent, a request at the gate's default floor of acceptance (.40 at the first
position) would be flagged in 1.8% of cases, one at .10 in 79%, and one at .65, as chat has it, in 2 of 100,000.
"""

from __future__ import annotations

EARLY_STEPS = 16  # propose-and-verify steps; fewer tell a poor draft from an unlucky one no more
MIN_EARLY_REJECTIONS = 14  # of them, that accept nothing


def is_early_rejection(num_early_steps: int, num_early_rejections: int) -> bool | None:
    """Whether the draft was rejected from the start; None of a request with fewer than `EARLY_STEPS` steps.

    Args:
        num_early_steps: the first steps in which something was drafted, `EARLY_STEPS` at most.
        num_early_rejections: those of them that accepted nothing.
    """
    return None if num_early_steps < EARLY_STEPS else num_early_rejections >= MIN_EARLY_REJECTIONS
