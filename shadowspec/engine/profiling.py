"""Profiling: the costs of the loop's steps on this device, measured with the loop itself.

Every point is a batch of made-up prompts that is decoded as a block is, all rows to the same length, so that the load
stands throughout.  What is accepted does not matter: a step of a draft model costs the same whatever comes of it.
Points take turns, round after round, and each gives its medians, so that a slow moment hits one round of some points
and not one point.  Of prompt lookup, suffix drafts and adaptive depth there is no such surface: what a step costs
there depends on the text.
Heads over the target's hidden states are not profiled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import ArmResult, Decoded, decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.runner import Runner
from shadowspec.engine.timing import Timeline
from shadowspec.errors import InputError
from shadowspec.types import BASELINE, SamplingParameters, StepCost, VerifyRule

PROFILED_TOKENS = 32  # of each row's output: some ten steps at the least, and the context hardly grows meanwhile
SAMPLED_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Grid:
    """Where costs are measured.  `is_greedy`: requests at temperature 0, which skip the sampling in verification."""

    loads: tuple[int, ...]
    depths: tuple[int, ...]  # without the baseline, which is always measured
    contexts: tuple[int, ...]
    is_greedy: bool = True
    rounds: int = 3

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """(load, depth, context), the baseline's among them."""
        return list(product(self.loads, (BASELINE, *self.depths), self.contexts))

    @property
    def num_runs(self) -> int:
        return self.rounds * len(self.places)


def profile(
    target: LoadedModel,
    candidate: Candidate,
    grid: Grid,
    *,
    seed: int = 0,
    on_run: Callable[[], None] = lambda: None,
) -> list[StepCost]:
    """The costs at every place of the grid, in its order.

    Args:
        on_run: called after each of `grid.num_runs` runs.

    Raises:
        InputError: the candidate drafts without a model of its own or to an adaptive depth, or a context leaves no
            room for the output.
    """
    draft, config = candidate.draft, candidate.config.config
    if not isinstance(draft, LoadedModel):
        raise InputError(f"{config.name}: only drafting with a model of its own is profiled")
    if config.is_adaptive:
        raise InputError(f"{config.name}: a step costs what the draft is sure of; not profiled")
    longest = min(int(each.model.config.max_position_embeddings) for each in (target, draft)) - PROFILED_TOKENS
    if max(grid.contexts) > longest:
        raise InputError(f"a context of {max(grid.contexts)} tokens leaves no room: at most {longest} here")
    rule = config.verify_rule
    found: dict[tuple[int, int, int], list[StepCost]] = {place: [] for place in grid.places}
    for load, depth in product(grid.loads, (BASELINE, *grid.depths)):  # untimed: allocation and choice of kernels
        _measured(target, draft, rule, load, depth, min(grid.contexts), grid.is_greedy, seed)
    for number in range(grid.rounds):
        for place in grid.places:
            found[place].append(_measured(target, draft, rule, *place, grid.is_greedy, seed + number))
            on_run()
    return [_medians(own) for own in found.values()]


def _measured(
    target: LoadedModel,
    draft: LoadedModel,
    rule: VerifyRule,
    load: int,
    depth: int,
    context: int,
    is_greedy: bool,
    seed: int,
) -> StepCost:
    """One batch at one place."""
    requests = _requests(target, load, context, is_greedy, seed)
    proposer = None
    draft_prefill = 0.0
    if depth:
        proposer = DraftModelProposer(draft.model, depth, is_sampling=rule is VerifyRule.REJECTION)
        draft_prefill = _prefill_ms(draft, [each.prompt[:-1] for each in requests])
    result = decode_batch(
        target.model,
        requests,
        proposer=proposer,
        num_speculative_tokens=depth,
        verify_rule=rule,
        end_token_ids=target.end_token_ids,
    )
    return _step_cost(result, load, depth, context, draft_prefill)


def num_steps(decoded: Decoded) -> int:
    """Of the loop, while the request was active."""
    return decoded.counts.num_drafts + decoded.counts.num_plain_steps


def _step_cost(result: ArmResult, load: int, depth: int, context: int, draft_prefill_ms: float) -> StepCost:
    """Of the row that ended last, which was in every step.  The draft's prefill is in its first step's drafting."""
    last = max(result.decoded, key=num_steps)
    steps = max(1, num_steps(last))
    drafting = max(0.0, last.timing.draft_ms - draft_prefill_ms)
    return StepCost(
        concurrency=load,
        num_speculative_tokens=depth,
        context=context,
        prefill_ms=last.timing.prefill_ms + draft_prefill_ms,
        draft_ms=drafting / steps,
        verify_ms=last.timing.verify_ms / steps,
        other_ms=last.timing.other_ms / steps,
    )


def _requests(target: LoadedModel, load: int, context: int, is_greedy: bool, seed: int) -> list[Request]:
    """Prompts of random tokens, answered to the full length."""
    draw = random.Random(seed)  # noqa: S311 - tokens that mean nothing
    vocabulary = int(target.model.config.vocab_size)
    sampling = SamplingParameters(
        temperature=0.0 if is_greedy else SAMPLED_TEMPERATURE, max_tokens=PROFILED_TOKENS, ignore_eos=True
    )
    return [
        Request(tuple(draw.randrange(vocabulary) for _ in range(context)), sampling, seed * load + row)
        for row in range(load)
    ]


def _prefill_ms(model: LoadedModel, prompts: Sequence[Sequence[int]]) -> float:
    """The draft's prefill as the proposer does it."""
    timeline = Timeline(model.model.device)
    runner = Runner(model.model, len(prompts), max(len(prompt) for prompt in prompts) + 1)
    start = timeline.mark()
    runner.prefill(prompts)
    return timeline.elapsed_ms(start, timeline.mark())


def _medians(own: Sequence[StepCost]) -> StepCost:
    def of(name: str) -> float:
        return float(median(getattr(each, name) for each in own))

    first = own[0]
    return StepCost(
        concurrency=first.concurrency,
        num_speculative_tokens=first.num_speculative_tokens,
        context=first.context,
        prefill_ms=of("prefill_ms"),
        draft_ms=of("draft_ms"),
        verify_ms=of("verify_ms"),
        other_ms=of("other_ms"),
    )
