"""`shadowspec profile-server`: costs of an endpoint's servers, kept by depth, and what they predict."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from shadowspec.store import Store
from shadowspec.types import SERVED_BACKEND
from tests.builders.served_models import SERVERS
from tests.builders.workspace import Workspace, record, write_traffic
from tests.servers.fake_server import FakeServer, running

SMALL = ("--loads", "2", "--contexts", "4,40", "--rounds", "2", "--greedy")


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    pair = FakeServer(step_s=0.002), FakeServer(3, step_s=0.003)
    with running(*pair):
        yield pair


def serve(workspace: Workspace, servers: tuple[FakeServer, FakeServer]) -> None:
    """Measure the endpoint through these from now on."""
    workspace.replace_in_config("loads =", 'engine = "openai"\nrequests_per_slot = 2\nloads =')
    path = workspace.folder / "shadowspec.toml"
    tables = SERVERS.format(baseline=servers[0].url, speculative=servers[1].url, length=64)
    tables = tables.replace("= 64", "= 256").replace("0.5", "10.0")
    path.write_text(path.read_text(encoding="utf-8") + tables, encoding="utf-8")


@pytest.fixture
def served(workspace: Workspace, servers: tuple[FakeServer, FakeServer]) -> Workspace:
    serve(workspace, servers)
    workspace.migrate()
    return workspace


def test_costs_are_told_written_and_kept(served: Workspace) -> None:
    done = served.run("profile-server", *SMALL, "--json", "--out", "costs.json")
    assert done.code == 0, done.err
    assert json.loads((served.folder / "costs.json").read_text(encoding="utf-8")) == done.document
    (profile_document,) = done.document["profiles"]
    assert (profile_document["endpoints"], profile_document["engine"], profile_document["device"]) == (
        ["letters"],
        "vllm/0.32.0",
        "a fake",
    )
    assert {
        (each["concurrency"], each["num_speculative_tokens"], each["context"]) for each in profile_document["points"]
    } == {(2, depth, context) for depth in (0, 3) for context in (4, 40)}
    for each in profile_document["points"]:
        assert each["step_ms"] > 0.0
        assert each["step_error_ms"] >= 0.0
    assert profile_document["num_same_outputs"] == profile_document["num_compared_outputs"] > 0
    assert [each["mean_acceptance_length"] for each in profile_document["acceptance"]] == [
        pytest.approx(2.5, abs=0.1)
    ] * 2
    with Store.open("sqlite:///shadow.db") as store:
        (key,) = store.costs()
    assert (key.engine, key.proposer, key.is_greedy) == ("vllm/0.32.0", "draft_model", True)
    shown = served.run("profile-server", *SMALL)
    assert "A step of vllm/0.32.0 on a fake" in shown.out
    assert "pays from" in shown.out
    assert "written" not in shown.err


@pytest.mark.all
def test_depths_add_up_as_the_server_is_changed(served: Workspace, servers: tuple[FakeServer, FakeServer]) -> None:
    assert served.run("profile-server", *SMALL).code == 0
    servers[1].num_speculative_tokens = 2
    servers[1].per_pos = []
    served.replace_in_config("num_speculative_tokens = 3", "num_speculative_tokens = 2")
    second = served.run("profile-server", *SMALL, "--json")
    assert second.code == 0, second.err
    (profile_document,) = second.document["profiles"]
    assert {each["num_speculative_tokens"] for each in profile_document["points"]} == {0, 2, 3}
    other = served.run("profile-server", *SMALL, "--contexts", "4,50", "--json")
    assert {each["num_speculative_tokens"] for each in other.document["profiles"][0]["points"]} == {0, 2}


@pytest.mark.all
def test_a_server_that_draws_its_acceptance_is_told(served: Workspace, servers: tuple[FakeServer, FakeServer]) -> None:
    servers[1].lost_token = 5
    done = served.run("profile-server", *SMALL)
    assert done.code == 0, done.err
    assert "greedy answers is the same from both servers" in " ".join(done.err.split())


@pytest.mark.all
def test_both_kinds_of_requests_by_default_at_the_endpoints_own_loads(served: Workspace) -> None:
    done = served.run("profile-server", "--contexts", "4", "--rounds", "2", "--no-store", "--json")
    assert done.code == 0, done.err
    assert [each["is_greedy"] for each in done.document["profiles"]] == [True, False]
    assert {each["concurrency"] for item in done.document["profiles"] for each in item["points"]} == {2}
    with Store.open("sqlite:///shadow.db") as store:
        assert store.costs() == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-e", "none"), "no endpoint 'none' is configured (configured: letters)"),
        (("--loads", "0"), "--loads must be a list such as 1,4,16"),
        (("--contexts", "x"), "--contexts must be a list such as 1,4,16"),
        (("--contexts", "250"), "a context of 250 tokens leaves no room: at most 176 here"),
    ],
)
def test_what_cannot_be_profiled(served: Workspace, arguments: tuple[str, ...], says: str) -> None:
    done = served.run("profile-server", *arguments)
    assert (done.code, done.out) == (2, "")
    assert says in " ".join(done.err.split())


def test_an_endpoint_of_this_process_has_no_server(workspace: Workspace) -> None:
    for arguments, who in (((), "no endpoint has"), (("-e", "letters"), "endpoint 'letters' does not have")):
        done = workspace.run("profile-server", *arguments)
        assert done.code == 2
        assert f'{who} engine = "openai": add its servers' in " ".join(done.err.split())


def test_servers_that_are_away_end_it_with_the_code_of_a_service(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    with running(gone := FakeServer()):
        pass
    served.replace_in_config(servers[1].url, gone.url)
    assert served.run("profile-server", *SMALL).code == 5


@pytest.mark.all
def test_acceptance_of_the_loop_times_the_servers_costs_predicts_the_server_and_is_held_against_its_timing(
    workspace: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    """The whole way: measured in this process, predicted for what serves, then timed there."""
    workspace.migrate()
    traffic = write_traffic(workspace.folder / "a.jsonl", [record(number, max_tokens=24) for number in range(8)])
    assert workspace.run("run", str(traffic)).code == 0
    serve(workspace, servers)
    assert workspace.run("profile-server", *SMALL).code == 0

    def read_messages() -> list[dict[str, object]]:
        reported = workspace.run("report", "--json")
        assert reported.code == 0, reported.err
        (endpoint,) = reported.document["endpoints"]
        return [each for each in endpoint["predictions"] if each["slice"]]

    entry, there = read_messages()
    assert str(entry["engine"]).startswith("shadowspec-torch/")
    assert (entry["predicted_speedup"], entry["why_not"]) == (None, "not profiled: run shadowspec profile-device")
    assert (there["engine"], there["device"]) == ("vllm/0.32.0", "a fake")
    assert there["predicted_speedup"] is not None
    assert (there["measured_speedup"], there["relative_error"]) == (None, None), "nothing was timed there yet"
    assert there["mean_acceptance_length"] == entry["mean_acceptance_length"]

    more = write_traffic(workspace.folder / "b.jsonl", [record(number, max_tokens=24) for number in range(20, 28)])
    assert workspace.run("run", str(more)).code == 0
    found = {(str(each["engine"]).partition("/")[0], each["fingerprint"]): each for each in read_messages()}
    with Store.open("sqlite:///shadow.db") as store:
        backends = {key: config.config.backend for key, config in store.fingerprints().items()}
    assert len(found) == 3
    on_server = [each for (engine, _), each in found.items() if engine == "vllm"]
    assert {backends[str(each["fingerprint"])] for each in on_server} == {"torch", SERVED_BACKEND}
    timed = {each["measured_speedup"] for each in on_server}
    assert len(timed) == 1, "both are held against the same timing"
    for each in on_server:
        assert each["relative_error"] == pytest.approx(each["predicted_speedup"] / each["measured_speedup"] - 1)  # type: ignore[operator]
    page = workspace.run("report", "--format", "md").out
    assert "predicted on vllm/0\\.32\\.0" in page.replace("vllm/0.32.0", "vllm/0\\.32\\.0")
