"""Which backend ran is written down, and one that cannot run is an error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from shadowspec_kernels import backends, reference, verification
from shadowspec_kernels.dispatch import Kernels
from shadowspec_kernels.errors import OperandError, UnavailableError
from tests.kernels.steps import a_step, moved, with_truncation

REFUSED = """
import torch
from shadowspec_kernels.dispatch import Kernels
from shadowspec_kernels.errors import UnavailableError
Kernels("torch", torch.device("cpu"))
try:
    Kernels("triton", torch.device("cpu"))
except UnavailableError as error:
    print(error)
"""


def run_all(kernels: Kernels, device: torch.device) -> None:
    kernels.verify(moved(a_step("greedy", 1, vocabulary=8, depth=1), device))
    hidden, tokens = torch.ones((2, 3), device=device), torch.zeros(2, dtype=torch.int64, device=device)
    kernels.score(hidden, torch.ones((5, 3), device=device), tokens, torch.ones(2, device=device))
    cache, states = torch.zeros((2, 1, 4, 3), device=device), torch.ones((2, 1, 1, 3), device=device)
    kernels.append(cache, states, torch.arange(2, device=device), tokens[:, None])
    assert cache.sum() == 6.0


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_what_ran_is_counted_by_kernel_and_backend(backend, device) -> None:
    kernels = Kernels(backend, device)
    assert kernels.ran() == {}
    run_all(kernels, device)
    assert kernels.ran() == {"append": {backend: 2}, "score": {backend: 2}, "verify": {backend: 3}}


def test_each_backend_runs_its_own_code_alone(device, monkeypatch) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("the other backend was called")

    for name in ("verify", "score", "append"):
        monkeypatch.setattr(reference, name, forbidden)
    run_all(Kernels("triton", device), device)
    monkeypatch.undo()
    monkeypatch.setattr(verification, "verify", forbidden)
    run_all(Kernels("torch", device), device)


@pytest.mark.parametrize("slots", [(1,), (0, 2, 3), (0, 1, 2, 3)])
def test_rows_that_need_a_sorted_vocabulary_go_to_torch_and_are_counted(slots, device) -> None:
    for rule in ("rejection", "exact_match"):
        step = moved(with_truncation(a_step(rule, 4, rows=4, has_draft_probs=True), slots), device)
        kernels = Kernels("triton", device)
        verified, expected = kernels.verify(step), reference.verify(step)
        assert verified.num_accepted.tolist() == expected.num_accepted.tolist()
        assert verified.next_tokens.tolist() == expected.next_tokens.tolist()
        counted = {"torch": len(slots), "triton": 4 - len(slots)}
        assert kernels.ran() == {"verify": {backend: rows for backend, rows in counted.items() if rows}}


def test_a_truncation_matters() -> None:
    step = with_truncation(a_step("exact_match", 4, rows=64), tuple(range(64)))
    assert not torch.equal(
        reference.verify(step).next_tokens, reference.verify(a_step("exact_match", 4, rows=64)).next_tokens
    )


def test_a_step_that_the_kernels_cannot_address_is_no_step_for_torch(device) -> None:
    step = moved(a_step("greedy", 1), device)
    object.__setattr__(step, "logits", step.logits.transpose(1, 2).contiguous().transpose(1, 2))
    kernels = Kernels("triton", device)
    with pytest.raises(OperandError, match="not contiguous"):
        kernels.verify(step)
    assert kernels.ran() == {}


@pytest.mark.all
def test_without_gpu_and_interpreter_triton_is_refused() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", REFUSED], env=environment, capture_output=True, text=True, check=True)
    assert "backend 'triton' cannot run on cpu: it needs a GPU, or Triton's interpreter" in ran.stdout


def test_an_unknown_backend_and_a_missing_package_are_refused(monkeypatch) -> None:
    with pytest.raises(UnavailableError, match="there are torch and triton"):
        Kernels("cuda", torch.device("cpu"))  # type: ignore[arg-type]
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"install shadowspec\[kernels\]"):
        Kernels("triton", torch.device("cpu"))


def test_a_gpu_without_the_means_to_build_launchers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(backends, "is_interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(backends.shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    monkeypatch.setattr(backends.sysconfig, "get_path", lambda name: "/nowhere")
    assert backends.why_unavailable("triton", gpu) == (
        "Triton needs the header files of this Python; install python3-dev"
    )
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    assert backends.why_unavailable("triton", gpu) == "Triton finds no C compiler; install gcc, or set CC"
