"""A block through both arms: runs, timings, parity, memory, failures, and the worker that stores them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from shadowspec.engine import Candidate, Engine, Models, arms, decode, verify
from shadowspec.engine.candidate import fingerprint_candidate
from shadowspec.engine.parity import divergence_gap, teacher_forced_logits
from shadowspec.quality.outputs import first_divergence, is_repetition_loop
from shadowspec.types import (
    SUFFIX_OPTIONS,
    Arm,
    Block,
    Memory,
    RecordKey,
    SamplingParameters,
    ShadowPrompt,
    SpeculationConfig,
    VerifyRule,
)
from shadowspec.types.settings import EngineSettings
from tests.builders.engine_blocks import block, prompt
from tests.identities import check_identities


@pytest.fixture(scope="module")
def engine(pair_folders: tuple[Path, Path]) -> Engine:
    models = Models(EngineSettings("cpu"))
    target, candidates = models.candidates(
        str(pair_folders[0]),
        [
            SpeculationConfig("draft", "t", str(pair_folders[1]), "draft_model", 3, VerifyRule.REJECTION),
            SpeculationConfig("ngram", "t", None, "ngram", 3, VerifyRule.GREEDY_DRAFT),
        ],
        lambda _: None,
        1,
        {},
    )
    return Engine(target, candidates, EngineSettings())


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
        check_identities(run.counts)
        assert run.speculative.num_output_tokens == run.counts.num_output_tokens
        assert run.baseline.end_to_end_ms > 0
        assert run.speculative.queue_ms == 0
        is_sampled = run.key.offset == 2
        assert (run.parity.z_tokens == run.counts.num_output_tokens) if is_sampled else run.parity.z_tokens is None
        if not is_sampled:
            assert run.parity.first_divergence is None
    for memory in result.memory.values():
        assert isinstance(memory, Memory)
        assert memory.speculative_peak_bytes >= memory.baseline_peak_bytes > 0


def test_displaced_tokens_are_so_many_requests_of_the_blocks_mean_length(engine: Engine) -> None:
    result = engine.measure(block([prompt(1), prompt(2, 0.7)], [], Arm.BASELINE))
    fingerprint = engine.candidates[0].config.fingerprint
    lengths = [
        run.counts.num_prompt_tokens + run.baseline.num_output_tokens
        for run in result.runs
        if run.fingerprint == fingerprint and run.counts is not None and run.baseline is not None
    ]
    memory = result.memory[fingerprint]
    assert isinstance(memory, Memory)
    assert memory.kv_tokens_per_request == pytest.approx(sum(lengths) / 2)
    assert memory.displaced_requests == pytest.approx(memory.displaced_kv_tokens / (sum(lengths) / 2))


def test_a_queue_gives_what_a_batch_does_at_its_concurrency(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many slots as the load, whichever arm; own requests come before fillers; nothing of the outputs changes."""
    slots: list[int] = []
    decode_batch = arms.decode_batch

    def watched(*args: Any, num_slots: int, **kwargs: Any) -> Any:
        slots.append(num_slots)
        return decode_batch(*args, num_slots=num_slots, **kwargs)

    prompts, copies = [prompt(line, 0.7 * (line % 2), 4 + line) for line in range(5)], [prompt(9)]
    batch = engine.measure(block(prompts, copies))
    queue = structs.replace(block(prompts, copies), concurrency=2, requests_per_slot=3)
    assert queue.n_max == 6
    monkeypatch.setattr(arms, "decode_batch", watched)
    found = engine.measure(queue)
    assert set(slots) == {2}
    assert [run.counts for run in found.runs] == [run.counts for run in batch.runs]
    for run in found.runs:
        for arm in (run.baseline, run.speculative):
            assert arm is not None
            assert 1.0 <= (arm.concurrency or 0.0) <= 2.0 + 1e-9
    slots.clear()
    engine.measure(queue)
    assert len(slots) == 1 + len(engine.candidates), "a queue is warm after its first time"


