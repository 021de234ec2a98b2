"""The law of the step counts of one response, for every number of speculative tokens at once.

Given the response, the tokens of a step that starts at position s are accepted one after the other, the m-th with
probability `accept[s, m]`, independently of everything before s.  So the positions at which steps start are a Markov
chain, and the expected counters are sums over it.  They are those that `Row.note_step` counts:

- a token drafted after the last emitted one counts in neither accepted nor drafted tokens;
- a step that accepts the last token of the response adds its emitted tokens to the histogram, and is a cut step;
- a step for which nothing is proposed is a plain step, not a draft.

The form with a single `accept[i]` per position is that of drafts that depend only on the prefix (a draft model);
`of_prefix` converts it to the general one.  Acceptance beyond the end of a response cannot be known from it, so there
is no `num_cut_accepted_tokens` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shadowspec.types import ExpectedCounts

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

MAX_ENTRIES: Final = 1_000_000  # of an array over a stretch of positions: 8 MB, of which some five live at once
FIRST_DRAFTED: Final = 1  # prefill emits the first token undrafted, in this engine's loop as in vLLM's


@dataclass(frozen=True, slots=True)
class StepChances:
    """The chances that decide the steps of responses, padded to the longest; padding is ignored."""

    accept: Reals  # [responses, positions, depth]: chance of y[s + m] in a step that starts at s, given those before
    proposed: Integers  # [responses, positions]: tokens proposed in a step that starts at s, at most depth
    lengths: Integers  # [responses]: tokens of each response

    @classmethod
    def of_prefix(cls, accept: Sequence[Reals], depth: int) -> StepChances:
        """Of drafts that depend only on the prefix and always propose the most that they may.

        Args:
            accept: for each response the chance of each of its tokens, [tokens].
            depth: the most tokens that a step proposes.
        """
        lengths = np.array([len(chances) for chances in accept], dtype=np.int64)
        longest = int(lengths.max(initial=0))
        padded = np.zeros((len(accept), longest + depth - 1))
        for row, chances in enumerate(accept):
            padded[row, : len(chances)] = chances
        windows = np.lib.stride_tricks.sliding_window_view(padded, depth, axis=1)  # [responses, longest, depth]
        return cls(windows, np.full((len(accept), longest), depth, dtype=np.int64), lengths)

    def within(self, limits: Sequence[int]) -> StepChances:
        """Of drafts that are cut as `WithinLimit` cuts them, by the limit of tokens of each response."""
        left = np.array(limits, dtype=np.int64)[:, None] - np.arange(self.proposed.shape[1]) - 1
        return replace(self, proposed=np.minimum(self.proposed, np.maximum(left, 0)))


@dataclass(frozen=True, slots=True)
class StepLaw:
    """Expected counters, [depths, responses] each, in the order of the given depths.

    The last three are variances and covariance of the engine's counts given the response: how far one run of the engine
    lies from the mean.
    """

    depths: tuple[int, ...]
    lengths: Integers  # [responses]
    histogram: Reals  # [depths, responses, largest depth + 1]: steps by the number of accepted tokens
    plain_steps: Reals
    cut_steps: Reals
    draft_tokens: Reals
    cut_draft_tokens: Reals
    drafts_variance: Reals
    accepted_variance: Reals
    drafts_accepted_covariance: Reals

    @property
    def drafts(self) -> Reals:
        """Steps in which something was proposed; [depths, responses]."""
        total: Reals = self.histogram.sum(-1)
        return total

    @property
    def accepted_tokens(self) -> Reals:
        """[depths, responses]."""
        total: Reals = self.histogram @ np.arange(self.histogram.shape[-1])
        return total


def step_law(chances: StepChances, depths: Sequence[int], *, first_drafted: int = FIRST_DRAFTED) -> StepLaw:
    """The law for each of `depths`, the numbers of speculative tokens.

    Args:
        chances: acceptance by start and depth; its depth is at least the largest of `depths`.
        first_drafted: position of the first token that is drafted: 1 where prefill emits one undrafted, else 0.
    """
    steps = _Steps(chances, depths, first_drafted)
    width = steps.widest + 1
    shape = (len(depths), len(chances.lengths))
    reach = np.zeros((steps.longest + width + 1, *shape))  # chance that a step starts at a position
    reach[first_drafted] = 1.0
    histogram = np.zeros((*shape, width))
    plain, cut, drafted, cut_drafted = np.zeros((4, *shape))
    for stretch in steps.stretches:
        block = steps.at(stretch)
        for place, start in enumerate(stretch):
            reach[start + 1 : start + 1 + width] += block.chances[place] * reach[start]
        starts = reach[stretch.start : stretch.stop, None]  # [starts, 1, depths, responses]
        mass = block.chances * starts
        histogram += np.moveaxis((mass * block.is_draft[:, None]).sum(0), 0, -1)
        plain += (mass[:, 0] * ~block.is_draft).sum(0)
        cut += (mass * block.is_cut).sum((0, 1))
        drafted += (mass * block.kept_drafted).sum((0, 1))
        cut_drafted += (mass * (block.proposed[:, None] - block.kept_drafted)).sum((0, 1))
    moments = _moments(steps)
    return StepLaw(tuple(depths), chances.lengths, histogram, plain, cut, drafted, cut_drafted, *moments)


@dataclass(frozen=True, slots=True)
class _Block:
    """The steps of all depths and responses that start in one stretch; outcome j is j accepted tokens."""

    chances: Reals  # [starts, outcomes, depths, responses]; all 0 where the response is over
    proposed: Integers  # [starts, depths, responses]
    is_draft: Booleans  # [starts, depths, responses]
    is_cut: Booleans  # [starts, outcomes, 1, responses]
    kept_drafted: Integers  # [starts, outcomes, depths, responses]: drafted tokens up to the last emitted one


class _Steps:
    """The steps that may start at each position, a stretch of positions at a time."""

    def __init__(self, chances: StepChances, depths: Sequence[int], first: int) -> None:
        self._chances = chances
        self._depths = np.array(depths, dtype=np.int64)[:, None]  # [depths, 1]
        self.first = first
        self.widest = max(depths)
        self.longest = chances.accept.shape[1]
        self.shape = (len(depths), len(chances.lengths))
        size = max(1, MAX_ENTRIES // max(1, len(depths) * len(chances.lengths) * (self.widest + 1)))
        self.stretches = [range(at, min(at + size, self.longest)) for at in range(first, self.longest, size)]

    def at(self, stretch: range) -> _Block:
        """All steps that start in a stretch."""
        part = slice(stretch.start, stretch.stop)
        accept = np.moveaxis(self._chances.accept[:, part, : self.widest], 0, -1)  # [starts, widest, responses]
        remaining = np.maximum(self._chances.lengths - np.array(stretch)[:, None], 0)  # [starts, responses]
        proposed = np.minimum(self._depths, self._chances.proposed[:, part].T[:, None])  # [starts, depths, responses]
        most = np.minimum(proposed, remaining[:, None])[:, None]  # accepted tokens that are kept
        survived = np.ones((len(stretch), self.widest + 1, accept.shape[-1]))
        np.cumprod(accept, axis=1, out=survived[:, 1:])
        rejected = survived.copy()
        rejected[:, :-1] *= 1.0 - accept
        outcomes = np.arange(self.widest + 1)[:, None, None]  # [outcomes, 1, 1]
        mass = np.where(outcomes == most, survived[:, :, None], 0.0)
        mass = np.where(outcomes < most, rejected[:, :, None], mass)
        left = remaining[:, None, None]  # [starts, 1, 1, responses]
        mass *= left > 0
        emitted = np.minimum(outcomes + 1, left)
        kept = np.where(emitted == left, np.minimum(proposed[:, None], emitted), proposed[:, None])
        return _Block(mass, proposed, proposed > 0, outcomes == left, kept)


def _moments(steps: _Steps) -> tuple[Reals, Reals, Reals]:
    """Variance of drafts, of accepted tokens, and their covariance; [depths, responses] each.

    From the end of the responses on: the counts from a position on are a step's plus those from its end.
    """
    width = steps.widest + 1
    # [moment, positions, ...]: drafts, accepted, drafts^2, drafts * accepted, accepted^2 from there on
    ahead = np.zeros((5, steps.longest + width + 1, *steps.shape))
    accepted = np.arange(width, dtype=np.float64)[:, None, None]
    for stretch in reversed(steps.stretches):
        block = steps.at(stretch)
        is_draft = block.is_draft.astype(np.float64)
        for place in reversed(range(len(stretch))):
            start = stretch[place]
            draft = is_draft[place]
            drafts, taken, drafts_2, mixed, taken_2 = ahead[:, start + 1 : start + 1 + width]
            sums = (
                draft + drafts,
                accepted + taken,
                draft * (1.0 + 2.0 * drafts) + drafts_2,
                draft * (accepted + taken) + accepted * drafts + mixed,
                accepted * (accepted + 2.0 * taken) + taken_2,
            )
            for moment, sum_ahead in enumerate(sums):
                ahead[moment, start] = (sum_ahead * block.chances[place]).sum(0)
    drafts, taken, drafts_2, mixed, taken_2 = ahead[:, steps.first]
    # Of a certain count the difference of two equal numbers is left, which may round below zero.
    return np.maximum(drafts_2 - drafts**2, 0.0), np.maximum(taken_2 - taken**2, 0.0), mixed - drafts * taken


def expected_counts(law: StepLaw, response: int, num_prompt_tokens: int) -> tuple[ExpectedCounts, ...]:
    """The counters of one response, for each depth; positions and histogram as long as the depth needs."""
    drafts, accepted = law.drafts[:, response], law.accepted_tokens[:, response]
    counts = []
    for index, depth in enumerate(law.depths):
        histogram = law.histogram[index, response, : depth + 1]
        per_pos = histogram[::-1].cumsum()[::-1][1:]
        counts.append(
            ExpectedCounts(
                num_drafts=float(drafts[index]),
                num_draft_tokens=float(law.draft_tokens[index, response]),
                num_accepted_tokens=float(accepted[index]),
                num_accepted_tokens_per_pos=tuple(per_pos.tolist()),
                acceptance_histogram=tuple(histogram.tolist()),
                num_output_tokens=int(law.lengths[response]),
                num_prompt_tokens=num_prompt_tokens,
                num_plain_steps=float(law.plain_steps[index, response]),
                num_cut_steps=float(law.cut_steps[index, response]),
                num_cut_draft_tokens=float(law.cut_draft_tokens[index, response]),
                drafts_variance=float(law.drafts_variance[index, response]),
                accepted_variance=float(law.accepted_variance[index, response]),
                drafts_accepted_covariance=float(law.drafts_accepted_covariance[index, response]),
            )
        )
    return tuple(counts)
