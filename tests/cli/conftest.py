"""A working folder with a tiny pair, a configuration, a secret and traffic, and a way to run commands in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.workspace import CONFIG, Workspace, require_valid_document
from tests.cli_process import Result, run_command
from tests.small_models import save_pair


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def workspace(
    tmp_path: Path,
    tiny_pair: tuple[Path, Path],
    migrated_sqlite: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Workspace:
    monkeypatch.chdir(tmp_path)
    for variable in ("SHADOWSPEC_CONFIG", "SHADOWSPEC_DATABASE_URL", "SHADOWSPEC_HASH_SECRET"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    target, draft = tiny_pair
    (tmp_path / "shadowspec.toml").write_text(CONFIG.format(target=target, draft=draft), encoding="utf-8")
    (tmp_path / "secret").write_text("a secret of sufficient length", encoding="utf-8")

    def run(*arguments: str) -> Result:
        done = run_command(monkeypatch, capsys, *arguments)
        require_valid_document(arguments, done.out)
        return done

    return Workspace(tmp_path, run, migrated_sqlite)
