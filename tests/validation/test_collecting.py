"""Asking servers: once, one at a time, and only while they are not stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kernels.benchmarks.engines import timing, visiting
from kernels.benchmarks.engines.collecting import GREEDY_REGIME, SAMPLED_REGIME, collected
from kernels.benchmarks.engines.counted import Counted
from kernels.benchmarks.engines.pair import BUNDLED, Pair
from kernels.benchmarks.engines.predicting import Place
from kernels.benchmarks.engines.servers import SERVED_MODEL, Environment
from kernels.benchmarks.engines.timing import queues, timed_blocks, timed_name
from kernels.benchmarks.engines.visiting import Visits, visit_pair
from kernels.benchmarks.engines.ways import BASELINE, WAYS, Way
from tests.servers.fake_server import FakeServer, running

HERE = Environment(Path("python"), "auto", "")
PROMPTS = [(5, 6, 7), (5, 6, 7, 8), (9, 9), (4, 5, 6, 7, 8, 9)]


class Stopped(FakeServer):
    """A server that notes when it is asked while it is stopped."""

    is_stopped = False
    was_asked_stopped = False

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.was_asked_stopped = self.was_asked_stopped or self.is_stopped
        await super()._complete(body, writer)


@dataclass
class Stand:
    """Fake servers in the place of vLLM's, as they were started."""

    servers: list[Stopped] = field(default_factory=list)
    configs: list[str | None] = field(default_factory=list)
    mended: list[bool] = field(default_factory=list)
    targets: list[Path] = field(default_factory=list)

    @contextmanager
    def running(
        self, _: Environment, config: str | None, __: Path, *, is_fixed: bool, target: Path = BUNDLED.target
    ) -> Iterator[Stopped]:
        server = Stopped(json.loads(config)["num_speculative_tokens"] if config else 0, model=SERVED_MODEL)
        server.pause = lambda: setattr(server, "is_stopped", True)  # type: ignore[attr-defined]
        server.resume = lambda: setattr(server, "is_stopped", False)  # type: ignore[attr-defined]
        server.processor_s = lambda: 0.0  # type: ignore[attr-defined]
        self.servers.append(server)
        self.configs.append(config)
        self.mended.append(is_fixed)
        self.targets.append(target)
        with running(server):
            yield server


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    rig = Stand()
    monkeypatch.setattr(visiting, "running", rig.running)
    monkeypatch.setattr(timing, "SETTLING_S", 0.0)
    monkeypatch.setattr(timing, "CONCURRENCIES", (1, 2))
    monkeypatch.setattr(timing, "REQUESTS_PER_SLOT", {1: 2, 2: 2})
    monkeypatch.setattr(timing, "COST_REQUESTS", {1: 2, 2: 4})
    return rig


def visit(folder: Path, depths: Sequence[int], timed: Sequence[Way] = (), *, collects: bool = True) -> None:
    slices = {"a": PROMPTS[:2], "b": PROMPTS[2:]}
    portions = [queues(slices, slices, number) for number in range(2)]
    Visits(folder, HERE, PROMPTS, 12, timed, portions, collects=collects).make(depths)


