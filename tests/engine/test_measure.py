"""A block through both arms: runs, timings, parity, memory, failures, and the worker that stores them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from shadowspec import metrics
from shadowspec.engine import Candidate, Engine, Models, decode, measure
from shadowspec.engine.parity import divergence_gap, first_divergence, teacher_forced_logits
from shadowspec.engine.repetition import is_repetition_loop
from shadowspec.types import (
    Arm,
    Block,
    RecordKey,
    SamplingParameters,
    ShadowPrompt,
    SpeculationConfig,
    VerifyRule,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def prompt(line: int, temperature: float = 0.0, max_tokens: int = 12) -> ShadowPrompt:
    return ShadowPrompt(
        key=RecordKey("f" * 64, 0, line),
        endpoint="e",
        event_time=NOON,
        labels={},
        prompt_token_ids=(0, *(2 + (line + i) % 9 for i in range(3 + line % 5))),
        sampling=SamplingParameters(temperature=temperature, max_tokens=max_tokens),
    )


def block(prompts: Iterable[ShadowPrompt], fillers: Iterable[ShadowPrompt] = (), first: Arm = Arm.BASELINE) -> Block:
    own, copies = tuple(prompts), tuple(fillers)
    return Block("b" * 64, 0, "e", "", len(own) + len(copies), own, copies, first)


@pytest.fixture(scope="module")
def engine(pair_folders: tuple[Path, Path]) -> Engine:
    models = Models("cpu")
    target, candidates = models.candidates(
        str(pair_folders[0]),
        [
            SpeculationConfig("draft", "t", str(pair_folders[1]), "draft_model", 3, VerifyRule.REJECTION),
            SpeculationConfig("ngram", "t", None, "ngram", 3, VerifyRule.GREEDY_DRAFT),
        ],
        lambda _: None,
    )
    return Engine(target, candidates)


def test_every_own_request_has_a_run_per_candidate(engine: Engine) -> None:
    result = engine.measure(block([prompt(1), prompt(2, 0.7)], [prompt(3), prompt(4)], Arm.SPECULATIVE))
    assert len(result.runs) == 4
    assert {run.key.offset for run in result.runs} == {1, 2}
    assert set(result.memory) == {candidate.config.fingerprint for candidate in engine.candidates}
    for run in result.runs:
        assert run.failure is None
        assert run.counts is not None
        assert run.baseline is not None
        assert run.speculative is not None
        assert run.parity is not None
        metrics.check_identities(run.counts)
        assert run.speculative.num_output_tokens == run.counts.num_output_tokens
        assert run.baseline.end_to_end_ms > 0
        assert run.speculative.queue_ms == 0
        is_sampled = run.key.offset == 2
        assert (run.parity.z_tokens == run.counts.num_output_tokens) if is_sampled else run.parity.z_tokens is None
        if not is_sampled:
            assert run.parity.first_divergence is None
    for memory in result.memory.values():
        assert memory.speculative_peak_bytes >= memory.baseline_peak_bytes > 0


def test_measuring_twice_gives_the_same_counts(engine: Engine) -> None:
    shape = block([prompt(5), prompt(6, 0.9)], [prompt(7)])
    first, second = engine.measure(shape), engine.measure(replace(shape, first_arm=Arm.SPECULATIVE))
    assert [run.counts for run in first.runs] == [run.counts for run in second.runs]


def test_a_fault_in_the_speculative_arm_is_seen(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy verification that accepts everything emits the draft's own tokens: the arms part far from a tie."""
    honest = decode.verify_matching

    def gullible(target_tokens: torch.Tensor, drafted: torch.Tensor, num_drafted: torch.Tensor) -> Any:
        outcome = honest(target_tokens, drafted, num_drafted)
        return replace(outcome, num_accepted=num_drafted)

    monkeypatch.setattr(decode, "verify_matching", gullible)
    runs = engine.measure(block([prompt(line, max_tokens=24) for line in range(8)])).runs
    faults = [run.parity for run in runs if run.parity is not None and run.parity.first_divergence is not None]
    assert any(parity.divergence_gap is not None and parity.divergence_gap > 1e-2 for parity in faults)
    assert all(parity.rerun_differs is False for parity in faults)


def test_out_of_memory_fails_the_runs_and_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.measure(block([prompt(8)]))  # warm at this size
    calls: list[Candidate | None] = []

    def starved(*args: Any, proposer: Any, **kwargs: Any) -> Any:
        calls.append(proposer)
        if proposer is not None:
            raise torch.OutOfMemoryError("none left")
        return decode.decode_batch(*args, proposer=proposer, **kwargs)

    monkeypatch.setattr(measure, "decode_batch", starved)
    result = engine.measure(block([prompt(8)]))
    assert [run.failure for run in result.runs] == ["out_of_memory", "out_of_memory"]
    assert all(run.counts is None and run.baseline is None for run in result.runs)


def test_teacher_forcing_is_the_plain_forward_pass(target: Any) -> None:
    from shadowspec.engine.batch import Request

    requests = [Request((0, 5, 3), SamplingParameters(), 0), Request((0, 4, 4, 2, 9), SamplingParameters(), 1)]
    others, outputs = [(9,), (2, 2, 2)], [(2, 3, 4, 5), (7, 8)]
    _, forced = teacher_forced_logits(target, requests, others, outputs)
    for request, output, logits in zip(requests, outputs, forced, strict=True):
        whole = torch.tensor([[*request.prompt, *output]])
        with torch.inference_mode():
            plain = target(input_ids=whole, use_cache=False).logits[0, len(request.prompt) - 1 : -1]
        torch.testing.assert_close(logits, plain, atol=1e-4, rtol=1e-4)
        gap = divergence_gap(target, request, output, frozenset({1}))
        highest = plain[-1].topk(2).values
        assert gap == pytest.approx(float(highest[0] - highest[1]), abs=1e-4)


@pytest.mark.parametrize(
    ("first", "second", "position"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (4,), 0)],
)
def test_first_divergence(first: tuple[int, ...], second: tuple[int, ...], position: int | None) -> None:
    assert first_divergence(first, second) == position


@pytest.mark.parametrize(
    ("tokens", "is_loop"),
    [
        ([5] * 12, True),
        ([5] * 11, False),
        ([9, 8, *([1, 2, 3, 4, 5] * 3)], True),
        ([9, 8, *([1, 2, 3, 4, 5] * 2), 1, 2, 3, 4], False),
        (list(range(200)), False),
        ([*range(40), *range(40), *range(40)], False),
    ],
)
def test_repetition_loop(tokens: list[int], is_loop: bool) -> None:
    assert is_repetition_loop(tokens) is is_loop
