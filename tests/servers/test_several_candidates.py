"""One baseline and a server of each candidate: the same blocks, one order of all arms, the cost of a server's fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shadowspec.errors import ModelError, ServiceUnavailableError
from shadowspec.servers import measure_servers
from shadowspec.servers.connecting import connect
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.servers.server_settings import FactsOfArms, ServerSettings, SpeculativeServer
from shadowspec.types import (
    Arm,
    ArmOrder,
    BlockResult,
    ConstraintForm,
    ConstraintKind,
    OutputConstraint,
    Run,
    ServedMemory,
    SpeculationConfig,
)
from shadowspec.types.server_facts import FACT
from tests.builders.server_blocks import COLD, CONFIG, block, sampled, settings
from tests.identities import check_identities
from tests.servers.fake_server import FakeServer, running, status

DEPTHS = {"k2": 2, "k3": 3, "k5": 5}
CONFIGS = [replace(CONFIG, name=name, num_speculative_tokens=depth) for name, depth in DEPTHS.items()]
Four = tuple[FakeServer, FakeServer, FakeServer, FakeServer]


@pytest.fixture
def servers() -> Iterator[Four]:
    plain, *others = (FakeServer(depth, tells_queue=True, tells_cached=True) for depth in (0, *DEPTHS.values()))
    four = (plain, others[0], others[1], others[2])
    with running(*four):
        yield four


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.servers.client.FIRST_RETRY_S", 0.01)


def several(servers: Four, **changes: Any) -> ServerSettings:
    each = [SpeculativeServer(name, server.url) for name, server in zip(DEPTHS, servers[1:], strict=True)]
    return settings(servers[:2], speculative_url=None, speculative=tuple(each), **changes)


def connected(servers: Four, configs: list[SpeculationConfig] = CONFIGS, **changes: Any) -> ServerEngine:
    engine = connect(several(servers, **changes), configs, COLD, requests_per_slot=3, default_sampling={})
    for server in servers:
        server.bodies.clear()
        server.scored.clear()
    return engine


def test_what_holds_for_all_servers_is_said_once(servers: Four, caplog: pytest.LogCaptureFixture) -> None:
    for server in (servers[0], servers[2], servers[3]):
        server.tells_queue = False
    connected(servers)
    (said,) = [each.getMessage() for each in caplog.records if "queue times" in each.getMessage()]
    assert said.startswith("candidates 'k2', 'k3', 'k5': queue times are not reported")


def by_candidate(engine: ServerEngine, result: BlockResult) -> dict[str, list[Run]]:
    names = {known.fingerprint: known.config.name for known in engine.configs}
    runs: dict[str, list[Run]] = {}
    for run in result.runs:
        runs.setdefault(names[run.fingerprint], []).append(run)
    return runs


def failures(engine: ServerEngine, result: BlockResult) -> dict[str, set[str | None]]:
    return {name: {run.failure for run in runs} for name, runs in by_candidate(engine, result).items()}


def test_every_candidate_is_measured_on_the_same_requests_beside_one_baseline(servers: Four) -> None:
    servers[2].kv_tokens = 40_960
    engine = connected(servers)
    result = engine.measure(block(5, fillers=1))
    assert [len(server.bodies) for server in servers] == [6] * 4, "the baseline answers once for all of them"
    asked = [sorted((body | {"cache_salt": ""} for body in server.bodies), key=repr) for server in servers]
    assert asked == asked[:1] * 4
    runs = by_candidate(engine, result)
    assert list(runs) == list(DEPTHS)
    for name, depth in DEPTHS.items():
        assert [run.key.offset for run in runs[name]] == list(range(5))
        for run, other in zip(runs[name], runs["k2"], strict=True):
            assert run.failure is None
            assert run.counts is not None
            check_identities(run.counts)
            assert len(run.counts.num_accepted_tokens_per_pos) == depth
            assert run.baseline == other.baseline, "the time of the one baseline run"
            assert run.parity is not None
            assert run.parity.first_divergence is None
    full = ServedMemory(48_768, 48_768, 47.625, 47.625, "vllm")
    assert [result.memory[known.fingerprint] for known in engine.configs] == [
        full,
        ServedMemory(48_768, 40_960, 47.625, 40.0, "vllm"),
        full,
    ]


def test_the_order_of_all_arms_is_drawn_as_in_this_process(servers: Four, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, begun, run = connected(servers), [], measure_servers.run_conversations
    labels = {"baseline": None, "speculative (k2)": 0, "speculative (k3)": 1, "speculative (k5)": 2}

    async def watched(client: Any, *args: Any, **named: Any) -> Any:
        begun.append(labels[client.name.partition(" server")[0]])
        return await run(client, *args, **named)

    monkeypatch.setattr(measure_servers, "run_conversations", watched)
    before: Arm | None = None
    orders = set()
    for number in range(24):
        shape = structs.replace(block(1), block_id=f"{number:064}", repeats_baseline=number % 4 == 0)
        shape = structs.replace(shape, first_arm=list(Arm)[number % 2])
        order = shape.arm_order(3)
        runs = by_candidate(engine, engine.measure(shape))
        assert begun == order
        for place, name in enumerate(DEPTHS):
            (measured,) = runs[name]
            assert measured.order is not None
            repeat_ms = measured.order.baseline_repeat_ms
            assert (repeat_ms is not None) == shape.repeats_baseline
            assert measured.order == replace(ArmOrder.of(order, place, before), baseline_repeat_ms=repeat_ms)
        before = Arm.BASELINE if order[-1] is None else Arm.SPECULATIVE
        orders.add(tuple(order))
        begun.clear()
    assert len(orders) > 8


def test_a_fault_of_one_server_fails_the_runs_of_its_candidate_alone(servers: Four) -> None:
    engine = connected(servers)
    servers[3].script.extend([status(400)] * 2)
    found = failures(engine, engine.measure(block(2)))
    assert found == {"k2": {None}, "k3": {None}, "k5": {"speculative_http_400"}}
    servers[0].script.append(status(400))
    assert failures(engine, engine.measure(block(1))) == {name: {"baseline_http_400"} for name in DEPTHS}


def test_a_server_that_became_another_one_costs_its_candidate_the_block_and_ends_the_next(servers: Four) -> None:
    engine = connected(servers)

    async def replaced(server: FakeServer, body: dict[str, Any], writer: Any) -> None:
        await status(400)(server, body, writer)
        server.version = "0.33.0"

    servers[2].script.append(replaced)
    found = failures(engine, engine.measure(block(1)))
    assert found == {"k2": {None}, "k3": {"speculative_other_server"}, "k5": {None}}
    with pytest.raises(ServiceUnavailableError, match=r"speculative \(k3\) server .*it was vllm/0\.32\.0 and is now"):
        engine.measure(block(1))
    servers[2].version = "0.32.0"
    servers[0].script.append(replaced)
    assert failures(engine, engine.measure(block(1))) == {name: {"baseline_other_server"} for name in DEPTHS}


def test_a_server_that_is_away_holds_the_block_of_all(servers: Four) -> None:
    engine = connected(servers)
    servers[3].redirect = "http://elsewhere.example/"
    with pytest.raises(ServiceUnavailableError, match=r"speculative \(k5\) server .*points to elsewhere"):
        engine.measure(block(1))
    assert [len(server.bodies) for server in servers] == [0] * 4, "no arm has run"


def test_a_server_that_enforces_nothing_is_left_out_of_constrained_blocks(servers: Four) -> None:
    constraint = OutputConstraint(ConstraintKind.JSON_SCHEMA, ConstraintForm.JSON_SCHEMA, '{"type": "object"}')
    servers[1].enforces = False
    engine = connected(servers)
    asked = block(1)
    requests = tuple(structs.replace(each, constraint=constraint) for each in asked.requests)
    found = failures(engine, engine.measure(structs.replace(asked, requests=requests)))
    assert found["k2"] == {"speculative_unconstrained"}
    assert found["k3"] == found["k5"]
    assert found["k3"] != found["k2"]
    assert [len(server.bodies) for server in servers] == [2, 1, 2, 2], "a trial of each, then the block"


def test_the_baseline_scores_its_own_sampled_output_once(servers: Four) -> None:
    engine = connected(servers)
    runs = by_candidate(engine, engine.measure(sampled()))
    assert len(servers[0].scored) == 4, "its output, and that of each candidate"
    sums = [[(run.parity.baseline_z_sum, run.parity.z_sum) for run in of if run.parity] for of in runs.values()]
    assert sums == sums[:1] * 3
    assert sums[0][0][0] is not None


def test_a_candidate_among_several_has_the_fingerprint_that_it_has_alone(servers: Four) -> None:
    facts: Any = {"lora": FactsOfArms(baseline=True, speculative=False), "kv_offload": "cpu"}
    among = connected(servers, facts=facts).configs
    for config, server, known in zip(CONFIGS, servers[1:], among, strict=True):
        alone = settings((servers[0], server), facts=facts)
        (other,) = connect(alone, [config], COLD, requests_per_slot=3, default_sampling={}).configs
        assert other == known
    chosen = several(servers, facts=facts)
    first = replace(chosen.speculative[0], facts={"kv_offload": "none", "lora": True})
    chosen = replace(chosen, speculative=(first, *chosen.speculative[1:]))
    configs = connect(chosen, CONFIGS, COLD, requests_per_slot=3, default_sampling={}).configs
    assert [known.details[f"{FACT}kv_offload"] for known in configs] == ["cpu | none", "cpu", "cpu"]
    assert [known.details[f"{FACT}lora"] for known in configs] == ["on", "on | off", "on | off"]
    assert configs[1:] == among[1:]


def test_what_does_not_fit_names_the_candidate(servers: Four) -> None:
    servers[2].num_speculative_tokens = 4
    with pytest.raises(ModelError, match=r"candidate 'k3': num_speculative_tokens is 3, and .* drafts 4"):
        connected(servers)
    servers[2].num_speculative_tokens = 3
    servers[3].drafting, servers[3].started = {"num_speculative_tokens": 5}, {"lora_config": None}
    chosen = several(servers)
    last = replace(chosen.speculative[2], facts={"lora": True})
    with pytest.raises(ModelError, match=r"lora is 'on', and the speculative \(k5\) server reports 'off'"):
        connect(
            replace(chosen, speculative=(*chosen.speculative[:2], last)),
            CONFIGS, COLD, requests_per_slot=3, default_sampling={},
        )  # fmt: skip


def test_each_server_s_counters_count_its_candidate(servers: Four) -> None:
    for server in servers[1:]:
        server.level = "none"
    engine = connected(servers)
    for name, runs in by_candidate(engine, engine.measure(block(2))).items():
        for run in runs:
            assert run.failure is None
            assert run.served is not None
            assert run.served.counts_source == "counters"
            assert run.counts is not None
            assert len(run.counts.num_accepted_tokens_per_pos) == DEPTHS[name]
