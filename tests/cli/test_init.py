"""`shadowspec init` from a model and a recording, and what `doctor` says of a recording."""

from __future__ import annotations

import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from shadowspec.config import load_config
from shadowspec.store import Store
from tests.builders.workspace import Workspace, record, write_traffic
from tests.servers.fake_server import FakeServer, running

MOST_LINES = 15


@pytest.fixture
def recording(workspace: Workspace) -> str:
    """Twelve requests of twelve sessions, one of another model, one that no server of ours takes, and a broken line."""
    records = [
        *(record(number) for number in range(12)),
        record(12, model="other"),
        record(13, prompt=[1, 2, 3], suffix="x"),
        "no object",
    ]
    return str(write_traffic(workspace.folder / "traffic.jsonl", records))


def test_a_model_and_a_recording_give_a_short_configuration_that_works(
    workspace: Workspace, tiny_pair: tuple[Path, Path], recording: str
) -> None:
    target, draft = map(str, tiny_pair)
    given = ("--target", target, "--traffic", recording, "--draft", draft, "--serving-engine", "vllm")
    done = workspace.run("init", "new/shadowspec.toml", *given)
    assert done.code == 0, done.err
    folder = workspace.folder / "new"
    text = (folder / "shadowspec.toml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert stat.S_IMODE((folder / "shadowspec.secret").stat().st_mode) == 0o600
    with Store.open(f"sqlite:///{folder}/shadowspec.db") as store:
        assert store.endpoints() == []
    endpoint = load_config(folder / "shadowspec.toml", environment={}).endpoints["m"]
    assert [each.name for each in endpoint.candidates] == ["ngram-k4", "suffix-k8", "draft-k4"]
    assert endpoint.policy.serving_engine == "vllm"
    assert "other models in the file, left out: other" in done.err

    checked = workspace.run("doctor", "--config", "new/shadowspec.toml", "--traffic", recording)
    assert checked.code == 0, checked.out
    words = " ".join(checked.out.split())
    assert "12 usable requests of 12 sessions; about 3 of the file would be timed" in words
    assert "timed (timed_positions is 4; 1 fits these sessions and times more); 11 seconds" in words
    assert "11 seconds of the 7 days that ENABLE needs (min_span_s); not usable: " in words
    assert "of no endpoint: no_endpoint: 1, not_an_object: 1" in words

    again = workspace.run("init", "new/shadowspec.toml", *given)
    assert again.code == 2
    assert "--force overwrites it" in again.err


def test_a_recording_of_one_s_own_is_read_by_a_map(workspace: Workspace, tiny_pair: tuple[Path, Path]) -> None:
    own = [{"call": each["request"], "at": each["timestamp"]} for each in map(record, range(3))]
    traffic = str(write_traffic(workspace.folder / "own.jsonl", own))
    given = ("--target", str(tiny_pair[0]), "--traffic", traffic, "--serving-engine", "vllm")
    unread = workspace.run("init", "new/shadowspec.toml", *given)
    assert (unread.code, "give --map request=call" in unread.err) == (4, True), unread.err
    done = workspace.run("init", "new/shadowspec.toml", *given, "--map", "request=call,time=at")
    assert done.code == 0, done.err
    assert list(load_config(workspace.folder / "new/shadowspec.toml", environment={}).endpoints) == ["m"]


def test_full_writes_every_key_with_the_same_values(
    workspace: Workspace, tiny_pair: tuple[Path, Path], recording: str
) -> None:
    given = ("--target", str(tiny_pair[0]), "--traffic", recording)
    assert workspace.run("init", "short", *given).code == 0
    assert workspace.run("init", "full", *given, "--full").code == 0
    short, full = (load_config(workspace.folder / name, environment={}) for name in ("short", "full"))
    assert full.endpoints["m"] == short.endpoints["m"]
    assert replace(full, path=short.path, policy_path=short.policy_path) == short
    assert len((workspace.folder / "full").read_text(encoding="utf-8").splitlines()) > 10 * MOST_LINES


def test_a_name_that_toml_must_quote(workspace: Workspace, tiny_pair: tuple[Path, Path]) -> None:
    traffic = write_traffic(workspace.folder / "t.jsonl", [record(number, model="org/m-1.5") for number in range(4)])
    given = ("--target", str(tiny_pair[0]), "--traffic", str(traffic), "--full")
    done = workspace.run("init", "full", *given)
    assert done.code == 0, done.err
    assert list(tomllib.loads(Path("full").read_text(encoding="utf-8"))["endpoints"]) == ["m-1.5"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--target", "model"), "init needs --target and --traffic together; give --traffic FILE too"),
        (("--traffic", "file"), "init needs --target and --traffic together; give --target DIR too"),
        (("--draft", "model"), "--draft and --model need --target DIR and --traffic FILE"),
    ],
)
def test_options_that_need_others(workspace: Workspace, given: tuple[str, ...], message: str) -> None:
    done = workspace.run("init", "new.toml", *given)
    assert done.code == 2
    assert message in done.err
    assert not Path("new.toml").exists()


