"""Without any extra everything runs but what loads models, and that names the extra."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from shadowspec.cli.main import COMMANDS
from shadowspec.types.extras import MODULES, install_command
from tests.builders.served_models import serve
from tests.builders.slim_installation import CHECKOUT, hidden_modules, run_slim
from tests.builders.workspace import Workspace, record, write_traffic
from tests.servers.fake_server import FakeServer, running

# Runs commands in one process, and prints how each ended.
COMMANDS_IN_TURN = """
import contextlib, io, json, sys
from shadowspec.cli import main
ended = []
for command in json.loads(sys.argv[1]):
    sys.argv, said, code = ["shadowspec", *command], io.StringIO(), None
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
    ended.append([code, said.getvalue()])
json.dump(ended, sys.stdout)
"""
WORKER = """
import select
from pathlib import Path
from shadowspec.app.serve_worker import engine_factories
from shadowspec.config import load_config
from shadowspec.worker.engine_process import EngineProcess, Ready
if __name__ == "__main__":
    (factory,) = engine_factories(load_config(Path("shadowspec.toml")))
    process = EngineProcess(factory)
    process.start()
    while not (events := process.poll()):
        select.select([process], [], [], 60.0)
    print(type(events[0]).__name__, events[0])
    process.stop(10.0)
"""


@pytest.fixture
def served(workspace: Workspace) -> Iterator[Workspace]:
    """A workspace whose endpoint is measured through two servers that run."""
    servers = FakeServer(0, tells_cached=True, step_s=0.0), FakeServer(3, tells_cached=True, step_s=0.0)
    write_traffic(workspace.folder / "traffic.jsonl", [record(number) for number in range(6)])
    write_traffic(workspace.folder / "bodies.jsonl", [record(number)["request"] for number in range(3)])
    with running(*servers):
        serve(workspace, servers)
        workspace.replace_in_config("max_model_len = 64", "max_model_len = 256")
        workspace.migrate()
        yield workspace


def run_commands(workspace: Workspace, *commands: list[str]) -> list[tuple[int, str]]:
    """How each of these commands ends without any extra, and what it says."""
    done = run_slim(workspace.folder, ["-c", COMMANDS_IN_TURN, json.dumps(commands)])
    assert done.returncode == 0, done.stderr
    return [(code, " ".join(said.split())) for code, said in json.loads(done.stdout)]


def test_what_is_hidden_here_is_every_extra() -> None:
    hidden = set(hidden_modules())
    wanted = {module for modules in MODULES.values() for module in modules}
    assert wanted - hidden == {"fsspec"}, "which tokenizers brings"
    assert not hidden & {"tokenizers", "jinja2", "numpy", "psycopg", "rich", "sqlalchemy", "shadowspec"}


def test_every_extra_brings_what_its_part_imports() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of = packages_distributions()
    for extra, modules in MODULES.items():
        wanted = " ".join(project["optional-dependencies"][extra]).lower()
        for module in modules:
            assert any(name.lower() in wanted for name in of[module]), (extra, module)


def test_every_command_has_its_help(workspace: Workspace) -> None:
    ended = run_commands(workspace, ["--help"], *([name, "--help"] for name in COMMANDS))
    assert {code for code, _ in ended} == {0}, ended


def test_servers_are_tried_measured_judged_and_reported(served: Workspace, tiny_pair: tuple[Path, Path]) -> None:
    document = tomllib.loads((served.folder / "shadowspec.toml").read_text(encoding="utf-8"))
    urls = document["endpoints"]["letters"]["servers"]
    trial = ["--baseline", urls["baseline_url"], "--speculative", urls["speculative_url"], "--load", "2"]
    every = {
        "doctor": (["doctor", "--traffic", "traffic.jsonl"], "none: no endpoint is measured in this process"),
        "run": (["run", "traffic.jsonl"], "6"),
        "gate": (["gate"], "HOLD"),
        "plan": (["plan"], ""),
        "report": (["report", "--out", "report.html"], ""),
        "export": (["export", "--format", "flagd"], "defaultVariant"),
        "classify": (["classify", "bodies.jsonl"], ""),
        "profile-server": (["profile-server", "--contexts", "8", "--rounds", "2"], ""),
        "try": (["try", "--target", str(tiny_pair[0]), "--traffic", "traffic.jsonl", *trial], "requests measured"),
    }
    ended = run_commands(served, *(command for command, _ in every.values()), ["check", "--endpoint", "letters"])
    for (name, (_, words)), (code, said) in zip(every.items(), ended[:-1], strict=True):
        assert (code, words in said) == (0, True), (name, said)
    assert (ended[-1][0], "Stale: the newest evidence is" in ended[-1][1]) == (4, True), "its evidence is old"


def test_a_worker_measures_through_servers(served: Workspace) -> None:
    (served.folder / "work.py").write_text(WORKER, encoding="utf-8")
    done = run_slim(served.folder, ["work.py"])
    assert (done.returncode, done.stdout.startswith("Ready")) == (0, True), done.stderr
    assert "vllm/0.32.0" in done.stdout


def test_what_loads_models_says_which_extra_to_install(workspace: Workspace, tiny_pair: tuple[Path, Path]) -> None:
    write_traffic(workspace.folder / "traffic.jsonl", [record(number) for number in range(2)])
    workspace.migrate()
    every = {
        "demo": ["demo", "--out", "demo"],
        "run": ["run", "traffic.jsonl"],
        "doctor": ["doctor"],
        "replay": ["replay", "traffic.jsonl"],
        "profile-device": ["profile-device"],
        "try": ["try", "--target", str(tiny_pair[0]), "--traffic", "traffic.jsonl", "--serving-engine", "vllm"],
        "classify": ["classify", "traffic.jsonl"],
    }
    others = {
        "backfill": ["backfill", "traffic.jsonl"],
        "classify": ["classify", "--listen", "127.0.0.1:0"],
        "dashboard": ["dashboard"],
        "simulate": ["simulate", "--world", "slowdown", "--repetitions", "1"],
    }
    ended = run_commands(workspace, *every.values(), *others.values())
    for name, (code, said) in zip((*every, *others), ended, strict=True):
        assert code == 2, (name, said)
    sentence = f"the engine in this process needs the extra `engine`: {install_command('engine')}"
    for name, (_, said) in zip(every, ended, strict=False):
        assert sentence in said, (name, said)
    for extra, (_, said) in zip(others, ended[len(every) :], strict=True):
        assert f"needs the extra `{extra}`: {install_command(extra)}" in said, said
