"""`shadowspec try` on a tiny pair: inference, take-up, marks on every output, and every wrong input in one line."""

from __future__ import annotations

import json
import math
import re
import shutil
import sqlite3
import stat
import time
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shadowspec.cli import measuring_view
from shadowspec.engine import Engine
from shadowspec.reports.content.notes import REHEARSAL_NOTE
from shadowspec.store import Store
from shadowspec.types import Block, BlockResult
from tests.builders.workspace import Workspace, record, write_traffic
from tests.cli_process import Result
from tests.small_models import letter_tokenizer, save_model, tiny_llama

NUM_RECORDS = 12
FIGURES = {"slice", "speculation_config", "verdict", "reason_code", "num_clusters", "num_blocks", "tests"}


@pytest.fixture
def recording(workspace: Workspace) -> str:
    """Twelve requests of twelve sessions within twelve seconds, and a line that is no record."""
    records = [*(record(number) for number in range(NUM_RECORDS)), "no object"]
    return str(write_traffic(workspace.folder / "traffic.jsonl", records))


@pytest.fixture
def attempt(workspace: Workspace, tiny_pair: tuple[Path, Path], recording: str) -> Callable[..., Result]:
    """Runs `try` on the tiny target; options replace or extend its usual ones, None leaves one out."""

    def run(*flags: str, **options: object) -> Result:
        chosen = {"target": tiny_pair[0], "traffic": recording, "load": 2} | options
        given = [str(part) for name, value in chosen.items() if value is not None for part in (f"--{name}", value)]
        return workspace.run("try", *given, *flags)

    return run


def interrupt_after(monkeypatch: pytest.MonkeyPatch, num_blocks: int) -> list[Block]:
    """Ctrl-C in place of the block after so many; the blocks that are measured."""
    measured: list[Block] = []
    measure = Engine.measure

    def interrupted(engine: Engine, block: Block) -> BlockResult:
        if len(measured) == num_blocks:
            raise KeyboardInterrupt
        measured.append(block)
        return measure(engine, block)

    monkeypatch.setattr(Engine, "measure", interrupted)
    return measured


def test_one_command_gives_a_verdict_on_a_model_and_a_recording(
    attempt: Callable[..., Result], workspace: Workspace, tiny_pair: tuple[Path, Path]
) -> None:
    done = attempt(draft=tiny_pair[1])
    assert done.code == 0, done.err
    for name in ("ngram-k4", "suffix-k8", "draft-k4"):
        assert any(line.startswith(name) for line in done.out.splitlines())
        assert f"  {name}: " in done.out
    assert len(done.out.splitlines()) <= 25
    assert f"{NUM_RECORDS} usable requests of {NUM_RECORDS} sessions, 11 seconds, model m" in done.err
    assert "not usable: not_an_object: 1" in done.err
    assert f"estimate: {NUM_RECORDS} requests, in about" in done.err
    said = " ".join(done.out.split())
    assert "It still needs traffic on 7 days (1 so far) and latency measured on " in said
    assert " More: open shadowspec-try/report.html; " in said
    assert "Rehearsal" not in done.out
    out = workspace.folder / "shadowspec-try"
    assert stat.S_IMODE((out / "shadowspec.secret").stat().st_mode) == 0o600
    written = tomllib.loads((out / "shadowspec.toml").read_text(encoding="utf-8"))
    assert written["gate"] == {"recording_only": True, "max_hypotheses": 3, "timed_positions": 1}
    assert written["endpoints"]["m"]["served_models"] == ["m"]
    assert written["endpoints"]["m"]["loads"] == [{"concurrency": 2, "share": 1.0}]
    again = attempt("--json", draft=tiny_pair[1]).document
    assert (again["requests_measured"], again["requests_found"], again["ended_by"]) == (0, NUM_RECORDS, "end")


