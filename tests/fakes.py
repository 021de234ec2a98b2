"""Fakes that need no model: an engine whose figures are a function of the record's key, and a byte tokenizer.

They have the shapes of the real ones, so that whatever is built on an engine or a tokenizer can be tried
without weights, in milliseconds, and the same on every machine.  A prompt that holds a marked token makes
the engine do what real ones do at their worst: die, stall, hold the interpreter, raise, run out of memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shadowspec.errors import ModelError, ServiceUnavailableError
from shadowspec.gate.policy import GatePolicy
from shadowspec.quality.contracts import judge
from shadowspec.quality.custom_scores import Scorer
from shadowspec.tap.endpoints import EndpointRule, MatchRule
from shadowspec.types import (
    ArmTiming,
    Block,
    BlockResult,
    FingerprintedConfig,
    Memory,
    Parity,
    Run,
    RunFlags,
    ShadowPrompt,
    SpeculationConfig,
    SpeculationCounts,
    VerifyRule,
)
from shadowspec.types.prompt_rules import TemplateTraits

STALL_S = 3_600.0  # longer than any test or block timeout waits
PREFILL_MS_PER_TOKEN = 0.05
BASELINE_STEP_MS = 8.0


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids that make a `FakeEngine` misbehave where a block's prompt (a filler's too) holds them."""

    kill: int | None = None  # the process ends at once with exit code 9
    abort: int | None = None  # the process dies of SIGABRT, as after a failed native assertion
    stall: int | None = None  # measuring never ends
    hold: int | None = None  # the interpreter is held for `hold_s`: no other thread of the process runs
    hold_s: float = 1.0
    error: int | None = None  # measuring raises
    oom: int | None = None  # the request alone does not fit into memory
    kill_together: int | None = None  # the process ends where two prompts of a block hold it


