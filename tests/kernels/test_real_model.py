"""The benchmark of a real model: its prompts, what it configures, and that its page is of the committed results."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kernels.benchmarks import bench_llm
from kernels.benchmarks.engines.real_model.engines import LLAMACPP, WAYS
from kernels.benchmarks.engines.real_model.page import PAGE, PICTURE, page, write_page
from kernels.benchmarks.engines.real_model.prompts import (
    CLASSES,
    MEASURED,
    PROMPTS,
    every_prompt,
    read_prompts,
    records,
    two_halves,
)
from kernels.benchmarks.engines.real_model.results import RUNS, cells
from kernels.benchmarks.engines.real_model.shortened import shorten
from shadowspec import demo
from shadowspec.engine.tokenizer import load_tokenizer
from shadowspec.gate.policy import GatePolicy

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "kernels" / "benchmarks" / "results" / "real_model.json"


def test_no_session_is_in_both_runs() -> None:
    first, second = two_halves(PROMPTS, 60)
    for name in ("source", "text"):
        found = [{getattr(each, name) for each in half} for half in (first, second)]
        assert not found[0] & found[1]
    for half in (first, second):
        assert Counter(each.prompt_class for each in half) == dict.fromkeys(CLASSES, 60)
        assert len({each.source for each in half}) == len(half), "each is a session"
        assert [each.prompt_class for each in half[:4]] == list(CLASSES)
    only, others = two_halves(PROMPTS, 165, ["edit"])
    assert {each.prompt_class for each in (*only, *others)} == {"edit"}
    assert not {each.text for each in only} & {each.text for each in others}
    with pytest.raises(SystemExit, match="two runs need 200"):
        two_halves(PROMPTS, 100)


def test_a_part_of_the_prompts_has_all_classes() -> None:
    chosen = read_prompts(PROMPTS, MEASURED, 6)
    assert Counter(each.prompt_class for each in chosen) == dict.fromkeys(CLASSES, 6)
    assert [each.prompt_class for each in chosen[:4]] == list(CLASSES), "so that a run that is stopped has some of each"


def test_prompts_without_a_class_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(each.line() for each in every_prompt(PROMPTS) if each.prompt_class != "edit"), encoding="utf-8"
    )
    with pytest.raises(SystemExit, match="holds no measured prompt of the class edit"):
        read_prompts(path, MEASURED, 6)


def test_a_draft_without_training_is_the_target_but_for_some_layers(tmp_path: Path) -> None:
    shorten(demo.TARGET, tmp_path, left_out=(1,))
    whole, short = (AutoModelForCausalLM.from_pretrained(folder) for folder in (demo.TARGET, tmp_path))
    assert len(short.model.layers) == len(whole.model.layers) - 1
    kept = [layer for place, layer in enumerate(whole.model.layers) if place != 1]
    for mine, others in zip(short.model.layers, kept, strict=True):
        for name, weight in others.state_dict().items():
            assert torch.equal(weight, mine.state_dict()[name])
    prompt = load_tokenizer(str(tmp_path)).encode("a text")
    assert prompt == load_tokenizer(str(demo.TARGET)).encode("a text")


def ran(folder: Path, verdict: str, figures: Mapping[str, float]) -> None:
    """A run as the product leaves it, with these estimates of the tests."""
    thresholds = {"speedup": 1.05, "acceptance": 0.4, "tail": 0.1}
    tests = [
        {"name": name, "estimate": figure, "threshold": thresholds[name], "lower": None, "upper": None}
        for name, figure in figures.items()
    ]
    found = {
        "slice": {}, "engine": "vllm/0.33.0", "config": "a", "num_requests": 1, "num_failed": 0, "verdict": verdict,
        "parity": None, "decision": {"tests": tests, "reason": ""},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps({"endpoints": [{"hypotheses": [found]}]}), encoding="utf-8")
    columns = (
        "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_plain_steps", "num_output_tokens",
        "baseline_queue_ms", "baseline_prefill_ms", "baseline_decode_ms",
        "speculative_queue_ms", "speculative_prefill_ms", "speculative_decode_ms",
    )  # fmt: skip
    with sqlite3.connect(folder / "shadow.db") as connection:
        connection.execute(f"create table runs (slice_key, fingerprint, failure, {', '.join(columns)})")
        connection.execute(f"insert into runs values ('', 'f', null, {', '.join('1' for _ in columns)})")


@pytest.mark.parametrize(
    ("verdict", "speedup", "tail", "is_true"),
    [
        ("ENABLE", 1.2, 0.0, True),
        ("ENABLE", 1.04, 0.0, False),
        ("ENABLE", 1.2, 0.2, False),
        ("DISABLE", 0.9, 0.0, True),
        ("DISABLE", 1.2, 0.0, False),
        ("HOLD", 1.2, 0.0, None),
    ],
)
def test_a_verdict_is_held_against_the_figures_of_other_sessions(
    tmp_path: Path, verdict: str, speedup: float, tail: float, *, is_true: bool | None
) -> None:
    ran(tmp_path / "first", verdict, {"speedup": 1.5, "acceptance": 0.9, "tail": 0.0})
    ran(tmp_path / "second", "HOLD", {"speedup": speedup, "acceptance": 0.9, "tail": tail})
    (cell,) = cells(tmp_path / "first", tmp_path / "second")
    assert (cell.verdict, cell.is_true, cell.second_figures["speedup"]) == (verdict, is_true, speedup)


def test_a_busy_machine_is_waited_for_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, loads = iter(range(0, 10_000, 30)), iter([3.0, 0.5])
    monkeypatch.setattr(bench_llm.time, "sleep", lambda _: None)
    monkeypatch.setattr(bench_llm.time, "monotonic", lambda: next(passed))
    monkeypatch.setattr(bench_llm.os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    bench_llm.await_quiet(1.0)
    monkeypatch.setattr(bench_llm.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    with pytest.raises(SystemExit, match=r"is 3\.0, and timing needs 1: end"):
        bench_llm.await_quiet(1.0)


def test_the_page_is_that_of_the_committed_results(tmp_path: Path) -> None:
    write_page(json.loads(RESULTS.read_text(encoding="utf-8")), tmp_path)
    for name in (PAGE, PICTURE):
        committed = ROOT / "docs" / "research" / name
        assert (tmp_path / name).read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")


@pytest.mark.all
def test_the_page_is_made_of_the_committed_results(tmp_path: Path) -> None:
    """By the script, as its users call it."""
    wanted = ["--docs", str(tmp_path), "--page"]
    ran = subprocess.run(
        [sys.executable, "-m", "kernels.benchmarks.bench_llm", *wanted], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    for name in (PAGE, PICTURE):
        committed = ROOT / "docs" / "research" / name
        assert (tmp_path / name).read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")


def sitting(engine: str, weights: str = "float32", **changes: object) -> dict[str, object]:
    """One of the committed results, as if it were another engine's."""
    found: dict[str, object] = json.loads(RESULTS.read_text(encoding="utf-8"))["sittings"][0]
    return found | {"engine": engine, "weights": weights} | changes


