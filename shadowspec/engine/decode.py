"""The decode loop of both arms: propose, verify, commit.  The baseline is the same loop with nothing proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from shadowspec.engine.batch import Batch, Detokenize, Request
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.llama import torch_threads
from shadowspec.engine.proposers import Proposal, Proposer
from shadowspec.engine.runner import Runner, runner_for
from shadowspec.engine.timing import StepClock, Timeline
from shadowspec.engine.verify import verify
from shadowspec.types import ArmTiming, SpeculationCounts, VerifyRule

if TYPE_CHECKING:
    from shadowspec.engine.static_passes import StaticPasses
    from shadowspec_kernels.dispatch import Kernels


@dataclass(frozen=True, slots=True)
class Decoded:
    """One request decoded in one arm."""

    output: tuple[int, ...]
    finish_reason: str
    counts: SpeculationCounts
    timing: ArmTiming
    is_early_rejection: bool | None = None


# An arm's result of one request: `Decoded`, or None as well where a request may not fit into memory.
Outcome_co = TypeVar("Outcome_co", bound=Decoded | None, covariant=True)


@dataclass(frozen=True, slots=True)
class ArmResult(Generic[Outcome_co]):
    """One arm's decoded requests, in their order (None: a request did not fit into memory by itself)."""

    decoded: tuple[Outcome_co, ...]
    cache_bytes: int  # keys and values of the target, and the proposer's state; of all parts of an arm together
    duration_ms: float  # from the start to the last token
    static_bytes: int = 0  # device memory that the arm's recorded passes hold from batch to batch
    num_halved: int = 0  # batches, the arm itself and parts of it, that did not fit and were run in halves
    peak_bytes: int = 0  # all that the arm needs


@torch.inference_mode()
def decode_batch(
    target: Any,
    requests: Sequence[Request],
    *,
    end_token_ids: frozenset[int],
    proposer: Proposer | None = None,
    num_speculative_tokens: int = 0,
    verify_rule: VerifyRule = VerifyRule.EXACT_MATCH,
    detokenize: Detokenize | None = None,
    num_slots: int | None = None,
    releases_slots: bool = False,
    passes: StaticPasses | None = None,
    kernels: Kernels | None = None,
    shares_prefixes: bool = False,
) -> ArmResult[Decoded]:
    """Decode `requests` with the target, `num_slots` at a time (None: all together); without a `proposer` this is the
    baseline arm.

    Rows are ragged and end independently; the random numbers of a request depend on its seed and position.  The next
    waiting request takes a finished row's slot.  Once none waits, a finished row keeps its slot, so that the load stays
    the labelled one.  With `releases_slots` such rows are dropped along the way, which gives the same outputs sooner;
    this excludes `passes`, the target's recorded passes.  `kernels` verify and append (None: torch).
    `shares_prefixes`: see `Runner`.
    """
    device: torch.device = target.device
    timeline = Timeline(device)
    depth = num_speculative_tokens if proposer is not None else 0
    start = timeline.mark()
    batch = Batch(
        requests,
        num_slots=num_slots or len(requests),
        num_speculative_tokens=depth,
        vocabulary=int(target.config.vocab_size),
        end_token_ids=end_token_ids,
        detokenize=detokenize,
        device=device,
    )
    hidden = proposer.hidden if proposer is not None else None
    runner = runner_for(
        target,
        batch.num_rows,
        batch.capacity,
        hidden=hidden,
        passes=passes,
        kernels=kernels,
        shares_prefixes=shares_prefixes,
    )
    clock = StepClock(timeline, batch, start)
    if proposer is not None:
        proposer.begin(batch)

    nothing = _nothing_proposed(batch.num_rows, device)
    slots = list(range(batch.num_rows))  # whose rows are to be prefilled
    with torch_threads(target, max(len(request.prompt) for request in requests)):
        while batch.has_active:
            if batch.has_waiting and not slots:
                slots = batch.admit()
            if slots:
                batch.begin(slots, _first_tokens(batch, runner, slots, verify_rule, kernels))
                clock.mark_prefilled(slots)
                if proposer is not None:
                    proposer.admit(batch, slots)
                slots = []
                continue
            span = ColumnSpan.after(batch.lengths - 1, batch.longest - 1, depth + 2, target.dtype)
            proposal = proposer.propose(batch, span) if proposer is not None else nothing
            clock.mark_drafted()
            tokens = torch.cat((batch.last_tokens[:, None], proposal.tokens), 1)  # [rows, width + 1]
            runner.begin(span, column=1)
            logits = runner.append(tokens, keep=tokens.shape[1])
            verification = verify(batch.drawing(), logits, proposal, verify_rule, kernels)
            if runner.hidden_states is not None:
                batch.see(runner.hidden_states, verification.num_accepted)
            clock.mark_verified()
            outcome = (proposal.num_drafted, verification.num_accepted, verification.next_tokens)
            batch.commit(torch.cat((torch.stack(outcome, 1), proposal.tokens), 1).tolist())
            clock.mark_committed()
            if releases_slots and (kept := batch.slots_to_keep()):
                batch.keep(kept)
                runner.keep(kept)
                nothing = _nothing_proposed(batch.num_rows, device)
                if proposer is not None:
                    proposer.keep(kept)

    decoded = tuple(
        Decoded(tuple(row.output), str(row.finish_reason), row.counts(), timing, row.was_rejected_early())
        for row, timing in zip(batch.all_rows, clock.timings(), strict=True)
    )
    held = proposer.cache_bytes() if proposer is not None else 0
    return ArmResult(decoded, runner.cache_bytes() + held, clock.duration_ms)


def _nothing_proposed(num_rows: int, device: torch.device) -> Proposal:
    empty = torch.zeros((num_rows, 0), dtype=torch.int64, device=device)
    return Proposal(empty, torch.zeros(num_rows, dtype=torch.int64, device=device), None)


def _first_tokens(
    batch: Batch, runner: Runner, slots: Sequence[int], rule: VerifyRule, kernels: Kernels | None
) -> torch.Tensor:
    """Prefill the rows in these slots; the target's first tokens for their prompts, int64 [slots]."""
    logits = runner.prefill([batch.prompts[slot] for slot in slots], slots)[:, None]  # [slots, 1, vocabulary]
    if runner.hidden_states is not None:
        batch.see_prompts(slots, runner.hidden_states)
    nothing = _nothing_proposed(len(slots), logits.device)
    return verify(batch.drawing(slots), logits, nothing, rule, kernels).next_tokens
