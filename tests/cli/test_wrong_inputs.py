"""Wrong inputs of every command: one line that names cause and remedy, and the exit code of its kind.

Those of `try` are in test_try.py, those of every key of the configuration in tests/config/test_file.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shadowspec.cli.main import main
from tests.builders.workspace import CONFIG, record, write_traffic
from tests.cli_process import Result, run_command

OTHER = json.dumps(record(1, model="other")).encode()
FILES = {
    "empty.jsonl": b"",
    "binary.jsonl": bytes(range(256)) * 9,
    "plain.jsonl.gz": b"{}\n",
    "text.jsonl": b"hello\n",
    "other.jsonl": OTHER,
    "other.db": b"not a database" * 100,
}
OVERRIDE = "override set --endpoint letters --reason r --author a"
UNIT = ("invalid duration", "give a number with a unit")
CHOICE = ("is not one of", "--help")

# The command line, after a run and a gate run: exit code, cause and remedy.
COMMANDS: dict[str, tuple[int, str, str]] = {
    "gat": (2, "no such command 'gat'", "did you mean gate?"),
    "gate --nosuch": (2, "no such option: --nosuch", "see `shadowspec gate --help`"),
    "gate --endpoint x": (2, "no endpoint 'x' is configured", "configured: letters"),
    "gate --explain 999": (2, "there is no decision 999", "`shadowspec check` shows the numbers"),
    "gate --explain x": (2, "must be an integer", "--help"),
    "gate --config nosuch.toml": (2, "nosuch.toml: no such file", "give a configuration file"),
    "gate --config .": (2, ".: is a folder", "give a configuration file"),
    "check": (2, "missing option '--endpoint'", "see `shadowspec check --help`"),
    "check -e lettrs": (2, "there is no endpoint 'lettrs'", "did you mean letters?"),
    "check -e letters --slice x": (2, "--slice 'x'", "expected LABEL=VALUE"),
    "check -e letters --slice x=y": (2, "is not sliced by 'x'", "its labels: prompt_class"),
    "check -e letters --load 99": (2, "has no load 99", "its loads: 2"),
    "check -e letters --max-age 24": (2, *UNIT),
    "check -e letters --on-hold x": (2, *CHOICE),
    "check -e letters --expect-engine vllm": (4, "no measured config matches", "measure the deployed model and engine"),
    "check -e letters --expect-fingerprint x": (4, "no measured config matches", "correct the expectation"),
    "plan --capacity 0": (2, "--capacity", "must be above 0"),
    "plan --capacity -1": (2, "--capacity", "must be greater than or equal to 0"),
    "plan --decide-within 24": (2, *UNIT),
    "plan --rate 5": (2, "--rate", "needs --endpoint and --decide-within"),
    "report -o nosuch/x.html": (2, "there is no folder nosuch", "create it, or give another path"),
    "report -o .": (2, ".: is a folder", "give the path of a file"),
    "report --format pdf": (2, *CHOICE),
    "report --period month": (2, "--period month: is not known", "give day, week"),
    "report --since x": (2, "--since", "must be a date or a time as 2026-03-02"),
    "report --since 2026-01-02 --until 2026-01-01": (2, "--since", "must be before --until"),
    "export": (2, "missing option '--format'", "Choose from: vllm"),
    "export --format x": (2, *CHOICE),
    "export --format vllm -e letters --out nosuch/x": (2, "there is no folder nosuch", "create it"),
    "override set --endpoint lettrs --reason r --author a": (2, "there is no endpoint", "did you mean letters?"),
    f"{OVERRIDE} --slice prompt_class=zzz": (2, "no measured record", "correct it, or give --allow-unseen"),
    f"{OVERRIDE} --slice nosuch=zzz": (2, "is not sliced by 'nosuch'", "its labels: prompt_class"),
    f"{OVERRIDE} --load 99": (2, "has no load 99", "give --allow-unseen"),
    f"{OVERRIDE} --verdict ENABLE": (2, *CHOICE),
    f"{OVERRIDE} --expires-in 24": (2, *UNIT),
    "override set --endpoint letters": (2, "missing option '--reason'", "--help"),
    "override clear 99 --reason r --author a": (
        2,
        "there is no override 99",
        "`shadowspec override list` shows the numbers",
    ),
    "run": (2, "missing argument", "see `shadowspec run --help`"),
    "run nosuch.jsonl": (2, "nosuch.jsonl: no such file", "check the path"),
    "run .": (2, ".: is a folder", "give a file of JSON lines"),
    "run empty.jsonl": (4, "empty.jsonl: is empty", "give a file of JSON lines"),
    "run binary.jsonl": (2, "binary.jsonl: is binary", "give JSON lines"),
    "run plain.jsonl.gz": (2, "is not gzip", "rename it, or compress it"),
    "run text.jsonl": (4, "no record is among the first 1 line", "give JSON lines"),
    "run other.jsonl": (4, "no record is of a configured endpoint", "change an endpoint's `match`"),
    "run t.jsonl --max-requests 0": (2, "--max-requests", "must be greater than or equal to 1"),
    "replay t.jsonl": (4, "no response could be replayed", "the table says why"),
    "replay t.jsonl --k 8..1": (2, "--k", "must be a range such as 1..8"),
    "replay t.jsonl --verify-rule x": (2, *CHOICE),
    "backfill nosuch.parquet": (2, "nosuch.parquet: no such file", "check the path"),
    "profile-device --loads x": (2, "--loads", "must be a list such as 1,4,16"),
    "profile-device --contexts 9999": (2, "a context of 9999 tokens leaves no room", "at most 224 here"),
    "profile-server -e letters": (2, "does not have engine", "add its servers (docs/servers.md)"),
    "produce t.jsonl --topic t": (2, "no mirror is configured", "add [kafka], or give --bootstrap-servers"),
    "worker": (2, "no mirror is configured", "add [kafka]"),
    "worker --endpoints lettres": (2, "no endpoint 'lettres' is configured", "letters"),
    "dead-letters list": (2, "no mirror is configured", "add [kafka]"),
    "schedule": (2, "schedule.jobs: is missing", "add a job"),
    "schedule --list": (2, "schedule.jobs: is missing", "add a job"),
    "live": (2, "endpoints.NAME.live: is missing", "add metrics_urls"),
    "dashboard --host 0.0.0.0": (2, "no login is configured", "set dashboard.auth_file"),
    "simulate --world nosuch": (2, "is not a known world", "known: "),
    "demo --requests 0": (2, "--requests", "must be greater than or equal to 4"),
    "db grant king x": (2, *CHOICE),
    "db grant reader x": (2, "only Postgres has roles", "permissions of its file"),
    "db retain --days 0": (2, "--days", "must be greater than or equal to 1"),
    "db forget-consumer x": (2, "the ledger has no consumer 'x'", "it has 'file'"),
    "init": (2, "shadowspec.toml exists already", "--force overwrites it"),
}
# What is written into the configuration in the place of what; exit code, cause and remedy.
CONFIGURATIONS: dict[tuple[str, str], tuple[int, str, str]] = {
    ("min_span_s", "min_spann_s"): (2, "gate.min_spann_s: is not a known key", "did you mean min_span_s?"),
    ("[gate]", "[gat]"): (2, "gat: is not a known key", "did you mean gate?"),
    ("[gate]", "[gate"): (2, "not valid TOML", "at line 7"),
    ("min_span_s = 0.0", "min_span_s = -1"): (2, "policy key 'min_span_s'", "must be 0 or more"),
    ("[{ concurrency = 2 }]", "4"): (2, "loads: must be an array", "for example loads = [{ concurrency = 4 }]"),
    ("[{ concurrency = 2 }]", "[4]"): (2, "loads.0: must be a table", "for example loads = [{ concurrency = 4 }]"),
    ('"draft_model"', '"draft_modl"'): (2, "draft.proposer: must be", "did you mean draft_model?"),
    ("num_speculative_tokens = 3", "num_speculative_tokens = 0"): (2, "tokens", "must be at least 1"),
    ("loads =", 'contract = "x"\nloads ='): (2, "unknown contract 'x'", "choose json, tool_call, sql"),
    ('served_models = ["m"]', 'served_models = "m"'): (2, "must be an array", 'example served_models = ["my-model"]'),
    ("sqlite:///shadow.db", "mysql://x/y"): (2, "database 'mysql' is not supported", "use sqlite:///FILE or"),
    ("sqlite:///shadow.db", "nonsense"): (2, "the database URL cannot be read", "expected sqlite:///FILE"),
    ("sqlite:///shadow.db", "sqlite:///new.db"): (2, "has no schema yet", "run `shadowspec db upgrade`"),
    ("sqlite:///shadow.db", "sqlite:///other.db"): (2, "file is not a database", "correct database.url"),
    ("sqlite:///shadow.db", "postgresql+psycopg://u:pw@127.0.0.1:1/x"): (
        5, "database x at 127.0.0.1:1 cannot be reached", "start it, or correct database.url"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, a recording without responses, its verdict, and files that nothing can read."""
    folder = tmp_path_factory.mktemp("measured")
    target, draft = tiny_pair
    (folder / "shadowspec.toml").write_text(CONFIG.format(target=target, draft=draft), encoding="utf-8")
    (folder / "secret").write_text("a secret of sufficient length", encoding="utf-8")
    write_traffic(folder / "t.jsonl", [record(number) for number in range(12)])
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in ("db upgrade", "run t.jsonl", "gate"):
            patch.setattr("sys.argv", ["shadowspec", *words.split()])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code
    return folder


