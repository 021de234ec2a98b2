"""A batch that does not fit into memory is run in halves; only a request that does not fit alone fails."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import structs

from shadowspec.engine import Engine, Models, arms
from shadowspec.engine.runner import Runner
from shadowspec.types import Arm, BlockResult, Run, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.engine_blocks import block, prompt
from tests.identities import check_identities

LARGE = 40  # prompt tokens; the ordinary prompts of these tests have at most 8
PROMPTS = [prompt(line, 0.8 * (line % 2)) for line in range(8)]


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
    return Engine(target, candidates, EngineSettings(warmup_blocks=1))


@contextmanager
def small_memory(model: Any, fits: Callable[[int, int], bool]) -> Iterator[list[int]]:
    """A device on which only such caches of `model` (slots, capacity) fit; yields the slots of those that did not."""
    refused: list[int] = []
    begin = Runner.__init__

    def check(self: Runner, wanted: Any, slots: int, capacity: int, hidden: Any = None, **more: Any) -> None:
        if wanted is model and not fits(slots, capacity):
            refused.append(slots)
            raise torch.OutOfMemoryError("none left")
        begin(self, wanted, slots, capacity, hidden, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "__init__", check)
        yield refused


def at_most(rows: int) -> Callable[[int, int], bool]:
    return lambda slots, capacity: slots <= rows


def by_run(result: BlockResult) -> dict[tuple[int, str], Run]:
    return {(run.key.offset, run.fingerprint): run for run in result.runs}


@pytest.mark.parametrize(("rows", "halvings"), [(4, 1), (3, 3), (1, 7)])
def test_halves_give_what_the_whole_would(engine: Engine, rows: int, halvings: int) -> None:
    """The same counts and parities; every arm is halved as often as it takes."""
    whole = engine.measure(block(PROMPTS))
    assert whole.num_out_of_memory == 0
    with small_memory(engine.target.model, at_most(rows)) as refused:
        parts = engine.measure(block(PROMPTS))
    assert refused, "memory was never short"
    assert parts.num_out_of_memory == 3 * halvings
    expected = by_run(whole)
    assert by_run(parts).keys() == expected.keys()
    for key, run in by_run(parts).items():
        assert run.failure is None
        assert run.counts is not None
        check_identities(run.counts)
        assert run.counts == expected[key].counts
        assert run.finish_reason == expected[key].finish_reason
        parity, other = run.parity, expected[key].parity
        assert parity is not None
        assert other is not None
        assert (parity.first_divergence, parity.z_tokens) == (other.first_divergence, other.z_tokens)
        if other.z_sum is not None:
            assert parity.z_sum == pytest.approx(other.z_sum, abs=1e-3)


def test_the_second_half_has_waited_for_the_first(engine: Engine) -> None:
    with small_memory(engine.target.model, at_most(2)):
        result = engine.measure(block(PROMPTS[:4], first=Arm.SPECULATIVE))
    for config in engine.configs:
        runs = [run for run in result.runs if run.fingerprint == config.fingerprint]
        for timings in ([run.baseline for run in runs], [run.speculative for run in runs]):
            first, second = ([t for t in half if t is not None] for half in (timings[:2], timings[2:]))
            assert len(first) == len(second) == 2
            waited = max(timing.end_to_end_ms for timing in first)
            assert all(timing.prefill_ms > waited for timing in second)
            assert all(timing.prefill_ms < waited for timing in first)


def test_a_quarter_has_waited_for_all_before_it(engine: Engine) -> None:
    with small_memory(engine.target.model, at_most(1)):
        result = engine.measure(block(PROMPTS[:4]))
    fingerprint = engine.configs[0].fingerprint
    ends = [run.baseline.end_to_end_ms for run in result.runs if run.fingerprint == fingerprint and run.baseline]
    begins = [run.baseline.prefill_ms for run in result.runs if run.fingerprint == fingerprint and run.baseline]
    assert len(ends) == 4
    assert all(begin > end for begin, end in zip(begins[1:], ends[:-1], strict=True))


def test_only_the_request_that_does_not_fit_alone_fails(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    large = structs.replace(prompt(99), prompt_token_ids=(3,) * LARGE)
    given = block([PROMPTS[0], large, PROMPTS[1], PROMPTS[2]], fillers=[PROMPTS[3]])
    with small_memory(engine.target.model, lambda slots, capacity: capacity < LARGE):
        result = engine.measure(given)
    expected = by_run(engine.measure(block([PROMPTS[0], PROMPTS[3], PROMPTS[1], PROMPTS[2]], fillers=[PROMPTS[3]])))
    for (offset, fingerprint), run in by_run(result).items():
        if offset == 99:
            assert run.failure == "out_of_memory"
            assert run.counts is run.baseline is run.speculative is run.parity is None
        else:
            assert run.failure is None
            assert run.counts == expected[offset, fingerprint].counts
    assert len(result.runs) == 2 * 4
    assert result.num_out_of_memory == 3 * 2  # 5 requests in halves, then the two that hold the large one
    assert "3, 3, 3" not in caplog.text


def test_an_arm_that_fails_alone_fails_its_config_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the draft takes is missing in that candidate's arm, and in no other."""
    draft = engine.candidates[0].draft
    assert draft is not None
    with small_memory(draft.model, at_most(0)):
        result = engine.measure(block(PROMPTS[:2]))
    failures = {run.fingerprint: run.failure for run in result.runs}
    assert failures == {engine.configs[0].fingerprint: "out_of_memory", engine.configs[1].fingerprint: None}
    assert result.num_out_of_memory == 1


