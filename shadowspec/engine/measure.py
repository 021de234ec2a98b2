"""Measuring a block: the baseline arm and each candidate's arm on the same prompts, then parity.

The order of the arms is drawn by hash, and stored with each run.  In every tenth block the baseline runs twice, which
shows the noise of pairs (`ArmOrder`).  Warm-up, parity and audits run outside the timed arms.  A request that does not
fit into memory by itself (`arms`) fails its runs, which are stored and counted, never dropped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from shadowspec.engine.arms import ArmRunner
from shadowspec.engine.audit import Auditor
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import ArmResult, Decoded
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.parity import parities_of
from shadowspec.engine.proposers.recent_outputs import OutputsByEndpoint
from shadowspec.engine.tokenizer import FolderTokenizer
from shadowspec.metrics import ratio
from shadowspec.quality.contracts import judge
from shadowspec.quality.custom_scores import Scorer
from shadowspec.quality.outputs import is_repetition_loop
from shadowspec.types import (
    Arm,
    ArmOrder,
    AuditedRun,
    Block,
    BlockMemory,
    BlockResult,
    FingerprintedConfig,
    Memory,
    OutputContract,
    PairedScore,
    Run,
    RunFlags,
    SamplingParameters,
    ShadowPrompt,
    Validity,
    add_order,
)
from shadowspec.types.settings import EngineSettings

if TYPE_CHECKING:
    from shadowspec_kernels.backends import Backend
    from shadowspec_kernels.dispatch import Kernel


MeasuredArm: TypeAlias = ArmResult[Decoded | None]

WARM_UP_TOKENS = 8  # of each request
WARM_UP_TEMPERATURES = (0.0, 1.0)


class Engine:
    """Measures the blocks of endpoints that share a target and its candidates."""

    def __init__(
        self,
        target: LoadedModel,
        candidates: Sequence[Candidate],
        settings: EngineSettings,
        *,
        scorers: Mapping[str, Scorer] | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        """`scorers` score the outputs of both arms, by endpoint; one that has none is not scored.

        `auditor` replays outputs of the speculative arms (None: nothing is audited).
        """
        self.target = target
        self.candidates = tuple(candidates)
        self._settings = settings
        self._warm: set[tuple[int, int]] = set()  # slots, requests
        decode = target.tokenizer.decode_marked
        self._scorers = {name: replace(scorer, decode=decode) for name, scorer in (scorers or {}).items()}
        self._auditor = auditor
        self._outputs = OutputsByEndpoint()
        self._answers = Answers(target.tokenizer, target.end_token_ids)
        self._arms = ArmRunner(target, candidates)
        self._last_arm: Arm | None = None  # that the device ran

    @property
    def configs(self) -> tuple[FingerprintedConfig, ...]:
        """The configs that measure every block."""
        return tuple(candidate.config for candidate in self.candidates)

    def kernels_ran(self) -> dict[Kernel, dict[Backend, int]]:
        """Rows that each kernel has processed for all users of the models, by backend; empty without kernels."""
        kernels = self.target.kernels
        return {} if kernels is None else kernels.ran()

    def measure(self, block: Block) -> BlockResult:
        """Run both arms of every candidate on the block's requests, fillers along with them."""
        requests = [self._request(prompt) for prompt in (*block.requests, *block.fillers)]
        slots = min(block.concurrency, len(requests))
        self.warm_up(slots, is_queue=len(requests) > slots)
        started_at = datetime.now(UTC)
        arms: dict[int | None, MeasuredArm] = {}
        repeated: MeasuredArm | None = None
        order, before = block.arm_order(len(self.candidates)), self._last_arm
        for place in order:
            time.sleep(self._settings.pause_s)
            if place in arms:
                repeated = self._arms.run(requests, None, slots)
                continue
            candidate = None if place is None else self.candidates[place]
            remembers = candidate is not None and candidate.config.config.remembers
            recent = self._outputs.before(block, candidate.config) if candidate is not None and remembers else None
            arms[place] = self._arms.run(requests, candidate, slots, recent)
        self._last_arm = Arm.BASELINE if order[-1] is None else Arm.SPECULATIVE
        baseline = arms[None]
        runs: list[Run] = []
        memory: dict[str, BlockMemory] = {}
        audits: list[AuditedRun] = []
        for place, candidate in enumerate(self.candidates):
            arm = arms[place]
            runs += add_order(
                self._runs(block, requests, candidate, baseline, arm),
                ArmOrder.of(order, place, before),
                None if repeated is None else [_end_to_end_ms(decoded) for decoded in repeated.decoded],
            )
            memory[candidate.config.fingerprint] = self._memory(requests, candidate, baseline, arm)
            if candidate.config.config.remembers:
                self._outputs.after(
                    block,
                    candidate.config,
                    [decoded_request.output if decoded_request else None for decoded_request in arm.decoded],
                )
            if self._auditor is not None:
                audits += self._auditor.audit(candidate.config.fingerprint, block.requests, arm.decoded)
        num_halved = sum(arm.num_halved for arm in (*arms.values(), *([] if repeated is None else [repeated])))
        return BlockResult(block, started_at, tuple(runs), memory, num_halved, tuple(audits))

    def _request(self, prompt: ShadowPrompt) -> Request:
        """Both arms and every candidate draw from the same seed."""
        return Request(prompt.prompt_token_ids, prompt.sampling, prompt.seed_under(self._settings.seed))

    def warm_up(self, slots: int, *, is_queue: bool = False) -> int:
        """Untimed batches of this size, once, so that allocation and kernel choice stay out of the first block.

        Returns the decoded steps of the batch, at most: 0 where this size is warm.

        Where slots are refilled one more request waits, so that a prefill beside running rows is among them.
        """
        size = slots + is_queue
        if (slots, size) in self._warm:
            return 0
        self._warm.add((slots, size))
        vocabulary = int(self.target.model.config.vocab_size)
        prompt = tuple(token % vocabulary for token in range(32))
        for temperature in WARM_UP_TEMPERATURES:
            sampling = SamplingParameters(temperature=temperature, max_tokens=WARM_UP_TOKENS, ignore_eos=True)
            requests = [Request(prompt, sampling, seed) for seed in range(size)]
            for _ in range(self._settings.warmup_blocks):
                for candidate in (None, *self.candidates):
                    self._arms.run(requests, candidate, slots)
                    self._last_arm = Arm.BASELINE if candidate is None else Arm.SPECULATIVE
        num_batches = len(WARM_UP_TEMPERATURES) * self._settings.warmup_blocks * (1 + len(self.candidates))
        return WARM_UP_TOKENS * num_batches

    def time_prefill(self, slots: int, num_tokens: int) -> float:
        """Seconds in which the baseline takes in a batch of prompts of this length and decodes a token of each."""
        vocabulary = int(self.target.model.config.vocab_size)
        prompts = [tuple((row + token) % vocabulary for token in range(num_tokens)) for row in range(slots)]
        requests = [Request(prompt, SamplingParameters(max_tokens=1), row) for row, prompt in enumerate(prompts)]
        return self._arms.run(requests, None, slots).duration_ms / 1e3

    def _runs(
        self,
        block: Block,
        requests: Sequence[Request],
        candidate: Candidate,
        baseline: MeasuredArm,
        speculative: MeasuredArm,
    ) -> list[Run]:
        """One run per measured request; fillers are dropped here."""
        fingerprint = candidate.config.fingerprint
        indices = range(len(block.requests))
        plain = {index: base for index in indices if (base := baseline.decoded[index]) is not None}
        drafted = {index: spec for index in plain if (spec := speculative.decoded[index]) is not None}
        scorer = self._scorers.get(block.endpoint, Scorer())
        scores: dict[int, dict[str, PairedScore | None]] = {index: {} for index in drafted}
        if scorer.functions:
            base_texts, spec_texts = (
                [self._answers.text(requests[index], arm[index]) for index in drafted] for arm in (plain, drafted)
            )
            prompts = [block.requests[index] for index in drafted]
            scores = dict(
                zip(drafted, scorer.score_pairs(base_texts, spec_texts, prompts), strict=True)
            )  # texts end here
        flags = {
            index: self._answers.flags(block.requests[index], requests[index], candidate, plain[index], drafted[index])
            for index in drafted
        }
        parities = parities_of(self.target, requests, plain, drafted)
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

    def _memory(
        self, requests: Sequence[Request], candidate: Candidate, baseline: MeasuredArm, speculative: MeasuredArm
    ) -> Memory:
        draft = candidate.draft
        pairs = zip(requests, baseline.decoded, strict=True)
        lengths = [len(request.prompt) + len(decoded.output) for request, decoded in pairs if decoded is not None]
        return Memory(
            baseline_peak_bytes=baseline.peak_bytes,
            speculative_peak_bytes=speculative.peak_bytes,
            kv_bytes_per_token=self.target.kv_bytes_per_token,
            draft_weight_bytes=draft.weight_bytes if draft is not None else 0,
            draft_kv_bytes_per_token=draft.kv_bytes_per_token if draft is not None else 0,
            source=self._arms.memory_source,
            kv_tokens_per_request=ratio(sum(lengths), len(lengths)),
        )