def test_how_a_sitting_was_measured_is_on_the_page() -> None:
    given = sitting(
        "llama.cpp",
        "Q8_0",
        max_load=1.25,
        highest_load=2.5,
        note="A backup ran.",
        options="--quick",
        not_run=["draft-k3"],
    )
    text = page({"sittings": [given]})
    assert "- draft-k3: llama.cpp Q8_0." in text.split("## What has not run")[1]
    how = " ".join(text.split("## How each engine was measured")[1].split())
    assert "load at most 1.25 before, 2.5 after" in how
    assert "Its servers ran with `--quick`. A backup ran." in how


def test_a_new_sitting_takes_the_place_of_its_own_kind_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--folder", str(tmp_path), "--llama-server", "x", "--weights", "Q8_0"]
    asked: list[bench_llm.Bench] = []
    monkeypatch.setattr(bench_llm, "make_pair", lambda *_: None)
    monkeypatch.setattr(bench_llm, "measure", asked.append)
    monkeypatch.setattr(bench_llm, "write_page", lambda *_: None)
    out = tmp_path / "results.json"
    committed = [sitting("vllm"), sitting("llama.cpp"), sitting("llama.cpp", "Q8_0", max_tokens=1)]
    out.write_text(json.dumps({"sittings": committed}), encoding="utf-8")
    bench_llm.main([*options, "--out", str(out)])
    assert json.loads(out.read_text(encoding="utf-8"))["sittings"] == committed, "nothing was measured"
    (bench,) = asked
    for run in RUNS:
        ran(bench.run_folder(LLAMACPP, WAYS[0], run), "HOLD", {"speedup": 1.0, "acceptance": 0.9, "tail": 0.0})
    bench_llm.main([*options, "--out", str(out)])
    found = json.loads(out.read_text(encoding="utf-8"))["sittings"]
    assert found[:2] == committed[:2]
    assert (found[2]["max_tokens"], found[2]["not_run"]) == (24, [WAYS[1].name])


def test_a_run_without_its_truth_is_told_and_judged_by_nothing(tmp_path: Path) -> None:
    ran(tmp_path / "first", "ENABLE", {"speedup": 1.5, "acceptance": 0.9, "tail": 0.0})
    (cell,) = cells(tmp_path / "first", None)
    assert (cell.verdict, cell.is_true, cell.second_speedup, cell.second_figures) == ("ENABLE", None, None, {})
    out = tmp_path / "results.json"
    ran(tmp_path / "runs" / f"llama.cpp-float32-{WAYS[0].name}-first", "HOLD", {"speedup": 1.0})
    options = ["--folder", str(tmp_path), "--llama-server", "x", "--as-is", "--docs", str(tmp_path)]
    bench_llm.main([*options, "--out", str(out)])
    (found,) = json.loads(out.read_text(encoding="utf-8"))["sittings"]
    assert found["not_run"] == [f"{WAYS[0].name}, second run", WAYS[1].name]


def test_sessions_span_what_an_enable_needs() -> None:
    """However few there are."""
    for number in (1, 30, 300):
        prompts = two_halves(PROMPTS, 75)[0][:number]
        times = [datetime.fromisoformat(each["timestamp"]) for each in records(prompts, 8)]
        assert all(later - earlier >= timedelta(hours=1) for earlier, later in pairwise(times))
        assert number == 1 or times[-1] - times[0] > timedelta(seconds=GatePolicy().min_span_s)


def test_one_class_is_counted_once() -> None:
    given = sitting("llama.cpp", classes=["edit"])
    cells = [cell | {"prompt_class": name} for cell in given["cells"][:1] for name in ("", "edit")]  # type: ignore[index]
    assert "- llama.cpp (edit only): 1 ENABLE." in page({"sittings": [given | {"cells": cells}]})