def test_parity_that_does_not_fit_is_unknown_and_fails_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arms that part and a device that has no room to say why: the figures stay, and the gate is told."""
    from shadowspec.engine import parity

    def starved(*_: Any) -> Any:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(parity, "first_divergence", lambda base, spec: 0)
    monkeypatch.setattr(parity, "divergence_gap", starved)
    monkeypatch.setattr(parity, "z_scores", starved)
    runs = engine.measure(block(PROMPTS[:4])).runs
    assert {run.failure for run in runs} == {None}
    for run in runs:
        assert run.parity is not None
        assert run.parity.z_sum is None
        assert run.parity.divergence_gap is None
        is_greedy = run.key.offset % 2 == 0
        assert run.parity.first_divergence == (0 if is_greedy else None)
        assert run.parity.rerun_differs is (False if is_greedy else None)


def test_memory_of_halves_is_that_of_the_whole_batch(engine: Engine) -> None:
    """Else a draft that displaces half of the batch would look as if it displaced nothing."""
    alike = [prompt(5 * line) for line in range(1, 5)]  # all of one length
    whole = engine.measure(block(alike))
    with small_memory(engine.target.model, at_most(2)):
        parts = engine.measure(block(alike))
    for fingerprint, memory in parts.memory.items():
        assert memory == whole.memory[fingerprint]


def test_of_a_queue_only_what_arrives_together_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests in two slots, run one by one: the third would have been issued when the first two had ended.

    Each waits for the tries that ran out of memory since it came, too: the first two for two of them.
    """
    moments = itertools.count(step=0.25)
    monkeypatch.setattr(arms, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    decode_batch = arms.decode_batch

    def timed(*args: Any, **named: Any) -> Any:
        result = decode_batch(*args, **named)
        decoded = tuple(replace(each, timing=replace(each.timing, prefill_ms=1.0)) for each in result.decoded)
        return replace(result, decoded=decoded, duration_ms=1_000.0)

    monkeypatch.setattr(arms, "decode_batch", timed)
    queue = structs.replace(block(PROMPTS[:4]), concurrency=2, requests_per_slot=2)
    with small_memory(engine.target.model, at_most(1)):
        result = engine.measure(queue)
    for fingerprint in (config.fingerprint for config in engine.configs):
        runs = [run for run in result.runs if run.fingerprint == fingerprint]
        assert [run.baseline.prefill_ms for run in runs if run.baseline] == [501.0, 1_501.0, 251.0, 1_251.0]
        assert [run.speculative.prefill_ms for run in runs if run.speculative] == [501.0, 1_501.0, 251.0, 1_251.0]
