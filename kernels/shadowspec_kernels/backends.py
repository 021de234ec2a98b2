"""Which backends can run on which device."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Literal

import torch

Backend = Literal["torch", "triton"]
BACKENDS: tuple[Backend, ...] = ("torch", "triton")
LEAST_CAPABILITY = (8, 0)  # bfloat16 in Triton's products


def why_unavailable(backend: str, device: torch.device) -> str | None:
    """Why a backend cannot run on a device, or None if it can."""
    if backend not in BACKENDS:
        return f"there are {' and '.join(BACKENDS)}"
    if backend == "torch" or is_interpreted():
        return None
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; install shadowspec[kernels]"
    if device.type != "cuda":
        return "it needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1 before Python starts)"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if (capability := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY:
        return f"the device has compute capability {capability}, and {LEAST_CAPABILITY} is needed"
    return _missing_for_building()


def _missing_for_building() -> str | None:
    """What Triton lacks to build the launchers of its kernels, or None."""
    if not any(shutil.which(name) for name in (os.environ.get("CC"), "gcc", "clang") if name):
        return "Triton finds no C compiler; install gcc, or set CC"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Triton needs the header files of this Python; install python3-dev"
    return None


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU and slowly, which is decided when triton is imported."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton.language
    from triton.runtime import JITFunction

    return not isinstance(triton.language.sum, JITFunction)
