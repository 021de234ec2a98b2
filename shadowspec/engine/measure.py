"""Measuring a block: the baseline arm and each candidate's arm on the same prompts, then parity.

The arm drawn by hash goes first; warm-up and parity run outside the timed arms.  An arm that runs out of
memory fails its runs, which are stored and counted, never dropped.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import ArmResult, Decoded, decode_batch
from shadowspec.engine.models import LoadedModel, ModelTokenizer
from shadowspec.engine.parity import divergence_gap, first_divergence, z_scores
from shadowspec.engine.repetition import is_repetition_loop
from shadowspec.types import (
    Arm,
    Block,
    BlockResult,
    Memory,
    Parity,
    Run,
    SamplingParameters,
    ShadowPrompt,
    VerifyRule,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Measured:
    """What an arm gave: its result and peak bytes, or why it failed."""

    result: ArmResult | None
    peak_bytes: int
    failure: str | None = None


class Engine:
    """Measures the blocks of endpoints that share a target and its candidates."""

    def __init__(
        self, target: LoadedModel, candidates: Sequence[Candidate], *, seed: int = 0, warmup_blocks: int = 2
    ) -> None:
        self.target = target
        self.candidates = tuple(candidates)
        self._seed = seed
        self._warmup_blocks = warmup_blocks
        self._warm: set[int] = set()
        self._detokenize = ModelTokenizer(target).decode

    def measure(self, block: Block) -> BlockResult:
        """Run both arms of every candidate on the block's requests, fillers along with them."""
        requests = [self._request(prompt) for prompt in (*block.requests, *block.fillers)]
        self._warm_up(len(requests))
        started_at = datetime.now(UTC)
        arms: dict[str, _Measured] = {}
        baseline = self._arm(requests, None) if block.first_arm is Arm.BASELINE else None
        for candidate in self.candidates:
            arms[candidate.config.fingerprint] = self._arm(requests, candidate)
        if baseline is None:
            baseline = self._arm(requests, None)
        runs: list[Run] = []
        memory: dict[str, Memory] = {}
        for candidate in self.candidates:
            fingerprint = candidate.config.fingerprint
            runs += self._runs(block, requests, candidate, baseline, arms[fingerprint])
            memory[fingerprint] = self._memory(candidate, baseline, arms[fingerprint])
        return BlockResult(block, started_at, tuple(runs), memory)

    def _request(self, prompt: ShadowPrompt) -> Request:
        """Both arms and every candidate draw from the same seed: the request's own, or one made of its key."""
        if prompt.sampling.seed is not None:
            return Request(prompt.prompt_token_ids, prompt.sampling, prompt.sampling.seed)
        digest = hashlib.sha256(f"{self._seed}\0{prompt.key}".encode()).digest()
        return Request(prompt.prompt_token_ids, prompt.sampling, int.from_bytes(digest[:8], "big"))

    def _warm_up(self, concurrency: int) -> None:
        """Untimed batches of this size, once, so that allocation and kernel choice stay out of the first block."""
        if concurrency in self._warm:
            return
        self._warm.add(concurrency)
        vocabulary = int(self.target.model.config.vocab_size)
        prompt = tuple(token % vocabulary for token in range(32))
        for temperature in (0.0, 1.0):
            sampling = SamplingParameters(temperature=temperature, max_tokens=8, ignore_eos=True)
            requests = [Request(prompt, sampling, seed) for seed in range(concurrency)]
            for _ in range(self._warmup_blocks):
                for candidate in (None, *self.candidates):
                    self._arm(requests, candidate)

    def _arm(self, requests: Sequence[Request], candidate: Candidate | None) -> _Measured:
        device = self.target.model.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        try:
            result = self._decode(requests, candidate)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            log.warning("an arm ran out of device memory at concurrency %d", len(requests))
            return _Measured(None, 0, "out_of_memory")
        except MemoryError:
            log.warning("an arm ran out of memory at concurrency %d", len(requests))
            return _Measured(None, 0, "out_of_memory")
        if device.type == "cuda":
            return _Measured(result, torch.cuda.max_memory_allocated(device))
        weights = self.target.weight_bytes
        if candidate is not None and candidate.draft is not None:
            weights += candidate.draft.weight_bytes
        return _Measured(result, weights + result.cache_bytes)

    def _decode(self, requests: Sequence[Request], candidate: Candidate | None) -> ArmResult:
        config = candidate.config.config if candidate is not None else None
        return decode_batch(
            self.target.model,
            requests,
            proposer=candidate.proposer() if candidate is not None else None,
            num_speculative_tokens=config.num_speculative_tokens if config is not None else 0,
            verify_rule=config.verify_rule if config is not None else VerifyRule.EXACT_MATCH,
            end_token_ids=self.target.end_token_ids,
            detokenize=self._detokenize,
        )

    def _runs(
        self,
        block: Block,
        requests: Sequence[Request],
        candidate: Candidate,
        baseline: _Measured,
        speculative: _Measured,
    ) -> list[Run]:
        """One run per own request; fillers are dropped here."""
        fingerprint = candidate.config.fingerprint
        failure = baseline.failure or speculative.failure
        if baseline.result is None or speculative.result is None:
            return [Run(prompt.key, fingerprint, block.block_id, failure=failure) for prompt in block.requests]
        own = len(block.requests)
        plain, drafted = baseline.result.decoded[:own], speculative.result.decoded[:own]
        parities = self._parities(requests[:own], plain, drafted)
        return [
            Run(
                key=prompt.key,
                fingerprint=fingerprint,
                block_id=block.block_id,
                counts=spec.counts,
                baseline=base.timing,
                speculative=spec.timing,
                parity=parity,
                is_repetition_loop=is_repetition_loop(spec.output),
                finish_reason=spec.finish_reason,
            )
            for prompt, base, spec, parity in zip(block.requests, plain, drafted, parities, strict=True)
        ]

    def _parities(
        self, requests: Sequence[Request], plain: Sequence[Decoded], drafted: Sequence[Decoded]
    ) -> list[Parity]:
        """Greedy requests are compared token by token, sampled ones scored by teacher forcing."""
        scores = self._scores(requests, plain, drafted)
        parities = []
        for index, request in enumerate(requests):
            if request.sampling.temperature > 0.0:
                parities.append(scores[index])
                continue
            base, spec = plain[index].output, drafted[index].output
            position = first_divergence(base, spec)
            if position is None:
                parities.append(Parity())
                continue
            longer = base if len(base) > position else spec
            gap = divergence_gap(self.target.model, request, longer[: position + 1], self.target.end_token_ids)
            alone = self._decode([request], None).decoded[0].output
            parities.append(
                Parity(first_divergence=position, divergence_gap=gap, rerun_differs=tuple(alone) != tuple(base))
            )
        return parities

    def _scores(
        self, requests: Sequence[Request], plain: Sequence[Decoded], drafted: Sequence[Decoded]
    ) -> Mapping[int, Parity]:
        """Teacher-forced z of both arms for the sampled requests, by index."""
        sampled = [index for index, request in enumerate(requests) if request.sampling.temperature > 0.0]
        if not sampled:
            return {}
        speculative, baseline = z_scores(
            self.target.model,
            [requests[index] for index in sampled],
            self.target.end_token_ids,
            [drafted[index].output for index in sampled],
            [plain[index].output for index in sampled],
        )
        return {
            index: Parity(
                z_sum=spec.total,
                z_tokens=spec.tokens,
                baseline_z_sum=base.total,
                baseline_z_tokens=base.tokens,
            )
            for index, spec, base in zip(sampled, speculative, baseline, strict=True)
        }

    def _memory(self, candidate: Candidate, baseline: _Measured, speculative: _Measured) -> Memory:
        """Peaks of both arms.  On a GPU the drafts' weights lie there throughout; each is its own arm's cost."""
        draft = candidate.draft
        draft_bytes = draft.weight_bytes if draft is not None else 0
        on_gpu = self.target.model.device.type == "cuda"
        resident = sum({id(c.draft): c.draft.weight_bytes for c in self.candidates if c.draft is not None}.values())
        return Memory(
            baseline_peak_bytes=baseline.peak_bytes - resident if on_gpu else baseline.peak_bytes,
            speculative_peak_bytes=(
                speculative.peak_bytes - resident + draft_bytes if on_gpu else speculative.peak_bytes
            ),
            kv_bytes_per_token=self.target.kv_bytes_per_token,
            draft_weight_bytes=draft_bytes,
            draft_kv_bytes_per_token=draft.kv_bytes_per_token if draft is not None else 0,
            source="cuda_peak" if on_gpu else "accounted",
        )
