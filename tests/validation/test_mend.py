"""The mend of vLLM's sampling on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.benchmarks.engines.mend.vllm_cpu_expand import expand
from kernels.benchmarks.engines.servers import FIX_FOLDER


def test_the_mend_expands_as_the_gpus_kernel_does() -> None:
    """Each request's value for each of its tokens, with zeros (of greedy requests) replaced, and fractions kept."""
    output = torch.full((7,), 99.0)
    expand(output, torch.tensor([0.8, 0.0, 0.3]), torch.tensor([2, 4, 7], dtype=torch.int32), 0, 1)
    assert output.tolist() == pytest.approx([0.8, 0.8, 1.0, 1.0, 0.3, 0.3, 0.3])


def test_the_mend_replaces_one_function_of_one_module(tmp_path: Path) -> None:
    """In a process that has it on its path, as vLLM's have."""
    package = tmp_path / "vllm" / "utils"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (package / "cpu_triton_utils.py").write_text("other = 5\ndef _expand_kernel_impl(): pass\n")
    program = "from vllm.utils import cpu_triton_utils as own; print(own._expand_kernel_impl.__name__, own.other)"
    for path, name in ((f"{FIX_FOLDER}{os.pathsep}{tmp_path}", "expand"), (str(tmp_path), "_expand_kernel_impl")):
        ran = subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
        )
        assert ran.stdout.split() == [name, "5"]