@dataclass(frozen=True, slots=True)
class FakeEngine:
    """Measures blocks without a model; counts and timings depend on record key, config and seed alone.

    `acceptance_rate` is the chance that a drafted token is accepted, `speedup` baseline over speculative
    decode time, `delay_s` the time that measuring a block really takes.  `scorers` score outputs by endpoint: JSON
    that names the record's offset, cut short in the speculative arm with chance `cut_rate`.
    """

    configs: tuple[FingerprintedConfig, ...]
    seed: int = 0
    server: Path | None = None  # it is away while this file is
    acceptance_rate: float = 0.7
    speedup: float = 1.3
    delay_s: float = 0.0
    marks: Marks = Marks()
    scorers: Mapping[str, Scorer] = field(default_factory=dict)
    cut_rate: float = 0.0

    def measure(self, block: Block) -> BlockResult:
        """One run per own request and config, unless a mark says otherwise.

        Raises:
            ServiceUnavailableError: the server is away.
            RuntimeError: a prompt holds the mark `error`; the message quotes the prompt, as careless code does.
        """
        started_at = datetime.now(UTC)
        _require_server(self.server)
        self._misbehave((*block.requests, *block.fillers))
        time.sleep(self.delay_s)
        runs = tuple(self._run(block, prompt, config) for config in self.configs for prompt in block.requests)
        memory = {config.fingerprint: Memory(10_000_000, 11_000_000, 1_000, 900_000, 100) for config in self.configs}
        return BlockResult(block, started_at, runs, memory)

    def _misbehave(self, prompts: Sequence[ShadowPrompt]) -> None:
        marks = self.marks
        held = [token for prompt in prompts for token in set(prompt.prompt_token_ids)]
        if marks.kill in held or (marks.kill_together is not None and held.count(marks.kill_together) > 1):
            os._exit(9)
        if marks.abort in held:
            os.abort()
        if marks.stall in held:
            time.sleep(STALL_S)
        if marks.hold in held:
            ctypes.PyDLL(None).usleep(int(1e6 * marks.hold_s))  # PyDLL keeps the interpreter's lock
        if marks.error in held:
            raise RuntimeError(f"no figures for {[prompt.prompt_token_ids for prompt in prompts]}")

    def _run(self, block: Block, prompt: ShadowPrompt, config: FingerprintedConfig) -> Run:
        if self.marks.oom is not None and self.marks.oom in prompt.prompt_token_ids:
            return Run(prompt.key, config.fingerprint, block.block_id, failure="out_of_memory")
        draws = _uniforms(f"{self.seed}\0{config.fingerprint}\0{prompt.key}")
        length = 1 + int(next(draws) * prompt.sampling.max_tokens)
        counts = _counts(prompt, config.config.num_speculative_tokens, length, self.acceptance_rate, draws)
        prefill_ms = (1.0 + next(draws)) * PREFILL_MS_PER_TOKEN * len(prompt.prompt_token_ids)
        step_ms = (0.9 + 0.2 * next(draws)) * BASELINE_STEP_MS
        decode_ms = (length - 1) * step_ms
        drafted_ms = decode_ms / self.speedup
        is_sampled = prompt.sampling.temperature > 0.0
        z_sum = (next(draws) - 0.5) * 0.1 * length
        text = json.dumps({"offset": prompt.key.offset})
        drafted_text = text[:-1] if next(draws) < self.cut_rate else text
        scorer = self.scorers.get(block.endpoint, Scorer())
        (scores,) = scorer.score_pairs([text], [drafted_text])
        finish_reason = "length" if length == prompt.sampling.max_tokens else "stop"
        flags = _flags(prompt, text, drafted_text, finish_reason)
        return Run(
            key=prompt.key,
            fingerprint=config.fingerprint,
            block_id=block.block_id,
            counts=counts,
            baseline=ArmTiming(0.0, prefill_ms, decode_ms, num_output_tokens=length),
            speculative=ArmTiming(
                0.0,
                prefill_ms,
                drafted_ms,
                draft_ms=0.3 * drafted_ms,
                verify_ms=0.6 * drafted_ms,
                other_ms=0.1 * drafted_ms,
                num_output_tokens=length,
            ),
            parity=(
                Parity(z_sum=z_sum, z_tokens=length, baseline_z_sum=-z_sum, baseline_z_tokens=length)
                if is_sampled
                else Parity()
            ),
            finish_reason=finish_reason,
            scores=scores | scorer.of_flags(flags),
            flags=flags,
        )


def _require_server(server: Path | None) -> None:
    if server is not None and not server.exists():
        raise ServiceUnavailableError(f"server {server.name}: it cannot be reached")


def _flags(prompt: ShadowPrompt, text: str, drafted_text: str, finish_reason: str) -> RunFlags:
    """What a real engine would say of these outputs; no draft is ever too short."""
    base, spec = (
        None if prompt.contract is None else judge(prompt.contract, each, finish_reason)
        for each in (text, drafted_text)
    )
    applies = prompt.contract is not None and (base is not None or spec is not None)
    return RunFlags(
        is_beyond_draft_context=False,
        contract=prompt.contract.kind if prompt.contract is not None and applies else None,
        baseline_validity=base,
        speculative_validity=spec,
        intervention=prompt.intervention,
    )


def endpoint_rule(
    name: str, served_models: tuple[str, ...], match: MatchRule | None = None, **given: Any
) -> EndpointRule:
    """A rule that has what it is not given of the default policy."""
    return EndpointRule(name, served_models, match or MatchRule(), **GatePolicy(window_s=0.0).rule_parts() | given)


def fake_config(name: str = "fake", num_speculative_tokens: int = 4) -> FingerprintedConfig:
    """A config that needs no model; its fingerprint depends on the arguments alone."""
    config = SpeculationConfig(
        name, "fake-target", "fake-draft", "draft_model", num_speculative_tokens, VerifyRule.GREEDY
    )
    fingerprint = hashlib.sha256(f"{name}\0{num_speculative_tokens}".encode()).hexdigest()
    return FingerprintedConfig(config, "shadowspec-fake/1", "none", "float32", {}, fingerprint)