def test_every_output_marks_a_trial_and_nothing_promotes_it(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    assert attempt().code == 0
    config = ("--config", "shadowspec-try/shadowspec.toml")
    gate = " ".join(workspace.run("gate", *config).out.split())
    assert "Trial policy: verdicts speak of this recording only" in gate
    assert "HOLD (trial)" in gate
    assert "too_few_clusters" not in gate, "codes are for --json"
    assert "metrics_urls" not in gate, "a trial serves no load"
    assert " Record more sessions and try them with another --out." in gate
    assert " Send " not in gate, "a recording has no more traffic"
    document = workspace.run("gate", *config, "--json").document
    assert document["rollouts"] == [], "a trial rolls nothing out"
    decided = document["decisions"]
    assert decided
    assert all(each["recording_only"] for each in decided)
    page = (workspace.folder / "shadowspec-try/report.html").read_text(encoding="utf-8")
    assert "Trial policy: verdicts speak of this recording only" in page
    assert "Trial policy" in workspace.run("report", *config, "--json").document["data_note"]
    for command in (("export", "-f", "flagd"), ("check", "-e", "m")):
        refused = workspace.run(*command, *config)
        assert (refused.code, "trial policy (recording_only = true)" in refused.err) == (4, True), refused.err


def test_an_interrupted_trial_has_a_verdict_and_the_same_command_continues_it(
    attempt: Callable[..., Result], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        assert len(interrupt_after(patch, 2)) == 0
        stopped = attempt()
    assert stopped.code == 130
    assert "4 requests measured in" in stopped.out
    assert "Run the same `shadowspec try` command again to read the rest." in " ".join(stopped.out.split())
    assert (workspace.folder / "shadowspec-try/report.html").stat().st_size > 0
    secret = (workspace.folder / "shadowspec-try/shadowspec.secret").read_bytes()
    with Store.open("sqlite:///shadowspec-try/shadowspec.db") as store:
        assert not store.latest_decisions(), "a session that goes on must not enter cut"
    assert "Rehearsal, not a decision of the gate: " in " ".join(stopped.out.split())
    document = attempt("--json").document
    assert (document["requests_found"], document["requests_measured"]) == (4, NUM_RECORDS - 4)
    assert (workspace.folder / "shadowspec-try/shadowspec.secret").read_bytes() == secret
    with Store.open("sqlite:///shadowspec-try/shadowspec.db") as store:
        assert {each.num_clusters for each in store.latest_decisions()} == {NUM_RECORDS}


def test_an_interrupt_before_the_first_block_leaves_nothing_to_show(
    attempt: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 0)
    stopped = attempt()
    assert (stopped.code, stopped.out) == (130, "")
    assert "run the same command again" in stopped.err


@pytest.mark.all
def test_a_limit_that_ends_the_last_block_ends_the_recording(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    path = write_traffic(workspace.folder / "one.jsonl", [record(0)])
    document = attempt("--json", traffic=path, minutes=1e-9).document
    assert (document["ended_by"], document["requests_measured"], document["rehearsal"]) == ("end", 1, False)
    assert "estimate: 0 requests" in attempt(traffic=path).err


def test_minutes_end_a_trial_after_a_block(attempt: Callable[..., Result]) -> None:
    document = attempt("--json", minutes=1e-9).document
    assert (document["ended_by"], document["requests_measured"]) == ("time", 2)
    assert document["recording_only"] is True


def test_minutes_bound_the_whole_command_and_no_block_begins_that_would_end_later(
    attempt: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, measure, passed = time.monotonic, Engine.measure, 0.0

    def slow(engine: Engine, block: Block) -> BlockResult:
        nonlocal passed
        passed += 350.0
        return measure(engine, block)

    monkeypatch.setattr(Engine, "measure", slow)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed)
    done = attempt("--json", minutes=10)
    assert (done.document["ended_by"], done.document["requests_measured"]) == ("time", 2), "two take 700 seconds"
    assert "to the end of the recording, --minutes ends it in " in done.err
    monkeypatch.setattr(Engine, "warm_up", lambda *_, **__: slow_start())

    def slow_start() -> int:
        nonlocal passed
        passed += 600.0
        return 8

    loaded_late = attempt("--json", minutes=10)
    assert (loaded_late.document["ended_by"], loaded_late.document["requests_measured"]) == ("time", 2)


@pytest.mark.all
def test_a_resumed_trial_estimates_what_is_left_by_what_was_measured(attempt: Callable[..., Result]) -> None:
    assert "12 requests in about " in (first := attempt(minutes=1e-9).err)
    assert ", by a warm-up; --minutes ends the command after " in first
    again = attempt().err
    assert "estimate: 10 requests in about " in again
    assert ", by the 2 requests measured before; " in again


@pytest.mark.all
def test_until_the_recording_is_read_every_command_rehearses_the_same_decisions(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    def shown(documents: Any) -> list[object]:
        return [{name: value for name, value in each.items() if name in FIGURES} for each in documents]

    stopped = attempt("--json", minutes=1e-9).document
    config = ("--config", "shadowspec-try/shadowspec.toml")
    gate = workspace.run("gate", *config, "--json").document
    assert (stopped["rehearsal"], gate["rehearsal"], gate["rollouts"]) == (True, True, [])
    assert shown(gate["decisions"]) == shown(stopped["decisions"])
    assert {each["num_clusters"] for each in gate["decisions"]} == {2}
    plan = workspace.run("plan", *config)
    assert (plan.code, " ".join(plan.out.split()).count(REHEARSAL_NOTE)) == (0, 1), plan.err
    assert " ".join(workspace.run("gate", *config).out.split()).count(REHEARSAL_NOTE) == 1
    report = workspace.run("report", *config, "--json").document
    assert REHEARSAL_NOTE in report["data_note"]
    assert {each["num_blocks"] for each in report["endpoints"][0]["hypotheses"]} == {1}
    assert REHEARSAL_NOTE in (workspace.folder / "shadowspec-try/report.html").read_text("utf-8").replace("&#39;", "'")
    with Store.open("sqlite:///shadowspec-try/shadowspec.db") as store:
        assert not store.latest_decisions()
    ended = attempt("--json").document
    decided = workspace.run("gate", *config, "--json").document
    assert (ended["rehearsal"], "rehearsal" in decided) == (False, False)
    assert shown(decided["decisions"]) == shown(ended["decisions"])
    assert REHEARSAL_NOTE not in " ".join(workspace.run("plan", *config).out.split())


@pytest.mark.all
def test_an_only_slice_is_named_and_not_shown_beside_the_whole_endpoint(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    done = attempt()
    config = ("--config", "shadowspec-try/shadowspec.toml")
    assert "slices by: none (prompt_class, sampling_regime: one value)" in done.err
    for command in (("gate", "--tests"), ("plan", "--verbose"), ("report", "-f", "md", "-o", "-")):
        out = workspace.run(*command, *config).out.replace("\\", "")
        assert "whole endpoint" in out.lower(), command
        assert "prompt_class=" not in out, command


def test_a_load_that_nobody_gave_is_called_an_assumption(attempt: Callable[..., Result]) -> None:
    assumed = attempt(load=None, minutes=1e-9).err
    assert "load: 4 requests at once (assumed: set --load to production's); slices" in assumed
    given = attempt(load=4, minutes=1e-9).err
    assert "load: 4 requests at once (--load); slices" in given


def test_a_short_recording_is_told_how_many_sessions_it_lacks(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    sizes = (1, 3, 3, 3)  # the timed one is drawn from 3 places: the first session is timed in one of 3 draws
    names = [f"s{session}" for session, size in enumerate(sizes) for _ in range(size)]
    records = [record(number) | {"session_id": name} for number, name in enumerate(names)]
    path = write_traffic(workspace.folder / "four.jsonl", records)
    (line,) = [line for line in attempt(traffic=path, minutes=1e-9).err.splitlines() if line.startswith("timed: ")]
    found = re.search(r"needs (\d+) or more, so expect .* at least about (\d+) sessions, better (\d+)$", line)
    assert found is not None
    needed, sessions, better = map(int, found.groups())
    assert (sessions, better) == (math.ceil(1.2 * needed), 2 * sessions)


def test_a_trial_names_the_smallest_number_of_requests_that_can_enable(attempt: Callable[..., Result]) -> None:
    words = "timed: about 12 requests, at most one of each session; ENABLE needs "
    (line,) = [line for line in attempt().err.splitlines() if line.startswith(words)]
    assert " or more, so expect HOLD or DISABLE. Give a longer recording: " in line
    with Store.open("sqlite:///shadowspec-try/shadowspec.db") as store:
        tests = [test for each in store.latest_decisions() for test in each.tests if test.is_required]
    assert tests
    needed = max(test.min_units * (2 if test.unit == "block" else 1) for test in tests)
    assert line.startswith(f"{words}{needed} or more")


@pytest.mark.all
def test_the_model_that_most_records_ask_for_is_taken_with_its_other_names(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    records: list[dict[str, Any]] = [
        record(number) | {"response": {"model": "m-2026", "choices": [{"text": "a", "finish_reason": "length"}]}}
        for number in range(6)
    ]
    path = write_traffic(
        workspace.folder / "mixed.jsonl", [*records, *(record(n, model="other/x") for n in range(9, 12))]
    )
    done = attempt("--json", traffic=path)
    assert done.code == 0, done.err
    assert "other models in the file, left out: other/x" in done.err
    assert {each["endpoint"] for each in done.document["decisions"]} == {"m"}
    written = tomllib.loads(Path("shadowspec-try/shadowspec.toml").read_text(encoding="utf-8"))
    assert written["endpoints"]["m"]["served_models"] == ["m", "m-2026"]
    named = attempt("--json", traffic=path, model="other/x", out="x")
    assert {each["endpoint"] for each in named.document["decisions"]} == {"x"}
    assert named.document["requests_measured"] == 3


@pytest.mark.all
def test_a_named_serving_engine_holds_what_this_process_measures(attempt: Callable[..., Result]) -> None:
    done = attempt("--json", **{"serving-engine": "vllm"})
    assert {each["reason_code"] for each in done.document["decisions"]} == {"other_engine"}
    assert "latency must be measured on it, through two servers" in done.err


@pytest.mark.all
def test_a_slow_device_cuts_outputs_so_that_figures_come_soon(
    attempt: Callable[..., Result], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shadowspec.app.try_out import measuring

    monkeypatch.setattr(measuring, "BLOCK_SECONDS", 1e-9)
    monkeypatch.setattr(measuring, "CUT_STEP", 3)
    done = attempt()
    assert "outputs are cut at 3 tokens" in done.err
    gate = workspace.run("gate", "--config", "shadowspec-try/shadowspec.toml").out
    for shown in (done.out, gate, Path("shadowspec-try/report.html").read_text(encoding="utf-8")):
        assert "Outputs are cut at 3 tokens, so that prefill, which speculation does not shorten, " in " ".join(
            shown.split()
        )
    written = tomllib.loads(Path("shadowspec-try/shadowspec.toml").read_text(encoding="utf-8"))
    assert written["endpoints"]["m"]["max_new_tokens"] == 3
    with Store.open("sqlite:///shadowspec-try/shadowspec.db") as store:
        assert max(run.counts.num_output_tokens for run in store.runs("m") if run.counts) == 3


@pytest.mark.all
def test_figures_are_shown_after_the_first_block(
    attempt: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring_view, "SECONDS_BETWEEN_LINES", 1e9)  # the first figures wait for no interval
    lines = attempt().err.splitlines()
    first = next(number for number, line in enumerate(lines) if "ngram-k4: HOLD (trial) so far, speedup" in line)
    assert "suffix-k8: HOLD (trial) so far, speedup" in lines[first + 1]
    assert "1 block, 2 requests" in lines[first - 1]
    assert lines[first - 1].endswith(" to the end of the recording")


def test_requests_that_set_no_sampling_are_sampled_as_production_samples_them(
    attempt: Callable[..., Result], workspace: Workspace, tiny_pair: tuple[Path, Path]
) -> None:
    target = shutil.copytree(tiny_pair[0], workspace.folder / "stating")
    (target / "generation_config.json").write_text('{"eos_token_id": 1, "temperature": 0.25, "top_k": 5}')
    records = [record(number, temperature=None) for number in range(NUM_RECORDS)]
    options = {"target": target, "traffic": write_traffic(workspace.folder / "silent.jsonl", records)}
    told = (
        f"sampling: {NUM_RECORDS} of {NUM_RECORDS} requests leave out temperature, top_k and get temperature=0.25, "
        "top_k=5, because vllm applies generation_config"
    )
    done = attempt(**options, **{"serving-engine": "vllm"})
    assert told in done.err, done.err
    with closing(sqlite3.connect(workspace.folder / "shadowspec-try" / "shadowspec.db")) as database:
        details = [json.loads(row[0]) for row in database.execute("SELECT details FROM fingerprints")]
        slices = {row[0] for row in database.execute("SELECT DISTINCT slice_key FROM records")}
    assert {each["default_sampling"] for each in details} == {"temperature=0.25, top_k=5"}
    assert slices == {"prompt_class=other,sampling_regime=low"}
    doctor = workspace.run("doctor", "--json", "--config", "shadowspec-try/shadowspec.toml").document["checks"]
    (row,) = [row["found"] for row in doctor if row["check"] == "sampling"]
    assert row.startswith("m: requests that set none get temperature=0.25, top_k=5, because vllm")
    begun = workspace.run(
        "init", "new.toml", "--target", str(target), "--traffic", "silent.jsonl", "--serving-engine", "sglang"
    )
    assert "requests that set none get temperature=0.25, top_k=5, because sglang applies" in begun.err
    other = workspace.run(
        "init", "other.toml", "--target", str(target), "--traffic", "silent.jsonl", "--serving-engine", "tensorrt-llm"
    )
    assert "states temperature=0.25, top_k=5, which tensorrt-llm does not apply" in other.err


def test_sampling_is_told_where_a_request_leaves_a_parameter_out(
    attempt: Callable[..., Result], workspace: Workspace
) -> None:
    records = [record(number, temperature=0.0) for number in range(NUM_RECORDS)]
    set_by_all = attempt(traffic=write_traffic(workspace.folder / "greedy.jsonl", records), minutes=1e-9)
    assert "requests measured in" in set_by_all.out
    assert "sampling: " not in set_by_all.err
    records[3]["request"].pop("temperature")
    options = {"traffic": write_traffic(workspace.folder / "one_open.jsonl", records), "minutes": 1e-9, "out": "other"}
    told = f"sampling: 1 of {NUM_RECORDS} requests leave out temperature and get plain sampling at temperature 1"
    said = attempt(**options).err
    assert told in said, said


@pytest.mark.all
def test_slices_are_labels_with_sessions_enough(
    attempt: Callable[..., Result], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shadowspec.app.try_out import survey

    monkeypatch.setattr(survey, "SLICE_SESSIONS", 5)
    records = [record(number, temperature=float(number % 2)) for number in range(NUM_RECORDS)]
    document = attempt("--json", traffic=write_traffic(workspace.folder / "two.jsonl", records)).document
    assert {json.dumps(each["slice"]) for each in document["decisions"]} > {"{}"}
    assert len({json.dumps(each["slice"]) for each in document["decisions"]}) == 3


# Wrong inputs: one line that names cause and remedy, before any weights are read.


def folder(workspace: Workspace, target: Path, *, without: str = "", **changes: str | bytes) -> Path:
    """A copy of the target without some files, and with others."""
    path = workspace.folder / "model"
    shutil.copytree(target, path)
    for file in path.glob(without or "nothing"):
        file.unlink()
    for name, content in changes.items():
        file = path / name.replace("__", ".")
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Result], code: int, *words: str) -> None:
    """The command ends with this code and one line that has these words, and reads no weights."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("shadowspec.engine.models.load_weights", never)
    done = run()
    assert (done.code, done.out) == (code, ""), done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("error:")]
    assert done.err.splitlines()[-1] == line, "one line"
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("without", "changes", "words"),
    [
        ("config.json", {}, ("no config.json", "give a local folder")),
        ("tokenizer*", {}, ("no tokenizer", "copy the tokenizer's files")),
        ("*.safetensors", {}, ("no weights in *.safetensors", "download them")),
        ("*.safetensors", {"pytorch_model__bin": b"x"}, ("pickled weights", "save the model as safetensors")),
        ("*.safetensors", {"model__gguf": b"x"}, ("GGUF weights", "save the model as safetensors")),
        (
            "",
            {"model__safetensors": b"version https://git-lfs/spec/v1"},
            ("Git LFS pointer", "git lfs pull"),
        ),
        ("", {"model__safetensors": b""}, ("model.safetensors is empty", "download the weights")),
        ("", {"model__safetensors": b"no weights at all"}, ("no safetensors file", "download the weights")),
        (
            "",
            {"model__safetensors": b"\2" + bytes(7) + b"[]"},
            ("no safetensors file", "download the weights"),
        ),
        ("", {"model__safetensors.index.json": '{"weight_map": {"a": "b"}}'}, ("lacks b (1 of 1", "download it")),
        ("", {"model__safetensors.index.json": "{}"}, ("index.json names no files", "download it again")),
        ("", {"tokenizer__json": "{"}, ("tokenizer.json is not JSON", "download it again")),
        ("", {"config__json": '{"model_type": "unheard-of"}'}, ("cannot be loaded", "download it again")),
        ("", {"config__json": "{"}, ("config.json is not JSON", "download it again")),
        ("", {"config__json": "[]"}, ("config.json holds no object", "download it again")),
        ("", {"config__json": '{"model_type": "t5", "is_encoder_decoder": true}'}, ("encoder-decoder", "decoder-only")),
    ],
)
def test_a_folder_that_is_no_model(
    attempt: Callable[..., Result],
    workspace: Workspace,
    tiny_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    without: str,
    changes: dict[str, str | bytes],
    words: tuple[str, ...],
) -> None:
    path = folder(workspace, tiny_pair[0], without=without, **changes)
    refused(monkeypatch, lambda: attempt(target=path), 2, str(path), *words)


def test_weights_that_are_cut_short(
    attempt: Callable[..., Result], workspace: Workspace, tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(workspace, tiny_pair[0])
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    refused(monkeypatch, lambda: attempt(target=path), 2, "is cut short (", "download the weights again")


def test_paths_that_are_none(
    attempt: Callable[..., Result], workspace: Workspace, recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(monkeypatch, lambda: attempt(target="org/name"), 2, "--target org/name: no such folder", "download")
    refused(monkeypatch, lambda: attempt(target=recording), 2, "is a file", "give the folder")
    refused(monkeypatch, lambda: attempt(draft="nowhere"), 2, "--draft nowhere: no such folder", "download")
    refused(monkeypatch, lambda: attempt(traffic="nowhere.jsonl"), 2, "nowhere.jsonl: no such file")
    refused(monkeypatch, lambda: attempt(traffic=workspace.folder), 2, "is a folder; give a file of JSON lines")
    refused(monkeypatch, lambda: attempt(traffic="-"), 2, "standard input", "give a file")
    refused(monkeypatch, lambda: attempt(out=recording), 2, "--out", "is a file; give a folder")


def test_drafts_that_cannot_draft(
    attempt: Callable[..., Result], tiny_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(monkeypatch, lambda: attempt(draft=tiny_pair[0]), 2, "is the target", "give a smaller model")
    other = letter_tokenizer(20)
    save_model(tmp_path / "other", tiny_llama(1, vocabulary=20), other)
    refused(
        monkeypatch, lambda: attempt(draft=tmp_path / "other"), 2, "the tokenizers differ", "heterogeneous_draft_model"
    )


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("empty.jsonl", b"", 4, ("is empty",)),
        ("blank.jsonl", b"\n\n", 4, ("is empty",)),
        ("binary.jsonl", bytes(range(256)) * 20, 4, ("no record is among the first 21 lines", "give JSON lines")),
        ("text.jsonl", b"hello\nworld\n", 4, ("no record is among the first 2 lines", "give JSON lines")),
        ("other.jsonl", b'{"a": 1}\n', 4, ("unknown_format: 1", "docs/formats.md")),
        ("cut.jsonl.gz", b"\x1f\x8b\x08\x00rubbish", 2, ("broken gzip",)),
        ("plain.jsonl.gz", b"{}\n", 2, ("is not gzip",)),
        ("unnamed.jsonl", json.dumps(record(1, model=None)).encode(), 4, ("no record names a model", "request.model")),
        ("long.jsonl", json.dumps(record(1, max_tokens=10**6)).encode(), 4, ("longer_than_context: 1", "context")),
        ("failed.jsonl", json.dumps(record(1) | {"status": 500}).encode(), 4, ("failed_request: 1", "answered ones")),
        ("tools.jsonl", json.dumps(record(1, logit_bias={"1": 2})).encode(), 4, ("logit_bias: 1", "docs/formats.md")),
    ],
)  # fmt: skip
def test_a_recording_without_a_usable_request(
    attempt: Callable[..., Result],
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    code: int,
    words: tuple[str, ...],
) -> None:
    (workspace.folder / name).write_bytes(content)
    refused(monkeypatch, lambda: attempt(traffic=name), code, name, *words)
    assert not Path("shadowspec-try").exists(), "nothing is written for a trial that cannot begin"


def test_chats_for_a_target_without_a_chat_template(
    attempt: Callable[..., Result],
    workspace: Workspace,
    tiny_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = folder(workspace, tiny_pair[0], without="chat_template*")
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    calls = [record(1) | {"path": "/v1/chat/completions", "request": body}]
    chat = write_traffic(workspace.folder / "chat.jsonl", calls)
    refused(
        monkeypatch, lambda: attempt(target=path, traffic=chat), 4, "no_chat_template: 1", "give an instruction-tuned"
    )


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_minutes_that_are_none(attempt: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, minutes: str) -> None:
    refused(monkeypatch, lambda: attempt(minutes=minutes), 2, f"--minutes {minutes}: must be above 0", "leave it out")


def test_options_that_fit_nothing(attempt: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    refused(monkeypatch, lambda: attempt(model="n"), 2, "--model n: no record asks for it", "ask for m: 12")
    refused(monkeypatch, lambda: attempt(**{"serving-engine": "vllm sglang"}), 2, "expected one engine")


def test_the_folder_of_another_trial_is_left_alone(
    attempt: Callable[..., Result], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attempt(minutes=1e-9).code == 0
    other = write_traffic(workspace.folder / "other.jsonl", [record(1)])
    refused(
        monkeypatch, lambda: attempt(traffic=other), 2, "holds another trial (traffic: ", "another folder with --out"
    )
    refused(monkeypatch, lambda: attempt(load=3), 2, "holds another trial (serving engine: shadowspec-torch, load: 2)")
    refused(monkeypatch, lambda: attempt(out="."), 2, "holds another trial", "--out")
    written = Path("shadowspec-try/shadowspec.toml")
    written.write_text(written.read_text(encoding="utf-8").replace("endpoints.m", "endpoints.n"), encoding="utf-8")
    refused(monkeypatch, attempt, 2, "was edited and has no endpoint 'm'", "give another folder")


def test_a_trial_takes_its_times_from_a_trace(
    attempt: Callable[..., Result], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = workspace.folder / "trace.csv"
    trace.write_text("Timestamp,Model,Request tokens\n" + "".join(f"{60 * row},m,1\n" for row in range(NUM_RECORDS)))
    done = attempt(arrivals=trace, minutes=1e-9)
    assert done.code == 0, done.err
    assert f"{NUM_RECORDS} usable requests of {NUM_RECORDS} sessions, 11 minutes, model m" in done.err
    assert "So arrivals and concurrency are the trace's, not those of these records" in done.err
    again = attempt(arrivals=trace)
    assert (again.code, f"{NUM_RECORDS - 2} requests measured" in again.out) == (0, True), again.err
    assert "Hits of prefix caches and pauses within sessions are not production's." in " ".join(again.out.split())
    with closing(sqlite3.connect("shadowspec-try/shadowspec.db")) as database:
        times = [time for (time,) in database.execute("select event_time from records order by event_time")]
    assert [time[:19] for time in (times[0], times[-1])] == ["2000-01-01 00:00:00", "2000-01-01 00:11:00"]
    refused(monkeypatch, attempt, 2, "holds another trial (arrivals: ", "another folder with --out")
    trace.write_text("Timestamp,Model,Request tokens\n0,m,1\nx,m,1\n")
    refused(monkeypatch, lambda: attempt(arrivals=trace), 2, "trace.csv, line 3: has no time of a row", "fix or remove")
