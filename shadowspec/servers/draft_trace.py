"""The steps of one answer, from the progress of its drafts at each token.

Every event counts the tokens emitted, drafted and accepted so far.  A draft is cut to one token less than may still be
emitted, so that a model drafts fewer at the end, and nothing for the last token of all.  A token that ends within a
character has no event, so that several steps may lie between two events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shadowspec.servers.last_step import VerifyStep


@dataclass(frozen=True, slots=True)
class DraftTrace:
    """The steps of one request that had a draft, in their order.

    `num_plain` are steps without one, the prefill not among them; `ends_with_step`: the last token of all is the last
    step's.  Uncertain (not `is_sure`): several readings fit the events hidden within characters, or the end token may
    have been drafted.
    """

    steps: tuple[VerifyStep, ...]
    num_plain: int
    ends_with_step: bool
    is_sure: bool


class UntraceableError(Exception):
    """The counts of the events contradict each other."""


def read_steps(
    progress: Sequence[Sequence[int]], num_speculative_tokens: int, *, drafts_always: bool, is_by_end_token: bool
) -> DraftTrace:
    """The steps of an answer.

    A token belongs to the step that is open, until as many have come as it accepted and one more; else it is a step
    without a draft, or the first token of the next one, where more has been drafted since the event before.

    Args:
        progress: the tokens emitted, drafted and accepted so far, at each event.
        is_by_end_token: an end token ended the answer.
        drafts_always: the proposer has a draft in every step but the last, as models have, and lookup has not.

    Raises:
        UntraceableError: the events contradict each other.
    """
    steps: list[VerifyStep] = []
    num_plain, ends_with_step, is_sure, before = 0, False, True, (1, 0, 0)
    for number, drafted, accepted in progress:
        new, more, took = number - before[0], drafted - before[1], accepted - before[2]
        if min(new, more, took) < 0 or took > more:
            raise UntraceableError("a count has fallen, or more was accepted than drafted")
        if steps and (filled := min(new, steps[-1].accepted + 1 - steps[-1].emitted)):
            steps[-1] = replace(steps[-1], emitted=steps[-1].emitted + filled)
            new, ends_with_step = new - filled, True
        if more:
            opened, plain = _opened(new, more, took, num_speculative_tokens)
            # One token is the next step's first.  Of several that came together the first may be others.
            is_sure &= new == len(opened) or (drafts_always and len(opened) == 1 and not plain)
            steps, num_plain, ends_with_step = steps + opened, num_plain + plain, True
        elif new:
            num_plain, ends_with_step = num_plain + new, False
        before = number, drafted, accepted
    if ends_with_step and is_by_end_token:
        last = steps[-1]
        is_sure &= last.is_cut or last.emitted >= last.drafted
    return DraftTrace(tuple(steps), num_plain, ends_with_step, is_sure)


def _opened(new: int, more: int, took: int, width: int) -> tuple[list[VerifyStep], int]:
    """The steps that drafted `more` tokens and accepted `took` while `new` came, and how many had no draft among them.

    The last token is the last step's.  The number of steps follows from `width` drafted tokens each; of the accepted
    tokens the last step has as many as it can.
    """
    num_before = -(-more // width) - 1
    drafted = more - num_before * width
    accepted = min(took, drafted)
    earlier = [VerifyStep(width, 0, 1)] * num_before
    if took > accepted:
        if not earlier or took - accepted > width:
            raise UntraceableError("more was accepted than the steps can have drafted")
        earlier[0] = VerifyStep(width, took - accepted, took - accepted + 1)
    left = new - sum(step.emitted for step in earlier)
    if left < 1:
        raise UntraceableError("a step began without a token")
    emitted = min(left, accepted + 1)
    return [*earlier, VerifyStep(drafted, accepted, emitted)], left - emitted
