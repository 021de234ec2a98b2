"""From a server's counts of one request to our counters, which stop at the last emitted token.

Servers count a step before its output is cut: at a stop, or at the requested limit of tokens.  The tokens that the last
step emitted are therefore inferred from the number of tokens and from their chunks (`last_step`).  Contradictory counts
are not used: the run fails as `uncountable`.  Where some steps may have had no draft, more than one reading may fit;
the counters then record that the last step is uncertain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from shadowspec.servers.last_step import Ending, VerifyStep, likeliest_ending, possible_endings
from shadowspec.servers.stream import Completion
from shadowspec.types import LiveCounts, SpeculationCounts
from shadowspec.types.failures import EARLY_STEPS, is_early_rejection


@dataclass(frozen=True, slots=True)
class CountsSource:
    """Where the accepted tokens of a request come from: its name in runs and fingerprints, and for people."""

    name: str
    meaning: str

    @property
    def censored(self) -> CountsSource:
        """The same of a server that counts drafted tokens which it never verifies."""
        return CountsSource(f"{self.name}_censored", f"{self.meaning}, {CENSORED}")


CENSORED: Final = "censored: a lower bound"
# The server's counters around the same request, sent again, by itself and untimed.
COUNTERS: Final = CountsSource("counters", "the server's counters, in a separate pass")
NO_DRAFTS: Final = CountsSource("none", "no server, because none speculates")


class UncountableError(Exception):
    """The counts do not determine the last step's tokens, or contradict the output."""

    failure = "uncountable"  # of the run


class OtherDepthError(UncountableError):
    """The server drafts another number of tokens than the config: its counts are another config's."""

    failure = "other_depth"

    def __init__(self, drafted: int, configured: int) -> None:
        super().__init__(f"the server drafts {drafted} tokens in a step, and {configured} were configured")


@dataclass(frozen=True, slots=True)
class Accepted:
    """The counters of one request, and whether its draft was rejected from the start (None: not known).

    Uncertain (not `is_sure`): fewer of the last step's tokens may have been emitted.  The number of steps with a draft
    and the accepted tokens at the first position are certain all the same.
    """

    counts: SpeculationCounts
    is_early_rejection: bool | None
    is_sure: bool = True


def require_depth(drafted: Sequence[int], num_speculative_tokens: int, *, drafts_always: bool) -> None:
    """Raise OtherDepthError where the drafts of an answer's steps are of another depth.

    None may be deeper.  Of a proposer that drafts as many tokens in every step one has to be as deep; the last step is
    left out, because it may be short where the context or the output ends.
    """
    deepest, before_last = max(drafted, default=0), max(drafted[:-1], default=num_speculative_tokens)
    if deepest > num_speculative_tokens or (drafts_always and max(deepest, before_last) < num_speculative_tokens):
        raise OtherDepthError(deepest, num_speculative_tokens)


def from_steps(
    drafted: Sequence[int],
    accepted: Sequence[int],
    completion: Completion,
    num_prompt_tokens: int,
    num_speculative_tokens: int,
    *,
    drafts_always: bool,
) -> Accepted:
    """The counters from the drafted and accepted tokens of each step that had a draft, in their order.

    A step with 0 drafted tokens is a plain step: a server reports it where a grammar forbids the whole draft.

    Raises:
        UncountableError: the steps contradict themselves, or do not add up to the output.
    """
    if any(not 0 <= took <= of for of, took in zip(drafted, accepted, strict=True)):
        raise UncountableError("a step accepted more than it drafted")
    require_depth(drafted, num_speculative_tokens, drafts_always=drafts_always)
    steps = [step for step in zip(drafted, accepted, strict=True) if step[0]]
    has_plain = len(steps) < len(drafted)
    ending, is_sure = _ending(steps, completion, drafts_always=drafts_always and not has_plain)
    return from_ending(
        [of for of, _ in steps],
        [took for _, took in steps],
        ending,
        completion,
        num_prompt_tokens,
        num_speculative_tokens,
        is_sure=is_sure,
    )


def from_ending(
    drafted: Sequence[int],
    accepted: Sequence[int],
    ending: Ending,
    completion: Completion,
    num_prompt_tokens: int,
    num_speculative_tokens: int,
    *,
    is_sure: bool,
) -> Accepted:
    """The counters where it is known how the request ended.

    Raises:
        UncountableError: the steps do not add up to the output.
    """
    early = accepted[:EARLY_STEPS]
    histogram = [accepted.count(number) for number in range(num_speculative_tokens + 1)]
    counts = _counts(histogram, sum(drafted), ending, completion, num_prompt_tokens)
    return Accepted(counts, is_early_rejection(len(early), early.count(0)), is_sure)


def without_drafts(completion: Completion) -> Accepted:
    """The counters of a server that does not speculate."""
    ending = Ending(completion.num_output_tokens - 1, None)
    return from_ending([], [], ending, completion, completion.num_prompt_tokens, 0, is_sure=True)


