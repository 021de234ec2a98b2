"""The kernels compile for the GPUs that they are meant for, on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SHARED_MEMORY = 227 * 1024  # bytes that a program may have on an H100 or H200


@pytest.mark.all
def test_every_kernel_compiles_for_a_hopper_gpu(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(["", *sys.path]), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.compiling", "90"]
    folder = Path(__file__).resolve().parents[2]
    ran = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    compiled = [(name, int(size), int(shared)) for name, size, shared in map(str.split, ran.stdout.splitlines())]
    assert Counter(name for name, _, _ in compiled) == {
        "_measure_tiles": 3,
        "_accept": 3,
        "_measure_residual": 1,
        "_draw": 3,
        "_score": 2,
        "_append": 1,
    }
    assert all(size > 0 and shared <= SHARED_MEMORY for _, size, shared in compiled)
