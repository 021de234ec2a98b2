"""`shadowspec backfill --loop`: what `run` measures, by engines elsewhere, in whatever order they come back."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shadowspec.app import backfill_loop as looping
from shadowspec.app.backfill_loop import _build, _fail_block, require_measurable
from shadowspec.backfill.cluster import Actors
from shadowspec.config import load_config
from shadowspec.errors import ConfigError
from shadowspec.store import Store, upgrade
from shadowspec.types import Block, BlockResult, PartitionId, Run
from shadowspec.worker.files import CONSUMER, FileRun, InProcess
from tests.backfill.processes import environment, temporary_folder, wait_until_ended
from tests.builders.worker_pipeline import CONFIG, RULES, TOKENIZERS, pipeline, raw_records
from tests.builders.workspace import Workspace, record, write_traffic
from tests.fakes import FakeEngine
from tests.worker.blocks import block as a_block
from tests.worker.blocks import prompt

SUFFIX = """
[[endpoints.letters.candidates]]
name = "memory"
proposer = "suffix"
num_speculative_tokens = 3
"""


class Shuffled:
    """Holds blocks back, and gives them out of order."""

    def __init__(self, seed: int) -> None:
        self._engine, self._random = FakeEngine((CONFIG,)), random.Random(seed)
        self._held: list[BlockResult] = []

    def submit(self, block: Block) -> None:
        self._held.append(self._engine.measure(block))

    def take_finished(self) -> Sequence[BlockResult]:
        self._random.shuffle(self._held)
        given, self._held = self._held[2:], self._held[:2]
        return given

    def drain(self) -> Iterator[BlockResult]:
        while self._held:
            yield self._held.pop(self._random.randrange(len(self._held)))


@pytest.fixture
def sqlite(tmp_path: Path) -> Store:
    url = f"sqlite:///{tmp_path / 'looped.db'}"
    upgrade(url)
    store = Store.open(url)
    store.save_fingerprints([CONFIG])
    return store


def counted(run: Run) -> tuple[Any, ...]:
    return run.key, run.fingerprint, run.block_id, run.failure, run.counts


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_blocks_come_back_changes_no_row(sqlite: Store, tmp_path: Path, seed: int) -> None:
    lines = [
        raw._replace(key=raw.key._replace(partition=0, offset=line, timestamp_ms=0))
        for line, raw in enumerate(raw_records(150, 5, 1)[PartitionId("topic", 0)], 1)
    ]
    done = FileRun(pipeline()[0], Shuffled(seed), sqlite).run(lines)
    found = {rule.name: sorted(map(counted, sqlite.runs(rule.name)), key=str) for rule in RULES}
    funnel = sqlite.funnel()
    (entry,) = sqlite.ledger(CONSUMER)
    assert (entry.next_offset, entry.is_ended) == (151, True)
    assert done.requests_measured == sum(map(len, found.values())) > 0
    again = FileRun(pipeline()[0], InProcess(dict.fromkeys(TOKENIZERS, FakeEngine((CONFIG,)))), sqlite).run(lines)
    assert again.requests_measured == 0
    assert sqlite.funnel() == funnel


def test_what_an_engine_raises_is_a_failed_block_and_its_text_nowhere(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(workspace.folder / "shadowspec.toml")

    class Broken:
        configs = (CONFIG,)

        def measure(self, block: Block) -> BlockResult:
            raise RuntimeError("abcdefgh, a prompt")

    monkeypatch.setattr(looping, "build_engines", lambda _: {"letters": Broken()})
    block = a_block(prompt(1, endpoint="letters"), prompt(2, endpoint="letters"))
    result = _build(config, Actors(1))(block)
    assert [(run.key, run.fingerprint, run.failure) for run in result.runs] == [
        (prompt.key, CONFIG.fingerprint, "engine_failed") for prompt in block.requests
    ]
    assert "RuntimeError" in caplog.text
    assert "a prompt" not in caplog.text


def test_a_block_that_is_given_up_has_failed_runs_of_every_config() -> None:
    block = a_block(prompt(1, endpoint="letters"), prompt(2, endpoint="letters"))
    found = _fail_block({"letters": (CONFIG, CONFIG)}, "engine_died", block)
    assert [run.failure for run in found.runs] == ["engine_died"] * 2 * len(block.requests)


def test_what_several_engines_cannot_measure_is_refused(workspace: Workspace) -> None:
    path = workspace.folder / "shadowspec.toml"
    path.write_text(path.read_text(encoding="utf-8") + SUFFIX, encoding="utf-8")
    with pytest.raises(ConfigError, match="every actor would remember others"):
        require_measurable(load_config(path))


@pytest.mark.parametrize(
    ("option", "value"),
    [("--k", "1..3"), ("--endpoint", "letters"), ("--near-tie", "0.1"), ("--verify-rule", "greedy")],
)
def test_options_of_replay_are_refused(workspace: Workspace, option: str, value: str) -> None:
    write_traffic(workspace.folder / "t.jsonl", [record(0)])
    result = workspace.run("backfill", "t.jsonl", "--loop", option, value)
    assert result.code == 2
    assert option in result.err


@pytest.mark.all
def test_engines_on_a_cluster_measure_once_what_run_measures(workspace: Workspace) -> None:
    traffic = [
        str(write_traffic(workspace.folder / f"{first}.jsonl", [record(number) for number in range(first, first + 4)]))
        for first in (0, 4, 8, 12)
    ]
    workspace.migrate()
    with temporary_folder() as folder:
        options = ("--loop", "--actors", "2", "--cpus-per-actor", "0.5", "--max-requests", "10", "--json")
        first = subprocess.run(
            [sys.executable, "-m", "shadowspec", "backfill", *traffic, *options],
            cwd=workspace.folder,
            env=environment(TMPDIR=str(folder)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert first.returncode == 0, first.stderr
        document = json.loads(first.stdout)
        assert (document["requests_measured"], document["records_read"]) == (10, 10)
        assert not wait_until_ended(folder)
    again = workspace.run("run", *traffic, "--json")
    assert (again.document["requests_measured"], again.document["requests_found"]) == (6, 10)
    again = workspace.run("run", *traffic, "--json")
    assert (again.document["requests_measured"], again.document["requests_found"]) == (0, 16)
    with Store.open(load_config(workspace.folder / "shadowspec.toml").database_url) as store:
        measured = {counted(run) for run in store.runs("letters")}
        assert all(run.failure is None for run in store.runs("letters"))
    url = f"sqlite:///{workspace.folder / 'other.db'}"
    workspace.replace_in_config("sqlite:///shadow.db", url)
    workspace.migrate("other.db")
    assert workspace.run("run", *traffic).code == 0
    with Store.open(url) as store:
        assert {counted(run) for run in store.runs("letters")} == measured
