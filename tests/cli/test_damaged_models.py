"""Model folders that cannot be measured: every command ends with the same one line, of file, cause and remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.builders.workspace import Workspace, record, write_traffic
from tests.cli_process import Result

KAFKA = '\n[kafka]\nbootstrap_servers = ["127.0.0.1:9"]\ntopics = ["t"]\n'
COMMANDS = {
    "run": ("run", "traffic.jsonl"),
    "doctor": ("doctor",),
    "worker": ("worker", "--config", "mirror.toml"),
    "replay": ("replay", "traffic.jsonl"),
    "classify": ("classify", "traffic.jsonl"),
    "backfill": ("backfill", "traffic.jsonl"),
    "profile-device": ("profile-device",),
    "try": ("try", "--target", "model", "--traffic", "traffic.jsonl"),
    "init": ("init", "new.toml", "--target", "model", "--traffic", "traffic.jsonl"),
}
LOADING = ("run", "doctor", "try")  # that come to read weights


@pytest.fixture
def model(workspace: Workspace, tiny_pair: tuple[Path, Path]) -> Path:
    """A copy of the target, which the configuration names."""
    workspace.migrate()
    folder = shutil.copytree(tiny_pair[0], workspace.folder / "model")
    workspace.replace_in_config(str(tiny_pair[0]), "model")
    write_traffic(workspace.folder / "traffic.jsonl", [record(number) for number in range(8)])
    config = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    (workspace.folder / "mirror.toml").write_text(config + KAFKA, encoding="utf-8")
    return folder


def truncate(folder: Path) -> str:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return "model.safetensors is cut short"


def point(folder: Path) -> str:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    return "model.safetensors is a Git LFS pointer; download the weights (git lfs pull)"


def empty(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(b"")
    return "model.safetensors is empty; download the weights again"


def odd_ends(folder: Path) -> str:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, null]}')
    return "generation_config.json: eos_token_id cannot be [2, null]; correct it to a token id, or to a list of them"


def odd_temperature(folder: Path) -> str:
    (folder / "generation_config.json").write_text('{"temperature": "hot"}')
    return 'generation_config.json: temperature cannot be "hot"; correct it, or download it again'


def unknown_rope(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "su", "rope_theta": 10_000.0}
    (folder / "config.json").write_text(json.dumps(config))
    return "does not know the rope type 'su'; correct it to a known one"


def fewer_weights(folder: Path) -> str:
    weights = {name: weight.clone() for name, weight in load_file(folder / "model.safetensors").items()}
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return "they lack model.layers.1.mlp.up_proj.weight; download it again, or correct config.json"


def message(done: Result, command: str) -> str:
    """The one line that says what is wrong."""
    assert done.code == 2, done.err
    assert "internal error" not in done.out + done.err
    assert "Traceback" not in done.err
    if command == "doctor":
        (found,) = [row["found"] for row in done.document["checks"] if row["check"] == "models"]
        return str(found)
    (line,) = [line for line in done.err.splitlines() if line.startswith("error:")]
    return line


@pytest.mark.parametrize("damage", [truncate, point, empty, odd_ends, odd_temperature])
def test_damaged_files_are_named_before_anything_is_loaded(
    damage: Callable[[Path], str], workspace: Workspace, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> Any:
        raise AssertionError("weights were read")

    monkeypatch.setattr("shadowspec.engine.models.load_weights", never)
    wanted = damage(model)
    for command, arguments in COMMANDS.items():
        done = workspace.run(*arguments, *(("--json",) if command == "doctor" else ()))
        assert wanted in message(done, command), command


def test_a_classifier_needs_no_weights(workspace: Workspace, model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert workspace.run(*COMMANDS["classify"]).code == 0
    assert "has no weights in *.safetensors" in message(workspace.run(*COMMANDS["run"]), "run")


@pytest.mark.parametrize("damage", [unknown_rope, fewer_weights])
def test_weights_and_configs_that_do_not_fit_are_named(
    damage: Callable[[Path], str], workspace: Workspace, model: Path
) -> None:
    wanted = damage(model)
    for command in LOADING:
        done = workspace.run(*COMMANDS[command], *(("--json",) if command == "doctor" else ()))
        assert wanted in message(done, command), command
