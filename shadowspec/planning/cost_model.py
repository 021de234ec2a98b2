"""Cost model: what a step of the loop costs on one device, and what acceptance is therefore worth there.

At load b a step of the speculative arm with K drafted tokens takes `step_ms(b, K)`, one of the baseline
`step_ms(b, 0)`.  With L tokens a step on average (the mean acceptance length) decoding is faster by

    L * step_ms(b, 0) / step_ms(b, K)

so that L must be above `step_ms(b, K) / step_ms(b, 0)` for speculation to pay: the break-even length.  Leviathan et
al. (2211.17192) say the same with costs in units of a target pass: a gain of E[tokens] / (gamma * c + 1).  End to end
the prefill, which speculation makes longer by the draft's own, is not sped up (Amdahl).

Prompt lookup and suffix drafts find nothing for some steps and little for others.  What a step costs them depends on
how often a row drafts and how deep (`Drafts`), and at a load of b on the row that drafts deepest.

Costs are measured (`engine.profiling`) and interpolated between measured points; beyond them nothing is said.  A
prediction is no evidence: the gate reads measured pairs alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from shadowspec.errors import InputError
from shadowspec.types import BASELINE, Place, StepCost


@dataclass(frozen=True, slots=True)
class Drafts:
    """How a row drafts where that depends on the text: in a share of its steps, and so many tokens then on average."""

    share: float
    mean_tokens: float


class CostSurface:
    """Costs over load, depth and context, linear between the points of a whole grid."""

    def __init__(self, points: Iterable[StepCost]) -> None:
        """
        Raises:
            InputError: the points are no grid, or have no baseline.
        """
        self.points = tuple(points)
        at = {each.place: each for each in self.points}
        self.loads = tuple(sorted({each.concurrency for each in self.points}))
        self.depths = tuple(sorted({each.num_speculative_tokens for each in self.points}))
        self.contexts = tuple(sorted({each.context for each in self.points}))
        if len(at) != len(self.loads) * len(self.depths) * len(self.contexts):
            raise InputError("the cost surface is no grid: a point of load, depth and context is missing")
        if BASELINE not in self.depths:
            raise InputError("the cost surface has no baseline")
        self._steps = self._interpolators(at, "step_ms")
        self._drafts = self._interpolators(at, "draft_ms")
        self._prefills = self._interpolators(at, "prefill_ms")

    def step_ms(self, place: Place, drafts: Drafts | None = None) -> float:
        """A step's time.

        A batch pays for its deepest row.  Rows are taken to draft independently of each other, and where one drafts,
        either a single token or all K, so that the mean is met.

        Args:
            drafts: how a row drafts at this K; None: all K tokens in every step.

        Raises:
            InputError: the place lies beyond what was measured.
        """
        deep = self._read(self._steps, place)
        if drafts is None or place.num_speculative_tokens == BASELINE:
            return deep
        shallow = self._read(self._steps, place._replace(num_speculative_tokens=1))
        looking = self._read(self._drafts, place) - self._read(self._drafts, place.baseline)
        plain = self._read(self._steps, place.baseline) + looking  # and nothing found
        depth = place.num_speculative_tokens
        is_deep = drafts.share * ((drafts.mean_tokens - 1.0) / (depth - 1.0) if depth > 1 else 1.0)
        none_drafts = math.pow(1.0 - drafts.share, place.concurrency)
        none_is_deep = math.pow(1.0 - is_deep, place.concurrency)
        return none_drafts * plain + (none_is_deep - none_drafts) * shallow + (1.0 - none_is_deep) * deep

    def prefill_ms(self, place: Place) -> float:
        """The prefill's time; raises as `step_ms`."""
        return self._read(self._prefills, place)

    def break_even_length(self, place: Place, drafts: Drafts | None = None) -> float:
        """Tokens per step from which on decoding is faster than without speculation."""
        return self.step_ms(place, drafts) / self.step_ms(place.baseline)

    def end_to_end_ms(
        self, tokens_per_step: float, place: Place, num_output_tokens: float, drafts: Drafts | None = None
    ) -> float:
        """From the start of the prefill, which gives the first token, to the last one.

        The prefill is that of the place's context, the prompt; steps cost what they do half-way through the output.
        """
        steps = num_steps(tokens_per_step, num_output_tokens)
        return self.prefill_ms(place) + steps * self.step_ms(place.grown(num_output_tokens / 2.0), drafts)

    def _interpolators(
        self, at: Mapping[Place, StepCost], name: str
    ) -> tuple[RegularGridInterpolator, RegularGridInterpolator | None]:
        """Of the baseline, and of all depths that draft: between the two there is no such thing as half a draft."""
        drafting = tuple(depth for depth in self.depths if depth != BASELINE)
        made = []
        for depths in ((BASELINE,), drafting):
            values = [[[getattr(at[Place(b, k, c)], name) for c in self.contexts] for k in depths] for b in self.loads]
            axes = tuple(_at_least_two(axis) for axis in (self.loads, depths, self.contexts))
            grid = np.asarray(values, dtype=float)
            for place, axis in enumerate((self.loads, depths, self.contexts)):
                grid = np.repeat(grid, 2, axis=place) if len(axis) == 1 else grid
            made.append(RegularGridInterpolator(axes, grid, bounds_error=True) if depths else None)
        baseline, drafted = made
        assert baseline is not None, "there is a baseline"
        return baseline, drafted

    def _read(self, surfaces: tuple[RegularGridInterpolator, RegularGridInterpolator | None], place: Place) -> float:
        baseline, drafted = surfaces
        depths = tuple(depth for depth in self.depths if depth != BASELINE)
        is_drafting = place.num_speculative_tokens != BASELINE
        limits = [("load", place.concurrency, self.loads), ("context", place.context, self.contexts)]
        limits += [("K", place.num_speculative_tokens, depths)] if is_drafting else []
        for name, value, axis in limits:
            if not axis or not axis[0] <= value <= axis[-1]:
                span = f"{axis[0]} to {axis[-1]}" if axis else "none"
                raise InputError(f"{name} {value:g} lies beyond what was profiled ({span})")
        costs = drafted if is_drafting else baseline
        assert costs is not None, "the depth lies within those measured"
        return float(costs(place))


def _at_least_two(axis: Sequence[int]) -> tuple[float, ...]:
    """An axis of one point as two beside each other: what is asked of it is that point alone."""
    return (float(axis[0]), float(axis[0]) + 0.5) if len(axis) == 1 else tuple(map(float, axis))


def num_steps(tokens_per_step: float, num_output_tokens: float) -> float:
    """Passes of the target after the prefill, which gives the first token."""
    return max(0.0, num_output_tokens - 1.0) / tokens_per_step


def target_passes_saved(tokens_per_step: float, num_output_tokens: float) -> float:
    """Target passes of a request that plain decoding would need beyond those of speculation."""
    return num_steps(1.0, num_output_tokens) - num_steps(tokens_per_step, num_output_tokens)
