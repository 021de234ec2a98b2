"""Cost model: the time of an engine's step on one device, and the resulting value of acceptance there.

At load b a step of the speculative arm with K drafted tokens takes `step_ms(b, K)`, one of the baseline
`step_ms(b, 0)`.  With L tokens a step on average (the mean acceptance length) decoding is faster by

    L * step_ms(b, 0) / step_ms(b, K)

so that L must be above `step_ms(b, K) / step_ms(b, 0)` for speculation to pay: the break-even length.  Leviathan et
al. (2211.17192) say the same with costs in units of a target pass: a gain of E[tokens] / (gamma * c + 1).  End to end
the prefill, which speculation lengthens by the draft's, is not sped up (Amdahl).

Prompt lookup and suffix drafts find nothing for some steps and little for others.  Their cost per step depends on how
often a row drafts and how deep (`Drafts`), and at a load of b on the row that drafts deepest.

Costs are measured (`engine.profiling`) and interpolated between measured points, never beyond them.  A prediction is no
evidence: the gate reads only measured pairs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from shadowspec.errors import InputError
from shadowspec.types import BASELINE, Place, StepCost


@dataclass(frozen=True, slots=True)
class Drafts:
    """How a row drafts where that depends on the text: in a share of its steps, and the mean number of tokens then."""

    share: float
    mean_tokens: float


class CostSurface:
    """Costs over load, depth and context, linear between the points of a whole grid."""

    def __init__(self, points: Iterable[StepCost]) -> None:
        """
        Raises:
            InputError: the points do not form a grid, or have no baseline.
        """
        self.points = tuple(points)
        at = {point.place: point for point in self.points}
        self.loads = tuple(sorted({point.concurrency for point in self.points}))
        self.depths = tuple(sorted({point.num_speculative_tokens for point in self.points}))
        self.contexts = tuple(sorted({point.context for point in self.points}))
        if len(at) != len(self.loads) * len(self.depths) * len(self.contexts):
            raise InputError("the cost surface is not a grid: a point of load, depth and context is missing")
        if BASELINE not in self.depths:
            raise InputError("the cost surface has no baseline")
        self._at: Mapping[Place, StepCost] = at

    def step_ms(self, place: Place, drafts: Drafts | None = None) -> float:
        """A step's time.

        A batch pays for its deepest row.  Rows are taken to draft independently of each other, and where one drafts,
        either a single token or all K, so that the mean is met.

        Args:
            drafts: how a row drafts at this K; None: all K tokens in every step.

        Raises:
            InputError: the place lies beyond the measured points.
        """
        deep = self._read("step_ms", place)
        if drafts is None or place.num_speculative_tokens == BASELINE:
            return deep
        shallow = self._read("step_ms", place._replace(num_speculative_tokens=1))
        looking = self._read("draft_ms", place) - self._read("draft_ms", place.baseline)
        plain = self._read("step_ms", place.baseline) + looking  # and nothing found
        depth = place.num_speculative_tokens
        is_deep = drafts.share * ((drafts.mean_tokens - 1.0) / (depth - 1.0) if depth > 1 else 1.0)
        none_drafts = math.pow(1.0 - drafts.share, place.concurrency)
        none_is_deep = math.pow(1.0 - is_deep, place.concurrency)
        return none_drafts * plain + (none_is_deep - none_drafts) * shallow + (1.0 - none_is_deep) * deep

    def prefill_ms(self, place: Place) -> float:
        """The prefill's time; raises as `step_ms`."""
        return self._read("prefill_ms", place)

    def break_even_length(self, place: Place, drafts: Drafts | None = None) -> float:
        """Tokens per step from which on decoding is faster than without speculation."""
        return self.step_ms(place, drafts) / self.step_ms(place.baseline)

    def end_to_end_ms(
        self, tokens_per_step: float, place: Place, num_output_tokens: float, drafts: Drafts | None = None
    ) -> float:
        """From the start of the prefill, which gives the first token, to the last one.

        The prefill is that of the place's context, the prompt; steps cost their time half-way through the output.
        """
        steps = num_steps(tokens_per_step, num_output_tokens)
        return self.prefill_ms(place) + steps * self.step_ms(place.grown(num_output_tokens / 2.0), drafts)

    def _read(self, figure: str, place: Place) -> float:
        """A figure of the points, linear between them; there is no interpolation between the baseline and K = 1."""
        is_drafting = place.num_speculative_tokens != BASELINE
        depths = tuple(depth for depth in self.depths if (depth != BASELINE) is is_drafting)
        axes = (
            ("load", place.concurrency, self.loads),
            ("context", place.context, self.contexts),
            ("K", place.num_speculative_tokens, depths),
        )
        for name, value, axis in axes:
            if not axis or not axis[0] <= value <= axis[-1]:
                span = f"{axis[0]} to {axis[-1]}" if axis else "none"
                raise InputError(f"{name} {value:g} is outside the profiled range ({span})")
        corners = product(*(_weights(axis, value) for _, value, axis in axes))
        return math.fsum(
            load_weight * context_weight * depth_weight * getattr(self._at[Place(load, depth, context)], figure)
            for (load, load_weight), (context, context_weight), (depth, depth_weight) in corners
        )


def _weights(axis: Sequence[int], value: float) -> tuple[tuple[int, float], ...]:
    """The points of a rising axis that surround a value within it, with the share of each."""
    upper = bisect_left(axis, value)
    if axis[upper] == value:
        return ((axis[upper], 1.0),)
    low, high = axis[upper - 1], axis[upper]
    share = (value - low) / (high - low)
    return ((low, 1.0 - share), (high, share))


def num_steps(tokens_per_step: float, num_output_tokens: float) -> float:
    """Passes of the target after the prefill, which gives the first token."""
    return max(0.0, num_output_tokens - 1.0) / tokens_per_step


def target_passes_saved(tokens_per_step: float, num_output_tokens: float) -> float:
    """Target passes of a request that plain decoding would need beyond those of speculation."""
    return num_steps(1.0, num_output_tokens) - num_steps(tokens_per_step, num_output_tokens)