def test_the_fingerprint_tells_a_queue_from_a_batch(engine: Engine, pair_folders: tuple[Path, Path]) -> None:
    config = engine.candidates[1].config.config
    batch, queue = (
        Models(EngineSettings("cpu"))
        .candidates(str(pair_folders[0]), [config], lambda _: None, number, {})[1][0]
        .config
        for number in (1, 4)
    )
    assert batch.fingerprint == engine.candidates[1].config.fingerprint
    assert queue.fingerprint != batch.fingerprint
    assert queue.details["requests_per_slot"] == "4"
    assert "requests_per_slot" not in batch.details


def test_measuring_twice_gives_the_same_counts(engine: Engine) -> None:
    shape = block([prompt(5), prompt(6, 0.9)], [prompt(7)])
    first, second = engine.measure(shape), engine.measure(structs.replace(shape, first_arm=Arm.SPECULATIVE))
    assert [run.counts for run in first.runs] == [run.counts for run in second.runs]


def test_arms_run_in_the_order_drawn_and_nothing_but_times_depends_on_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int | None] = []
    run_arm = engine._arms.run

    def watched(requests: Any, candidate: Any, *args: Any) -> Any:
        order.append(None if candidate is None else engine.candidates.index(candidate))
        return run_arm(requests, candidate, *args)

    monkeypatch.setattr(engine._arms, "run", watched)
    shape, found, seen = block([prompt(5), prompt(6, 0.9)], [prompt(7)]), [], set()
    engine.measure(shape)  # warm from here on
    for number in range(12):
        drawn = structs.replace(shape, block_id=f"block-{number}", first_arm=list(Arm)[number % 2])
        order.clear()
        result = engine.measure(drawn)
        assert order == drawn.arm_order(len(engine.candidates))
        seen.add(tuple(order))
        found.append([(run.key, run.fingerprint, run.counts, run.parity) for run in result.runs])
    assert {order[0] for order in seen} == {None, 0, 1}, "each arm is the first of some block"
    assert all(each == found[0] for each in found)


def test_a_run_knows_what_its_arms_ran_after_and_the_baselines_second_time(engine: Engine) -> None:
    shape = structs.replace(block([prompt(5), prompt(6, 0.9)], [prompt(7)]), repeats_baseline=True)
    plain = engine.measure(structs.replace(shape, repeats_baseline=False, first_arm=Arm.BASELINE))
    assert {run.order and run.order.baseline_repeat_ms for run in plain.runs} == {None}
    for number in range(6):
        drawn = structs.replace(shape, block_id=f"block-{number}", first_arm=list(Arm)[number % 2])
        before, order = engine._last_arm, drawn.arm_order(2)
        result = engine.measure(drawn)
        assert engine._last_arm is (Arm.BASELINE if order[-1] is None else Arm.SPECULATIVE)
        for candidate, measured in enumerate(engine.candidates):
            runs = [run for run in result.runs if run.fingerprint == measured.config.fingerprint]
            arms = [before, *(Arm.BASELINE if place is None else Arm.SPECULATIVE for place in order)]
            for run in runs:
                assert run.order is not None
                assert run.order.baseline_ran_after is arms[order.index(None)]
                assert run.order.speculative_ran_after is arms[order.index(candidate)]
                assert (run.order.baseline_repeat_ms or 0.0) > 0.0
        assert [run.counts for run in result.runs] == [run.counts for run in plain.runs]


