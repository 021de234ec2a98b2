"""Our counts against vLLM's: request by request where nothing is drawn, else rates within intervals over requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from kernels.benchmarks.engines.counted import Counted, Uncut
from shadowspec import metrics
from shadowspec.quality.outputs import first_divergence
from shadowspec.types import ExpectedCounts, SpeculationCounts

LEVEL = 0.99
NEAR_TIE, DRAFT_NEAR_TIE, FAULT = "near_tie", "draft_near_tie", "fault"  # kinds of differences
EXACT = 1e-6  # expected counts are sums of floats


class HasCounts(Protocol):
    """A request as it was counted."""

    counts: SpeculationCounts
    is_sure: bool


Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rate:
    """A ratio of sums over requests, with the half width of its interval (requests independent, Student's t)."""

    value: float
    half_width: float
    moves: Reals  # how far each request moves it, times the number of requests

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Rate | None:
        """None where nothing was drafted, or of one request."""
        over, under = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
        value = metrics.ratio(float(over.sum()), float(under.sum()))
        if value is None or len(over) < 2:
            return None
        moves = (over - value * under) / under.mean()
        return cls(value, half_width(moves), moves)


def half_width(moves: Reals, level: float = LEVEL) -> float:
    """Of the interval of a mean of independent values, by Student's t."""
    number = len(moves)
    return float(student.ppf(0.5 + level / 2.0, number - 1) * moves.std(ddof=1) / number**0.5)


def acceptance_cell(theirs: Sequence[Counted], loop: Sequence[Counted], replay: Sequence[ExpectedCounts]) -> Any:
    """The acceptance rate (accepted over drafted tokens) of both sides on the same requests.

    vLLM's own figure counts the last step in full and so does the loop's here.  What lies beyond an output's end cannot
    be replayed: replay is held against vLLM's counts after our cut.  `difference` is the interval of the difference,
    request by request, which is the sharper one: prompts that accept little do so on both sides.

    Returns:
        None where one side drafted nothing.
    """
    uncut, looped = (_rate([counted.uncut for counted in side]) for side in (theirs, loop))
    cut, expected = _rate([counted.counts for counted in theirs]), _rate(replay)
    if uncut is None or looped is None or cut is None or expected is None:
        return None
    return {
        "requests": len(theirs),
        "vllm": uncut.value,
        "vllm_half_width": uncut.half_width,
        "loop": looped.value,
        "loop_is_inside": _is_inside(looped, uncut),
        "loop_difference_half_width": half_width(looped.moves - uncut.moves),
        "vllm_cut": cut.value,
        "vllm_cut_half_width": cut.half_width,
        "replay": expected.value,
        "replay_is_inside": _is_inside(expected, cut),
        "replay_difference_half_width": half_width(expected.moves - cut.moves),
        "vllm_mean_acceptance_length": _mean_length(theirs),
        "loop_mean_acceptance_length": _mean_length(loop),
    }


def replayed_rate(replay: Sequence[ExpectedCounts]) -> float | None:
    """The acceptance rate that is to be expected."""
    accepted = sum(counts.num_accepted_tokens for counts in replay)
    return metrics.ratio(accepted, sum(counts.num_draft_tokens for counts in replay))


def _rate(counts: Sequence[Uncut | SpeculationCounts | ExpectedCounts]) -> Rate | None:
    return Rate.of([one.num_accepted_tokens for one in counts], [one.num_draft_tokens for one in counts])


def _mean_length(side: Sequence[Counted]) -> float | None:
    pooled = metrics.pool_counts([counted.counts for counted in side])
    return None if pooled is None else metrics.mean_acceptance_length(pooled)


def _is_inside(ours: Rate, theirs: Rate) -> bool:
    return abs(ours.value - theirs.value) <= theirs.half_width + EXACT


def equality(
    theirs: Sequence[Counted],
    ours: Sequence[Counted],
    gap_at: Callable[[int, int], float],
    near_tie: float,
    draft_gap: Callable[[int], float] | None = None,
) -> dict[str, Any]:
    """How many requests are equal, and what the others are.

    Equal are tokens, steps with a draft, drafted and accepted tokens, in vLLM's own sense: before the cut.  `equal_cut`
    are those of them that have all of our counters after it, too.

    Args:
        gap_at: the target's top-2 logit gap at an output position of a request, both given by place.
        near_tie: the gap up to which rounding may choose another token.
        draft_gap: the draft's smallest top-2 gap along a request's output, where a draft proposes its arg-max.  None:
            drafts are looked up; then some steps have none, and how much of the last one was cut is not always known.
    """
    differences = []
    equal_cut = 0
    for row, (other, mine) in enumerate(zip(theirs, ours, strict=True)):
        is_equal = mine.tokens == other.tokens and mine.uncut == other.uncut
        equal_cut += is_equal and mine.counts == other.counts
        if is_equal and (mine.counts == other.counts or draft_gap is None):
            continue
        position, gap, kind = difference_of(row, mine.tokens, other.tokens, gap_at, near_tie, draft_gap)
        differences.append(
            {
                "request": row,
                "position": position,
                "top_two_gap": gap,
                "kind": kind,
                "num_drafts": [mine.uncut.num_drafts, other.uncut.num_drafts],
                "num_accepted_tokens": [mine.uncut.num_accepted_tokens, other.uncut.num_accepted_tokens],
            }
        )
    return {
        "requests": len(theirs),
        "equal": len(theirs) - len(differences),
        "equal_cut": equal_cut,
        "equal_tokens": sum(mine.tokens == other.tokens for mine, other in zip(ours, theirs, strict=True)),
        "unsure": sum(not counted.is_sure for counted in theirs),
        "num_drafts": sum(counted.uncut.num_drafts for counted in theirs),
        "num_accepted_tokens": sum(counted.uncut.num_accepted_tokens for counted in theirs),
        "differences": differences,
    }


def difference_of(
    row: int,
    mine: Sequence[int],
    other: Sequence[int],
    gap_at: Callable[[int, int], float],
    near_tie: float,
    draft_gap: Callable[[int], float] | None,
) -> tuple[int | None, float | None, str]:
    """Where the tokens of a request that is not equal part (None: nowhere), the gap that decides, and its kind."""
    position = first_divergence(mine, other)
    if position is not None:
        gap, kind = gap_at(row, position), NEAR_TIE
    elif draft_gap is not None:
        gap, kind = draft_gap(row), DRAFT_NEAR_TIE
    else:
        return None, None, FAULT
    return position, gap, kind if gap <= near_tie else FAULT


def own_outputs(theirs: Sequence[HasCounts], expected: Sequence[ExpectedCounts], *, is_certain: bool) -> dict[str, Any]:
    """An engine's counters against what replay expects of its own speculative outputs.

    Where drafts are certain of their token (`is_certain`) they are equal; else their difference is told in standard
    errors (`z`), as the law itself gives them.
    """
    if is_certain:
        sure = [(counted.counts, one) for counted, one in zip(theirs, expected, strict=True) if counted.is_sure]
        return {
            "requests": len(sure),
            "unsure": len(theirs) - len(sure),
            "equal": sum(_is_expected(counts, one) for counts, one in sure),
        }
    return {
        "requests": len(theirs),
        "unsure": 0,
        "z": standard_errors([counted.counts for counted in theirs], expected),
    }


def _is_expected(counts: SpeculationCounts, expected: ExpectedCounts) -> bool:
    pairs = [
        (counts.num_drafts, expected.num_drafts),
        (counts.num_draft_tokens, expected.num_draft_tokens),
        (counts.num_accepted_tokens, expected.num_accepted_tokens),
        (counts.num_plain_steps, expected.num_plain_steps),
        *zip(counts.acceptance_histogram, expected.acceptance_histogram, strict=False),
    ]
    return all(abs(one - other) <= EXACT for one, other in pairs)


def standard_errors(counted: Sequence[SpeculationCounts], expected: Sequence[ExpectedCounts]) -> float:
    """Of the mean acceptance length: how far what was counted lies from its expectation given the outputs."""
    accepted = sum(counts.num_accepted_tokens for counts in expected)
    length = metrics.ratio(accepted, sum(counts.num_drafts for counts in expected))
    assert length is not None, "nothing was drafted"
    difference = sum(
        (counts.num_accepted_tokens - one.num_accepted_tokens) - length * (counts.num_drafts - one.num_drafts)
        for counts, one in zip(counted, expected, strict=True)
    )
    variance = sum(
        counts.accepted_variance - 2.0 * length * counts.drafts_accepted_covariance + length**2 * counts.drafts_variance
        for counts in expected
    )
    return float(difference / variance**0.5)