@pytest.fixture
def run(measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Result]:
    monkeypatch.chdir(measured)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in [name for name in os.environ if name.startswith("SHADOWSPEC_")]:
        monkeypatch.delenv(variable)
    return lambda words: run_command(monkeypatch, capsys, *words.split())


@pytest.mark.parametrize("words", COMMANDS)
def test_a_wrong_command_line_is_answered_by_one_line(run: Callable[[str], Result], words: str) -> None:
    before = sorted(Path().rglob("*"))
    _require(run(words), *COMMANDS[words])
    assert sorted(Path().rglob("*")) == before, "nothing is written"


@pytest.mark.parametrize("change", CONFIGURATIONS, ids=lambda change: change[1])
def test_a_wrong_configuration_is_answered_by_one_line(
    run: Callable[[str], Result], change: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = Path("shadowspec.toml").read_text(encoding="utf-8")
    assert change[0] in text
    (tmp_path / "wrong.toml").write_text(text.replace(*change, 1), encoding="utf-8")
    monkeypatch.setenv("SHADOWSPEC_CONFIG", str(tmp_path / "wrong.toml"))
    _require(run("plan"), *CONFIGURATIONS[change])


def _require(done: Result, code: int, cause: str, remedy: str) -> None:
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert done.code == code, done.err
    assert [done.err.splitlines()[-1]] == lines
    assert cause in lines[0]
    assert remedy in lines[0][lines[0].index(cause) :]
