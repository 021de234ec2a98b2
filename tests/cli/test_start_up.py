"""Which commands load torch: those that need it, and after they have said so; how fast they start is a benchmark."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from shadowspec.cli.main import app
from shadowspec.demo import DRAFT, TARGET
from tests.builders.workspace import Workspace, record, write_traffic

CHECKOUT = Path(__file__).resolve().parents[2]
REFUSED = ("torch", "transformers", "triton")
SLOW = ("scipy", "pandas", "pyarrow", "streamlit", "ray", "kafka")  # loaded by the commands that need them alone

# What each command is run with, in a folder with measurements and decisions, and the codes with which it may end (a
# check by its verdict). A command that needs a service gets one that refuses it: the libraries are loaded by then.
WITHOUT_TORCH: dict[str, tuple[list[str], set[int]]] = {
    "init": (["new"], {0}),
    "gate": ([], {0}),
    "gate --dry-run": ([], {0}),
    "gate --explain": (["1"], {0}),
    "check": (["--endpoint", "letters"], {0, 1, 3}),
    "plan": ([], {0}),
    "evaluate": (["--endpoint", "served", "--tasks", "sums", "--lm-eval", sys.executable], {5}),
    "live": ([], {5}),
    "profile-server": ([], {5}),
    "report": ([], {0}),
    "report --period": (["day"], {0}),
    "schedule": (["--once"], {5}),
    "dashboard": (["--port", "{taken_port}"], {2}),
    "export": (["--format", "flagd"], {0}),
    "export-training": (["--endpoint", "letters", "--traffic", "traffic.jsonl", "--out", "data"], {4}),
    "db upgrade": ([], {0}),
    "db current": ([], {0}),
    "db check": ([], {0}),
    "db retain": (["--days", "3650"], {0}),
    "db forget-consumer": (["nobody"], {2}),
    "db grant": (["reader", "nobody"], {2}),
    "override set": (["--endpoint", "letters", "--reason", "a test", "--author", "a tester"], {0}),
    "override list": ([], {0}),
    "override clear": (["1", "--reason", "a test", "--author", "a tester"], {0}),
    # Last come those that may load something slow, which stays loaded.
    "produce": (["traffic.jsonl", "--topic", "t"], {5}),
    "tail": (["traffic.jsonl", "--topic", "t"], {5}),
    "dead-letters list": ([], {5}),
    "dead-letters replay": (["--to", "again"], {5}),
    "simulate": (["--world", "slowdown", "--repetitions", "1", "--jobs", "1"], {0}),
}
# Those that load models or tokenizers; `doctor` asks torch about the device.
WITH_TORCH: dict[str, list[str]] = {
    "demo": ["--out", "demo"],
    "doctor": [],
    "run": ["traffic.jsonl"],
    "try": ["--target", "{target}", "--traffic", "traffic.jsonl", "--serving-engine", "shadowspec-torch"],
    "worker": [],
    "replay": ["traffic.jsonl"],
    "classify": ["traffic.jsonl"],
    "profile-device": [],
    "backfill": ["traffic.jsonl"],
}
NAMED_BEFORE = ("demo", "doctor", "run")  # they say what they load before they load it

CONFIG = """
[kafka]
bootstrap_servers = ["127.0.0.1:{port}"]
topics = ["t"]
retry_topics = ["again"]
dead_letter_topic = "dead"
connect_timeout_ms = 50
[schedule.jobs.weekly]
cron = "0 7 * * 1"
receivers = ["here"]
[schedule.receivers.here]
kind = "folder"
folder = "reports"
[endpoints.served]
target = "{target}"
served_models = ["s"]
match = {{ model = "s" }}
engine = "openai"
[[endpoints.served.candidates]]
name = "served"
proposer = "draft_model"
draft = "draft"
num_speculative_tokens = 3
[endpoints.served.servers]
baseline_url = "http://127.0.0.1:{port}"
speculative_url = "http://localhost:{port}"
device = "none"
dtype = "float32"
[endpoints.served.live]
metrics_urls = ["http://127.0.0.1:{port}/metrics"]
timeout_s = 1.0
"""

# Writes down which command first wants which slow package.  Torch and its like are there and cannot be loaded, so that
# one process serves all commands: what could not be imported is tried again by the next.
PROBE = """
import contextlib, importlib.abc, importlib.machinery, io, json, os, sys
refused, slow, commands = json.loads(sys.stdin.read())
wanted = []

