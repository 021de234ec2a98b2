"""From a server's counts of one request to our counters, which stop at the last emitted token.

Servers count a step before its output is cut: at a stop, or at the requested limit of tokens.  The tokens that the last
step emitted are therefore inferred from the number of tokens and from their chunks (`endings`).  Contradictory counts
are not used: the run fails as `uncountable`.  Where some steps may have had no draft, more than one reading may fit;
the counters then record that the last step is uncertain.

A request whose answer does not report the accepted tokens is sent again, by itself, between two reads of the counters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

from shadowspec.servers import sglang
from shadowspec.servers.client import Client, fresh_salt
from shadowspec.servers.counters import Counters, CountsSource, scrape
from shadowspec.servers.endings import Ending, VerifyStep, endings, likeliest
from shadowspec.servers.llamacpp_steps import UntraceableError, read_steps
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import Completion
from shadowspec.types import SpeculationCounts
from shadowspec.types.failures import EARLY_STEPS, is_early_rejection

Result = TypeVar("Result")

TRIES: Final = 3  # of a request whose window another one fell into
SETTLING_S: Final = 2.0  # that counters may lag behind an answer
LOOK_AGAIN_S: Final = 0.05
LENGTH: Final = "length"


class UncountableError(Exception):
    """The counts do not determine the last step's tokens, or contradict the output."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The counters of one request, and whether its draft was rejected from the start (None: not known).

    Uncertain (not `is_sure`): fewer of the last step's tokens may have been emitted.  The number of steps with a draft
    and the accepted tokens at the first position are certain all the same.
    """

    counts: SpeculationCounts
    is_early_rejection: bool | None
    is_sure: bool = True


def counts_of(
    source: CountsSource,
    completion: Completion,
    num_prompt_tokens: int,
    num_speculative_tokens: int,
    *,
    drafts_always: bool,
) -> Accepted:
    """The counters from the answer's metrics, where its engine reports them.

    Args:
        drafts_always: the proposer has a draft in every step, as models and heads do, and lookup does not.

    Raises:
        UncountableError: the metrics are incomplete, or contradictory.
    """
    said, length, width = completion.speculation or {}, num_prompt_tokens, num_speculative_tokens
    if source is CountsSource.META_INFO:
        return from_meta_info(said, completion, length, width)
    if source is CountsSource.TIMINGS:
        return from_progress(said, completion, length, width, drafts_always=drafts_always)
    return from_steps(said, completion, length, width, drafts_always=drafts_always)


def uncertain_tokens(
    source: CountsSource, finish_reason: str, num_speculative_tokens: int, *, drafts_always: bool
) -> int:
    """Accepted tokens by which the count of such an answer may be wrong: all of them lie in its last step.

    It depends on nothing that was drafted, so that a bound made of it holds on average given the output.
    """
    if not drafts_always:
        return num_speculative_tokens - 1
    return int(source is CountsSource.TIMINGS and finish_reason != LENGTH)  # the end token, where it was drafted


def from_steps(
    metrics: Mapping[str, Any],
    completion: Completion,
    num_prompt_tokens: int,
    num_speculative_tokens: int,
    *,
    drafts_always: bool,
) -> Accepted:
    """The counters from vLLM's `metrics.speculative_decoding`, at its level `detailed`; else as `counts_of`.

    Raises:
        UncountableError: the steps are missing, or do not add up to the output.
    """
    accepted, drafted = (_integers(metrics.get(name)) for name in ("per_step_accepted", "per_step_drafted"))
    steps = list(zip(drafted, accepted, strict=False))
    if len(drafted) != len(accepted) or len(steps) != metrics.get("num_spec_steps"):
        raise UncountableError("per_step_accepted and per_step_drafted are missing: the level is not detailed")
    if any(not 0 <= took <= of <= num_speculative_tokens or of == 0 for of, took in steps):
        raise UncountableError("a step accepted more than it drafted, or drafted more than was configured")
    ending, is_sure = _ending(steps, completion, drafts_always=drafts_always)
    early = accepted[:EARLY_STEPS]
    counts = _counts(_histogram(accepted, num_speculative_tokens), sum(drafted), ending, completion, num_prompt_tokens)
    return Accepted(counts, is_early_rejection(len(early), early.count(0)), is_sure)


def from_counters(
    counted: Counters, completion: Completion, num_prompt_tokens: int, num_speculative_tokens: int
) -> Accepted:
    """The counters from the server's counts while it served only this request.

    Only for proposers that draft in every step: chunk by chunk the steps are then seen in the stream, and every chunk
    but the first is one.

    Raises:
        UncountableError: another request was served meanwhile, a step drafted fewer tokens than were configured, or
            chunks came together.
    """
    if counted.num_finished != 1 or counted.num_generated != completion.num_output_tokens:
        raise UncountableError("the server served another request meanwhile")
    per_pos = counted.num_accepted_tokens_per_pos
    if len(per_pos) != num_speculative_tokens or counted.num_draft_tokens != len(per_pos) * counted.num_drafts:
        raise UncountableError("a step drafted fewer tokens than were configured")
    if len(completion.chunk_sizes) != 1 + counted.num_drafts:
        raise UncountableError("chunks of the stream came together, or a step had no draft")
    histogram = [before - after for before, after in zip((counted.num_drafts, *per_pos), (*per_pos, 0), strict=True)]
    return _from_histogram(histogram, completion, num_prompt_tokens)


def from_meta_info(
    meta: Mapping[str, Any], completion: Completion, num_prompt_tokens: int, num_speculative_tokens: int
) -> Accepted:
    """The counters from SGLang's `meta_info`, whose every step drafts a chain of as many tokens as were configured.

    Raises:
        UncountableError: the accepted tokens of the steps are missing, or do not add up to the output.
    """
    if sglang.num_retractions(meta):
        raise UncountableError("the request was thrown out of its batch, and a token of it made without a draft")
    found = sglang.spec_fields(meta)
    if found is None and completion.num_output_tokens > 1:
        raise UncountableError("meta_info holds no histogram of steps")
    verified, step_counts = found or (0, [])
    histogram = [*step_counts, *[0] * (num_speculative_tokens + 1 - len(step_counts))]
    if len(histogram) != num_speculative_tokens + 1 or sum(histogram) != verified:
        raise UncountableError("the histogram has other steps than were verified, or more tokens than were configured")
    if sglang.num_proposed(meta) not in (None, verified * num_speculative_tokens):
        raise UncountableError("a step drafted another number of tokens than was configured")
    return _from_histogram(histogram, completion, num_prompt_tokens)


def from_progress(
    said: Mapping[str, Any],
    completion: Completion,
    num_prompt_tokens: int,
    num_speculative_tokens: int,
    *,
    drafts_always: bool,
) -> Accepted:
    """The counters from the progress of llama.cpp's drafts at each token.

    Raises:
        UncountableError: the progress is missing, or contradictory.
    """
    try:
        trace = read_steps(said, num_speculative_tokens, drafts_always=drafts_always)
    except UntraceableError as error:
        raise UncountableError(str(error)) from error
    if any(each.drafted > num_speculative_tokens for each in trace.steps):
        raise UncountableError("a step drafted more tokens than were configured")
    accepted = [each.accepted for each in trace.steps]
    early = accepted[:EARLY_STEPS]
    counts = _counts(
        _histogram(accepted, num_speculative_tokens),
        sum(each.drafted for each in trace.steps),
        Ending(trace.num_plain, trace.steps[-1] if trace.ends_with_step else None),
        completion,
        num_prompt_tokens,
    )
    return Accepted(counts, is_early_rejection(len(early), early.count(0)), trace.is_sure)


def _from_histogram(histogram: Sequence[int], completion: Completion, num_prompt_tokens: int) -> Accepted:
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
    fitting = endings(steps, number, sizes)
    found = fitting or endings(steps, number, [number])  # a server that cuts its chunks otherwise: nothing is sure
    if drafts_always:  # but for the end of a draft's context
        found = [each for each in found if not each.num_plain] or found
    if not found:
        raise UncountableError("the steps do not add up to the output: more was accepted than came")
    is_sure = bool(fitting) and len({each.counted for each in found}) == 1
    return likeliest(found, len(steps), len(sizes)), is_sure


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


def _histogram(accepted: Sequence[int], num_speculative_tokens: int) -> list[int]:
    return [accepted.count(number) for number in range(num_speculative_tokens + 1)]


def _integers(value: Any) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise UncountableError("a list of steps holds something else than counts")
    return value


async def count_alone(client: Client, request: ServerRequest, model: str, num_speculative_tokens: int) -> Accepted:
    """The server's counts of this request.

    Raises:
        UncountableError: another request was served meanwhile at every try, or the counters do not suffice.
        ServerError: the server gives no usable answer.
    """
    refused: UncountableError | None = None
    for _ in range(TRIES):
        before = (await scrape(client, model)).counters
        answer = await client.complete(request, fresh_salt())
        counted = await _await_counters(client, model, before)
        try:
            return from_counters(counted, answer, len(request.prompt_token_ids), num_speculative_tokens)
        except UncountableError as error:
            refused = error
    assert refused is not None, "a try returns or is refused"
    raise refused


async def steps_counted(
    client: Client, model: str, num_requests: int, work: Awaitable[Result]
) -> tuple[Result, Counters | None]:
    """The result of work that sends this number of requests, and the server's counts meanwhile.

    None where it counted other requests too, or restarted.

    Raises:
        ServerError: the server does not show its counters.
    """
    before = (await scrape(client, model)).counters
    result = await work
    try:
        counted = await _await_counters(client, model, before, num_requests)
    except UncountableError:
        return result, None
    return result, counted if counted.num_finished == num_requests else None


async def _await_counters(client: Client, model: str, before: Counters | None, num_requests: int = 1) -> Counters:
    """The counts since `before`, once the answer is among them; counters may lag behind."""
    deadline = time.monotonic() + SETTLING_S
    while True:
        after = (await scrape(client, model)).counters
        counted = after.since(before) if before is not None and after is not None else None
        if counted is None:
            raise UncountableError("the server's counters are gone, or restarted")
        if counted.num_finished >= num_requests or time.monotonic() > deadline:
            return counted
        await asyncio.sleep(LOOK_AGAIN_S)
