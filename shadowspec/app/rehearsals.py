"""Rehearsals: what the gate would decide of a recording that is still being measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from shadowspec.config import Config, EndpointConfig
from shadowspec.rollout.endpoint_run import EndpointRun, run_endpoint, unfinished_trials
from shadowspec.store import Store
from shadowspec.types import Decision
from shadowspec.worker.files import Progress

SECONDS_BETWEEN_REHEARSALS: Final = 2.0  # at least ...
REHEARSALS_SHARE: Final = 0.05  # ... and this share of the time, at most, is spent on them


@dataclass(frozen=True, slots=True)
class MeasuringProgress:
    """How far measuring is; `decisions` are of the last rehearsal.

    `eta_s` is to the end of the recording, None before a block was measured; `limit_s` until --minutes ends measuring
    (infinite without it).
    """

    done: Progress
    num_records: int
    seconds: float
    eta_s: float | None
    limit_s: float
    decisions: Sequence[Decision]


@contextmanager
def rehearsed(config: Config, store: Store, endpoints: Iterable[str]) -> Iterator[Store]:
    """The store; where a trial's recording is not read to its end, with a gate run on it that is undone at the end."""
    chosen = {name: config.endpoints[name] for name in endpoints}
    trials = unfinished_trials(store, {name: endpoint.policy for name, endpoint in chosen.items()})
    if not trials:
        yield store
        return
    with store.rehearsal(trials[0]) as undone:
        for name in trials:
            run_endpoint(undone, name, chosen[name].policy, chosen[name].rollout, input_ended=True)
        yield undone


@contextmanager
def rehearsed_run(
    store: Store, name: str, endpoint: EndpointConfig, *, input_ended: bool | None
) -> Iterator[tuple[Store, EndpointRun]]:
    """The store after an endpoint's gate run, and the run; it is undone at the end."""
    with store.rehearsal(name) as undone:
        yield undone, run_endpoint(undone, name, endpoint.policy, endpoint.rollout, input_ended=input_ended)


class Rehearsals:
    """Rehearses the gate between blocks.  Lives while a recording is measured."""

    def __init__(
        self,
        config: Config,
        store: Store,
        num_records: int,
        on_progress: Callable[[MeasuringProgress], None],
        *,
        eta: Callable[[Progress, float], float] | None = None,
        ends_at: float = math.inf,
    ) -> None:
        """
        Args:
            on_progress: called after every record and block.
            ends_at: when a limit of the time ends measuring, by the monotonic clock.
            eta: seconds to the recording's end, by the progress and the seconds so far.  Default: by the share of
                records read.
        """
        self._config, self._store, self._num_records = config, store, num_records
        self._on_progress, self._eta, self._ends_at = on_progress, eta or self._eta_by_records, ends_at
        self._started = time.monotonic()
        self._next = 0.0
        self.done = Progress(0, 0, 0, 0)
        self._decisions: Sequence[Decision] = ()

    def take_progress(self, progress: Progress) -> None:
        """Rehearse after a block if it is time to, and report."""
        is_block = progress.blocks_measured > self.done.blocks_measured
        self.done = progress
        now = time.monotonic()
        if is_block and now >= self._next:
            self._decisions = self._rehearse()
            ended = time.monotonic()
            self._next = ended + max(SECONDS_BETWEEN_REHEARSALS, (ended - now) / REHEARSALS_SHARE)
        self._on_progress(self.progress)

    @property
    def seconds(self) -> float:
        """Since measuring began."""
        return time.monotonic() - self._started

    @property
    def progress(self) -> MeasuringProgress:
        """How far it is now."""
        seconds = self.seconds
        # Records are read in no time while the first block fills: their share tells nothing of it.
        eta_s = self._eta(self.done, seconds) if self.done.blocks_measured else None
        limit_s = self._ends_at - time.monotonic()
        return MeasuringProgress(self.done, self._num_records, seconds, eta_s, limit_s, self._decisions)

    def _eta_by_records(self, done: Progress, seconds: float) -> float:
        return seconds * (self._num_records / max(done.records_read, 1) - 1.0)

    def _rehearse(self) -> list[Decision]:
        """What the gate would decide if the input ended here; nothing of it is kept."""
        decisions: list[Decision] = []
        for name, endpoint in self._config.endpoints.items():
            with rehearsed_run(self._store, name, endpoint, input_ended=True) as (_, run):
                decisions.extend(run.decisions)
        return decisions
