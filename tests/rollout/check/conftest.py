"""A working folder with a configuration and a database that holds decisions, and a way to run `check` in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shadowspec.store import Store
from tests.builders.shop import URL, Shop
from tests.cli_process import Result, run_command
from tests.rollout.check.worlds import config

CONFIG = f"""\
[database]
url = "{URL}"

[endpoints.chat]
target = "target"
served_models = ["m"]
loads = [{{ concurrency = 4 }}]

[[endpoints.chat.candidates]]
name = "draft"
draft = "draft"
num_speculative_tokens = 4

[endpoints.idle]
target = "target"
served_models = ["idle"]

[[endpoints.idle.candidates]]
name = "draft"
draft = "draft"
num_speculative_tokens = 4
"""


@pytest.fixture
def shop(
    tmp_path: Path, migrated_sqlite: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shop:
    monkeypatch.chdir(tmp_path)
    for variable in ("SHADOWSPEC_CONFIG", "SHADOWSPEC_DATABASE_URL", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "shadowspec.toml").write_text(CONFIG, encoding="utf-8")
    shutil.copyfile(migrated_sqlite, tmp_path / "shadow.db")
    with Store.open(URL) as store:
        store.save_fingerprints([config(), config(revision="b")])

    def run(*arguments: str, command: str = "check") -> Result:
        return run_command(monkeypatch, capsys, command, *arguments)

    return Shop(tmp_path, run)