def test_every_deployment_is_asked_once_and_kept(tmp_path: Path, stand: Stand) -> None:
    visit(tmp_path, (2,))
    assert [config and json.loads(config)["method"] for config in stand.configs] == [
        None,
        "draft_model",
        "draft_model",
        "ngram",
        "draft_model",
    ]
    assert stand.mended == [False, False, True, True, True]
    for name, depth, regimes in (
        (BASELINE, 0, (GREEDY_REGIME, SAMPLED_REGIME)),
        ("draft_model_shipped", 2, (SAMPLED_REGIME,)),
        ("draft_model", 2, (GREEDY_REGIME, SAMPLED_REGIME)),
        ("draft_model_probabilistic", 2, (SAMPLED_REGIME,)),
        ("ngram", 2, (GREEDY_REGIME, SAMPLED_REGIME)),
    ):
        for regime in regimes:
            answers = collected(tmp_path, name, depth, regime)
            assert answers is not None
            for prompt, answer in zip(PROMPTS, answers, strict=True):
                assert len(answer.tokens) == 12
                assert bool(answer.drafted) == bool(depth)
                if depth:
                    of_server = Counted.of_server(answer, len(prompt), depth, drafts_always=name != "ngram")
                    assert of_server.counts.num_drafts == len(answer.drafted)
    assert collected(tmp_path, "draft_model_probabilistic", 2, GREEDY_REGIME) is None
    assert [body["temperature"] for body in stand.servers[2].bodies] == [0.0] * 4 + [0.8] * 4
    seeds = [body["seed"] for server in stand.servers for body in server.bodies]
    assert len(set(seeds)) == len(seeds), "no two requests share their luck"

    (tmp_path / "ngram-k2-sampled.json").unlink()
    visit(tmp_path, (2,))
    assert len(stand.servers) == 6, "what is there is not asked for again"
    assert [body["temperature"] for body in stand.servers[-1].bodies] == [0.8] * 4


@pytest.mark.all
def test_servers_are_timed_one_at_a_time(tmp_path: Path, stand: Stand) -> None:
    way = WAYS[0]
    visit(tmp_path, (2, 4), (way,))
    started = [server.num_speculative_tokens for server in stand.servers]
    assert started == [0, 2, 2, 2, 2, 4, 4, 4], "one baseline for all of them"
    assert not any(server.was_asked_stopped for server in stand.servers)
    assert all(server.is_stopped for server in stand.servers)
    for depth in (2, 4):
        blocks, idle = timed_blocks(tmp_path, timed_name(way, depth))
        assert idle == 0.0
        assert [(block.place, block.turn, block.is_for_costs) for block in blocks] == [
            (Place(load, at), turn, is_for_costs)
            for _ in range(2)  # portions
            for _ in range(2)  # slices
            for turn, at in enumerate((0, depth, 0))
            for load in (1, 2)
            for is_for_costs in (True, False, True)
        ]
        for block in blocks:
            for each in block.requests:
                assert each.decode_ms > 0.0
                assert each.prefill_ms > 0.0
                assert (each.steps.num_drafts > 0) == (block.place.depth > 0)
                assert each.steps.num_plain_steps == (0 if block.place.depth else 11)

    visit(tmp_path, (2, 4), (way,))
    assert len(stand.servers) == 8, "what is there is not timed again"
    (tmp_path / "timed-greedy-k4-1.json").unlink()
    visit(tmp_path, (2, 4), (way,))
    assert [server.num_speculative_tokens for server in stand.servers[8:]] == [0, 4]


@pytest.mark.all
def test_what_is_timed_alone_is_not_collected(tmp_path: Path, stand: Stand) -> None:
    visit(tmp_path, (2, 4), (WAYS[0],), collects=False)
    assert [server.num_speculative_tokens for server in stand.servers] == [0, 2, 4]
    assert {path.name for path in tmp_path.glob("*.json")} == {
        f"timed-greedy-k{depth}-{number}.json" for depth in (2, 4) for number in range(2)
    }


def test_another_pair_is_asked_greedily_through_servers_of_its_own(tmp_path: Path, stand: Stand) -> None:
    pair = Pair(tmp_path / "target", tmp_path / "draft")
    ways = [way for way in WAYS if way.is_greedy]
    for _ in range(2):
        visit_pair(tmp_path, HERE, pair, ways, (4,), PROMPTS, 12)
    assert [json.loads(config or "") for config in stand.configs] == [
        {"method": "draft_model", "model": str(pair.draft), "num_speculative_tokens": 4},
        {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 4},
    ], "what is there is not asked for again"
    assert stand.targets == [pair.target] * 2
    assert [body["temperature"] for server in stand.servers for body in server.bodies] == [0.0] * 8
    for way in ways:
        answers = collected(tmp_path, way.served.name, 4, GREEDY_REGIME)
        assert answers is not None
        assert all(len(each.tokens) == 12 and each.drafted for each in answers)
