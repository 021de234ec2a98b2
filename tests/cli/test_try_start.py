"""`shadowspec try --start`: both servers are started, measured and stopped, however the trial ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowspec.app.try_out import server_keeper, started_servers
from tests.builders.workspace import Workspace, record, write_traffic
from tests.cli.test_try_servers import chat
from tests.cli_process import Result
from tests.services import is_running

NUM_RECORDS = 12
PATIENCE_S = 120.0
ROOT = Path(__file__).parents[2]
ENGINE, MODULE = ROOT / "tests" / "servers" / "fake_engine.py", "tests.servers.fake_engine"


class Place:
    """A folder with a model, a recording, and a program that pretends to be an engine."""

    def __init__(self, workspace: Workspace, pair: tuple[Path, Path]) -> None:
        self.workspace, self.pair = workspace, pair
        self.engine, self.logs = workspace.folder / "engine", workspace.folder / "logs"
        self.gguf = workspace.folder / "model.gguf"
        for folder in (self.engine, self.logs):
            folder.mkdir()
        self.gguf.touch()
        (workspace.folder / "of_the_working_directory.py").touch()
        records = [chat(number) if number % 2 else record(number) for number in range(NUM_RECORDS)]
        write_traffic(workspace.folder / "traffic.jsonl", records)

    def arguments(self, engine: str, *flags: str) -> list[str]:
        target, program = (self.gguf, [str(ENGINE)]) if engine == "llama.cpp" else (self.pair[0], ["-m", MODULE])
        words = ["try", "--start", engine, "--traffic", "traffic.jsonl", "--load", "2"]
        return [*words, "--target", str(target), "--engine-command", shlex.join([sys.executable, *program]), *flags]

    def run(self, engine: str, *flags: str) -> Result:
        return self.workspace.run(*self.arguments(engine, *flags))

    @property
    def started(self) -> list[int]:
        """The ids of all processes of the servers."""
        return [int(path.stem) for path in self.engine.glob("*.process")]

    def command_lines(self) -> list[list[str]]:
        """Of the servers, the plain one first."""
        texts = [path.read_text() for path in self.engine.glob("*.process")]
        return sorted((json.loads(text) for text in texts if text), key=len)

    def is_clean(self) -> bool:
        """Whether no process and no log is left."""
        return not any(map(is_running, self.started)) and not list(self.logs.glob("shadowspec-*"))


@pytest.fixture
def place(workspace: Workspace, tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(workspace, tiny_pair)
    monkeypatch.setenv("FAKE_ENGINE", str(place.engine))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(place.logs))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield place
    for number in place.started:
        if is_running(number):
            os.kill(number, signal.SIGKILL)


@pytest.mark.parametrize(
    ("engine", "candidate", "plain_words", "added_words"),
    [
        ("vllm", "ngram-k4", {"--enable-per-request-metrics", "--no-enable-log-requests"}, {"--speculative-config"}),
        ("llama.cpp", "ngram-simple-k4", {"--metrics", "--slots", "--jinja"}, {"--spec-type", "ngram-simple"}),
    ],
)
def test_both_servers_are_started_alike_measured_and_stopped(
    place: Place, engine: str, candidate: str, plain_words: set[str], added_words: set[str]
) -> None:
    done = place.run(engine)
    assert done.code == 0, done.err
    assert f"{NUM_RECORDS} requests measured" in done.out
    said = " ".join(done.err.split())
    assert f"candidates: {candidate};" in said
    assert "their logs may hold prompts and are deleted at the end" in said
    assert len(place.started) == 4
    assert place.is_clean()
    plain, speculating = place.command_lines()
    assert plain_words < set(plain)
    assert added_words <= set(speculating) - set(plain)
    ports = {plain[plain.index("--port") + 1], speculating[speculating.index("--port") + 1]}
    assert set(plain) <= set(speculating) | ports, "what only one of them has would count as speculation"
    again = place.run(engine)
    assert (again.code, f"{NUM_RECORDS} before" in again.out) == (0, True), again.err


def test_a_draft_model_drafts_in_place_of_n_grams(place: Place) -> None:
    draft = place.workspace.folder / "draft"
    draft.mkdir()
    (draft / "small.gguf").touch()
    done = place.run("llama.cpp", "--draft", str(draft))
    assert done.code == 0, done.err
    _, speculating = place.command_lines()
    assert speculating[speculating.index("--spec-type") + 1] == "draft-simple"
    assert speculating[speculating.index("--spec-draft-model") + 1] == str(draft / "small.gguf")
    place.engine.joinpath("broken").touch()
    done = place.run("vllm", "--draft", str(place.pair[1]), "--out", "other")
    assert done.code == 5, "only its command line is looked at"


def test_a_server_that_does_not_start_shows_the_end_of_its_log(place: Place) -> None:
    (place.engine / "broken").touch()
    done = place.run("llama.cpp")
    assert done.code == 5
    assert "the baseline server (llama.cpp) ended while it started (exit code 1)" in done.err
    assert "  loading " in done.err
    assert "no memory" in done.err
    assert "\x1b" not in done.err
    (log,) = place.logs.rglob("*.log")
    assert str(log) in done.err
    assert not any(map(is_running, place.started))


def test_a_server_that_is_not_ready_in_time_is_stopped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started_servers, "LONGEST_START_S", -1.0)
    monkeypatch.setattr(started_servers, "ANSWER_S", 1e-9)
    done = place.run("vllm")
    assert (done.code, "the baseline server (vLLM) is not ready after" in done.err) == (5, True), done.err
    assert not any(map(is_running, place.started))


def test_a_server_that_ends_in_the_middle_is_named_and_the_trial_goes_on_another_time(place: Place) -> None:
    """The addresses of the servers are others then, which are no part of a trial."""
    (place.engine / "ends").write_text("20")
    done = place.run("vllm")
    assert done.code == 5, done.err
    said = " ".join(done.err.split())
    assert "the speculative server (vLLM) ended while it was measured (exit code 7)" in said
    assert place.is_clean(), "its log may hold prompts"
    (place.engine / "ends").unlink()
    again = place.run("vllm")
    assert again.code == 0, again.err
    numbers = re.search(r"(\d+) requests? measured in .*, (\d+) before", again.out)
    assert numbers is not None, again.out
    assert int(numbers[2]) > 0
    assert int(numbers[1]) + int(numbers[2]) == NUM_RECORDS


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_process_and_no_log_is_left_by_any_end(place: Place, number: signal.Signals, code: int) -> None:
    (place.engine / "hangs").write_text("6")
    command = [sys.executable, "-m", "shadowspec", *place.arguments("vllm")]
    with subprocess.Popen(command, cwd=place.workspace.folder, stderr=subprocess.DEVNULL) as trial:
        wait_until((place.engine / "hanging").exists)
        assert len(place.started) == 4
        trial.send_signal(number)
        assert trial.wait(PATIENCE_S) == code
    wait_until(place.is_clean)


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_does_not_end_by_itself_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_keeper, "GRACE_S", 0.2)
    command = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == b"ready\n"
        assert server_keeper._end(server) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--start", "sglang", "--target", "."), 2, "starts vllm or llama.cpp"),
        (("--start", "vllm"), 2, "needs the model; give --target"),
        (("--start", "llama.cpp", "--target", "empty"), 2, "holds no .gguf file"),
        (("--start", "llama.cpp", "--target", "."), 2, "is not installed here (no llama-server on PATH)"),
        (("--start", "vllm", "--target", "."), 2, "'VENV/bin/python -m vllm.entrypoints.openai.api_server'"),
        (("--start", "vllm", "--target", ".", "--engine-command", "nowhere"), 2, "cannot be run here"),
        (("--start", "vllm", "--target", ".", "--baseline", "http://x"), 2, "leave --baseline and --speculative out"),
        (("--target", ".", "--engine-command", "x"), 2, "give --start ENGINE too"),
    ],
)
def test_what_cannot_be_started_is_said_before_anything_starts(
    place: Place, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], code: int, words: str
) -> None:
    monkeypatch.setenv("PATH", str(place.engine))
    given = list(flags)
    if "empty" in given:
        (place.workspace.folder / "empty").mkdir()
        given += ["--engine-command", shlex.join([sys.executable, str(ENGINE)])]
    done = place.workspace.run("try", "--traffic", "traffic.jsonl", *given)
    assert (done.code, words in " ".join(done.err.split())) == (code, True), done.err
    assert place.started == []
