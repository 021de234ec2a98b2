"""Frontier: which candidate is predicted to be fastest at each load, and which others may be as fast.

It combines the tokens that a step emits, which carry over between devices, with the cost of a step on one of them.  The
tokens per step are known within bounds; a candidate whose bounds reach those of the best one may be as fast.  The
bounds do not include the error of the costs, and a prediction enables nothing: a frontier shows which candidates are
worth measuring.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shadowspec.planning.cost_model import CostSurface, Drafts, target_passes_saved
from shadowspec.types import Place


@dataclass(frozen=True, slots=True)
class Work:
    """A request of the traffic in question: mean tokens."""

    num_prompt_tokens: float
    num_output_tokens: float


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens that a step emits (mean acceptance length, plain steps counted in), with bounds where they are known."""

    estimate: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class PricedDrafting:
    """One candidate: the tokens that a step emits, and the cost of its steps."""

    name: str  # of the config
    num_speculative_tokens: int
    length: Length
    surface: CostSurface
    drafts: Drafts | None = None  # how often and how deep; None: all K tokens in every step


@dataclass(frozen=True, slots=True)
class Gain:
    """One candidate's predicted end-to-end gain at one load; bounds are only those of its length."""

    drafting: PricedDrafting
    concurrency: float
    speedup: float
    lower: float | None
    upper: float | None
    break_even_length: float
    baseline_ms: float  # end to end, of the request in question
    speculative_ms: float
    target_passes_saved: float  # of that request

    @property
    def most(self) -> float:
        """The upper bound, or the estimate where no bounds are known."""
        return self.speedup if self.upper is None else self.upper

    @property
    def least(self) -> float:
        """The lower bound, or the estimate where no bounds are known."""
        return self.speedup if self.lower is None else self.lower


@dataclass(frozen=True, slots=True)
class Choice:
    """One load: every candidate's gain, the best one, and those that may be as good.

    `best` is None where none is predicted to be faster than no speculation.
    """

    concurrency: float
    gains: tuple[Gain, ...]
    best: Gain | None
    contenders: tuple[Gain, ...]

    @property
    def is_clear(self) -> bool:
        """Whether the bounds leave one answer: the best way, surely faster than none; or none, surely."""
        if self.best is None:
            return all(gain.most <= 1.0 for gain in self.gains)
        return not self.contenders and self.best.least > 1.0


@dataclass(frozen=True, slots=True)
class Crossing:
    """Between two loads a gain passes 1; where, read off a straight line on logarithmic axes of both."""

    below: float
    above: float
    load: float
    is_downward: bool  # above it speculation is the slower one


def gain(drafting: PricedDrafting, concurrency: float, work: Work) -> Gain:
    """The gain of a candidate at a load.

    Raises:
        InputError: the place lies beyond the profiled points.
    """
    place = Place(concurrency, drafting.num_speculative_tokens, work.num_prompt_tokens)

    surface, length, output = drafting.surface, drafting.length, work.num_output_tokens
    baseline_ms = surface.end_to_end_ms(1.0, place.baseline, output)

    def at(tokens_per_step: float | None) -> float | None:
        if tokens_per_step is None:
            return None
        return baseline_ms / surface.end_to_end_ms(tokens_per_step, place, output, drafting.drafts)

    speculative_ms = surface.end_to_end_ms(length.estimate, place, output, drafting.drafts)
    return Gain(
        drafting,
        concurrency,
        baseline_ms / speculative_ms,
        at(length.lower),
        at(length.upper),
        surface.break_even_length(place.grown(output / 2.0), drafting.drafts),
        baseline_ms,
        speculative_ms,
        target_passes_saved(length.estimate, output),
    )


def frontier(draftings: Sequence[PricedDrafting], loads: Sequence[float], work: Work) -> list[Choice]:
    """The choice at every load, in their order.

    Raises:
        InputError: a load or the context lies beyond the profiled points of a candidate.
    """
    return [_choice(load, [gain(drafting, load, work) for drafting in draftings]) for load in loads]


def _choice(load: float, gains: Sequence[Gain]) -> Choice:
    best = max(gains, key=lambda gain: gain.speedup, default=None)
    if best is None or best.speedup <= 1.0:
        return Choice(load, tuple(gains), None, tuple(gain for gain in gains if gain.most > 1.0))
    others = tuple(gain for gain in gains if gain is not best and gain.most >= best.least)
    return Choice(load, tuple(gains), best, others)


def crossings(points: Sequence[tuple[float, float]], level: float = 1.0) -> list[Crossing]:
    """Where a gain over loads, (load, gain) rising by load, passes `level`."""
    crossed = []
    logs = [(load, math.log(value / level)) for load, value in points]
    for (below, log_below), (above, log_above) in pairwise(logs):
        if (log_below > 0.0) == (log_above > 0.0):
            continue
        # Straight on logarithmic axes of both: loads double from one to the next.
        part = log_below / (log_below - log_above)
        load = math.exp(math.log(below) + part * (math.log(above) - math.log(below)))
        crossed.append(Crossing(below, above, load, is_downward=log_below > 0.0))
    return crossed
