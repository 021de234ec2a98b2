"""`shadowspec try` through servers: the engine that serves is measured, without a configuration file."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shadowspec.config import load_config
from shadowspec.store import Store
from tests.builders.served_models import serve
from tests.builders.workspace import Workspace, record, write_traffic
from tests.cli_process import Result
from tests.servers.fake_llamacpp import FakeLlamaCpp
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
        assert re.search(rf"^{name}  HOLD \(trial\)", done.out, re.MULTILINE)
    assert "It still needs traffic on 7 days (1 so far)" in " ".join(done.out.split())
    assert "through two servers" not in done.out, "that is done already"
    assert f"{NUM_RECORDS} requests measured" in done.out
    assert (again.code, "0 requests measured" in again.out) == (0, True), again.err
    document = tomllib.loads((workspace.folder / "shadowspec-try" / "shadowspec.toml").read_text(encoding="utf-8"))
    (endpoint,) = document["endpoints"].values()
    assert endpoint["servers"]["baseline_url"] == plain.url.rstrip("/")
    named = [server["url"] for server in endpoint["servers"]["speculative"]]
    assert named == [server.url.rstrip("/") for server in others]
    assert [candidate["num_speculative_tokens"] for candidate in endpoint["candidates"]] == [2, 3]


def test_a_float32_folder_does_not_say_in_what_its_servers_compute(
    attempt: Callable[..., Result], workspace: Workspace, tiny_pair: tuple[Path, Path]
) -> None:
    """vLLM's `auto` computes in bfloat16 there, whose rounding would be taken for faults."""
    assert '"float32"' in (tiny_pair[0] / "config.json").read_text(encoding="utf-8")
    for reported, dtype in ((None, "bfloat16"), ("torch.float32", "float32")):
        servers = [FakeServer(depth, tells_cached=True, step_s=0.0) for depth in (0, 3)]
        for server in servers:
            server.drafting = None if reported is None else {}
            server.started = {"model_config": {"dtype": reported}}
        out = workspace.folder / dtype
        with running(*servers):
            done = attempt(*(server.url for server in servers), flags=("--out", str(out)))
        assert done.code == 0, done.err
        (endpoint,) = tomllib.loads((out / "shadowspec.toml").read_text(encoding="utf-8"))["endpoints"].values()
        assert endpoint["servers"]["dtype"] == dtype


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


def chat(number: int, **changes: Any) -> dict[str, Any]:
    """One mirrored chat, of a session of its own."""
    messages = [{"role": "user", "content": "abcdefgh"[number % 7 :]}]
    body = {"model": "m", "messages": messages, "max_tokens": 6, "temperature": 0.0, **changes}
    return record(number) | {"path": "/v1/chat/completions", "request": body}


@pytest.mark.parametrize("kind", [FakeServer, FakeLlamaCpp])
def test_servers_need_no_folder_of_the_model(workspace: Workspace, kind: type[FakeServer]) -> None:
    """Of both APIs: texts are tokenized by the plain server; chats are rendered by both."""
    records = [chat(number) if number % 2 else record(number) for number in range(NUM_RECORDS)]
    traffic = write_traffic(workspace.folder / "traffic.jsonl", records)
    plain, speculating = kind(0, tells_cached=True, step_s=0.0), kind(3, tells_cached=True, step_s=0.0)
    with running(plain, speculating):
        urls = ("--baseline", plain.url, "--speculative", speculating.url)
        given = ("try", "--traffic", str(traffic), "--load", "2", *urls)
        done = workspace.run(*given)
        again = workspace.run(*given)
        config = load_config(workspace.folder / "shadowspec-try" / "shadowspec.toml", environment={})
        doctor = workspace.run("doctor", "--config", str(config.path), "--traffic", str(traffic))
    assert done.code == 0, done.err
    assert f"{NUM_RECORDS} requests measured" in done.out
    assert (again.code, f"{NUM_RECORDS} before" in again.out) == (0, True), again.err
    said = " ".join(done.err.split())
    # It may state a penalty; llama.cpp reads none, and every request sets its temperature to 0.
    told = f"{NUM_RECORDS} of {NUM_RECORDS} requests leave out repetition_penalty and get none of it"
    assert (f"{told}; the servers'" in said) == (kind is FakeServer)
    assert ("generation_config.json" in done.err) == (kind is FakeServer)
    assert "counts another length" not in said, "nothing was counted here"
    assert speculating.num_tokenized == 0, "the plain server is asked"
    (endpoint,) = config.endpoints.values()
    assert (endpoint.folder, endpoint.target) == (None, "m")
    with Store.open(config.database_url) as store:
        assert {run.failure for run in store.runs("m")} == {None}
        assert {known.details["target_tokenizer"] for known in store.fingerprints().values()} == {"the server's"}
    assert "abcdefgh" not in done.out + done.err + doctor.out + doctor.err
    assert f"{NUM_RECORDS} usable requests" in " ".join(doctor.out.split())


def test_servers_that_do_not_say_their_tokens_need_the_folder(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    plain, speculating = FakeServer(0, tells_tokens=False, step_s=0.0), FakeServer(3, tells_cached=True, step_s=0.0)
    with running(plain, speculating):
        urls = ("--baseline", plain.url, "--speculative", speculating.url)
        done = workspace.run("try", "--traffic", "traffic.jsonl", *urls)
        assert (done.code, "give the folder of its tokenizer: --target DIR" in " ".join(done.err.split())) == (2, True)
        assert attempt(plain.url, speculating.url).code == 0, "with the folder nobody is asked"
    assert plain.num_tokenized == 2, "once for a text, once for a chat"
    done = workspace.run("try", "--traffic", "traffic.jsonl")
    assert (done.code, "give --target DIR, or --baseline URL and --speculative URL" in done.err) == (2, True)


def test_a_tokenizers_folder_needs_no_weights(
    attempt: Callable[..., Result], workspace: Workspace, tiny_pair: tuple[Path, Path]
) -> None:
    bare = workspace.folder / "tokenizer"
    shutil.copytree(tiny_pair[0], bare, ignore=shutil.ignore_patterns("*.safetensors"))
    plain, speculating = FakeServer(0, step_s=0.0), FakeServer(3, tells_cached=True, step_s=0.0)
    with running(plain, speculating):
        urls = ("--baseline", plain.url, "--speculative", speculating.url)
        done = workspace.run("try", "--target", str(bare), "--traffic", "traffic.jsonl", "--load", "2", *urls)
    assert (done.code, f"{NUM_RECORDS} requests measured" in done.out) == (0, True), done.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("worker",), "asks no server for it; set target, its folder"),
        (("classify", "traffic.jsonl"), "asks no server for it; set target, its folder"),
        (("profile-server",), "set target, the folder of the tokenizer"),
    ],
)
def test_what_may_not_ask_the_servers_meanwhile_needs_the_folder(
    workspace: Workspace, command: tuple[str, ...], words: str
) -> None:
    serve(workspace, (FakeServer(url="http://127.0.0.1:9"), FakeServer(url="http://127.0.0.2:9")))
    path = workspace.folder / "shadowspec.toml"
    lines = path.read_text(encoding="utf-8").splitlines()
    kafka = '[kafka]\nbootstrap_servers = ["127.0.0.1:9"]\ntopics = ["t"]\n'
    path.write_text("\n".join([*(line for line in lines if not line.startswith("target =")), kafka]), encoding="utf-8")
    write_traffic(workspace.folder / "traffic.jsonl", [record(1)])
    done = workspace.run(*command)
    assert (done.code, words in " ".join(done.err.split())) == (2, True), done.err