def test_a_fault_in_the_speculative_arm_is_seen(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy verification that accepts everything emits the draft's own tokens: the arms part far from a tie."""
    honest = verify.verify_matching

    def gullible(target_tokens: torch.Tensor, drafted: torch.Tensor, num_drafted: torch.Tensor) -> Any:
        outcome = honest(target_tokens, drafted, num_drafted)
        return replace(outcome, num_accepted=num_drafted)

    monkeypatch.setattr(verify, "verify_matching", gullible)
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

    monkeypatch.setattr(arms, "decode_batch", starved)
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


def suffix_engine(folders: tuple[Path, Path], **options: Any) -> Engine:
    """Two suffix candidates, of different depth, beside each other."""
    target, candidates = Models(EngineSettings("cpu")).candidates(
        str(folders[0]),
        [
            SpeculationConfig(f"suffix-{depth}", "t", None, "suffix", depth, VerifyRule.GREEDY_DRAFT, **options)
            for depth in (3, 6)
        ],
        lambda _: None,
        1,
        {},
    )
    return Engine(target, candidates, EngineSettings(warmup_blocks=1))


def counts_of(engine: Engine, measured: Block) -> list[Any]:
    return [run.counts for run in engine.measure(measured).runs]


def accepted(counts: list[Any]) -> int:
    return sum(each.num_accepted_tokens for each in counts)


def again(line: int) -> ShadowPrompt:
    """Another record with the prompt of `prompt(5)`."""
    return structs.replace(prompt(5, max_tokens=20), key=RecordKey("f" * 64, 0, line))


def test_suffix_candidates_draft_from_what_they_emitted_before(pair_folders: tuple[Path, Path]) -> None:
    """Only from own requests of blocks before, at the same endpoint; whichever arm goes first."""
    cold, other = block([again(1)]), structs.replace(block([again(2)]), endpoint="other")
    engine = suffix_engine(pair_folders)
    first = counts_of(engine, cold)
    assert counts_of(engine, other) == first, "nothing is remembered of another endpoint, nor of the warm-up"
    warm = counts_of(engine, block([again(3)]))
    assert accepted(warm) > accepted(first)
    reversed_engine = suffix_engine(pair_folders)
    for measured, wanted in ((cold, first), (block([again(3)]), warm)):
        assert counts_of(reversed_engine, structs.replace(measured, first_arm=Arm.SPECULATIVE)) == wanted
    forgetful = suffix_engine(pair_folders, suffix_memory_tokens=0)
    assert counts_of(forgetful, cold) == counts_of(forgetful, block([again(3)])) == first


def test_no_request_finds_its_own_answer_ready(pair_folders: tuple[Path, Path]) -> None:
    engine = suffix_engine(pair_folders)
    measured = block([again(1), again(2)])
    first = counts_of(engine, measured)
    assert counts_of(engine, measured) == first, "measured again, as after a failure"
    as_if_cold = first[0], first[2]  # of either candidate
    assert counts_of(engine, block([again(3)], [again(1), again(2)])) == [*as_if_cold], "nor does a filler"
    assert accepted(counts_of(engine, block([again(4)]))) > accepted([*as_if_cold])


def test_what_fillers_emit_is_not_remembered(pair_folders: tuple[Path, Path]) -> None:
    engine = suffix_engine(pair_folders)
    engine.measure(block([prompt(1)], [again(9)]))
    plain = suffix_engine(pair_folders)
    plain.measure(block([prompt(1)]))
    assert counts_of(engine, block([again(3)])) == counts_of(plain, block([again(3)]))


def test_the_fingerprint_covers_the_options_that_are_used(engine: Engine) -> None:
    target, draft = engine.target, engine.candidates[0].draft
    suffix = SpeculationConfig("s", "t", None, "suffix", 4, VerifyRule.GREEDY_DRAFT)
    changed = {
        "suffix_decoding_max_tree_depth": 23,
        "suffix_decoding_max_spec_factor": 1.5,
        "suffix_decoding_min_token_prob": 0.2,
        "suffix_memory_tokens": 0,
    }
    assert set(changed) == set(SUFFIX_OPTIONS)
    found = {
        fingerprint_candidate(replace(suffix, **{name: value}), target, None, 1, {}).fingerprint
        for name, value in changed.items()
    }
    assert len(found | {fingerprint_candidate(suffix, target, None, 1, {}).fingerprint}) == 1 + len(changed)
    model = engine.candidates[0].config.config
    config = fingerprint_candidate(model, target, draft, 1, {})
    assert (
        fingerprint_candidate(replace(model, draft_confidence_threshold=0.4), target, draft, 1, {}).fingerprint
        != config.fingerprint
    )
    assert fingerprint_candidate(replace(model, **changed), target, draft, 1, {}).fingerprint == config.fingerprint


def test_new_options_changed_no_fingerprint(engine: Engine) -> None:
    """As it was taken before there were suffix drafts and adaptive depth: evidence goes on."""
    config = engine.candidates[1].config
    identity = {
        "proposer": "ngram",
        "num_speculative_tokens": 3,
        "verify_rule": "greedy_draft",
        "backend": "torch",
        "ngram_min": 2,
        "ngram_max": 4,
        "details": config.details,
        "engine": config.engine,
        "device": config.device,
        "dtype": config.dtype,
    }
    assert config.fingerprint == hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
