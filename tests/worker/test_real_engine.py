"""The real engine in its child process: loaded there, measuring as it does in this one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from shadowspec.engine import Engine, Models
from shadowspec.engine.runner import Runner
from shadowspec.types import SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings, WorkerSettings
from shadowspec.worker.supervisor import Supervisor
from tests.services import PATIENCE_S
from tests.small_models import save_pair
from tests.worker.blocks import AttemptsInMemory, block, prompt

KILL = 11  # the highest token of the small models


@dataclass(frozen=True)
class Factory:
    """The pair of two folders, on the CPU."""

    target: Path
    draft: Path
    endpoints: tuple[str, ...] = ("chat",)

    def __call__(self) -> Mapping[str, Engine]:
        config = SpeculationConfig("draft", "t", str(self.draft), "draft_model", 3, VerifyRule.REJECTION)
        target, candidates = Models(EngineSettings("cpu")).candidates(str(self.target), [config], lambda _: None, 1, {})
        return {"chat": Engine(target, candidates, EngineSettings(warmup_blocks=1))}


@dataclass(frozen=True)
class FragileFactory:
    """The same, but it dies, as of a broken kernel, at a prompt of nothing but KILL."""

    sound: Factory
    endpoints: tuple[str, ...] = ("chat",)

    def __call__(self) -> Mapping[str, Engine]:
        prefill = Runner.prefill

        def fragile(self: Runner, prompts: Sequence[Sequence[int]], slots: Sequence[int] | None = None) -> torch.Tensor:
            if any(set(prompt) == {KILL} for prompt in prompts):
                os._exit(9)
            return prefill(self, prompts, slots)

        Runner.prefill = fragile
        return self.sound()


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Factory:
    return Factory(*save_pair(tmp_path_factory.mktemp("pair")))


@pytest.mark.all
@pytest.mark.slow
def test_a_block_gives_the_counts_that_it_gives_here(factory: Factory) -> None:
    asked = [
        replace(prompt(i, 2 + i), sampling=SamplingParameters(temperature=0.7 * (i % 2), max_tokens=10))
        for i in range(4)
    ]
    bad = block(prompt(20, *[KILL] * 4, length=0), asked[3], sequence=1)
    with Supervisor([FragileFactory(factory)], AttemptsInMemory(), WorkerSettings(max_attempts=1)) as supervisor:
        for given in (block(*asked[:3]), bad):
            supervisor.offer(given)
        deadline, outcomes = time.monotonic() + PATIENCE_S, []
        while len(outcomes) < 2 and time.monotonic() < deadline:
            supervisor.wait(0.1)
            outcomes += supervisor.step()
        announced = supervisor.configs_by_endpoint["chat"]
    assert [outcome.poisoned for outcome in outcomes] == [{}, {bad.requests[0].key: "engine_died"}]
    here = factory()["chat"]
    assert announced == here.configs
    expected = [run.counts for run in here.measure(block(*asked[:3])).runs]
    assert [run.counts for run in outcomes[0].result.runs] == expected
    by_offset = {run.key.offset: run for run in outcomes[1].result.runs}
    assert {offset: run.failure for offset, run in by_offset.items()} == {20: "engine_died", 3: "engine_died"}
