"""Ways to record work on fixed buffers, so that it can be done again with nothing but what changed in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import torch

from shadowspec.errors import ModelError

WARM_UPS: Final = 3  # as torch's documentation has it: libraries choose kernels and allocate at their first calls

Work = Callable[[], None]


class Recorder(Protocol):
    """Records work; what was recorded by one of them shares memory and is never run at once."""

    name: str

    def record(self, work: Work) -> Work:
        """Do the work, and return what does it again on the same buffers."""

    def held_bytes(self) -> int:
        """What all that was recorded holds on the device, beside the buffers that it was given."""


class Rerun:
    """Does the work again by calling it: the same buffers and results anywhere, and no faster."""

    name = "rerun"

    def record(self, work: Work) -> Work:
        work()
        return work

    def held_bytes(self) -> int:
        return 0


class CudaGraphs:
    """Captures the launches of the work in CUDA graphs, in one pool of memory."""

    name = "graphs"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # torch's handle
        self._stream: torch.cuda.Stream | None = None

    def record(self, work: Work) -> Work:
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
            self._pool = graph.pool()
        return partial(self._replay, graph)

    def _replay(self, graph: torch.cuda.CUDAGraph) -> None:
        with torch.cuda.device(self._device):
            graph.replay()

    def held_bytes(self) -> int:
        if self._pool is None:
            return 0
        segments: list[dict[str, Any]] = torch.cuda.memory_snapshot(self._pool)  # type: ignore[no-untyped-call]
        return sum(segment["total_size"] for segment in segments)


def choose_recorder(name: str, device: torch.device) -> Callable[[], Recorder] | None:
    """What makes recorders for a configured name: "auto" (CUDA graphs on a GPU), "graphs", or "dynamic" (None).

    Raises:
        ModelError: graphs are asked for and the device has none.
    """
    if name == "dynamic" or (name == "auto" and device.type != "cuda"):
        return None
    if device.type != "cuda":
        raise ModelError(f'passes = "{name}" is configured, but CUDA graphs need a GPU and the device is {device}')
    return partial(CudaGraphs, device)
