"""The benchmarks of the kernels, and of the loop on a GPU, run in small wherever the tests run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= variables
    command = [sys.executable, "-m", f"kernels.benchmarks.{script}", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


def results(folder: Path, script: str, *arguments: str) -> dict[str, Any]:
    """What a benchmark writes that ends well."""
    out = folder / f"{script}.json"
    ran = run(script, *arguments, "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    document: dict[str, Any] = json.loads(out.read_text())
    return document


@pytest.mark.all
def test_in_small(tmp_path: Path) -> None:
    document = results(tmp_path, "kernel_costs", "--small")
    assert len(document["verification"]) == 6
    assert all(row["rows_equal"] == row["rows"] and row["triton_ms"] > 0.0 for row in document["verification"])
    assert all(row["largest_difference"] < 1e-4 for row in document["scoring"])
    assert "triton" in document["machine"]


@pytest.mark.all
@pytest.mark.representative("kernel_costs")
@pytest.mark.parametrize("script", ["kernel_costs", "gpu_decode", "gpu_trial"])
def test_without_a_gpu_it_says_so(script: str) -> None:
    ran = run(script, CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 1
    assert "torch finds no GPU" in ran.stderr


@pytest.mark.all
@pytest.mark.slow
def test_the_loop_in_small(tmp_path: Path) -> None:
    document = results(tmp_path, "gpu_decode", "--small")
    assert document["is_small"]
    assert len(document["rates"]) == 3 + 3 * 2 * 2
    assert all(row["tokens_per_second"] > 0.0 for row in document["rates"])
    assert len(document["sampled_rates"]) == 2 * 2 * 2 * 2
    assert all(row["tokens_per_second"] > 0.0 for row in document["sampled_rates"])
    by_arm = {"baseline": set(), "speculative": set()}
    for row in document["steps"]:
        assert row["step_ms"] > 0.0
        by_arm[row["arm"]].add((row["at_once"], row["tokens_per_step"]))
    assert by_arm["baseline"] == {(1, 1.0), (2, 1.0)}
    assert len(by_arm["speculative"]) == 2, "every way of running accepts the same"
    assert document["kernels_ran"]["recorded, triton"].keys() == {"append", "verify"}


@pytest.mark.all
@pytest.mark.slow
def test_everything_for_a_gpu_in_small(tmp_path: Path) -> None:
    document = results(tmp_path, "gpu_trial", "--small")
    assert [(row["part"], row["ended"]) for row in document["ended"]] == [
        (part, "whole") for part in ("loop", "worker", "kernels")
    ]
    assert document["parts"]["worker"]["num_requests"] > 0
    assert document["parts"]["worker"]["num_failed"] == 0
    assert "passed" in document["parts"]["kernels"]["tests"]


@pytest.mark.all
@pytest.mark.slow
def test_steps_on_a_cpu_in_small(tmp_path: Path) -> None:
    document = results(tmp_path, "llm_cpu", "--shapes", "small", "--rounds", "1", "--output", "4")
    (found,) = document["results"]
    assert {"step to floor", "pass of 5 to step", "tokens/s at 8, compiled to torch"} < found["ratios"].keys()
    memory = {each["forward"]: each for each in found["memory"]}
    assert list(memory) == ["compiled", "compiled, bfloat16", "compiled, int8", "torch"]
    float32, bfloat16, int8, torch = memory.values()
    assert float32["counted_ratio"] < torch["counted_ratio"]
    assert float32["weights_mib"] == torch["weights_mib"]
    assert int8["weights_mib"] < bfloat16["weights_mib"] < float32["weights_mib"]
