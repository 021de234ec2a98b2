"""Profiling: the costs of the engine's steps on this device, measured with the engine itself.

Every point is a batch of random prompts that is decoded as a block is, all rows to the same length, so that the load is
constant.  Acceptance does not matter: a step of a draft costs the same whether its tokens are accepted or not.  Points
take turns, round after round, and each gives its medians, so that a slow moment hits one round of some points and not
one point.

Prompt lookup and suffix drafts find nothing in random prompts.  They search all the same, and every row is then given K
random tokens to verify: the cost of the search and of a step that drafts to the full depth.  The cost model derives
steps that draft less (`cost_model.Drafts`).  An adaptive depth has no such surface.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median

import torch

from shadowspec.engine.arms import record_ahead
from shadowspec.engine.batch import Batch, Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import ArmResult, Decoded, decode_batch
from shadowspec.engine.forward import HiddenStates
from shadowspec.engine.heads.loading import LoadedHeads
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.proposers import Proposal, Proposer
from shadowspec.engine.timing import Timeline
from shadowspec.errors import InputError
from shadowspec.types import BASELINE, SamplingParameters, StepCost

PROFILED_TOKENS = 32  # of each row's output: some ten steps at the least, and the context hardly grows meanwhile
SAMPLED_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class ProfileGrid:
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
    target: LoadedModel, candidate: Candidate, grid: ProfileGrid, *, on_run: Callable[[], None] = lambda: None
) -> list[StepCost]:
    """The costs at every place of the grid, in its order.

    Args:
        on_run: called after each of `grid.num_runs` runs.

    Raises:
        InputError: the candidate drafts to an adaptive depth or to fewer tokens than the grid's, or a context leaves no
            room for the output.
    """
    draft, config = candidate.draft, candidate.config.config
    if config.is_adaptive:
        raise InputError(f"{config.name}: the cost of its steps depends on the draft's confidence; not profiled")
    most = max_depth(candidate)
    if most is not None and max(grid.depths) > most:
        raise InputError(f"{config.name}: {max(grid.depths)} tokens cannot be profiled: it drafts {most} at most")
    models = [target, *([draft] if isinstance(draft, LoadedModel) else [])]
    longest = min(int(model.model.config.max_position_embeddings) for model in models) - PROFILED_TOKENS
    if max(grid.contexts) > longest:
        raise InputError(f"a context of {max(grid.contexts)} tokens leaves no room: at most {longest} here")
    costs_at: dict[tuple[int, int, int], list[StepCost]] = {place: [] for place in grid.places}
    for load, depth in product(grid.loads, (BASELINE, *grid.depths)):  # untimed: allocation and choice of kernels
        _measure(target, candidate, load, depth, min(grid.contexts), grid.is_greedy, 0)
    for number in range(grid.rounds):
        for place in grid.places:
            costs_at[place].append(_measure(target, candidate, *place, grid.is_greedy, number))
            on_run()
    return [_medians(costs) for costs in costs_at.values()]


def max_depth(candidate: Candidate) -> int | None:
    """The most tokens that a candidate can draft in a step; None: as many as one likes."""
    return candidate.draft.max_speculative_tokens if isinstance(candidate.draft, LoadedHeads) else None


def _measure(
    target: LoadedModel, candidate: Candidate, load: int, depth: int, context: int, is_greedy: bool, seed: int
) -> StepCost:
    """One batch at one place."""
    config = candidate.config.config
    requests = _requests(target, load, context, is_greedy, seed)
    proposer, drafting = None, None
    if depth:
        whole = replace(config, num_speculative_tokens=depth, drafts_within_limit=False)
        at_depth = replace(candidate.config, config=whole)
        filled = depth if candidate.draft is None else 0
        drafting = replace(candidate, config=at_depth)
        proposer = _Watched(drafting.proposer(), Timeline(target.model.device), filled)
    record_ahead(target, drafting, requests, load)
    result = decode_batch(
        target.model,
        requests,
        proposer=proposer,
        num_speculative_tokens=depth,
        verify_rule=config.verify_rule,
        end_token_ids=target.end_token_ids,
        passes=target.passes,
        kernels=target.kernels,
        shares_prefixes=target.shares_prefixes,
    )
    return _step_cost(result, load, depth, context, 0.0 if proposer is None else proposer.prefill_ms())


class _Watched:
    """A proposer under a clock, which separates the work once per batch from the work in every step.

    With a depth to fill, every row is given as many tokens to verify, also where fewer were proposed.
    """

    def __init__(self, proposer: Proposer, timeline: Timeline, filled_depth: int) -> None:
        self._proposer, self._timeline, self._filled_depth = proposer, timeline, filled_depth
        self._prefills: list[tuple[int, int]] = []  # marks: before and after the work per batch

    @property
    def hidden(self) -> HiddenStates | None:
        return self._proposer.hidden

    def begin(self, batch: Batch) -> None:
        start = self._timeline.mark()
        self._proposer.begin(batch)
        self._prefills.append((start, self._timeline.mark()))

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        start = self._timeline.mark()
        self._proposer.admit(batch, slots)
        self._prefills.append((start, self._timeline.mark()))

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        proposal = self._proposer.propose(batch, span)
        if not self._filled_depth:
            return proposal
        tokens = batch.last_tokens[:, None].expand(-1, self._filled_depth).contiguous()
        return Proposal(tokens, torch.full_like(batch.lengths, self._filled_depth), None)

    def keep(self, slots: list[int]) -> None:
        self._proposer.keep(slots)

    def cache_bytes(self) -> int:
        return self._proposer.cache_bytes()

    def prefill_ms(self) -> float:
        """Time of the work per batch: reading the prompts."""
        return sum(self._timeline.elapsed_ms(*marks) for marks in self._prefills)


def num_steps(decoded: Decoded) -> int:
    """Of the loop, while the request was active."""
    return decoded.counts.num_drafts + decoded.counts.num_plain_steps


def _step_cost(result: ArmResult[Decoded], load: int, depth: int, context: int, draft_prefill_ms: float) -> StepCost:
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


def _medians(costs: Sequence[StepCost]) -> StepCost:
    def of(name: str) -> float:
        return float(median(getattr(cost, name) for cost in costs))

    first = costs[0]
    return StepCost(
        concurrency=first.concurrency,
        num_speculative_tokens=first.num_speculative_tokens,
        context=first.context,
        prefill_ms=of("prefill_ms"),
        draft_ms=of("draft_ms"),
        verify_ms=of("verify_ms"),
        other_ms=of("other_ms"),
    )
