"""The benchmark of the kernels runs, in small, wherever the tests run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "kernels" / "benchmarks" / "kernel_costs.py"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], env=environment, capture_output=True, text=True)


def test_in_small(tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    ran = run("--small", "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    document = json.loads(out.read_text())
    assert len(document["verification"]) == 6
    assert all(row["rows_equal"] == row["rows"] and row["triton_ms"] > 0.0 for row in document["verification"])
    assert all(row["largest_difference"] < 1e-4 for row in document["scoring"])
    assert "triton" in document["machine"]


def test_without_a_gpu_it_says_so() -> None:
    ran = run(CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 1
    assert "torch finds no GPU" in ran.stderr
