"""The benchmark beside vLLM, with an engine in vLLM's place that decodes as ours does, or not quite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "kernels" / "benchmarks" / "vllm.py"
ENGINE = """
import json, sys
import torch
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import load_model
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.types import SamplingParameters, VerifyRule

settings = json.loads(sys.stdin.readline())
load = lambda path: load_model(str(path), torch.device("cpu"), torch.float32)
target, draft = load(settings["target"]), settings["draft"] and load(settings["draft"])
depth = settings["num_speculative_tokens"]
print(json.dumps({"vllm": "none", "torch": torch.__version__, "threads": 1}), flush=True)
for line in sys.stdin:
    outputs = []
    for batch in json.loads(line):
        sampling = SamplingParameters(temperature=0.0, max_tokens=settings["max_tokens"], ignore_eos=True)
        result = decode_batch(
            target.model, [Request(tuple(prompt), sampling, 0) for prompt in batch],
            proposer=DraftModelProposer(draft.model, depth, is_sampling=False) if draft else None,
            num_speculative_tokens=depth, verify_rule=VerifyRule.GREEDY, end_token_ids=frozenset(),
        )
        for decoded in result.decoded:
            counts, tokens = decoded.counts, list(decoded.output)
            accepted = counts.num_accepted_tokens + counts.num_cut_accepted_tokens
            tokens[CHANGED] += 0 if CHANGED < 0 else 1
            outputs.append({
                "tokens": tokens,
                "drafted": [depth] * counts.num_drafts,
                "accepted": [accepted] + [0] * (counts.num_drafts - 1) if counts.num_drafts else [],
            })
    print(json.dumps({"seconds": 0.5, "outputs": outputs}), flush=True)
"""


def run(folder: Path, changed: int) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    """The benchmark in small; the engine's token at `changed` is another one, unless it is below 0."""
    engine, python, out = folder / "engine.py", folder / "python", folder / "vllm.json"
    engine.write_text(ENGINE.replace("CHANGED", str(changed)))
    paths = os.pathsep.join(sys.path)
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{paths}' exec {sys.executable} {engine}\n")
    python.chmod(0o755)
    command = [sys.executable, SCRIPT, "--vllm-python", python, "--rounds", "1", "--tokens", "8", "--compared", "6"]
    ran = subprocess.run(
        [*command, "--out", out], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=300
    )
    return ran, json.loads(out.read_text())


@pytest.mark.slow
def test_what_is_equal_is_said_to_be(tmp_path: Path) -> None:
    ran, document = run(tmp_path, -1)
    assert ran.returncode == 0, ran.stderr
    results, equality = document["results"], document["equality"]
    assert isinstance(results, list)
    assert isinstance(equality, dict)
    assert [(row["arm"], row["concurrency"]) for row in results] == [
        (arm, concurrency) for concurrency in (1, 8) for arm in ("baseline", "speculative")
    ]
    for row in results:
        tokens = 8 * {1: 4, 8: 16}[row["concurrency"]]
        assert row["vllm_tokens_per_second"] == tokens / 0.5
        assert row["ratio_median"] == pytest.approx(row["ours_tokens_per_second"] / row["vllm_tokens_per_second"])
    for own in equality.values():
        assert own["equal_tokens"] == own["equal"] == own["requests"] >= 6
        assert own["differences"] == []
    assert equality["speculative"]["num_accepted_tokens"] > 0


@pytest.mark.slow
def test_another_token_where_the_target_is_sure_fails(tmp_path: Path) -> None:
    ran, document = run(tmp_path, 3)
    assert ran.returncode == 1
    assert "outputs or counts differ where the target was not in doubt" in ran.stderr
    equality = document["equality"]
    assert isinstance(equality, dict)
    assert equality["baseline"]["equal_tokens"] == 0
    for difference in equality["baseline"]["differences"]:
        assert difference["position"] == 3
        assert difference["top_two_gap"] > 0.0
