"""Recorded passes give what passes that are launched anew give, whatever ran over their buffers before.

On a machine with a GPU these tests record CUDA graphs; elsewhere what was recorded is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from kernels.benchmarks.rerun import Rerun
from shadowspec.engine import Engine, Models, arms, candidate, static_passes
from shadowspec.engine.arms import Gauge, record_ahead
from shadowspec.engine.batch import Batch, Request
from shadowspec.engine.candidate import Candidate, fingerprint_candidate
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.device import choose_device, choose_recorder
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.proposers.suffix import SuffixOptions, SuffixProposer
from shadowspec.engine.static_passes import CudaGraphs, Reach, StaticPasses, rounded_up
from shadowspec.errors import ModelError
from shadowspec.types import SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.engine_blocks import block, prompt
from tests.builders.pass_recorder import DEVICE, new_recorder
from tests.builders.transfers import watched
from tests.small_models import VOCABULARY

KINDS = ["baseline", "draft", "adaptive", "ngram", "suffix"]


@dataclass(frozen=True)
class Pair:
    target: LoadedModel
    draft: LoadedModel

    def recorded(self) -> Pair:
        """The same models with passes that nothing has run yet."""
        return Pair(
            *(replace(model, passes=StaticPasses(model.model, new_recorder)) for model in (self.target, self.draft))
        )


@pytest.fixture(scope="module")
def pair(pair_folders: tuple[Path, Path]) -> Pair:
    return Pair(*(load_model(str(folder), DEVICE, torch.float32) for folder in pair_folders))


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths a few tokens apart, so that a batch goes through several; results that are gone once they may be."""
    monkeypatch.setattr(static_passes, "LEAST_STEP", 8)
    run = StaticPasses.run

    def spoiling(self: StaticPasses, *args: Any) -> Any:
        for (name, _), buffer in self._buffers.items():
            if name in ("logits", "states"):
                buffer.fill_(float("nan"))
        return run(self, *args)

    monkeypatch.setattr(StaticPasses, "run", spoiling)


def proposer(kind: str, pair: Pair, depth: int) -> Proposer | None:
    if kind == "baseline":
        return None
    if kind == "ngram":
        return NgramProposer(depth, 1, 3)
    if kind == "suffix":
        return SuffixProposer(depth, SuffixOptions())
    return DraftModelProposer(
        pair.draft.model,
        depth,
        is_sampling=True,
        confidence_threshold=0.3 if kind == "adaptive" else 0.0,
        passes=pair.draft.passes,
    )


def requests(temperature: float, count: int = 9, *, longest: int = 9, first: int = 0) -> list[Request]:
    """Ragged prompts and outputs, some of one token, greedy ones among the sampled."""
    return [
        Request(
            tuple(2 + (row * row + step + first) % 10 for step in range(1 + (5 * row) % longest)),
            SamplingParameters(
                temperature=temperature if row % 3 else 0.0,
                max_tokens=1 + (7 * row) % 17,
                min_tokens=min(3, 1 + (7 * row) % 17),
                repetition_penalty=1.2 if row % 4 == 1 else 1.0,
            ),
            row + first,
        )
        for row in range(count)
    ]


def decoded(pair: Pair, kind: str, requests: list[Request], depth: int = 3, slots: int | None = None) -> list[Decoded]:
    is_lookup = kind in ("ngram", "suffix")
    result = decode_batch(
        pair.target.model,
        requests,
        proposer=proposer(kind, pair, depth),
        num_speculative_tokens=depth,
        verify_rule=VerifyRule.GREEDY_DRAFT if is_lookup else VerifyRule.REJECTION,
        end_token_ids=frozenset({1}),
        num_slots=slots,
        passes=pair.target.passes,
    )
    return list(result.decoded)


def seen(found: list[Decoded]) -> list[tuple[object, ...]]:
    return [(each.output, each.finish_reason, each.counts) for each in found]


