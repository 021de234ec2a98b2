"""Failures of requests: the flag of an early rejection, and the counts that each run adds to those of its slice.

Only counts, so that they add up over runs, hours and slices.  A missing count is 0.  Every share has a denominator
among them, because a flag is not defined for every run: `looked_at` for the flags that every answered run has,
`early_known` for early rejections, `looked_at` less `draft_context_unknown` for the draft's context, and an arm's
valid, invalid and unfinished outputs for contracts.

An early rejection is a request whose draft is rejected from the start: the draft does not model its language.  A
request has few steps, which depend on each other: it takes nearly all of the first `EARLY_STEPS` to set the flag.  Were
steps independent, a request at the gate's default floor of acceptance (.40 at the first position) would be flagged in
1.8% of cases, one at .10 in 79%, and one at .65, as chat has it, in 2 of 100,000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from shadowspec.types import Arm, Contract, Intervention, Run, Validity

EARLY_STEPS: Final = 16  # propose-and-verify steps; fewer do not distinguish a poor draft from an unlucky one
MIN_EARLY_REJECTIONS: Final = 14  # of them, that accept nothing

LOOKED_AT: Final = "looked_at"  # answered runs that were looked at for flags
EARLY_KNOWN: Final = "early_known"
EARLY_REJECTIONS: Final = "early_rejections"
BEYOND_DRAFT_CONTEXT: Final = "beyond_draft_context"
DRAFT_CONTEXT_UNKNOWN: Final = "draft_context_unknown"  # of runs through servers, which do not say how long it is
# Sums over the runs whose production output a layer behind the model changed: acceptance is shown without them too.
INTERVENED_DRAFTS: Final = "intervened_drafts"
INTERVENED_DRAFT_TOKENS: Final = "intervened_draft_tokens"
INTERVENED_ACCEPTED_TOKENS: Final = "intervened_accepted_tokens"
INTERVENED_FIRST_ACCEPTED_TOKENS: Final = "intervened_first_accepted_tokens"


def validity_name(contract: Contract, arm: Arm, validity: Validity) -> str:
    """The count of an arm's outputs that were found so, e.g. "json_baseline_valid"."""
    return f"{contract}_{arm}_{validity.name.lower()}"


def is_early_rejection(num_early_steps: int, num_early_rejections: int) -> bool | None:
    """Whether the draft was rejected from the start; None of a request with fewer than `EARLY_STEPS` steps.

    Args:
        num_early_steps: the first steps in which something was drafted, `EARLY_STEPS` at most.
        num_early_rejections: those of them that accepted nothing.
    """
    return None if num_early_steps < EARLY_STEPS else num_early_rejections >= MIN_EARLY_REJECTIONS


def num_draft_context_known(counts: Mapping[str, int]) -> int:
    """Of how many runs it is known whether they are longer than the draft's context."""
    return counts.get(LOOKED_AT, 0) - counts.get(DRAFT_CONTEXT_UNKNOWN, 0)


def failure_counts(runs: Iterable[Run]) -> Counter[str]:
    """The sums of these runs."""
    counts: Counter[str] = Counter()
    for run in runs:
        add_run(counts, run)
    return counts


def add_run(counts: Counter[str], run: Run) -> None:
    """Add one run's counts; nothing, where it failed or has no flags."""
    flags = run.flags
    if run.failure is not None or (flags.is_beyond_draft_context is None and run.served is None):
        return
    counts[LOOKED_AT] += 1
    if flags.is_beyond_draft_context is None:
        counts[DRAFT_CONTEXT_UNKNOWN] += 1
    if flags.is_beyond_draft_context:
        counts[BEYOND_DRAFT_CONTEXT] += 1
    if flags.is_early_rejection is not None:
        counts[EARLY_KNOWN] += 1
        if flags.is_early_rejection:
            counts[EARLY_REJECTIONS] += 1
    if flags.contract is not None:
        for arm, validity in ((Arm.BASELINE, flags.baseline_validity), (Arm.SPECULATIVE, flags.speculative_validity)):
            if validity is not None:
                counts[validity_name(flags.contract, arm, validity)] += 1
    if flags.intervention is not None:
        _add_intervened(counts, run, flags.intervention)


def _add_intervened(counts: Counter[str], run: Run, intervention: Intervention) -> None:
    counts[intervention.value] += 1
    speculation_counts = run.counts
    if speculation_counts is not None and speculation_counts.num_drafts:
        counts[INTERVENED_DRAFTS] += speculation_counts.num_drafts
        counts[INTERVENED_DRAFT_TOKENS] += speculation_counts.num_draft_tokens
        counts[INTERVENED_ACCEPTED_TOKENS] += speculation_counts.num_accepted_tokens
        counts[INTERVENED_FIRST_ACCEPTED_TOKENS] += speculation_counts.num_first_accepted