def from_counters(
    counted: LiveCounts, completion: Completion, num_prompt_tokens: int, num_speculative_tokens: int
) -> Accepted:
    """The counters from the server's counts while it served only this request.

    Only for proposers that draft in every step: chunk by chunk the steps are then seen in the stream, and every chunk
    but the first is one.

    Raises:
        UncountableError: another request was served meanwhile, a step drafted fewer tokens than were configured, or
            chunks came together.
    """
    if counted.num_requests != 1 or counted.num_output_tokens != completion.num_output_tokens:
        raise UncountableError("the server served another request meanwhile")
    per_pos, num_drafts = counted.num_accepted_tokens_per_pos, counted.num_drafts or 0
    if len(per_pos) != num_speculative_tokens:
        raise OtherDepthError(len(per_pos), num_speculative_tokens)
    if counted.num_draft_tokens != len(per_pos) * num_drafts:
        raise UncountableError("a step drafted fewer tokens than were configured")
    if len(completion.chunk_sizes) != 1 + num_drafts:
        raise UncountableError("chunks of the stream came together, or a step had no draft")
    histogram = [before - after for before, after in zip((num_drafts, *per_pos), (*per_pos, 0), strict=True)]
    return from_histogram(histogram, completion, num_prompt_tokens)


def from_histogram(histogram: Sequence[int], completion: Completion, num_prompt_tokens: int) -> Accepted:
    """The counters where every step had a draft of the same length, and how many accepted how many is known.

    Which of them was the last follows from the last chunk, where every chunk but the first is a step.  Else it is
    taken for the longest that there was, by which the fewest drafted tokens are left out.
    """
    num_drafts, width = sum(histogram), len(histogram) - 1
    cut = 1 + sum(number * (accepted + 1) for accepted, number in enumerate(histogram)) - completion.num_output_tokens
    is_sure = len(completion.chunk_sizes) == 1 + num_drafts
    last: VerifyStep | None = None
    if num_drafts:
        longest = max(accepted for accepted, number in enumerate(histogram) if number)
        emitted = completion.chunk_sizes[-1] if is_sure else longest + 1 - cut
        last = VerifyStep(width, emitted + cut - 1, emitted)
    if cut < 0 or (last is not None and not (last.accepted <= width and last.emitted > 0 and histogram[last.accepted])):
        raise UncountableError("the steps do not add up to the output")
    return Accepted(
        _counts(histogram, width * num_drafts, Ending(0, last), completion, num_prompt_tokens), None, is_sure
    )


def _ending(steps: Sequence[tuple[int, int]], completion: Completion, *, drafts_always: bool) -> tuple[Ending, bool]:
    """How the request ended, and whether no other story that fits would be counted otherwise."""
    number, sizes = completion.num_output_tokens, completion.chunk_sizes
    fitting = possible_endings(steps, number, sizes)
    endings = fitting or possible_endings(steps, number, [number])  # chunks are cut otherwise: nothing is sure
    if drafts_always:  # but for the end of a draft's context
        endings = [ending for ending in endings if not ending.num_plain] or endings
    if not endings:
        raise UncountableError("the steps do not add up to the output: more was accepted than came")
    is_sure = bool(fitting) and len({ending.counted for ending in endings}) == 1
    return likeliest_ending(endings, len(steps), len(sizes)), is_sure


def _counts(
    histogram: Sequence[int], num_draft_tokens: int, ending: Ending, completion: Completion, num_prompt_tokens: int
) -> SpeculationCounts:
    """Counters cut at the last emitted token, from uncut ones and how the request ended."""
    rows = list(histogram)
    num_plain_steps, num_cut_draft, num_cut_accepted, is_cut = ending.counted
    num_cut_steps = int(is_cut)
    if ending.last is not None:
        rows[ending.last.accepted] -= 1
        rows[ending.last.accepted - num_cut_accepted] += 1
    per_pos = tuple(accumulate(reversed(rows[1:])))[::-1]
    num_drafts, num_accepted = sum(rows), sum(per_pos)
    if num_plain_steps < 0 or completion.num_output_tokens != (
        1 + num_drafts + num_plain_steps + num_accepted - num_cut_steps
    ):
        raise UncountableError("the steps do not add up to the output")
    return SpeculationCounts(
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens - num_cut_draft,
        num_accepted_tokens=num_accepted,
        num_accepted_tokens_per_pos=per_pos,
        acceptance_histogram=tuple(rows),
        num_output_tokens=completion.num_output_tokens,
        num_prompt_tokens=num_prompt_tokens,
        num_plain_steps=num_plain_steps,
        num_cut_steps=num_cut_steps,
        num_cut_draft_tokens=num_cut_draft,
        num_cut_accepted_tokens=num_cut_accepted,
    )


def integers(value: Any) -> list[int]:
    """A list of counts in an answer; [] where there is none.

    Raises:
        UncountableError: it holds something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(count) is int for count in value):
        raise UncountableError("a list of steps holds something else than counts")
    return value


def mean_draft(num_drafted: Any, num_steps: Any) -> int:
    """Tokens of a draft by totals that an answer reports, rounded up: at least 1 where a step verified one, else 0."""
    if type(num_steps) is not int or num_steps <= 0:
        return 0
    return max(1, -(-num_drafted // num_steps)) if type(num_drafted) is int else 1
