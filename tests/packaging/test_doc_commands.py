"""Every command that the documentation shows is run as written, or its words are checked: the tables say which and why.

The commands of a page run in their order, in a folder that has what the page presupposes: model folders, a recording,
a configuration and a database with evidence; of the pages on the mirror also a real Kafka and Postgres.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import typer
import yaml
from sqlalchemy import NullPool

from shadowspec.cli.main import app, main
from shadowspec.store import Store
from shadowspec.store.admin import schema
from tests.builders.databases import temporary_database
from tests.builders.workspace import record, write_traffic
from tests.cli_process import run_command
from tests.kafka_topics import Topics
from tests.packaging.doc_commands import PAGES, ROOT, Command, commands, mentions
from tests.servers.fake_llamacpp import FakeLlamaCpp
from tests.servers.fake_server import FakeServer, running
from tests.servers.fake_sglang import FakeSglang
from tests.services import PATIENCE_S, free_port
from tests.small_models import letter_tokenizer, save_model, tiny_llama

COMMANDS = [command for path in PAGES for command in commands(path)]
MENTIONS = [command for path in PAGES for command in mentions(path)]
CLI: Any = typer.main.get_command(app)
SHADOWSPEC = [each for each in COMMANDS if each.words[0] == "shadowspec"]
CHECKED = ("shadowspec", "make", "python", "python3", ".venv/bin/python", "pip", "docker", "kubectl")
# Of other programs: why nothing here can check their arguments.
OF_OTHERS = {
    "llama-server": "llama.cpp's own",
    "cmake": "builds llama.cpp",
    "ninja": "builds llama.cpp",
    "harness/bin/pip": "lm-evaluation-harness's environment",
    "tar": "unpacks llama.cpp",
    "vllm": "vLLM's own; its middleware: tests/capture",
    "litellm": "LiteLLM's own; its callback: tests/capture",
    "uvicorn": "the web server's own; the application: tests/capture",
    "opentelemetry-instrument": "OpenTelemetry's own",
    "sha256sum": "coreutils' own; on a release's digests: tests/packaging/test_release.py",
    "gh": "GitHub's own",
    "cd": "the shell's",
    "export": "the shell's",
    "mkdir": "the shell's",
    "printf": "the shell's",
}
# Of `shadowspec`, by their first words: parsed and not run here; why, and the tests that run them.
NOT_RUN = {
    "backfill": "S3, the web and a Ray cluster: tests/cli/test_backfill.py, test_backfill_cluster.py",
    "classify --listen": "serves until it is stopped: tests/cli/test_classify.py",
    "dashboard": "serves until it is stopped: tests/cli/test_dashboard.py",
    "demo": "takes minutes: tests/demo",
    "export-training": "chats with answers: tests/cli/test_export_training.py",
    "evaluate": "a harness and two servers: tests/cli/test_evaluate.py",
    "profile-device": "half a minute for its grid: tests/cli/test_profile_device.py",
    "profile-server": "a benchmark of two servers: tests/cli/test_profile_server.py",
    "try --traffic traffic.jsonl --start": "starts an installed engine: tests/cli/test_try_start.py",
    "tail": "follows a log until it is stopped: tests/capture/test_capture_to_kafka.py",
}
SERVED = ("worker", "produce", "dead-letters", "db grant")  # need the broker or Postgres
WORKER_PAGE = "docs/jobs/own-a-gateway.md"  # where the worker is run, of all pages that show its command
# `make test-all` alone runs these: each takes a second or more.  What they show of the commands is shown by others too.
LONG_PAGES = {
    WORKER_PAGE,
    *(f"docs/{name}.md" for name in ("jobs/run-llamacpp", "jobs/run-sglang", "planning", "replay", "routes", "try")),
}
NUM_RECORDS = 120
# The servers of a page: without speculation, and with it.
SERVERS = ("http://localhost:8000", "http://localhost:8001")
KINDS = {"docs/jobs/run-sglang.md": FakeSglang, "docs/jobs/run-llamacpp.md": FakeLlamaCpp}  # else vLLM's


def _text(command: Command) -> str:
    return " ".join(command.words[1:])


def _is_run(command: Command) -> bool:
    is_worker_elsewhere = _text(command) == "worker" and command.page != WORKER_PAGE
    return not _text(command).startswith(tuple(NOT_RUN)) and not is_worker_elsewhere


RUN = [each for each in SHADOWSPEC if _is_run(each)]


def test_the_documentation_has_commands() -> None:
    assert len(SHADOWSPEC) > 40
    assert {each.page for each in RUN} >= {"README.md", "docs/jobs/run-vllm.md", "docs/jobs/on-call.md"}
    assert len(MENTIONS) > 100


def test_every_program_is_known() -> None:
    programs = {each.words[0]: str(each) for each in COMMANDS}
    assert [shown for name, shown in programs.items() if name not in (*CHECKED, *OF_OTHERS)] == []
    assert [name for name in OF_OTHERS if name not in programs] == [], "no page shows them"
    assert [start for start in NOT_RUN if not any(_text(each).startswith(start) for each in SHADOWSPEC)] == []


@pytest.mark.parametrize("command", SHADOWSPEC, ids=str)
def test_the_command_line_takes_it(command: Command) -> None:
    _parse(CLI, list(command.words[1:]))


def test_a_wrong_command_is_refused() -> None:
    for words in (["plan", "--nosuch"], ["dead-letters", "list", "--limit", "3"], ["gate", "--explain", "x"], ["gat"]):
        with pytest.raises(Exception, match=r"No such|valid integer"):
            _parse(CLI, words)


def test_the_sentences_name_commands_and_options_that_exist() -> None:
    for mention in MENTIONS:
        if mention.words[0] == "make":
            _require_target(mention)
            continue
        command = CLI
        words = list(mention.words[1:])
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, str(mention)
            command = command.commands[words.pop(0)]
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert [word for word in words if word.startswith("-") and word not in options] == [], str(mention)


def test_make_has_every_target_and_variable() -> None:
    for command in COMMANDS:
        if command.words[0] == "make":
            _require_target(command)


def test_python_has_every_module_and_file() -> None:
    elsewhere = ("vllm.", "sglang.")  # of an environment of its own
    for command in COMMANDS:
        if "python" not in command.words[0]:
            continue
        if command.words[1] != "-m":
            path = ROOT / command.words[1]
        elif command.words[2].startswith(elsewhere) or command.words[2] in ("venv", "pip"):
            continue
        else:
            module = ROOT / command.words[2].replace(".", "/")
            path = module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
        assert path.is_file(), str(command)
        _require_options(command, [path], command.words[2:])


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
            words = [word for word in command.words[3:] if word not in ("--rm", "--build")]
            assert words[0] in services, str(command)
            if words[1:]:  # of `docker compose run`: a command of the image's program
                _parse(CLI, words[1:])
        for before, word in zip(command.words, command.words[1:], strict=False):
            if command.words[0] == "kubectl" and before in ("-f", "-k"):
                assert (ROOT / word).exists(), str(command)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.all] * (page in LONG_PAGES))
        for page in sorted({each.page for each in RUN})
    ],
)
def test_the_commands_of_a_page_run_as_written(
    page: str,
    measured: Callable[[str], Path],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    given = [each for each in RUN if each.page == page]
    named = (found[1] for each in given if (found := re.search(r"--endpoint (\S+)", _text(each))))
    folder = tmp_path / "folder"
    shutil.copytree(measured(next(named, "my-model")), folder)
    monkeypatch.chdir(folder)
    if any(_text(each).startswith("init") for each in given):
        for name in ("shadowspec.toml", "shadowspec.db", "shadowspec.secret"):
            (folder / name).unlink()
    if any(_text(each).startswith(SERVED) for each in given):
        request.getfixturevalue("services")
        if not any(_text(each) == "db upgrade" for each in given):
            schema.upgrade(os.environ["SHADOWSPEC_DATABASE_URL"])
    servers = [KINDS.get(page, FakeServer)(depth, model="my-model", tells_cached=True, step_s=0.0) for depth in (0, 3)]
    with running(*servers):
        urls = dict(zip(SERVERS, (server.url for server in servers), strict=True))
        for each in given:
            if _text(each) == "worker":
                _run_worker()
                continue
            done = run_command(monkeypatch, capsys, *(urls.get(word, word) for word in each.words[1:]))
            # The evidence is a recording of one day, and old.
            assert done.code in ((3, 4) if each.words[1] == "check" else (0,)), f"{each}\n{done.err}"


@pytest.fixture
def services(
    postgres_url: str, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Postgres with the roles of the pages and Kafka with the topics of `make services`, in the configuration."""
    engine = sqlalchemy.create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    roles = [each.words[-1] for each in RUN if _text(each).startswith("db grant")]

    def for_each_role(statement: str) -> None:
        with engine.connect() as connection:
            for role in roles:
                connection.exec_driver_sql(f'{statement} "{role}"')

    for_each_role("CREATE ROLE")
    with temporary_database(postgres_url) as url, Topics(kafka_bootstrap) as topics:
        for topic in ("shadow.prompts", "shadow.retry", "shadow.dead-letters"):
            topics.create(name=topic)
        monkeypatch.setenv("SHADOWSPEC_DATABASE_URL", url)
        with (tmp_path / "folder/shadowspec.toml").open("a", encoding="utf-8") as file:
            file.write(
                f'\n[kafka]\nbootstrap_servers = ["{kafka_bootstrap}"]\ntopics = ["shadow.prompts"]\n'
                f'retry_topics = ["shadow.retry"]\n[worker]\nhealth_address = "127.0.0.1:{free_port()}"\n'
            )
        yield
    for_each_role("DROP ROLE")


