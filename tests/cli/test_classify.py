"""`classify`: slices of requests in files, and for gateways over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.workspace import Workspace

CHECKOUT = Path(__file__).parents[2]
PATIENCE_S = 120.0
CODE = {"model": "m", "prompt": "Write a Python function that sorts a list.", "temperature": 0.0, "max_tokens": 6}
PROMPT_CODE = "letters/prompt_class=code;sampling_regime=greedy"
SECRET_WORD = "abracadabra"


def test_each_request_of_a_file_has_its_slice(workspace: Workspace) -> None:
    lines = [json.dumps(CODE), json.dumps({**CODE, "model": "other"}), "{"]
    (workspace.folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    done = workspace.run("classify", "requests.jsonl")
    assert (done.code, done.out.splitlines()) == (
        0, [f"1: {PROMPT_CODE}", "2: no slice (no_endpoint)", "3: no slice (not_json)"]
    )  # fmt: skip
    (first, second, _) = workspace.run("classify", "requests.jsonl", "--json").document["requests"]
    assert first == {
        "line": 1,
        "endpoint": "letters",
        "slice": {"prompt_class": "code", "sampling_regime": "greedy"},
        "tag": PROMPT_CODE,
        "reason": None,
    }
    assert (second["slice"], second["tag"]) == (None, None)


def test_no_prompt_is_printed(workspace: Workspace) -> None:
    (workspace.folder / "requests.jsonl").write_text(json.dumps({**CODE, "prompt": SECRET_WORD, "n": SECRET_WORD}))
    done = workspace.run("classify", "requests.jsonl")
    assert SECRET_WORD not in done.out + done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give FILES, or --listen HOST:PORT, and not both"),
        (("requests.jsonl", "--listen", "127.0.0.1:0"), "give FILES, or --listen HOST:PORT, and not both"),
        (("missing.jsonl",), "missing.jsonl"),
        (("--listen", "9300"), "must be HOST:PORT, such as 127.0.0.1:9300"),
        (("--listen", "127.0.0.1:70000"), "must be HOST:PORT, such as 127.0.0.1:9300"),
    ],
)
def test_wrong_arguments_are_refused(workspace: Workspace, arguments: tuple[str, ...], message: str) -> None:
    done = workspace.run("classify", *arguments)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_an_address_that_is_taken_is_named(workspace: Workspace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = workspace.run("classify", "--listen", address)
    assert done.code == 2
    assert f"--listen {address}: cannot be listened on" in done.err


@pytest.mark.all  # tests/tap/test_classifier.py calls the application
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.all)]
)
def test_it_answers_gateways_until_stopped(workspace: Workspace, number: int, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "shadowspec", "classify", "--listen", "127.0.0.1:0"],
        cwd=workspace.folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "kernels")])},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    ) as process:
        assert process.stderr is not None
        line = next(line for line in iter(process.stderr.readline, "") if "classifying requests on" in line)
        connection = http.client.HTTPConnection("127.0.0.1", int(line.rsplit(":", 1)[1]), timeout=PATIENCE_S)
        connection.request("POST", "/v1/completions", json.dumps(CODE))
        answer = connection.getresponse()
        assert answer.read() == b""
        assert (answer.status, answer.headers["x-shadowspec-slice"]) == (200, PROMPT_CODE)
        connection.close()
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
