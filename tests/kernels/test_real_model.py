"""The benchmark of a real model: its prompts, what it configures, and that its page is of the committed results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kernels.benchmarks.engines.real_model.page import PAGE, PICTURE, page, write_page
from kernels.benchmarks.engines.real_model.prompts import (
    CLASSES,
    MEASURED,
    PROMPTS,
    TRAINING,
    Prompt,
    read_prompts,
    record,
)
from kernels.benchmarks.engines.real_model.shortened import shorten
from shadowspec import demo
from shadowspec.engine.tokenizer import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "kernels" / "benchmarks" / "results" / "real_model.json"


def prompts() -> list[Prompt]:
    return [Prompt(**json.loads(line)) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]


def test_no_prompt_is_both_measured_and_learnt_from() -> None:
    found = {part: [each for each in prompts() if each.part == part] for part in (MEASURED, TRAINING)}
    for name in ("source", "text"):
        measured, learnt = ({getattr(each, name) for each in found[part]} for part in (MEASURED, TRAINING))
        assert not measured & learnt
        assert len(measured) == len(found[MEASURED])
    assert {each.source.partition("/")[0] for each in found[MEASURED]}.isdisjoint(
        {each.source.partition("/")[0] for each in found[TRAINING]} - {"gsm8k"}
    )
    assert {each.source.split("/")[1] for each in found[TRAINING] if each.source.startswith("gsm8k")} == {"train"}


def test_a_part_of_the_prompts_has_all_classes() -> None:
    chosen = read_prompts(PROMPTS, MEASURED, 6)
    assert Counter(each.prompt_class for each in chosen) == dict.fromkeys(CLASSES, 6)
    assert [each.prompt_class for each in chosen[:4]] == list(CLASSES), "so that a run that is stopped has some of each"


def test_prompts_without_a_class_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(each.line() for each in prompts() if each.prompt_class != "edit"), encoding="utf-8")
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


def test_what_else_was_set_is_on_the_page() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = page(document | {"max_hypotheses": 16, "vllm_options": "--enforce-eager"})
    assert "`max_hypotheses = 16`" in text
    assert "vLLM's servers ran with `--enforce-eager`" in text


def test_an_answer_is_logged_with_why_it_ended() -> None:
    prompt = prompts()[0]
    assert "response" not in record(prompt, 0, 3)
    ends = [record(prompt, 0, 3, output)["response"]["choices"][0]["finish_reason"] for output in ((5, 6, 7), (5, 2))]
    assert ends == ["length", "stop"]


def test_the_page_is_that_of_the_committed_results(tmp_path: Path) -> None:
    write_page(json.loads(RESULTS.read_text(encoding="utf-8")), tmp_path)
    for name in (PAGE, PICTURE):
        committed = ROOT / "docs" / "research" / name
        assert (tmp_path / name).read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")


@pytest.mark.all
def test_the_page_is_made_of_the_committed_results(tmp_path: Path) -> None:
    """By the script, as its users call it."""
    wanted = ["--folder", str(tmp_path / "none"), "--docs", str(tmp_path), "--parts", "page"]
    ran = subprocess.run(
        [sys.executable, "-m", "kernels.benchmarks.bench_llm", *wanted], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    for name in (PAGE, PICTURE):
        committed = ROOT / "docs" / "research" / name
        assert (tmp_path / name).read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")


def test_what_has_not_run_is_on_the_page() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = page(document | {"not_run": ["vllm: draft-k3."]})
    assert "- vllm: draft-k3." in text.split("## What has not run")[1]
    assert all(f"- {each}" in page(document) for each in document["not_run"])


def test_a_busy_machine_is_named_on_the_page() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    cores = int(document["machine"]["cores"])
    assert "The machine was busy" in page(document | {"mean_load": 4.0 * cores})
    assert "The machine was busy" not in page(document | {"mean_load": 0.5 * cores})
