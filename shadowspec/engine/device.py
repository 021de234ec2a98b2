"""Device, arithmetic, kernels and recorder by their names in the configuration.

Torch is loaded here, and transformers is not.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from shadowspec.errors import ModelError

if TYPE_CHECKING:
    from shadowspec.engine.static_passes import PassRecorder
    from shadowspec_kernels.dispatch import Kernels


def choose_device(name: str) -> torch.device:
    """The device of a configured name ("auto": the GPU where there is one).

    On a GPU torch's attention stays without cuDNN in this process: with a mask that does not begin at a multiple of
    16 bytes, as the last tokens of prompts of different lengths give, cuDNN's reads at a misaligned address and ends
    the device's context (torch 2.11 on an H100).

    Raises:
        ModelError: a GPU is requested and there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f'device {name!r} is configured but this machine has no usable GPU; set device = "auto" in [engine]'
        )
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of a configured name ("auto": float32 on a CPU, bfloat16 on a GPU).

    Raises:
        ModelError: the name is unknown, or the dtype is only for a CPU.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ModelError(f"unknown dtype {name!r}: use auto, float32, bfloat16, float16 or int8")
    if dtype == torch.int8 and device.type != "cpu":
        raise ModelError(f'dtype = "int8" runs only on a CPU, and the device is {device}; set dtype = "bfloat16"')
    return dtype


def choose_kernels(name: str, device: torch.device) -> Kernels | None:
    """The kernels for a configured name; None: the engine's code on torch.

    "auto": Triton's on a GPU that can run them.

    Raises:
        ModelError: "triton" is requested and cannot run here; the message names what is missing.
    """
    if name == "torch" or (name == "auto" and device.type != "cuda"):
        return None
    from shadowspec_kernels.backends import why_unavailable
    from shadowspec_kernels.dispatch import Kernels

    if (reason := why_unavailable("triton", device)) is None:
        return Kernels("triton", device)
    if name == "auto":
        return None
    raise ModelError(f'kernels = "{name}" is configured, but they cannot run on {device}: {reason}')


def choose_recorder(name: str, device: torch.device) -> Callable[[], PassRecorder] | None:
    """The recorder factory for a configured name: "auto" (CUDA graphs on a GPU), "graphs", or "dynamic" (None).

    Raises:
        ModelError: graphs are requested and the device has none.
    """
    if name == "dynamic" or (name == "auto" and device.type != "cuda"):
        return None
    if device.type != "cuda":
        raise ModelError(f'passes = "{name}" is configured, but CUDA graphs need a GPU and the device is {device}')
    from shadowspec.engine.static_passes import CudaGraphs

    return partial(CudaGraphs, device)


def device_name(device: torch.device) -> str:
    """The device as people know it, e.g. "NVIDIA H200" or "cpu x86_64, 2 threads"."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu {platform.machine()}, {torch.get_num_threads()} threads"