def test_a_recording_of_another_endpoint_is_wrong(workspace: Workspace) -> None:
    others = [record(number, model="another") for number in range(3)]
    traffic = write_traffic(workspace.folder / "others.jsonl", others)
    assert workspace.run("db", "upgrade").code == 0
    done = workspace.run("doctor", "--traffic", str(traffic))
    assert done.code == 4
    assert "of no endpoint: no_endpoint: 3" in done.out
    gone = workspace.run("doctor", "--traffic", "gone.jsonl")
    assert gone.code == 2
    assert "gone.jsonl" in gone.out


@pytest.mark.parametrize("has_traffic", [False, True])
def test_servers_give_a_short_configuration_that_works(workspace: Workspace, recording: str, has_traffic: bool) -> None:
    plain, *others = servers = [FakeServer(depth, tells_cached=True, step_s=0.0) for depth in (0, 2, 3)]
    traffic = ("--traffic", recording) if has_traffic else ()
    with running(*servers):
        urls = ("--baseline", plain.url, *(f"--speculative={server.url}" for server in others))
        done = workspace.run("init", "new/shadowspec.toml", *urls, *traffic)
        assert done.code == 0, done.err
        checked = workspace.run("doctor", "--config", "new/shadowspec.toml", *traffic)
        measured = workspace.run("run", "--config", "new/shadowspec.toml", recording, "--json")
    assert checked.code == 0, checked.out
    assert (measured.code, measured.document["requests_measured"] > 0) == (0, True), measured.err
    assert "serving_engine: vllm, measured on it" in done.err
    endpoint = load_config(workspace.folder / "new" / "shadowspec.toml", environment={}).endpoints["m"]
    assert (endpoint.folder, endpoint.policy.serving_engine) == (None, "vllm")
    assert [each.num_speculative_tokens for each in endpoint.candidates] == [2, 3]
    assert endpoint.servers is not None
    assert endpoint.servers.roots == tuple(server.url.rstrip("/") for server in servers)
    assert not endpoint.policy.recording_only
    assert ("other models in the file, left out: other" in done.err) == has_traffic


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--baseline", "http://h:1"), "give --speculative URL too"),
        (("--speculative", "http://h:1"), "give --baseline URL too"),
        (("--baseline", "http://h:1", "--speculative", "http://h:2", "--full"), "--full: leave it out"),
        (("--baseline", "http://h:1", "--speculative", "http://h:2", "--server", "http://h:1"), "--server: leave it"),
        (("--baseline", "http://h:1", "--speculative", "http://h:2", "--draft", "."), "--draft is for the engine in"),
    ],
)
def test_options_that_contradict_servers_are_named(workspace: Workspace, given: tuple[str, ...], words: str) -> None:
    done = workspace.run("init", "new.toml", *given)
    assert (done.code, words in " ".join(done.err.split())) == (2, True), done.err
    assert not (workspace.folder / "new.toml").exists()
