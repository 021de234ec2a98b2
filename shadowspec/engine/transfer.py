"""Small values of the host on the device, without waiting for what the device has yet to do.

A copy from ordinary memory makes the host wait for the stream; one from pinned memory is queued like any other work.
The step reads its outcome back once (`decode.py`), and nothing else in it may wait.
"""

from __future__ import annotations

from typing import Any

import torch


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Numbers, nested sequences of them or an array as a tensor on the device."""
    tensor = torch.as_tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
