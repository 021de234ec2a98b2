"""A recorder of static passes for tests."""

from __future__ import annotations

from kernels.benchmarks.rerun import Rerun
from shadowspec.engine.device import choose_device
from shadowspec.engine.static_passes import CudaGraphs, PassRecorder

DEVICE = choose_device("auto")


def new_recorder() -> PassRecorder:
    return CudaGraphs(DEVICE) if DEVICE.type == "cuda" else Rerun()