@pytest.mark.representative("baseline-0.0-None", "draft-0.8-3", "ngram-0.0-None")
@pytest.mark.parametrize("slots", [None, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_one_after_the_other_are_decoded_as_without(
    kind: str, temperature: float, slots: int | None, pair: Pair
) -> None:
    """Ragged rows and refilled slots; then other prompts, fewer rows, and rows that need a larger cache."""
    recorded = pair.recorded()
    batches = [
        requests(temperature),
        requests(temperature, first=4),
        requests(temperature, 2, first=1),
        requests(temperature, 10, longest=40, first=2),
        requests(temperature, first=5),
    ]
    for batch in batches:
        assert seen(decoded(recorded, kind, batch, slots=slots)) == seen(decoded(pair, kind, batch, slots=slots))
    for model in (recorded.target, recorded.draft) if kind in ("draft", "adaptive") else (recorded.target,):
        assert model.passes is not None
        assert model.passes.num_recorded > 2
        held = model.passes.num_recorded
        decoded(recorded, kind, batches[-1], slots=slots)
        assert model.passes.num_recorded == held, "nothing is recorded twice"


@pytest.mark.representative("draft-1", "draft-8", "ngram-6")
@pytest.mark.parametrize("depth", range(1, 9))
@pytest.mark.parametrize("kind", ["draft", "ngram"])
def test_every_depth(kind: str, depth: int, pair: Pair) -> None:
    recorded = pair.recorded()
    for first in (0, 3):
        block_requests = requests(0.8, 5, first=first)
        assert seen(decoded(recorded, kind, block_requests, depth)) == seen(decoded(pair, kind, block_requests, depth))


def test_rows_that_are_dropped_need_other_passes(pair: Pair) -> None:
    recorded = pair.recorded()
    with pytest.raises(ValueError, match="dropped along the way"):
        decode_batch(
            recorded.target.model,
            requests(0.0),
            proposer=None,
            num_speculative_tokens=0,
            verify_rule=VerifyRule.GREEDY,
            end_token_ids=frozenset(),
            releases_slots=True,
            passes=recorded.target.passes,
        )


@pytest.mark.parametrize("kind", ["baseline", "draft", "ngram"])
def test_a_recorded_step_waits_for_the_device_once(kind: str, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = pair.recorded()
    requests = [Request((2, 3 + row, 4, 2, 3 + row), SamplingParameters(0.8, max_tokens=20), row) for row in range(4)]
    expected = seen(decoded(recorded, kind, requests))
    commits: list[int] = []
    commit = Batch.commit
    with watched() as waits:

        def counted(batch: Batch, outcomes: list[list[int]]) -> None:
            commits.append(sum(waits.values()))
            commit(batch, outcomes)

        monkeypatch.setattr(Batch, "commit", counted)
        assert seen(decoded(recorded, kind, requests)) == expected
    assert len(commits) > 3
    assert {after - before for before, after in pairwise(commits)} == {1}, f"{waits}"


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 63, 64, 65, 100, 1_000, 5_000])
def test_widths_are_round_and_few(columns: int) -> None:
    width = rounded_up(columns)
    assert columns <= width < columns + max(8, columns / 8 + 1)
    assert rounded_up(width) == width
    widths = Reach(1, 3, columns).widths()
    assert [rounded_up(each) for each in widths] == widths == sorted(set(widths))
    assert widths[-1] == max(rounded_up(3), width)
    every = {rounded_up(each) for each in range(3, max(3, columns) + 1)}
    assert every == set(widths)


CONFIGS = [
    SpeculationConfig("draft", "t", "", "draft_model", 3, VerifyRule.REJECTION),
    SpeculationConfig("adaptive", "t", "", "draft_model", 3, VerifyRule.REJECTION, draft_confidence_threshold=0.3),
    SpeculationConfig("ngram", "t", None, "ngram", 2, VerifyRule.GREEDY_DRAFT),
]


def candidates(pair: Pair) -> list[Candidate]:
    drafts = [pair.draft if config.draft is not None else None for config in CONFIGS]
    return [
        Candidate(fingerprint_candidate(config, pair.target, draft, 1, {}), draft)
        for config, draft in zip(CONFIGS, drafts, strict=True)
    ]


def engine(pair: Pair, **more: Any) -> Engine:
    return Engine(pair.target, candidates(pair), EngineSettings(warmup_blocks=1), **more)


@pytest.mark.representative("2")
@pytest.mark.parametrize("concurrency", [6, 2])
def test_a_block_is_measured_as_without_and_nothing_is_recorded_while_it_is_timed(
    concurrency: int, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = pair.recorded()
    prompts = [prompt(line, 0.7 * (line % 2), 4 + 5 * line) for line in range(6)]
    given = structs.replace(block(prompts), concurrency=concurrency, requests_per_slot=6 // concurrency)
    expected = engine(pair).measure(given)
    inside: list[int] = []
    timed = arms.decode_batch

    def watching(*args: Any, **named: Any) -> Any:
        passes = [each.passes for each in (recorded.target, recorded.draft) if each.passes is not None]
        before = sum(each.num_recorded for each in passes)
        result = timed(*args, **named)
        inside.append(sum(each.num_recorded for each in passes) - before)
        return result

    monkeypatch.setattr(arms, "decode_batch", watching)
    found = engine(recorded).measure(given)
    assert [run.counts for run in found.runs] == [run.counts for run in expected.runs]
    assert [run.parity for run in found.runs] == [run.parity for run in expected.runs]
    assert inside
    assert set(inside) == {0}


def test_what_ran_is_in_the_fingerprint(pair: Pair) -> None:
    plain, others = candidates(pair), candidates(pair.recorded())
    for before, after in zip(plain, others, strict=True):
        name = new_recorder().name
        passes = {"target_passes": name} | ({"draft_passes": name} if after.draft is not None else {})
        assert after.config.details == {**before.config.details, **passes}
        assert after.config.fingerprint != before.config.fingerprint


def test_attention_on_a_gpu_runs_without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN reads a mask at a misaligned address: `try` on an H100 ended at its first block."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for name in ("auto", "cuda", "cuda:1"):
            torch.backends.cuda.enable_cudnn_sdp(True)
            assert choose_device(name).type == "cuda"
            assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


def test_models_are_loaded_with_the_passes_that_are_asked_for(
    pair_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = map(str, pair_folders)
    cpu = torch.device("cpu")
    assert choose_recorder("auto", cpu) is None
    assert choose_recorder("dynamic", torch.device("cuda")) is None
    for name in ("auto", "graphs"):
        made = choose_recorder(name, torch.device("cuda"))
        assert made is not None
        assert made().name == "graphs"
    assert Models(EngineSettings("cpu")).load(target).passes is None
    with pytest.raises(ModelError, match='passes = "graphs" is configured, but CUDA graphs need a GPU'):
        Models(EngineSettings("cpu", passes="graphs"))
    monkeypatch.setattr(candidate, "choose_recorder", lambda name, device: Rerun)
    loaded, (ready,) = Models(EngineSettings("cpu", passes="graphs")).candidates(
        target, [replace(CONFIGS[0], draft=draft)], print, 1, {}
    )
    assert loaded.passes is not None
    assert isinstance(ready.draft, LoadedModel)
    assert ready.draft.passes is not None
    assert ready.config.details["draft_passes"] == "rerun"
    monkeypatch.setattr("shadowspec.engine.models.why_not_direct", lambda model: "for a test")
    assert Models(EngineSettings("cpu", passes="auto")).load(target).passes is None
    with pytest.raises(ModelError, match="the forward pass of transformers, which is not recorded"):
        Models(EngineSettings("cpu", passes="graphs")).load(target)


def test_a_target_that_drafts_for_itself_has_two_caches(
    pair_folders: tuple[Path, Path], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate, "choose_recorder", lambda name, device: new_recorder)
    target = str(pair_folders[0])
    config = replace(CONFIGS[0], draft=target)
    models = Models(EngineSettings(str(DEVICE), "float32"))
    loaded, (first_candidate, same) = models.candidates(
        target, [config, replace(config, name="other")], lambda _: None, 1, {}
    )
    assert isinstance(first_candidate.draft, LoadedModel)
    assert first_candidate.draft is same.draft
    assert first_candidate.draft.model is loaded.model
    given = requests(0.8)
    found = seen(decoded(Pair(loaded, first_candidate.draft), "draft", given))
    for each in (loaded.passes, first_candidate.draft.passes):
        assert each is not None
        assert each.allocated_bytes() > 0, "it is counted as the two caches that another draft would make it"
    assert first_candidate.draft.passes is not loaded.passes
    assert found == seen(decoded(Pair(pair.target, pair.target), "draft", given))


class FakeAllocator:
    """An allocator that counts what static passes really hold, and of the rest says what it is told."""

    def __init__(self, models: list[LoadedModel], rest: int, passing: int) -> None:
        self._models, self._rest, self._passing = models, rest, passing
        self.num_begun = 0

    def allocated_bytes(self) -> int:
        return self._rest + sum(model.passes.allocated_bytes() for model in self._models if model.passes is not None)

    def begin(self) -> None:
        self.num_begun += 1

    def peak(self) -> int:
        return self.allocated_bytes() + self._passing


def test_the_memory_of_an_arm_is_its_own(pair: Pair) -> None:
    """Neither weights nor caches that lie there for others count, and of its own cache what it has use for."""
    recorded = pair.recorded()
    models = [recorded.target, recorded.draft]
    target_weights, draft_weights = (loaded_model.weight_bytes for loaded_model in models)
    recorded_engine = engine(recorded)
    allocator = FakeAllocator(models, rest=target_weights + draft_weights + 12_345, passing=777)
    recorded_engine._arms._allocator = allocator
    large = block([prompt(line, max_tokens=60) for line in range(8)])
    small = block([prompt(line) for line in range(2)])
    first, _ = (
        recorded_engine.measure(small),
        recorded_engine.measure(large),
    )  # the caches grow between two arms, and within one
    again = recorded_engine.measure(small)
    assert allocator.num_begun > 6
    assert first.memory.keys() == again.memory.keys()
    slots = 2
    capacity = max(len(each.prompt_token_ids) for each in small.requests) + 12 + 2

    def cache(model: LoadedModel, columns: int) -> int:
        return slots * (rounded_up(columns) + 1) * model.kv_bytes_per_token

    def buffers(*passes: tuple[int, int]) -> int:
        """Tokens and columns, and logits, of passes of so many tokens that keep so many."""
        given, kept = (sum({pair[which] for pair in passes}) for which in (0, 1))
        return slots * (2 * 8 * given + 4 * VOCABULARY * kept)

    for config, own_candidate in zip(CONFIGS, recorded_engine.candidates, strict=True):
        memory = again.memory[own_candidate.config.fingerprint]
        assert memory.source == "cuda_peak"
        assert memory.baseline_peak_bytes == target_weights + 777 + cache(recorded.target, capacity) + buffers((1, 1))
        depth = config.num_speculative_tokens
        counts = [depth + 1] if config.name == "draft" else range(1, depth + 2)
        expected = target_weights + 777 + cache(recorded.target, capacity + depth)
        expected += buffers(*((count, count) for count in counts))
        if own_candidate.draft is not None:
            expected += draft_weights + cache(recorded.draft, capacity + depth) + buffers((2, 1), (1, 1))
        assert memory.speculative_peak_bytes == expected
        assert memory.speculative_peak_bytes > memory.baseline_peak_bytes


def test_what_grows_within_an_arm_is_not_counted_twice(pair: Pair) -> None:
    recorded = pair.recorded()
    gauge = Gauge.begin(FakeAllocator([recorded.target], rest=1_000, passing=50), [recorded.target])
    held = record_ahead(recorded.target, None, requests(0.0), 4)
    assert held > 0
    assert gauge.peak_bytes(1_000, held) == 1_050 + held


class _FakeCuda:
    """Writes down what a recorder asks of CUDA."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @contextmanager
    def _within(self, what: str) -> Iterator[None]:
        self.said.append(f"({what}")
        yield
        self.said.append(f"{what})")

    def device(self, device: torch.device) -> Any:
        return self._within(str(device))

    def stream(self, stream: Any) -> Any:
        return self._within("side")

    def graph(self, graph: Any, pool: object, stream: object) -> Any:
        return self._within(f"capture into {pool}")

    def current_stream(self) -> Any:
        return _Stream(self, "main")

    def Stream(self) -> Any:  # noqa: N802
        return _Stream(self, "side")

    def CUDAGraph(self) -> Any:  # noqa: N802
        return _Graph(self)


@dataclass
class _Stream:
    cuda: _FakeCuda
    name: str

    def wait_stream(self, other: _Stream) -> None:
        self.cuda.said.append(f"{self.name} waits for {other.name}")


@dataclass
class _Graph:
    cuda: _FakeCuda

    def pool(self) -> tuple[int, int]:
        return (0, 7)

    def replay(self) -> None:
        self.cuda.said.append("replay")


def test_graphs_are_warmed_up_aside_and_captured_into_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _FakeCuda()
    monkeypatch.setattr(static_passes.torch, "cuda", fake)
    recorder = CudaGraphs(torch.device("cuda:1"))
    assert recorder.held_bytes() == 0
    again: list[Callable[[], None]] = [recorder.record(lambda: fake.said.append("work")) for _ in range(2)]
    warm_ups = ["side waits for main", "(side", "work", "work", "work", "side)", "main waits for side"]
    for pool in ("None", "(0, 7)"):
        inside = [*warm_ups, f"(capture into {pool}", "work", f"capture into {pool})"]
        assert fake.said[: len(inside) + 2] == ["(cuda:1", *inside, "cuda:1)"]
        del fake.said[: len(inside) + 2]
    again[0]()
    assert fake.said == ["(cuda:1", "replay", "cuda:1)"]


def test_a_direct_model_knows_the_form_of_its_cache(pair: Pair) -> None:
    assert isinstance(pair.target.model, DirectLlama)
    assert pair.target.model.kv_shape == (1, 16)
