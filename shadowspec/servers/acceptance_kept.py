"""The acceptance of two deployments in one request, where both speculate: a pair that the gate tests for a loss."""

from __future__ import annotations

from shadowspec.metrics import ratio
from shadowspec.servers.engines import ServingEngine
from shadowspec.servers.step_counts import Accepted, UncountableError
from shadowspec.servers.stream import Completion
from shadowspec.types import PairedScore, SpeculationCounts


def both_accepted(first: Completion, second: Accepted, engine: ServingEngine, depth: int) -> PairedScore | None:
    """The acceptance at the first position of both deployments; None where one of them made no draft.

    Args:
        first: the answer of the deployment that serves, whose `engine` drafts `depth` tokens.
        second: the counts of the other deployment.
    """
    if not depth or not second.counts.num_drafts:
        return None
    try:
        counts = engine.count(first, first.num_prompt_tokens, depth, drafts_always=False).counts
    except UncountableError:
        return PairedScore(None, _at_first(second.counts))  # missing: at its worst on either side
    return PairedScore(_at_first(counts), _at_first(second.counts)) if counts.num_drafts else None


def _at_first(counts: SpeculationCounts) -> float | None:
    return ratio(counts.num_first_accepted, counts.num_drafts)
