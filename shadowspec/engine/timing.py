"""When each request of an arm came and got its first and last token, and the time of the steps between.

The clocks are CUDA events on a GPU and `perf_counter` on a CPU.  Marks are laid at the boundaries of phases while the
arm runs; nothing waits for the device until `elapsed_ms` is called, so that timing adds no synchronisation to the step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shadowspec.engine.batch import Batch, Row
from shadowspec.types import ArmTiming


@dataclass(slots=True)
class _Life:
    """Marks of one request, and the steps from `first_step` up to, but without, `end_step`."""

    issued: int
    prefilled: int = 0
    ended: int = 0
    first_step: int = 0
    end_step: int = 0


class StepClock:
    """Lays marks while the arm runs and reads them once it is done.

    A request is issued when its slot is free: at the start, or when the row before it has ended (a closed loop, in
    which no request waits for a slot).
    """

    def __init__(self, timeline: Timeline, batch: Batch, start: int) -> None:
        self._timeline, self._batch, self._start = timeline, batch, start
        self._latest = start
        self._steps: list[tuple[int, int, int, int]] = []  # marks: started, drafted, verified, committed
        self._lives: dict[Row, _Life] = {}
        self._running: list[Row] = []

    def mark_prefilled(self, slots: Sequence[int]) -> None:
        """The rows in these slots have their first tokens."""
        issued, self._latest = self._latest, self._timeline.mark()
        for slot in slots:
            row = self._batch.rows[slot]
            self._lives[row] = _Life(issued, self._latest, first_step=len(self._steps))
            self._running.append(row)
        self._note_ends()

    def mark_drafted(self) -> None:
        """The step has its drafts."""
        self._drafted = self._timeline.mark()

    def mark_verified(self) -> None:
        """The step's drafts are verified."""
        self._verified = self._timeline.mark()

    def mark_committed(self) -> None:
        """The step is over."""
        started, self._latest = self._latest, self._timeline.mark()
        self._steps.append((started, self._drafted, self._verified, self._latest))
        self._note_ends()

    def _note_ends(self) -> None:
        ended = [row for row in self._running if row.finish_reason is not None]
        if ended:
            self._running = [row for row in self._running if row.finish_reason is None]
            for row in ended:
                self._lives[row].ended, self._lives[row].end_step = self._latest, len(self._steps)

    @property
    def duration_ms(self) -> float:
        """From the start to the last token."""
        return self._timeline.elapsed_ms(self._start, self._latest)

    def timings(self) -> list[ArmTiming]:
        """Each request's latency, in the order given; draft and verify are the wall time of those phases meanwhile."""
        elapsed = self._timeline.elapsed_ms
        spent = np.zeros((len(self._steps) + 1, 2))  # up to each step: drafting, verifying
        for number, (started, drafted, verified, _) in enumerate(self._steps, start=1):
            spent[number] = spent[number - 1] + (elapsed(started, drafted), elapsed(drafted, verified))
        arrived = [elapsed(self._start, committed) for *_, committed in self._steps]  # of each step's tokens
        lives = [self._lives[row] for row in self._batch.all_rows]
        concurrencies = self._concurrencies(lives)
        result = []
        for row, life, concurrency in zip(self._batch.all_rows, lives, concurrencies.tolist(), strict=True):
            draft, verify = (spent[life.end_step] - spent[life.first_step]).tolist()
            decode = elapsed(life.prefilled, life.ended)
            arrivals = [elapsed(self._start, life.prefilled), *arrived[life.first_step : life.end_step]]
            result.append(
                ArmTiming(
                    queue_ms=0.0,
                    prefill_ms=elapsed(life.issued, life.prefilled),
                    decode_ms=decode,
                    draft_ms=draft,
                    verify_ms=verify,
                    other_ms=max(0.0, decode - draft - verify),
                    num_output_tokens=len(row.output),
                    concurrency=concurrency,
                    longest_gap_ms=float(np.diff(arrivals).max()) if len(arrivals) > 1 else None,
                )
            )
        return result

    def _concurrencies(self, lives: Sequence[_Life]) -> npt.NDArray[np.float64]:
        """The mean number of requests in progress while each one was, itself included, [requests]."""
        elapsed = self._timeline.elapsed_ms
        begun, ended = np.array([[elapsed(self._start, m) for m in (live.issued, live.ended)] for live in lives]).T
        times = np.concatenate((begun, ended))
        order = np.argsort(times, kind="stable")
        changes = np.repeat((1.0, -1.0), len(lives))[order]
        spent = np.diff(times[order]) * changes.cumsum()[:-1]  # requests in progress times ms, between two changes
        area = np.concatenate(((0.0,), spent.cumsum()))  # up to each change
        beside: npt.NDArray[np.float64] = np.interp(ended, times[order], area) - np.interp(begun, times[order], area)
        lasted: npt.NDArray[np.float64] = np.maximum(ended - begun, np.finfo(np.float64).tiny)
        return np.maximum(beside / lasted, 1.0)  # each was in progress itself, so rounding below 1 is wrong


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
