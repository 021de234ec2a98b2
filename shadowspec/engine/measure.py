"""Measuring a block: the baseline arm and each candidate's arm on the same prompts, then parity.

The arm drawn by hash goes first; warm-up, parity and audits run outside the timed arms.  An arm that runs out of
memory is run in halves, one after the other, down to single requests; a request that does not fit alone
fails its runs, which are stored and counted, never dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import torch

from shadowspec.engine.arms import MeasuredArm, delayed
from shadowspec.engine.audit import Auditor
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import ArmResult, Decoded, decode_batch
from shadowspec.engine.memory import Gauge, allocator_of, models_of
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.outcomes import Answers
from shadowspec.engine.parity import divergence_gap, z_scores
from shadowspec.engine.proposers.recent_outputs import OutputsByEndpoint
from shadowspec.engine.recording_ahead import record_ahead
from shadowspec.engine.static_passes import StaticPasses
from shadowspec.outputs import first_divergence, is_repetition_loop
from shadowspec.scoring import Scorer
from shadowspec.types import (
    Arm,
    AuditedRun,
    Block,
    BlockResult,
    FingerprintedConfig,
    Memory,
    Parity,
    Run,
    SamplingParameters,
    ShadowPrompt,
    VerifyRule,
)

if TYPE_CHECKING:
    from shadowspec_kernels.backends import Backend
    from shadowspec_kernels.dispatch import Kernel

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Engine:
    """Measures the blocks of endpoints that share a target and its candidates."""

    def __init__(
        self,
        target: LoadedModel,
        candidates: Sequence[Candidate],
        *,
        seed: int = 0,
        warmup_blocks: int = 2,
        scorers: Mapping[str, Scorer] | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        """`scorers` score the outputs of both arms, by endpoint; one that has none is not scored.

        `auditor` replays outputs of the speculative arms (None: nothing is audited).
        """
        self.target = target
        self.candidates = tuple(candidates)
        self._seed = seed
        self._warmup_blocks = warmup_blocks
        self._warm: set[tuple[int, int]] = set()  # slots, requests
        self._scorers = dict(scorers or {})
        self._auditor = auditor
        self._detokenize = target.tokenizer.decode
        self._outputs = OutputsByEndpoint()
        self._answers = Answers(target.tokenizer, target.end_token_ids)
        self._allocator = allocator_of(target.model.device)

    @property
    def configs(self) -> tuple[FingerprintedConfig, ...]:
        """What every block is measured with."""
        return tuple(candidate.config for candidate in self.candidates)

    def kernels_ran(self) -> dict[Kernel, dict[Backend, int]]:
        """Rows that each kernel was given by whoever shares the models, by backend; none: without kernels."""
        kernels = self.target.kernels
        return {} if kernels is None else kernels.ran()

    def measure(self, block: Block) -> BlockResult:
        """Run both arms of every candidate on the block's requests, fillers along with them."""
        requests = [self._request(prompt) for prompt in (*block.requests, *block.fillers)]
        slots = min(block.concurrency, len(requests))
        self._warm_up(slots, is_queue=len(requests) > slots)
        started_at = datetime.now(UTC)
        arms: dict[str, MeasuredArm] = {}
        baseline = self._arm(requests, None, slots) if block.first_arm is Arm.BASELINE else None
        for candidate in self.candidates:
            recent = self._outputs.before(block, candidate.config)
            arms[candidate.config.fingerprint] = self._arm(requests, candidate.drafting_from(recent), slots)
        if baseline is None:
            baseline = self._arm(requests, None, slots)
        runs: list[Run] = []
        memory: dict[str, Memory] = {}
        audits: list[AuditedRun] = []
        for candidate, (fingerprint, arm) in zip(self.candidates, arms.items(), strict=True):
            runs += self._runs(block, requests, candidate, baseline, arm)
            memory[fingerprint] = self._memory(candidate, baseline, arm)
            self._outputs.after(block, candidate.config, [each.output if each else None for each in arm.decoded])
            audits += self._audits(block, requests, fingerprint, arm)
        num_halved = sum(arm.num_halved for arm in (baseline, *arms.values()))
        return BlockResult(block, started_at, tuple(runs), memory, num_halved, tuple(audits))

    def _audits(
        self, block: Block, requests: Sequence[Request], fingerprint: str, arm: MeasuredArm
    ) -> tuple[AuditedRun, ...]:
        """Of the requests drawn for it, what replay expects of their outputs; none where the device has no memory."""
        auditor = self._auditor
        if auditor is None:
            return ()
        found = self._fitting(
            "an audit",
            len(block.requests),
            lambda: auditor.audit(fingerprint, block.requests, requests, arm.decoded),
        )
        return found or ()

    def _request(self, prompt: ShadowPrompt) -> Request:
        """Both arms and every candidate draw from the same seed."""
        return Request(prompt.prompt_token_ids, prompt.sampling, prompt.seed_under(self._seed))

    def _warm_up(self, slots: int, *, is_queue: bool) -> None:
        """Untimed batches of this size, once, so that allocation and kernel choice stay out of the first block.

        Where slots are refilled one more request waits, so that a prefill beside running rows is among them.
        """
        size = slots + is_queue
        if (slots, size) in self._warm:
            return
        self._warm.add((slots, size))
        vocabulary = int(self.target.model.config.vocab_size)
        prompt = tuple(token % vocabulary for token in range(32))
        for temperature in (0.0, 1.0):
            sampling = SamplingParameters(temperature=temperature, max_tokens=8, ignore_eos=True)
            requests = [Request(prompt, sampling, seed) for seed in range(size)]
            for _ in range(self._warmup_blocks):
                for candidate in (None, *self.candidates):
                    self._arm(requests, candidate, slots)

    def _arm(self, requests: Sequence[Request], candidate: Candidate | None, slots: int) -> MeasuredArm:
        """Decode the requests in one arm, so many at a time.

        The peak is what the whole arm needs, as far as known: on a GPU the most that was allocated for it, tries that
        ran out of memory included; elsewhere the weights and all caches, as if no part had waited.
        """
        weights = self.target.weight_bytes
        if candidate is not None and candidate.draft is not None:
            weights += candidate.draft.weight_bytes
        if self._allocator is None:
            measured = self._in_parts(requests, candidate, slots)
            return replace(measured, peak_bytes=weights + measured.cache_bytes)
        gauge = Gauge.begin(self._allocator, models_of(self.target, self.candidates))
        measured = self._in_parts(requests, candidate, slots)
        return replace(measured, peak_bytes=gauge.peak_bytes(weights, measured.static_bytes))

    def _in_parts(self, requests: Sequence[Request], candidate: Candidate | None, slots: int) -> MeasuredArm:
        """Decode the requests, so many at a time, or in halves, one after the other, where they do not fit into memory.

        The second half's requests have waited for the first: its duration is part of their prefill time.
        That is what so many requests that arrive together would see on this device.  Of a queue that is longer than
        its slots the second half would not have been issued meanwhile, and has not waited.
        """
        found = self._fitting("an arm", min(slots, len(requests)), lambda: self._recorded(requests, candidate, slots))
        if found is not None:
            result, static_bytes = found
            return MeasuredArm(result.decoded, result.cache_bytes, result.duration_ms, static_bytes=static_bytes)
        if len(requests) == 1:
            return MeasuredArm((None,), 0)
        middle = len(requests) // 2
        first = self._in_parts(requests[:middle], candidate, slots)
        second = self._in_parts(requests[middle:], candidate, slots)
        is_queue = len(requests) > slots
        waited_ms = 0.0 if is_queue else first.duration_ms
        return MeasuredArm(
            first.decoded + tuple(delayed(each, waited_ms) for each in second.decoded),
            max(first.cache_bytes, second.cache_bytes) if is_queue else first.cache_bytes + second.cache_bytes,
            first.duration_ms + second.duration_ms,
            1 + first.num_halved + second.num_halved,
            static_bytes=max(first.static_bytes, second.static_bytes),
        )

    def _fitting(self, what: str, num_requests: int, work: Callable[[], Result]) -> Result | None:
        """The work's result; None if it runs out of memory."""
        try:
            return work()
        except (torch.OutOfMemoryError, MemoryError):
            log.warning("%s of %d requests ran out of memory", what, num_requests)
        # Only here, where the error and with it the frames that hold the tensors are gone, is there something to free.
        if self.target.model.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _recorded(self, requests: Sequence[Request], candidate: Candidate | None, slots: int) -> tuple[ArmResult, int]:
        """Decode by recorded passes where there are any; and the bytes that these hold."""
        static_bytes = record_ahead(self.target, candidate, requests, slots)
        return self._decode(requests, candidate, slots, self.target.passes), static_bytes

    def _decode(
        self, requests: Sequence[Request], candidate: Candidate | None, slots: int, passes: StaticPasses | None = None
    ) -> ArmResult:
        config = candidate.config.config if candidate is not None else None
        return decode_batch(
            self.target.model,
            requests,
            proposer=candidate.proposer() if candidate is not None else None,
            num_speculative_tokens=config.num_speculative_tokens if config is not None else 0,
            verify_rule=config.verify_rule if config is not None else VerifyRule.EXACT_MATCH,
            end_token_ids=self.target.end_token_ids,
            detokenize=self._detokenize,
            num_slots=slots,
            passes=passes,
            kernels=self.target.kernels,
        )

    def _runs(
        self,
        block: Block,
        requests: Sequence[Request],
        candidate: Candidate,
        baseline: MeasuredArm,
        speculative: MeasuredArm,
    ) -> list[Run]:
        """One run per own request; fillers are dropped here."""
        fingerprint = candidate.config.fingerprint
        own = range(len(block.requests))
        plain = {index: base for index in own if (base := baseline.decoded[index]) is not None}
        drafted = {index: spec for index in plain if (spec := speculative.decoded[index]) is not None}
        scorer = self._scorers.get(block.endpoint, Scorer())
        texts = [[self._answers.text(requests[index], arm[index]) for index in drafted] for arm in (plain, drafted)]
        scores = dict(zip(drafted, scorer.paired(*texts), strict=True))  # texts end here
        flags = {
            index: self._answers.flags(block.requests[index], requests[index], candidate, plain[index], drafted[index])
            for index in drafted
        }
        parities = self._parities(requests, plain, drafted)
        return [
            Run(
                key=prompt.key,
                fingerprint=fingerprint,
                block_id=block.block_id,
                counts=drafted[index].counts,
                baseline=plain[index].timing,
                speculative=drafted[index].timing,
                parity=parities[index],
                is_repetition_loop=is_repetition_loop(drafted[index].output),
                finish_reason=drafted[index].finish_reason,
                scores=scores[index] | scorer.of_flags(flags[index]),
                flags=flags[index],
            )
            if index in drafted
            else Run(prompt.key, fingerprint, block.block_id, failure="out_of_memory")
            for index, prompt in enumerate(block.requests)
        ]

    def _parities(
        self, requests: Sequence[Request], plain: Mapping[int, Decoded], drafted: Mapping[int, Decoded]
    ) -> dict[int, Parity]:
        """Parity of the requests that both arms decoded, by index.

        Greedy requests are compared token by token, sampled ones scored by teacher forcing.  Where the device
        has no memory for that, parity is unknown, which the gate counts.
        """
        sampled = [index for index in drafted if requests[index].sampling.temperature > 0.0]
        parities = self._scores(requests, plain, drafted, sampled)
        for index in drafted:
            if index not in parities:
                parities[index] = self._greedy_parity(requests[index], plain[index].output, drafted[index].output)
        return parities

    def _greedy_parity(self, request: Request, base: Sequence[int], spec: Sequence[int]) -> Parity:
        """Where the arms part, how far from a tie that is, and whether the baseline alone parts from itself."""
        position = first_divergence(base, spec)
        if position is None:
            return Parity()
        model, end_ids = self.target.model, self.target.end_token_ids
        context = (base if len(base) > position else spec)[: position + 1]
        gap = self._fitting("scoring", 1, lambda: divergence_gap(model, request, context, end_ids))
        alone = self._fitting("a rerun", 1, lambda: self._decode([request], None, 1))
        differs = tuple(alone.decoded[0].output) != tuple(base) if alone is not None else None
        return Parity(first_divergence=position, divergence_gap=gap, rerun_differs=differs)

    def _scores(
        self,
        requests: Sequence[Request],
        plain: Mapping[int, Decoded],
        drafted: Mapping[int, Decoded],
        sampled: Sequence[int],
    ) -> dict[int, Parity]:
        """Teacher-forced z of both arms for the sampled requests, by index; together, else in halves."""
        if not sampled:
            return {}
        scores = self._fitting(
            "scoring",
            len(sampled),
            lambda: z_scores(
                self.target.model,
                [requests[index] for index in sampled],
                self.target.end_token_ids,
                [drafted[index].output for index in sampled],
                [plain[index].output for index in sampled],
            ),
        )
        if scores is None:
            if len(sampled) == 1:
                return {sampled[0]: Parity()}
            middle = len(sampled) // 2
            halves = sampled[:middle], sampled[middle:]
            first, second = (self._scores(requests, plain, drafted, half) for half in halves)
            return first | second
        speculative, baseline = scores
        return {
            index: Parity(
                z_sum=spec.total,
                z_tokens=spec.tokens,
                baseline_z_sum=base.total,
                baseline_z_tokens=base.tokens,
            )
            for index, spec, base in zip(sampled, speculative, baseline, strict=True)
        }

    def _memory(self, candidate: Candidate, baseline: MeasuredArm, speculative: MeasuredArm) -> Memory:
        draft = candidate.draft
        return Memory(
            baseline_peak_bytes=baseline.peak_bytes,
            speculative_peak_bytes=speculative.peak_bytes,
            kv_bytes_per_token=self.target.kv_bytes_per_token,
            draft_weight_bytes=draft.weight_bytes if draft is not None else 0,
            draft_kv_bytes_per_token=draft.kv_bytes_per_token if draft is not None else 0,
            source="accounted" if self._allocator is None else "cuda_peak",
        )
