"""`shadowspec backfill`: what one process replays, block by block, whatever was finished before and whoever dies."""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from shadowspec.app import backfill_judge as judging
from shadowspec.app import backfill_replay as backfilling
from shadowspec.app import replay_records as replaying
from shadowspec.app.backfill_judge import (
    Call,
    FailedBlock,
    FileRead,
    Finished,
    Judged,
    build_judge,
    chosen_parallel,
    fail_block,
    read_file,
)
from shadowspec.app.backfill_replay import work_id
from shadowspec.app.replayers import Asked
from shadowspec.backfill.cluster import Actors
from shadowspec.backfill.replay_blocks import UnreplayedBlock
from shadowspec.config import Config, load_config
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.replay.replayer import Replayer
from shadowspec.errors import ConfigError, InputError, NoDataError
from shadowspec.tap.endpoints import Load
from shadowspec.tap.formats import FieldMap
from shadowspec.types import FingerprintedConfig, FunnelKey, RecordKey, ReplayedRecord, VerifyRule
from tests.backfill.processes import environment
from tests.builders.answered_records import NGRAM, answered
from tests.builders.workspace import Workspace, record, write_traffic
from tests.store import examples

SECRET = b"a secret of sufficient length"
ASKED = Asked((1, 3))
BLOCK = 4  # responses, in place of 512
SUFFIX = """
[[endpoints.letters.candidates]]
name = "memory"
proposer = "suffix"
num_speculative_tokens = 3
"""
SECOND = """
[endpoints.second]
target = "{target}"
served_models = ["n"]
match = {{ model = "n" }}

[[endpoints.second.candidates]]
name = "lookup"
proposer = "ngram"
num_speculative_tokens = 2
"""


