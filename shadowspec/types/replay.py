"""What replay gives: counters as they are to be expected, given a response."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedCounts:
    """The expectation of `SpeculationCounts` given the response, over the loop's own random numbers.

    The names and identities are those of `SpeculationCounts`; what is accepted beyond the end of the response cannot
    be known from it, so that there is no `num_cut_accepted_tokens`.  The last three are second moments of the loop's
    counts given the response: all 0 where a draft proposes one token with certainty.
    """

    num_drafts: float
    num_draft_tokens: float
    num_accepted_tokens: float
    num_accepted_tokens_per_pos: tuple[float, ...]
    acceptance_histogram: tuple[float, ...]
    num_output_tokens: int
    num_prompt_tokens: int
    num_plain_steps: float = 0.0
    num_cut_steps: float = 0.0
    num_cut_draft_tokens: float = 0.0
    drafts_variance: float = 0.0
    accepted_variance: float = 0.0
    drafts_accepted_covariance: float = 0.0
