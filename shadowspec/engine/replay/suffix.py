"""What drafting by suffix proposes along a logged response, and how much of it the response bears out.

The proposals depend on where a step starts and, unlike those of prompt lookup, on how many tokens it may propose at
most: fewer may come from another match, so that every number of speculative tokens is drafted for by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowspec.engine.proposers.suffix_automaton import SuffixAutomaton
from shadowspec.engine.proposers.suffix_text import SuffixOptions, SuffixText
from shadowspec.engine.replay.law import StepChances
from shadowspec.engine.replay.responses import Response

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SuffixSteps:
    """The step that may start at each token of one response, for each of the depths asked for."""

    proposed: Integers  # [depths, tokens]: tokens proposed
    borne_out: Integers  # [depths, tokens]: how many of them, from the first on, the response goes on with


def suffix_steps(
    response: Response, options: SuffixOptions, recent: SuffixAutomaton | None, depths: Sequence[int]
) -> SuffixSteps:
    """Draft at every token of a response as the loop does there.

    Args:
        recent: the outputs before this one; None: there are none.
        depths: the most tokens that a step proposes.
    """
    output = response.output
    proposed, borne_out = np.zeros((2, len(depths), len(output)), dtype=np.int64)
    text = SuffixText(options, recent, response.request.prompt)
    for place, token in enumerate(output):
        for index, depth in enumerate(depths):
            found = text.draft(depth)
            proposed[index, place] = len(found)
            borne_out[index, place] = _num_equal(found, output[place : place + len(found)])
        text.extend((token,))
    return SuffixSteps(proposed, borne_out)


def _num_equal(drafted: Sequence[int], tokens: Sequence[int]) -> int:
    """Leading tokens that are the same; what lies past the shorter one is not."""
    pairs = enumerate(zip(drafted, tokens, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(drafted), len(tokens)))


def suffix_chances(steps: Sequence[SuffixSteps], index: int, depth: int) -> StepChances:
    """The chances of responses at the depth with this index; what follows a token not borne out is not reached."""
    lengths = np.array([own.proposed.shape[1] for own in steps], dtype=np.int64)
    proposed, borne_out = np.zeros((2, len(steps), int(lengths.max(initial=0))), dtype=np.int64)
    for row, own in enumerate(steps):
        proposed[row, : lengths[row]] = own.proposed[index]
        borne_out[row, : lengths[row]] = own.borne_out[index]
    accept = (np.arange(depth) < borne_out[:, :, None]).astype(np.float64)
    return StepChances(accept, proposed, lengths)
