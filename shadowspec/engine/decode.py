"""The decode loop of both arms: propose, verify, commit.  The baseline is the same loop with nothing proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shadowspec.engine.batch import Batch, Detokenize, Request
from shadowspec.engine.kv_cache import Span
from shadowspec.engine.proposers import Proposal, Proposer
from shadowspec.engine.randomness import ACCEPT_STREAM, TARGET_STREAM, at_positions
from shadowspec.engine.runner import Runner
from shadowspec.engine.sampling import greedy_tokens
from shadowspec.engine.timing import Timeline
from shadowspec.engine.verify import Verification, verify_matching, verify_sampled
from shadowspec.types import ArmTiming, SpeculationCounts, VerifyRule


@dataclass(frozen=True, slots=True)
class Decoded:
    """One request decoded in one arm."""

    output: tuple[int, ...]
    finish_reason: str
    counts: SpeculationCounts
    timing: ArmTiming
    is_early_rejection: bool | None = None


@dataclass(frozen=True, slots=True)
class ArmResult:
    """A batch decoded in one arm."""

    decoded: tuple[Decoded, ...]
    cache_bytes: int  # keys and values of the target, and what the proposer holds


@torch.inference_mode()
def decode_batch(
    target: Any,
    requests: Sequence[Request],
    *,
    proposer: Proposer | None,
    num_speculative_tokens: int,
    verify_rule: VerifyRule,
    end_token_ids: frozenset[int],
    detokenize: Detokenize | None = None,
    releases_slots: bool = False,
) -> ArmResult:
    """Decode `requests` together with the target; without a `proposer` this is the baseline arm.

    Rows are ragged and end each on its own; the random numbers of a request depend on its seed and position.
    A finished row keeps its slot, so that the load stays what it is labelled with; with `releases_slots`
    finished rows are dropped along the way, which gives the same outputs sooner.
    """
    device: torch.device = target.device
    timeline = Timeline(device)
    depth = num_speculative_tokens if proposer is not None else 0
    start = timeline.mark()
    batch = Batch(
        requests,
        num_speculative_tokens=depth,
        vocabulary=int(target.config.vocab_size),
        end_token_ids=end_token_ids,
        detokenize=detokenize,
        device=device,
    )
    runner = Runner(target, batch.num_rows, batch.capacity)

    nothing = _nothing_proposed(batch)
    logits = runner.prefill(batch.prompts)[:, None]  # [rows, 1, vocabulary]
    batch.begin(_verify(batch, logits, nothing, verify_rule).next_tokens)
    prefilled = timeline.mark()

    clock = _StepClock(timeline, batch, prefilled)
    if proposer is not None:
        proposer.begin(batch)
    while batch.has_active:
        span = Span.after(batch.lengths - 1, batch.longest - 1, depth + 2, target.dtype)
        proposal = proposer.propose(batch, span) if proposer is not None else nothing
        clock.drafted()
        tokens = torch.cat((batch.last_tokens[:, None], proposal.tokens), 1)  # [rows, width + 1]
        runner.begin(span, column=1)
        logits = runner.append(tokens, keep=tokens.shape[1])
        verification = _verify(batch, logits, proposal, verify_rule)
        clock.verified()
        outcome = (proposal.num_drafted, verification.num_accepted, verification.next_tokens)
        batch.commit(torch.cat((torch.stack(outcome, 1), proposal.tokens), 1).tolist())
        clock.committed()
        if releases_slots and (kept := batch.slots_to_keep()):
            batch.keep(kept)
            runner.keep(kept)
            nothing = _nothing_proposed(batch)
            if proposer is not None:
                proposer.keep(kept)

    timings = clock.timings(start)
    decoded = tuple(
        Decoded(tuple(row.output), str(row.finish_reason), row.counts(), timing, row.was_rejected_early())
        for row, timing in zip(batch.all_rows, timings, strict=True)
    )
    held = proposer.cache_bytes() if proposer is not None else 0
    return ArmResult(decoded, runner.cache.allocated_bytes() + held)


def _nothing_proposed(batch: Batch) -> Proposal:
    empty = torch.zeros((batch.num_rows, 0), dtype=torch.int64, device=batch.device)
    return Proposal(empty, torch.zeros(batch.num_rows, dtype=torch.int64, device=batch.device), None)


def _verify(batch: Batch, logits: torch.Tensor, proposal: Proposal, rule: VerifyRule) -> Verification:
    """Verify one step: logits [rows, K + 1, vocabulary] against K drafted tokens per row."""
    processed = batch.sampling.processed_logits(logits, proposal.tokens, batch.emitted)
    if batch.sampling.all_greedy:
        return verify_matching(greedy_tokens(processed), proposal.tokens, proposal.num_drafted)
    width = logits.shape[1]
    return verify_sampled(
        rule,
        batch.sampling.probs(processed),
        proposal.tokens,
        proposal.draft_probs,
        proposal.num_drafted,
        at_positions(batch.uniforms, ACCEPT_STREAM, batch.emitted, width - 1),
        at_positions(batch.uniforms, TARGET_STREAM, batch.emitted, width),
    )


class _StepClock:
    """Marks of every step, and which rows were still active in it."""

    def __init__(self, timeline: Timeline, batch: Batch, prefilled: int) -> None:
        self._timeline, self._batch, self._prefilled = timeline, batch, prefilled
        self._steps: list[tuple[int, int, int]] = []  # marks: drafted, verified, committed
        self._ends: list[int | None] = [None if batch.is_active(row) else -1 for row in range(batch.num_rows)]

    def drafted(self) -> None:
        self._drafted = self._timeline.mark()

    def verified(self) -> None:
        self._verified = self._timeline.mark()

    def committed(self) -> None:
        self._steps.append((self._drafted, self._verified, self._timeline.mark()))
        for row, end in enumerate(self._ends):
            if end is None and self._batch.all_rows[row].finish_reason is not None:
                self._ends[row] = len(self._steps) - 1

    def timings(self, start: int) -> list[ArmTiming]:
        """Each row's latency; draft and verify are the wall time of those phases while the row was active."""
        elapsed = self._timeline.elapsed_ms
        phases: list[tuple[float, float, float]] = []  # cumulative ms: draft, verify, all
        draft = verify = total = 0.0
        previous = self._prefilled
        for drafted, verified, committed in self._steps:
            draft += elapsed(previous, drafted)
            verify += elapsed(drafted, verified)
            total += elapsed(previous, committed)
            phases.append((draft, verify, total))
            previous = committed
        prefill = elapsed(start, self._prefilled)
        result = []
        for row, end in zip(self._batch.all_rows, self._ends, strict=True):
            draft, verify, total = phases[end] if end is not None and end >= 0 else (0.0, 0.0, 0.0)
            result.append(
                ArmTiming(
                    queue_ms=0.0,
                    prefill_ms=prefill,
                    decode_ms=total,
                    draft_ms=draft,
                    verify_ms=verify,
                    other_ms=max(0.0, total - draft - verify),
                    num_output_tokens=len(row.output),
                )
            )
        return result