class Refusing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in slow:
            wanted.append((name, sys.stderr.getvalue()))
        return importlib.machinery.ModuleSpec(name, self) if name in refused else None

    def create_module(self, spec):
        wanted.append((spec.name, sys.stderr.getvalue()))
        raise ImportError(f"{spec.name} is refused")

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Refusing())
from shadowspec.cli import main
from shadowspec.cli import console
found = []
for command in commands:
    wanted.clear()
    sys.argv = ["shadowspec", *command]
    said, code = io.StringIO(), None
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    found.append({"code": code, "wanted": list(wanted), "said": said.getvalue()})
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True)
class Started:
    """How a command ended, the slow packages that it wanted, and what it had said before the first of them."""

    code: int
    wanted: set[str]
    said_before: str
    said: str


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command of the command line, by the words that call it."""
    children: dict[str, Any] = getattr(command, "commands", {})
    if not children:
        yield " ".join(path)
    for name, child in children.items():
        yield from leaves(child, (*path, name))


def command_of(words: str) -> str:
    """The words without the options among them."""
    return " ".join(word for word in words.split() if not word.startswith("-"))


@pytest.fixture
def measured(workspace: Workspace) -> Workspace:
    """A folder with measurements, decisions and a configuration of everything; no service of it is there."""
    traffic = write_traffic(workspace.folder / "traffic.jsonl", [record(number) for number in range(4)])
    for command in (["db", "upgrade"], ["run", str(traffic)], ["gate"]):
        assert workspace.run(*command).code == 0
    return workspace


def probe(folder: Path, commands: dict[str, list[str]], refused: tuple[str, ...]) -> dict[str, Started]:
    """Run commands in one process that cannot load some packages."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps([refused, SLOW, [[*words.split(), *given] for words, given in commands.items()]]),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "kernels")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for words, each in zip(commands, json.loads(done.stdout), strict=True):
        before = each["wanted"][0][1] if each["wanted"] else ""
        found[words] = Started(each["code"], {name for name, _ in each["wanted"]}, before, each["said"])
    return found


def start(workspace: Workspace, commands: dict[str, list[str]]) -> dict[str, Started]:
    """Run commands where everything is configured, and neither torch nor any service is there."""
    path = workspace.folder / "shadowspec.toml"
    target = path.read_text(encoding="utf-8").partition('target = "')[2].partition('"')[0]
    with socket.socket() as taken, socket.socket() as closed:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        closed.bind(("127.0.0.1", 0))
        added = CONFIG.format(port=closed.getsockname()[1], target=target)
        path.write_text(path.read_text(encoding="utf-8") + added, encoding="utf-8")
        port = str(taken.getsockname()[1])
        values = {"taken_port": port, "target": target}
        filled = {words: [each.format(**values) for each in given] for words, given in commands.items()}
        return probe(workspace.folder, filled, REFUSED)


def test_every_command_is_listed_here() -> None:
    listed = [*WITHOUT_TORCH, *WITH_TORCH]
    assert {command_of(words) for words in listed} == set(leaves(typer.main.get_command(app)))
    assert not {command_of(words) for words in WITHOUT_TORCH} & set(WITH_TORCH)


def test_what_needs_no_model_loads_no_torch(measured: Workspace) -> None:
    started = start(measured, {words: given for words, (given, _) in WITHOUT_TORCH.items()})
    assert {words: each.wanted for words, each in started.items() if each.wanted} == {
        "dashboard": {"streamlit"},  # it looks whether it is installed
        "produce": {"kafka"},
        "simulate": {"scipy"},
    }
    for words, (_, codes) in WITHOUT_TORCH.items():
        assert started[words].code in codes, (words, started[words].said)


def test_what_needs_torch_says_what_it_loads_before_it_does(measured: Workspace) -> None:
    started = start(measured, WITH_TORCH)
    assert [words for words, each in started.items() if not each.wanted & set(REFUSED)] == []
    for words in NAMED_BEFORE:
        (line, *_) = started[words].said_before.splitlines() or [""]
        assert line.partition(", ")[0] == "loading torch", (words, line)
    folders = started["run"].said_before
    assert "target" in folders
    assert "draft" in folders
    assert "the tokenizer of " in folders


def test_where_no_endpoint_is_configured_nothing_is_loaded(workspace: Workspace) -> None:
    path = workspace.folder / "shadowspec.toml"
    path.write_text(path.read_text(encoding="utf-8").partition("[endpoints")[0], encoding="utf-8")
    ran = workspace.run("run", "traffic.jsonl")
    assert (ran.code, "no endpoint is configured" in ran.err, "loading" in ran.err) == (2, True, False)


@pytest.mark.all
def test_doctor_loads_only_models_whose_files_leave_a_doubt(workspace: Workspace, tiny_pair: tuple[Path, Path]) -> None:
    assert workspace.run("db", "upgrade").code == 0
    doubtful = workspace.run("doctor")
    assert (doubtful.code, f"loading torch, {tiny_pair[0]}, {tiny_pair[1]}" in doubtful.err) == (0, True)
    for tiny, bundled in zip(tiny_pair, (TARGET, DRAFT), strict=True):
        workspace.replace_in_config(str(tiny), str(bundled))
    settled = probe(workspace.folder, {"doctor": ["--json"]}, ("transformers",))["doctor"]
    assert settled == Started(0, set(), "", "loading torch\n")
