"""`shadowspec simulate` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shadowspec.simulate import summary
from tests.builders.workspace import Workspace


def test_one_world_as_a_table_as_json_and_in_a_file(workspace: Workspace) -> None:
    ran = workspace.run("simulate", "--world", "slowdown", "--repetitions", "3", "--jobs", "1", "--out", "sim.json")
    assert ran.code == 0, ran.err
    assert "slowdown" in ran.out
    assert "DISABLE at speedup 0.9, blocks" in ran.out
    assert "no world contradicts the gate's promise" in ran.err
    kept = json.loads((workspace.folder / "sim.json").read_text(encoding="utf-8"))
    again = workspace.run("simulate", "--world", "slowdown", "-n", "3", "--jobs", "1", "--out", "sim.json", "--json")
    assert again.document["worlds"] == kept["worlds"], "taken from the file, its seconds included"
    assert again.document["broken_promises"] == []
    assert (again.document["schema_version"], again.document["repetitions"], again.document["seed"]) == (1, 3, 1)


def test_a_world_that_is_not(workspace: Workspace) -> None:
    ran = workspace.run("simulate", "--world", "narnia")
    assert ran.code == 2
    assert "--world narnia: is not a known world (known: a_a, margin" in ran.err.replace("\n", " ")


def test_a_broken_promise_is_exit_code_4(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "POWER_WANTED", 1.2)
    ran = workspace.run("simulate", "--world", "minimum_effect", "--repetitions", "1", "--jobs", "1")
    assert ran.code == 4
    assert "broke its promise: minimum_effect: power" in ran.err.replace("\n", " ")
    assert not Path("sim.json").exists()
