"""How a request can have ended, given the steps that had a draft, how many tokens came, and in which chunks.

A chunk of a stream is one step's tokens, or those of several that came together, never a part of a step's.  Between
the steps with a draft, in their order, there may be steps without one, a single token each; the first token is the
prefill's.  The last step of all is cut where the output ends.  Several reconstructions may be consistent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """A step of the target's that had a draft to verify.  `emitted` is at most accepted + 1."""

    drafted: int
    accepted: int
    emitted: int

    @property
    def num_cut_accepted(self) -> int:
        """Accepted tokens beyond the end of the output."""
        return self.accepted - min(self.accepted, self.emitted)

    @property
    def num_cut_draft(self) -> int:
        """Drafted tokens beyond it."""
        return self.drafted - min(self.drafted, self.emitted)

    @property
    def is_cut(self) -> bool:
        return self.emitted < self.accepted + 1


@dataclass(frozen=True, slots=True)
class Ending:
    """Steps without a draft, and the last step of all if it had one."""

    num_plain: int
    last: VerifyStep | None

    @property
    def counted(self) -> tuple[int, int, int, bool]:
        """The part that the counters use: where two readings agree in it, either may be true."""
        if self.last is None:
            return self.num_plain, 0, 0, False
        return self.num_plain, self.last.num_cut_draft, self.last.num_cut_accepted, self.last.is_cut


def possible_endings(steps: Sequence[tuple[int, int]], num_tokens: int, chunk_sizes: Sequence[int]) -> list[Ending]:
    """Every story that fits; none where the steps accepted more than came.

    Args:
        steps: drafted and accepted tokens of each step that had a draft, before any cut.
        num_tokens: of the output.
        chunk_sizes: tokens of each chunk, which add up to these.
    """
    if not steps:
        return [Ending(num_tokens - 1, None)]
    borders = list(accumulate(chunk_sizes))
    sizes = [accepted + 1 for _, accepted in steps]
    # Steps of one token fit anywhere, so that all that matters is how soon the steps before the last can be over.
    soonest = 1
    for size in sizes[:-1]:
        soonest = _fit(soonest, size, borders) + size
    endings = []
    after_last = _fit(soonest, sizes[-1], borders) + sizes[-1]
    if after_last < num_tokens:
        endings.append(Ending(num_tokens - 1 - sum(sizes), None))
    drafted, accepted = steps[-1]
    for emitted in range(1, min(sizes[-1], chunk_sizes[-1]) + 1):
        if num_tokens - emitted >= soonest:
            endings.append(Ending(num_tokens - emitted - 1 - sum(sizes[:-1]), VerifyStep(drafted, accepted, emitted)))
    return endings


def likeliest_ending(endings: Sequence[Ending], num_steps: int, num_chunks: int) -> Ending:
    """The story in which every chunk is one step; else the one that cuts the least.

    Among equals the one that leaves no drafted token out, which ends with a step without a draft.
    """

    def key(ending: Ending) -> tuple[bool, int, bool]:
        lost = 0 if ending.last is None else ending.last.accepted + 1 - ending.last.emitted
        return ending.num_plain != num_chunks - 1 - num_steps, lost, ending.last is not None

    return min(endings, key=key)


def _fit(start: int, size: int, borders: Sequence[int]) -> int:
    """The first place from `start` on where `size` tokens lie within a chunk; beyond the last there is no border."""
    for border in borders[bisect_right(borders, start) :]:
        if border - start >= size:
            break
        start = border
    return start