def _run_worker() -> None:
    """Run `shadowspec worker` until it has read every record, then ask it to drain, as Ctrl-C does."""
    address = tomllib.loads(Path("shadowspec.toml").read_text(encoding="utf-8"))["worker"]["health_address"]
    with subprocess.Popen(
        [sys.executable, "-m", "shadowspec", "worker"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as worker:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while worker.poll() is None and _lag(address) != 0:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            worker.send_signal(signal.SIGINT)
            said, _ = worker.communicate(timeout=PATIENCE_S)
        finally:
            worker.kill()
    assert worker.returncode == 130, said
    with Store.open(os.environ["SHADOWSPEC_DATABASE_URL"]) as store:
        assert sum(store.funnel().values()) == NUM_RECORDS


def _lag(address: str) -> float | None:
    """Records that the worker has not read yet; None before it knows."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            found = re.findall(
                r"^shadowspec_consumer_lag_messages\{.*shadow.prompts.* (\S+)$", answer.read().decode(), re.MULTILINE
            )
    except OSError:
        return None
    return sum(map(float, found)) if found else None


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
    save_model(folder / "models/my-model", tiny_llama(3, layers=5), letter_tokenizer())
    save_model(folder / "models/draft", tiny_llama(4, layers=1), letter_tokenizer())
    choice = {"text": "abc", "token_ids": [2, 3, 4], "finish_reason": "length"}
    answer = {"model": endpoint, "choices": [choice], "usage": {"completion_tokens": 3}}
    traffic = write_traffic(
        folder / "traffic.jsonl",
        [
            record(number, model=endpoint, max_tokens=3, temperature=1.0)
            | {"response": answer, "metadata": {"consent": "yes"}}
            for number in range(NUM_RECORDS)
        ],
    )
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
            if words[0] == "init":
                config = folder / "shadowspec.toml"
                text = config.read_text(encoding="utf-8")
                config.write_text(
                    text.replace("served_models", 'labels = { consent = ["yes"] }\nserved_models', 1), encoding="utf-8"
                )
    return folder


def _parse(command: Any, words: list[str]) -> None:
    """Refuse what the command line would refuse, without running anything."""
    context = command.make_context(command.name, words)
    if hasattr(command, "commands"):  # a group
        _, child, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        _parse(child, rest)


def _require_target(command: Command) -> None:
    """The Makefile has the target and the variables of a command, and the target's script the options in ARGS."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = dict(re.findall(r"^([a-z][a-z-]*):.*\n((?:\t.*\n)*)", text, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", text, re.MULTILINE))
    for word in command.words[1:]:
        name, is_variable, value = word.partition("=")
        assert name in (variables if is_variable else rules), str(command)
        rule = rules.get(command.words[1], "")
        name_given = re.search(r"NAME=(\w+)", f"{rule} {' '.join(command.words)}")
        benchmark = f"kernels/benchmarks/{name_given[1] if name_given else 'decode'}.py"
        is_benchmark = name_given or command.words[1] == "bench"
        scripts = [ROOT / benchmark] if is_benchmark else [ROOT / path for path in re.findall(r"\S+\.py", rule)]
        if name == "ARGS" and scripts:
            _require_options(command, scripts, value.split())


def _require_options(command: Command, scripts: Iterable[Path], words: Iterable[str]) -> None:
    """A script, or a module that it imports, declares each option."""
    found: dict[Path, str] = {}
    waiting = list(scripts)
    while waiting:
        if (script := waiting.pop()) not in found:
            found[script] = script.read_text(encoding="utf-8")
            for name in re.findall(r"^from ([\w.]+) import", found[script], re.MULTILINE):
                module = f"{name.replace('.', '/')}.py"
                waiting += [ROOT / module] if (ROOT / module).is_file() else []
    for word in words:
        assert not word.startswith("--") or any(f'"{word}"' in text for text in found.values()), f"{command}: {word}"