@pytest.fixture(scope="module")
def target(tiny_pair: tuple[Path, Path]) -> LoadedModel:
    return load_model(str(tiny_pair[0]), torch.device("cpu"), torch.float32)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """As many as an actor has: sums of floats are then made in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (backfilling, judging, replaying):
        monkeypatch.setattr(module, "WINDOW", BLOCK)


def add_to_config(workspace: Workspace, text: str) -> None:
    path = workspace.folder / "shadowspec.toml"
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def loaded(workspace: Workspace) -> Config:
    return load_config(workspace.folder / "shadowspec.toml")


def mixed(target: LoadedModel) -> list[Any]:
    """Responses of two endpoints in turn, greedy and sampled, and records that end otherwise."""
    records: list[Any] = []
    for number in range(11):
        temperature = 0.0 if number % 3 else 0.8
        entry = answered(target, number, temperature=temperature) | {"session_id": f"session-{number % 4}"}
        if number % 4 == 3:
            entry["request"]["model"] = entry["response"]["model"] = "n"
        records.append(entry)
    other = answered(target, 12)
    ids = other["response"]["choices"][0]["token_ids"]
    ids[0] = 2 if ids[0] != 2 else 3  # not what a greedy target says
    without = answered(target, 13)
    del without["response"]["choices"][0]["token_ids"]
    return [*records[:6], "no object", without, *records[6:], other, records[0], record(14), record(15, model="none")]


def blocks_of(
    config: Config, place: str, asked: Asked = ASKED, finished: Finished | None = None
) -> tuple[list[UnreplayedBlock[Call]], FileRead]:
    *found, read = read_file(config, asked, SECRET, finished or {}, place)
    assert isinstance(read, FileRead)
    return [part for part in found if isinstance(part, UnreplayedBlock)], read


def judged(config: Config, parts: Iterable[UnreplayedBlock[Call]], asked: Asked = ASKED) -> list[Judged]:
    judge = build_judge(config, asked, Actors(1))
    done = [judge(part) for part in parts]
    assert all(isinstance(each, Judged) for each in done)
    return done


def by_key(replayed_record: ReplayedRecord) -> RecordKey:
    return replayed_record.key


# the same as one process


@pytest.mark.representative("rules1")
@pytest.mark.usefixtures("_one_thread", "_short_blocks")
@pytest.mark.parametrize("rules", [(), (VerifyRule.REJECTION, VerifyRule.EXACT_MATCH)])
def test_blocks_give_what_one_process_replays(
    workspace: Workspace, target: LoadedModel, rules: tuple[VerifyRule, ...]
) -> None:
    add_to_config(workspace, NGRAM + SECOND.format(target=target.path))
    config, asked = loaded(workspace), replace(ASKED, verify_rules=rules)
    traffic = str(write_traffic(workspace.folder / "t.jsonl", mixed(target)))
    alone: list[ReplayedRecord] = []
    outcome = replaying.replay_files(
        config, [traffic], asked, max_requests=None, on_outcome=lambda _: None, on_replayed=alone.append
    )
    parts, read = blocks_of(config, traffic, asked)
    done = judged(config, parts, asked)
    assert sorted((record for judged in done for record in judged.records), key=by_key) == sorted(alone, key=by_key)
    assert len(alone) == outcome.num_replayed == 11
    assert [part.endpoint for part in parts] == ["letters", "letters", "second", "letters", None][: len(parts)]
    assert (read.num_blocks, read.error) == (len(parts), None)
    assert {judged.block.place.source for judged in done} == {hashlib.sha256(Path(traffic).read_bytes()).hexdigest()}
    assert read.source == parts[0].place.source
    assert sum(judged.block.num_records for judged in done) == len(mixed(target))
    assert sum(judged.block.num_near_ties for judged in done) == outcome.num_near_ties
    funnel: Counter[FunnelKey] = Counter()
    messages: dict[str, str] = {}
    for item in done:
        funnel.update(item.block.funnel)
        messages = {**item.messages, **messages}
        times = [record.event_time for record in item.records]
        assert item.block.last_event == (max(times) if times else None)
        assert item.block.num_replayed == len(item.records)
    assert funnel == outcome.funnel
    assert {"not_argmax", "no_token_ids", "no_response", "seen_before"} <= {key[2] for key in funnel}
    assert messages == outcome.refusals


def test_a_log_of_one_s_own_is_read_by_a_map(workspace: Workspace, target: LoadedModel) -> None:
    records = [answered(target, number) for number in range(2)]
    own = [{"call": each["request"], "reply": each["response"], "at": each["timestamp"]} for each in records]
    traffic = str(write_traffic(workspace.folder / "own.jsonl", own))
    config = loaded(workspace)
    unread, _ = blocks_of(config, traffic, ASKED)
    assert unread[0].funnel == {(None, "malformed", "unknown_format"): 2}
    mapped = replace(config, given_format=FieldMap.parse_option("request=call,response=reply,time=at,path=path"))
    (part,), _ = blocks_of(mapped, traffic, ASKED)
    assert (len(part.calls), part.funnel) == (2, {})


@pytest.mark.usefixtures("_short_blocks")
def test_what_is_finished_is_not_cut_out_again(
    workspace: Workspace, target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = loaded(workspace)
    traffic = str(write_traffic(workspace.folder / "t.jsonl", [answered(target, number) for number in range(10)]))
    parts, read = blocks_of(config, traffic)
    assert [len(part.calls) for part in parts] == [4, 4, 2]
    source = parts[0].place.source
    left, again = blocks_of(config, traffic, finished={source: ({0, 2}, False), "other": ({1}, True)})
    assert left == parts[1:2]
    assert again == read
    none, again = blocks_of(config, traffic, finished={source: ({0, 1, 2}, False)})
    assert (none, again) == ([], read)

    def untouched(*arguments: object) -> None:
        raise AssertionError("a finished file is read for its digest alone")

    for name in ("model_tokenizers", "logged_responses", "ResponseReader"):
        monkeypatch.setattr(judging, name, untouched)
    assert blocks_of(config, traffic, finished={source: ({0, 1, 2}, True)}) == ([], FileRead(traffic, source))


def test_files_that_cannot_be_read_are_told_and_not_raised(workspace: Workspace, tmp_path: Path) -> None:
    config = loaded(workspace)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "t.parquet").write_bytes(b"PAR1, and then nothing that a reader knows")
    for name, kind in (("none.jsonl", InputError), ("empty.jsonl", NoDataError), ("t.parquet", InputError)):
        place = str(tmp_path / name)
        parts, read = blocks_of(config, place)
        assert (parts, read.place, read.num_blocks, type(read.error)) == ([], place, None, kind)
        assert str(read.error).startswith(place)


def test_a_fault_in_reading_is_said_by_its_kind(
    workspace: Workspace, target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = str(write_traffic(workspace.folder / "t.jsonl", [answered(target, 0)]))

    def broken(*arguments: object) -> None:
        raise TypeError("a prompt that nobody foresaw")

    monkeypatch.setattr(judging, "logged_responses", broken)
    parts, read = blocks_of(loaded(workspace), traffic)
    assert (parts, read.num_blocks) == ([], None)
    assert str(read.error) == f"{traffic}: reading it ended in TypeError"


@pytest.mark.usefixtures("_short_blocks", "_one_thread")
def test_a_block_that_raises_is_said_by_its_kind(
    workspace: Workspace, target: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = loaded(workspace)
    parts, _ = blocks_of(
        config, str(write_traffic(workspace.folder / "t.jsonl", [answered(target, number) for number in range(6)]))
    )
    judge = build_judge(config, ASKED, Actors(1))
    real = Replayer.replay

    def broken(self: Replayer, responses: list[Any]) -> Any:
        if len(responses) == BLOCK:
            raise RuntimeError(f"cannot replay the prompt {responses}")
        return real(self, responses)

    monkeypatch.setattr(Replayer, "replay", broken)
    first, second = (judge(part) for part in parts)
    assert first == FailedBlock(parts[0].place, "RuntimeError")
    assert isinstance(second, Judged)
    of_backfill = [record.getMessage() for record in caplog.records if record.name.startswith("shadowspec.app")]
    assert "prompt" not in "".join(of_backfill) + repr(first)
    assert fail_block(parts[0]) == FailedBlock(parts[0].place, "a process that died")
    read = FileRead("t.jsonl", "digest", 2)
    assert judge(read) == fail_block(read) == read


def test_candidates_that_remember_are_left_out(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    text = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    add_to_config(workspace, SUFFIX + SUFFIX.replace('"memory"', '"without"') + "suffix_memory_tokens = 0\n")
    chosen = chosen_parallel(loaded(workspace), None)
    assert [candidate.name for candidate in chosen["letters"].candidates] == ["draft", "without"]
    assert "left out: candidate 'memory' of letters drafts from the outputs before" in caplog.text
    name = text[: text.index("[[endpoints.letters.candidates]]")] + SUFFIX
    (workspace.folder / "shadowspec.toml").write_text(name, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"endpoints\.letters: its candidates draft from the outputs before"):
        chosen_parallel(loaded(workspace), None)
    write_traffic(workspace.folder / "t.jsonl", [record(0)])
    refused = workspace.run("backfill", "t.jsonl")
    assert refused.code == 2
    assert "its candidates draft from the outputs before" in refused.err


# what makes work the same


def fingerprints(*names: str) -> Mapping[str, tuple[tuple[FingerprintedConfig, ...], ...]]:
    return {"letters": (tuple(examples.config(name) for name in names),)}


def test_work_is_told_by_all_that_its_rows_depend_on(workspace: Workspace) -> None:
    config = loaded(workspace)
    configs = fingerprints("a", "b")
    (rule,) = (endpoint.rule for endpoint in config.endpoints.values())
    others = [
        work_id(config, replace(ASKED, depths=(1, 2)), SECRET, configs),
        work_id(config, replace(ASKED, verify_rules=(VerifyRule.EXACT_MATCH,)), SECRET, configs),
        work_id(config, replace(ASKED, endpoint="letters"), SECRET, configs),
        work_id(config, replace(ASKED, near_tie_logit=0.5), SECRET, configs),
        work_id(config, ASKED, b"another secret of sufficient length", configs),
        work_id(config, ASKED, SECRET, fingerprints("a", "c")),
        work_id(config, ASKED, SECRET, fingerprints("a")),
        work_id(replace(config, given_format=FieldMap.parse_option("request=body")), ASKED, SECRET, configs),
        work_id(
            replace(
                config,
                endpoints={"letters": replace(config.endpoints["letters"], rule=replace(rule, slice_by=("tenant",)))},
            ),
            ASKED,
            SECRET,
            configs,
        ),
    ]
    text = work_id(config, ASKED, SECRET, configs)
    assert text == work_id(loaded(workspace), Asked((1, 3)), SECRET, fingerprints("a", "b"))
    assert len({text, *others}) == len(others) + 1
    assert SECRET.decode() not in text


@pytest.mark.parametrize(
    "changed",
    [{"sample_rate": 0.5}, {"loads": (Load(8), Load(2))}, {"max_new_tokens": 3}, {"requests_per_slot": 4}],
    ids=str,
)
def test_how_much_is_measured_makes_no_other_work(workspace: Workspace, changed: dict[str, Any]) -> None:
    config = loaded(workspace)
    endpoint = config.endpoints["letters"]
    other = replace(config, endpoints={"letters": replace(endpoint, rule=replace(endpoint.rule, **changed))})
    configs = fingerprints("a", "b")
    assert work_id(other, ASKED, SECRET, configs) == work_id(config, ASKED, SECRET, configs)


def test_weights_are_part_of_the_work(workspace: Workspace, target: LoadedModel) -> None:
    configs = judging.fingerprints(loaded(workspace), ASKED)
    copy = workspace.folder / "copy"
    shutil.copytree(target.path, copy)
    workspace.replace_in_config(f'target = "{target.path}"', f'target = "{copy}"')
    moved = judging.fingerprints(loaded(workspace), ASKED)
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    changed = judging.fingerprints(loaded(workspace), ASKED)
    ids = [work_id(loaded(workspace), ASKED, SECRET, item) for item in (configs, moved, changed)]
    assert ids[2] not in ids[:2]


WORK = """
import sys
from pathlib import Path
from shadowspec.app.backfill_replay import work_id
from shadowspec.app.replayers import Asked
from shadowspec.config import load_config
from tests.store import examples
fingerprints = {"letters": (tuple(examples.config(name) for name in "ab"),)}
print(work_id(load_config(Path("shadowspec.toml")), Asked((1, 3)), b"a secret of sufficient length", fingerprints))
"""
RULES = """
labels = { tier = ["a", "b"], region = ["eu"], plan = ["x"] }
slice_by = ["tier", "prompt_class", "tenant"]
default_sampling = { temperature = 0.5, top_p = 0.9, top_k = 20 }
"""


@pytest.mark.all
@pytest.mark.parametrize("seed", ["1", "2"])
def test_another_process_says_the_same_of_work(workspace: Workspace, seed: str) -> None:
    workspace.replace_in_config('match = { model = "m" }', f'match = {{ model = "m" }}{RULES}')
    text = work_id(loaded(workspace), ASKED, SECRET, fingerprints("a", "b"))
    done = subprocess.run(
        [sys.executable, "-c", WORK], env=environment(PYTHONHASHSEED=seed), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == text, done.stderr


# the command


def test_help_tells_of_every_option(workspace: Workspace) -> None:
    shown = workspace.run("backfill", "--help")
    assert shown.code == 0
    for option in ("--k", "--endpoint", "--verify-rule", "--near-tie", "--ray-address", "--actors", "--gpus-per-actor",
                   "--cpus-per-actor", "--loop", "--max-requests", "--json"):  # fmt: skip
        assert option in shown.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("t.jsonl", "--k", "0"), 2, "--k must be a range"),
        (("t.jsonl", "--k", "1..99"), 2, "--k must be a range"),
        (("t.jsonl", "--endpoint", "none"), 2, "no endpoint 'none' is configured"),
        (("t.jsonl", "--max-requests", "5"), 2, "--max-requests needs --loop"),
        (("t.jsonl", "--loop", "--k", "2"), 2, "--k: only for a replay"),
        (("t.jsonl", "--actors", "0"), 2, "--actors"),
        (("t.jsonl", "--verify-rule", "none"), 2, "--verify-rule"),
        ((), 2, "missing argument 'files'"),
        (("none.jsonl",), 2, "none.jsonl: no such file"),
        (("folder",), 4, "folder: holds no logs"),
    ],
)
def test_wrong_usage_is_refused_before_there_is_a_cluster(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, says: str
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise AssertionError("a cluster was asked for")

    monkeypatch.setattr("shadowspec.backfill.connection.connect", connect)
    write_traffic(workspace.folder / "t.jsonl", [record(0)])
    (workspace.folder / "folder").mkdir()
    done = workspace.run("backfill", *arguments)
    assert (done.code, says in done.err) == (code, True), done.err


def test_a_file_of_parquet_is_no_broken_file_of_lines(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object, **__: object) -> None:
        raise InputError("a cluster was asked for")

    monkeypatch.setattr("shadowspec.backfill.connection.connect", connect)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record(0)]), workspace.folder / "t.parquet")
    done = workspace.run("backfill", "t.parquet")
    assert (done.code, "a cluster was asked for" in done.err) == (2, True), done.err


def test_without_ray_the_extra_is_named(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "shadowspec.backfill.cluster",
        "shadowspec.backfill.connection",
        "shadowspec.app.backfill_replay",
        "shadowspec.app.backfill_judge",
        "shadowspec.app.backfill_loop",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    done = workspace.run("backfill", str(write_traffic(workspace.folder / "t.jsonl", [record(0)])))
    assert done.code == 2
    assert (
        "backfill needs the extra `backfill`: pip install 'shadowspec[backfill]' (in the checkout '.[backfill]')"
        in done.err
    )
    assert "shadowspec.app.backfill_judge" not in sys.modules  # nor torch, which takes seconds
    assert workspace.run("backfill", "--help").code == 0
