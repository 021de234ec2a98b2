"""Several candidates, each with a server: `doctor`, `run` and `gate` on one traffic, of which each has its verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from shadowspec.servers import closed_loop, judging
from shadowspec.servers.stream import Completion
from shadowspec.store import Store
from shadowspec.types import ArmTiming, Run
from tests.builders.served_models import serve_several
from tests.builders.workspace import Workspace, record, write_traffic
from tests.servers.fake_server import FakeServer, running

DEPTHS = {"baseline": 0, "k2": 2, "k3": 3, "k5": 5}
# Times of an output token: of a candidate that loses, of one that pays, and of one at the margin of 5% itself.
PER_TOKEN_MS = {"baseline": 2.0, "k2": 2.6, "k3": 1.2, "k5": 1.881}


def steady_timing(answer: Completion, concurrency: float) -> ArmTiming:
    """A request's times by its server, which the fakes tell by the time in their queues."""
    name = list(DEPTHS)[round(answer.queue_ms or 0.0)]
    jitter = 1.0 + (sum(answer.token_ids or ()) % 7) / 100.0
    decode_ms = PER_TOKEN_MS[name] * answer.num_output_tokens * jitter
    return replace(closed_loop.timing(answer, concurrency), queue_ms=0.0, prefill_ms=3.0, decode_ms=decode_ms)


@pytest.fixture
def servers() -> Iterator[dict[str, FakeServer]]:
    fakes = {
        name: FakeServer(depth, tells_queue=True, queue_ms=float(place), tells_cached=True, step_s=0.0)
        for place, (name, depth) in enumerate(DEPTHS.items())
    }
    with running(*fakes.values()):
        yield fakes


@pytest.fixture
def served(workspace: Workspace, servers: dict[str, FakeServer]) -> Workspace:
    """The endpoint of the workspace with three candidates, each with a server."""
    serve_several(workspace, servers["baseline"], {name: servers[name] for name in list(DEPTHS)[1:]})
    workspace.replace_in_config("token_timeout_s = 0.5", "token_timeout_s = 30.0")
    workspace.replace_in_config("requests_per_slot = 2\n", "")
    workspace.replace_in_config("[gate]", "[gate]\nlog_speedup_clip = 0.7")
    workspace.migrate()
    return workspace


def measure(workspace: Workspace, number: int) -> None:
    begin = datetime.now(UTC) - timedelta(hours=1)
    records = [
        record(place, max_tokens=6) | {"timestamp": (begin + timedelta(seconds=place)).isoformat()}
        for place in range(number)
    ]
    done = workspace.run("run", str(write_traffic(workspace.folder / "traffic.jsonl", records)), "--json")
    assert done.code == 0, done.err


def test_three_candidates_have_three_verdicts_by_the_same_blocks(
    served: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "timing", steady_timing)
    measure(served, 240)
    with Store.open(f"sqlite:///{served.folder}/shadow.db") as store:
        names = {known: config.config.name for known, config in store.fingerprints().items()}
        by_name: dict[str, list[Run]] = defaultdict(list)
        for run in store.runs("letters"):
            by_name[names[run.fingerprint]].append(run)
    measured = {
        name: {(run.key, run.block_id, run.baseline and run.baseline.decode_ms) for run in runs}
        for name, runs in by_name.items()
    }
    assert measured["k2"] == measured["k3"] == measured["k5"]
    assert len(measured["k2"]) == 240
    gated = served.run("gate", "--json")
    assert gated.code == 0, gated.err
    verdicts = {
        decision["speculation_config"]["name"]: decision["verdict"]
        for decision in gated.document["decisions"]
        if not decision["slice"]
    }
    assert verdicts == {"k2": "DISABLE", "k3": "ENABLE", "k5": "HOLD"}


def test_doctor_looks_at_each_candidate_s_server(served: Workspace, servers: dict[str, FakeServer]) -> None:
    servers["k3"].num_speculative_tokens = 4
    checks = served.run("doctor", "--json").document["checks"]
    found = [check for check in checks if check["check"].startswith("servers")]
    assert [check["check"] for check in found] == ["servers letters k2", "servers letters k3", "servers letters k5"]
    assert [check["ok"] for check in found] == [True, False, True]
    wanted = "candidate 'k3': num_speculative_tokens is 3, and the speculative server drafts 4"
    assert wanted in found[1]["found"]
    assert "with 5 speculative tokens on vllm/0.32.0" in found[2]["found"]


def test_each_server_has_its_costs(served: Workspace, servers: dict[str, FakeServer]) -> None:
    served.replace_in_config("max_model_len = 64", "max_model_len = 256")
    for server in servers.values():
        server.step_s = 0.002
    arguments = ("--loads", "2", "--contexts", "4", "--rounds", "2", "--greedy")
    done = served.run("profile-server", *arguments, "--json")
    assert done.code == 0, done.err
    profiles = {profile["config"]: profile for profile in done.document["profiles"]}
    assert [profile["num_speculative_tokens"] for profile in profiles.values()] == [2, 3, 5]
    depths = [{point["num_speculative_tokens"] for point in profile["points"]} for profile in profiles.values()]
    assert depths == [{0, 2}, {0, 2, 3}, {0, 2, 3, 5}], "one surface, which later depths join"
    with Store.open(f"sqlite:///{served.folder}/shadow.db") as store:
        (costs,) = store.costs().values()
    assert {point.num_speculative_tokens for point in costs.points} == {0, 2, 3, 5}
