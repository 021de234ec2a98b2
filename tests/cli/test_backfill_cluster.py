"""`shadowspec backfill` on a cluster of this machine, an actor of which is killed at its work: nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from shadowspec.engine.models import load_model
from tests.backfill.processes import Process, python, temporary_folder, wait_for_actors, wait_until_ended
from tests.builders.answered_records import NGRAM, answered
from tests.builders.workspace import Workspace, write_traffic
from tests.services import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.integration]

NUM_FILES = 8
NUM_ANSWERS, REPEATS = 12, 8  # of a file


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As many as an actor has: sums of floats are then made in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def logs(workspace: Workspace) -> Path:
    """Files of the same answers in other sessions, one with a record that is none, and one without any."""
    path = workspace.folder / "shadowspec.toml"
    config = path.read_text(encoding="utf-8")
    path.write_text(config + NGRAM, encoding="utf-8")
    target = load_model(config.split('target = "')[1].split('"')[0], torch.device("cpu"), torch.float32)
    answers = [answered(target, number, temperature=0.8 if number % 3 == 0 else 0.0) for number in range(NUM_ANSWERS)]
    folder = workspace.folder / "logs"
    folder.mkdir()
    for file in range(NUM_FILES):
        records: list[Any] = [
            answer | {"session_id": f"session-{file}-{number % 5}-{place}", "request_id": f"{file}-{number}-{place}"}
            for place in range(REPEATS)
            for number, answer in enumerate(answers)
        ]
        write_traffic(folder / f"{file}.jsonl", [*records, "no record"] if file == 3 else records)
    (folder / "empty.jsonl").touch()
    return folder


def started(folder: Path, temporary: Path) -> AbstractContextManager[Process]:
    """The command, with two actors."""
    options = ["--k", "1..4", "--actors", "2", "--cpus-per-actor", "0.5", "--json"]
    return python(["-m", "shadowspec", "backfill", "logs", *options], temporary, folder)


def rows(database: Path, table: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(database) as connection:
        return sorted(connection.execute(f"select * from {table}").fetchall(), key=repr)


@pytest.mark.all
def test_an_actor_is_killed_and_the_rows_are_those_of_one_process(
    workspace: Workspace, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.migrate()
    with temporary_folder() as temporary, started(workspace.folder, temporary) as command:
        os.kill(wait_for_actors(command, temporary)[0], signal.SIGKILL)
        out, said = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 0, said
        assert wait_until_ended(temporary) == {}
        assert list(temporary.iterdir()) == []
    document = json.loads(out)
    number = NUM_FILES * NUM_ANSWERS * REPEATS
    assert (document["records"], document["requests_replayed"]) == (number + 1, number)
    assert (document["blocks"], document["blocks_found"]) == (NUM_FILES, 0)
    assert document["unfinished_files"] == []
    assert all(item["is_finished"] for item in document["files"]), "nothing of the empty one is left to do"
    assert [item["error"] is None for item in document["files"]] == [True] * NUM_FILES + [False]
    assert f"skipped: {logs / 'empty.jsonl'}: is empty" in said
    assert "Traceback" not in said

    found = rows(workspace.folder / "shadow.db", "replays")
    files = sorted(str(path) for path in logs.glob("[0-9].jsonl"))
    with monkeypatch.context() as patch:
        patch.setenv("SHADOWSPEC_DATABASE_URL", "sqlite:///alone.db")
        workspace.migrate("alone.db")
        alone = workspace.run("replay", *files, "--k", "1..4", "--store", "--json")
    assert alone.code == 0, alone.err
    assert found == rows(workspace.folder / "alone.db", "replays")
    assert document["new_rows"] == len(found) == number * 2 * 4
    assert rows(workspace.folder / "shadow.db", "replay_configs") == rows(
        workspace.folder / "alone.db", "replay_configs"
    )
    names = ("slice", "config", "num_speculative_tokens", "verify_rule", "num_requests", "num_sessions")
    figures = ("mean_acceptance_length", "mean_acceptance_length_lower", "first_position_acceptance_rate",
               "draft_acceptance_rate")  # fmt: skip
    reported, expected = (
        {repr([cell[name] for name in names]): [cell[name] for name in figures] for cell in item["replays"]}
        for item in (document, alone.document)
    )
    assert reported.keys() == expected.keys()
    for cell, values in reported.items():
        assert values == pytest.approx(expected[cell], rel=1e-9)

    with temporary_folder() as temporary, started(workspace.folder, temporary) as again:
        out, said = again.communicate(timeout=PATIENCE_S)
        assert again.returncode == 0, said
        assert wait_until_ended(temporary) == {}
    second = json.loads(out)
    assert (second["blocks"], second["blocks_found"], second["new_rows"]) == (NUM_FILES, NUM_FILES, 0)
    assert second["replays"] == document["replays"]
    assert second["funnel"] == document["funnel"]
    assert rows(workspace.folder / "shadow.db", "replays") == found
