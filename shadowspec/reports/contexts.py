"""How acceptance, speedup and memory change with the length of the prompt, over measured runs of one hypothesis.

Ranges double in length.  Figures are pooled within a range and have no bounds: bounds are the gate's, on its units.
The cache is what a request's own keys and values take at its end, in the arm's models; peaks are another figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shadowspec import metrics
from shadowspec.reports import tally
from shadowspec.reports.tally import Tally
from shadowspec.slicing import prompt_range


@dataclass(frozen=True, slots=True)
class CacheCost:
    """Bytes of keys and values per token."""

    target: int
    draft: int


@dataclass(frozen=True, slots=True)
class ContextPoint:
    """One measured request."""

    num_prompt_tokens: int
    num_output_tokens: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class ContextRow:
    """Requests whose prompts have a like number of tokens; figures are None where undefined."""

    name: str  # the range of prompt tokens
    num_requests: int
    mean_acceptance_length: float | None
    first_position_acceptance_rate: float | None
    ratio_of_total_times: float | None
    baseline_cache_bytes: float | None  # of a request, mean
    speculative_cache_bytes: float | None


def by_context(points: Iterable[ContextPoint], cost: CacheCost | None) -> tuple[ContextRow, ...]:
    """The rows of every range that holds a request, shortest prompts first.

    Args:
        cost: None where no block's memory is known.
    """
    found: dict[str, list[ContextPoint]] = {}
    for point in sorted(points, key=lambda own: own.num_prompt_tokens):
        found.setdefault(prompt_range(point.num_prompt_tokens), []).append(point)
    return tuple(_row(name, own, cost) for name, own in found.items())


def _row(name: str, points: list[ContextPoint], cost: CacheCost | None) -> ContextRow:
    pooled = tally.total(point.tally for point in points)
    tokens = metrics.ratio(sum(own.num_prompt_tokens + own.num_output_tokens for own in points), len(points)) or 0.0
    return ContextRow(
        name=name,
        num_requests=len(points),
        mean_acceptance_length=tally.mean_acceptance_length(pooled),
        first_position_acceptance_rate=tally.first_position_acceptance_rate(pooled),
        ratio_of_total_times=tally.ratio_of_total_times(pooled),
        baseline_cache_bytes=None if cost is None else tokens * cost.target,
        speculative_cache_bytes=None if cost is None else tokens * (cost.target + cost.draft),
    )
