"""`shadowspec try` through servers: the engine that serves is measured, without a configuration file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.workspace import Workspace, record, write_traffic
from tests.cli_process import Result
from tests.servers.fake_server import FakeServer, running

NUM_RECORDS = 12


@pytest.fixture
def attempt(workspace: Workspace, tiny_pair: tuple[Path, Path]) -> Callable[..., Result]:
    """Runs `try` on twelve requests of twelve sessions, through servers at these URLs."""
    traffic = write_traffic(workspace.folder / "traffic.jsonl", [record(number) for number in range(NUM_RECORDS)])

    def run(baseline: str | None, *speculative: str, flags: tuple[str, ...] = ()) -> Result:
        urls = [*(["--baseline", baseline] if baseline else []), *(f"--speculative={url}" for url in speculative)]
        return workspace.run(
            "try", "--target", str(tiny_pair[0]), "--traffic", str(traffic), "--load", "2", *urls, *flags
        )

    return run


def test_two_speculative_servers_are_two_candidates_on_the_engine_that_serves(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    plain, *others = servers = [FakeServer(depth, tells_cached=True, step_s=0.0) for depth in (0, 2, 3)]
    with running(*servers):
        done = attempt(plain.url, *(server.url for server in others))
        again = attempt(plain.url, *(server.url for server in others))
    assert done.code == 0, done.err
    assert "serving engine: vllm, measured on it" in done.err
    assert f"estimate: {NUM_RECORDS} requests, its time is known after the first block" in done.err
    for name in ("speculative-k2", "speculative-k3"):
        assert f"whole endpoint ({name}, load 2)" in done.out
        assert f"{name} still needs for production: evidence from 1 day, 7 needed" in done.out
    assert "through two servers" not in done.out, "that is done already"
    assert f"{NUM_RECORDS} requests measured" in done.out
    assert (again.code, "0 requests measured" in again.out) == (0, True), again.err
    document = tomllib.loads((workspace.folder / "shadowspec-try" / "shadowspec.toml").read_text(encoding="utf-8"))
    (endpoint,) = document["endpoints"].values()
    assert endpoint["servers"]["baseline_url"] == plain.url.rstrip("/")
    named = [server["url"] for server in endpoint["servers"]["speculative"]]
    assert named == [server.url.rstrip("/") for server in others]
    assert [candidate["num_speculative_tokens"] for candidate in endpoint["candidates"]] == [2, 3]


def test_wrong_servers_end_in_one_line_that_names_the_option(attempt: Callable[..., Result]) -> None:
    plain, speculating = FakeServer(0, step_s=0.0), FakeServer(3, step_s=0.0)
    with running(plain, speculating):
        for given, code, words in (
            ((plain.url,), 2, "give --speculative URL too"),
            ((None, speculating.url), 2, "give --baseline URL too"),
            ((plain.url, f"{speculating.url.rstrip('/')}/v1"), 2, "give the root of a server"),
            ((plain.url, speculating.url, speculating.url), 2, "is given twice"),
            ((speculating.url, plain.url), 2, "name a server of the same model without speculation"),
            ((plain.url, "http://127.0.0.1:9"), 5, "cannot be reached"),
        ):
            done = attempt(*given)
            assert (done.code, words in " ".join(done.err.split())) == (code, True), done.err
        done = attempt(plain.url, speculating.url, flags=("--draft", "."))
    assert (done.code, "--draft is for the engine in this process" in done.err) == (2, True)