@dataclass(frozen=True, slots=True)
class FakeEngineFactory:
    """Builds a `FakeEngine` for each endpoint; picklable, so that a child process can build it.

    `model_folder`, if given, must exist, as a real engine's must, and so must `server`, which may come back.
    """

    endpoints: tuple[str, ...]
    configs: tuple[FingerprintedConfig, ...] = (fake_config(),)
    seed: int = 0
    delay_s: float = 0.0
    build_s: float = 0.0
    marks: Marks = Marks()
    model_folder: Path | None = None
    server: Path | None = None

    def __call__(self) -> Mapping[str, FakeEngine]:
        """
        Raises:
            ModelError: the model folder does not exist.
            ServiceUnavailableError: the server is away.
        """
        time.sleep(self.build_s)
        _require_server(self.server)
        if self.model_folder is not None and not self.model_folder.is_dir():
            raise ModelError(f"{self.model_folder}: this folder does not exist")
        engine = FakeEngine(self.configs, seed=self.seed, server=self.server, delay_s=self.delay_s, marks=self.marks)
        return dict.fromkeys(self.endpoints, engine)


@dataclass(frozen=True, slots=True)
class FakeTokenizer:
    """One token per byte of UTF-8; a chat is `role: content` lines, tools after them as JSON."""

    context_length: int = 4_096
    vocabulary_size: int = 256

    def traits_of(self, tools: Sequence[Mapping[str, Any]] | None) -> TemplateTraits:
        return TemplateTraits()

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        text = "".join(f"{message.get('role')}: {message.get('content')}\n" for message in messages)
        return self.encode(text + (json.dumps(tools, sort_keys=True, default=str) if tools else ""))

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "replace"))


def _counts(
    prompt: ShadowPrompt, depth: int, length: int, acceptance_rate: float, draws: Iterator[float]
) -> SpeculationCounts:
    """The counters of a run of `length` output tokens, its last step cut where the output ends."""
    histogram = [0] * (depth + 1)
    num_draft_tokens = num_cut_steps = num_cut_draft_tokens = num_cut_accepted_tokens = 0
    num_emitted = 1  # prefill's own
    while num_emitted < length:
        accepted = 0
        while accepted < depth and next(draws) < acceptance_rate:
            accepted += 1
        emitted = min(accepted + 1, length - num_emitted)
        num_emitted += emitted
        kept_accepted = min(accepted, emitted)
        kept_drafted = min(depth, emitted) if num_emitted == length else depth
        num_draft_tokens += kept_drafted
        num_cut_steps += emitted < accepted + 1
        num_cut_draft_tokens += depth - kept_drafted
        num_cut_accepted_tokens += accepted - kept_accepted
        histogram[kept_accepted] += 1
    per_pos = tuple(sum(histogram[position + 1 :]) for position in range(depth))
    return SpeculationCounts(
        num_drafts=sum(histogram),
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=sum(per_pos),
        num_accepted_tokens_per_pos=per_pos,
        acceptance_histogram=tuple(histogram),
        num_output_tokens=length,
        num_prompt_tokens=len(prompt.prompt_token_ids),
        num_cut_steps=num_cut_steps,
        num_cut_draft_tokens=num_cut_draft_tokens,
        num_cut_accepted_tokens=num_cut_accepted_tokens,
    )


def _uniforms(text: str) -> Iterator[float]:
    """Numbers in [0, 1) that depend on `text` alone, without end."""
    count = 0
    while True:
        digest = hashlib.sha256(f"{text}\0{count}".encode()).digest()
        yield from (int.from_bytes(digest[place : place + 4], "big") / 2**32 for place in range(0, 32, 4))
        count += 1
