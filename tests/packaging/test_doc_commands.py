"""Every command that the documentation shows is run as written, or proven to be one: the tables say which and why."""

from __future__ import annotations

import gzip
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import typer
import yaml

from shadowspec.cli.main import app, main
from tests.cli.conftest import record, write_traffic
from tests.cli_process import run_command
from tests.packaging.doc_commands import PAGES, ROOT, Command, commands
from tests.small_models import save_pair

COMMANDS = [command for path in PAGES for command in commands(path)]
SHADOWSPEC = [each for each in COMMANDS if each.words[0] == "shadowspec"]
# Of other programs: why nothing here can check their arguments.
OF_OTHERS = {
    "llama-server": "llama.cpp's own",
    "cmake": "builds llama.cpp",
    "ninja": "builds llama.cpp",
    "tar": "unpacks llama.cpp",
    "sqlite3": "SQLite's own",
    ".": "the shell's",
    "cd": "the shell's",
    "mkdir": "the shell's",
    "printf": "the shell's",
    "$EDITOR": "the reader's",
    "head": "in a pipe",
    "od": "in a pipe",
    "tr": "in a pipe",
}
# Parsed and not run: what they need, and the tests that run them.
NOT_RUN = {
    "worker": "a broker: tests/kafka, tests/worker",
    "produce": "a broker: tests/kafka",
    "dead-letters list": "a broker: tests/kafka",
    "dead-letters replay": "a broker: tests/kafka",
    "dashboard": "serves until stopped: tests/cli/test_dashboard.py",
    "schedule": "runs until stopped: tests/scheduler",
    "evaluate": "a harness and two servers: tests/cli/test_evaluate.py",
    "profile-server": "two servers: tests/cli/test_profile_server.py",
    "profile-device": "a longer context than the tiny model's: tests/cli/test_profile_device.py",
    "backfill": "Ray, S3 and the web: tests/cli/test_backfill.py",
    "distill": "answers of the target: tests/cli/test_distill.py",
    "demo": "minutes: tests/demo",
    "db grant": "roles of Postgres: tests/cli/test_database.py",
}
VERDICTS = (0, 1, 3, 4)  # whatever the verdict is, and that there is none


def _name(command: Command) -> str:
    """Its name, with that of its group."""
    words = command.words[1:]
    group = typer.main.get_command(app).commands.get(words[0])
    return " ".join(words[:2] if hasattr(group, "commands") else words[:1])


RUN = [each for each in SHADOWSPEC if _name(each) not in NOT_RUN]


def test_the_documentation_has_commands() -> None:
    assert len(SHADOWSPEC) > 40
    assert {each.page for each in SHADOWSPEC} >= {"README.md", "docs/tutorials/first-verdict.md", "docs/policy.md"}


def test_every_program_is_known() -> None:
    checked = {"shadowspec", "make", "python", "python3", ".venv/bin/python", "pip", "docker", "kubectl"}
    assert [str(each) for each in COMMANDS if each.words[0] not in checked | set(OF_OTHERS)] == []


@pytest.mark.parametrize("command", SHADOWSPEC, ids=str)
def test_the_command_line_takes_it(command: Command) -> None:
    _parse(typer.main.get_command(app), list(command.words[1:]))


def test_make_has_every_target_and_variable() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", text, re.MULTILINE))
    for command in COMMANDS:
        if command.words[0] == "make":
            for word in command.words[1:]:
                name, is_variable, _ = word.partition("=")
                assert name in (variables if is_variable else targets), str(command)


def test_python_has_every_module_and_file() -> None:
    elsewhere = ("vllm.",)  # of an environment of its own
    for command in COMMANDS:
        if "python" not in command.words[0]:
            continue
        if command.words[1] != "-m":
            assert (ROOT / command.words[1]).is_file(), str(command)
        elif not command.words[2].startswith(elsewhere) and command.words[2] not in ("venv", "pip"):
            path = ROOT / command.words[2].replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), str(command)


def test_pip_is_given_extras_and_constraints_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for command in COMMANDS:
        if command.words[:2] != ("pip", "install"):
            continue
        for before, word in zip(command.words[1:], command.words[2:], strict=False):
            extras = re.fullmatch(r"\.\[(.+)\]", word)
            assert before != "-c" or (ROOT / word).is_file(), str(command)
            assert extras is None or set(extras[1].split(",")) <= set(project["project"]["optional-dependencies"])


def test_containers_and_manifests_exist() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    for command in COMMANDS:
        if command.words[:2] == ("docker", "compose"):
            named = [word for word in command.words if word in services]
            assert named, str(command)
        for before, word in zip(command.words, command.words[1:], strict=False):
            if command.words[0] == "kubectl" and before in ("-f", "-k"):
                assert (ROOT / word).exists(), str(command)


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({each.page for each in RUN}))
def test_the_commands_of_a_page_run_as_written(
    page: str,
    measured: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    given = [each for each in RUN if each.page == page]
    named = (found[1] for each in given if (found := re.search(r"--endpoint (\S+)", " ".join(each.words))))
    folder = tmp_path / "folder"
    shutil.copytree(measured(next(named, "my-model")), folder)
    if any(_name(each) == "init" for each in given):
        for name in ("shadowspec.toml", "shadowspec.db", "shadowspec.secret"):
            (folder / name).unlink()
    monkeypatch.chdir(folder)
    for each in given:
        done = run_command(monkeypatch, capsys, *each.words[1:])
        assert done.code in VERDICTS, f"{each}\n{done.err}"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder by the name of its endpoint, in which a recording was measured and decided once."""
    made: dict[str, Path] = {}

    def make(endpoint: str) -> Path:
        if endpoint not in made:
            made[endpoint] = _measure(tmp_path_factory.mktemp("documented"), endpoint)
        return made[endpoint]

    return make


def _measure(folder: Path, endpoint: str) -> Path:
    target, draft = save_pair(folder / "models")
    target.rename(folder / "models/my-model")
    draft.rename(folder / "models/draft")
    traffic = write_traffic(folder / "traffic.jsonl", [record(number, model=endpoint) for number in range(24)])
    (folder / "traffic.jsonl.gz").write_bytes(gzip.compress(traffic.read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            ("init", "--target", "models/my-model", "--traffic", "traffic.jsonl", "--draft", "models/draft"),
            ("run", "traffic.jsonl"),
            ("gate",),
        ):
            patch.setattr("sys.argv", ["shadowspec", *words])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code
    return folder


def _parse(command: click.Command, words: list[str]) -> None:
    """Refuse what the command line would refuse, without running anything."""
    context = command.make_context(command.name, words)
    if isinstance(command, click.Group):
        _, child, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert child is not None
        _parse(child, rest)