def _end_to_end_ms(decoded: Decoded | None) -> float | None:
    return None if decoded is None else decoded.timing.end_to_end_ms


class Answers:
    """Texts as a server delivers them: without the token that ended them, and up to the stop string that did."""

    def __init__(self, tokenizer: FolderTokenizer, end_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._end_token_ids = end_token_ids

    def text(self, request: Request, decoded: Decoded, *, is_marked: bool = False) -> str:
        """The text of an output; with its special tokens where they may mark tool calls."""
        ids: Sequence[int] = decoded.output
        has_end = bool(ids) and ids[-1] in request.end_ids(self._end_token_ids)
        decode = self._tokenizer.decode_marked if is_marked else self._tokenizer.decode
        text = decode(ids[:-1] if has_end else ids)
        return text if has_end or decoded.finish_reason != "stop" else up_to_stop(text, request.sampling.stop)

    def flags(
        self, prompt: ShadowPrompt, request: Request, candidate: Candidate, baseline: Decoded, speculative: Decoded
    ) -> RunFlags:
        """The flags of one request measured with one candidate."""
        contract = prompt.contract
        base, spec = (self._validity(contract, request, decoded) for decoded in (baseline, speculative))
        length = len(prompt.prompt_token_ids) + len(speculative.output)
        return RunFlags.judge(
            contract,
            base,
            spec,
            is_early_rejection=speculative.is_early_rejection,
            is_beyond_draft_context=isinstance(candidate.draft, LoadedModel)
            and length > candidate.draft.context_length,
            intervention=prompt.intervention,
        )

    def _validity(self, contract: OutputContract | None, request: Request, decoded: Decoded) -> Validity | None:
        if contract is None:
            return None
        return judge(contract, self.text(request, decoded, is_marked=contract.may_be_marked), decoded.finish_reason)


def up_to_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the stop string that ended it: the last one in it, as the first that counts ends a text."""
    places = [place for stop in stops if (place := text.rfind(stop)) >= 0]
    return text[: min(places)] if places else text
