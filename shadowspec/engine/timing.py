"""Clocks of an arm: CUDA events on a GPU, `perf_counter` on a CPU, read only when the work is done.

Marks are laid at the boundaries of phases while the arm runs; nothing waits for the device until
`elapsed_ms` is asked for, so that timing adds no synchronisation to the step.
"""

from __future__ import annotations

import time

import torch


class Timeline:
    """Marks on one device's clock, in the order they were laid."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._seconds: list[float] = []
        self._is_settled = False

    def mark(self) -> int:
        """Lay a mark here and return its number."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))  # which need not be that of the current device
            self._events.append(event)
            self._is_settled = False
            return len(self._events) - 1
        self._seconds.append(time.perf_counter())
        return len(self._seconds) - 1

    def elapsed_ms(self, first: int, second: int) -> float:
        """Milliseconds from one mark to another."""
        if not self._on_gpu:
            return 1e3 * (self._seconds[second] - self._seconds[first])
        if not self._is_settled:
            torch.cuda.synchronize(self._device)
            self._is_settled = True
        return float(self._events[first].elapsed_time(self._events[second]))
