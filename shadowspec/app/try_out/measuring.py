"""Measuring a trial: models, an estimate, blocks with a look at the verdict between them, and what they came to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from shadowspec import store as stores
from shadowspec.app.measure_files import build_engines, measure_with
from shadowspec.app.rehearsals import MeasuringProgress, Rehearsals
from shadowspec.app.stored_evidence import num_measured
from shadowspec.app.try_out.preparation import PreparedTrial, write_config
from shadowspec.config import EndpointConfig, load_config
from shadowspec.planning.sizing import stored_costs
from shadowspec.reports.report import Report, build_report
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.store import Store
from shadowspec.types import Decision
from shadowspec.worker.files import Progress

if TYPE_CHECKING:
    from shadowspec.engine import Engine

BLOCK_SECONDS: Final = 20.0  # that a block may take: the first figures come with the first block
CUT_STEP: Final = 16  # outputs are cut at a multiple of this, and no shorter: fewer tokens are too short to time
LONG_OUTPUT: Final = 0.9  # the quantile of output lengths that a block is taken to decode: it waits for its longest


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What a trial came to: `ended_by` is "end" (of the recording), "time" or "interrupt"."""

    ended_by: str
    progress: MeasuringProgress
    decisions: Sequence[Decision]
    report: Report


class _TimeIsUpError(Exception):
    """Ends measuring at the deadline, between two blocks."""


@contextmanager
def load_trial(trial: PreparedTrial) -> Iterator[LoadedTrial]:
    """The trial with its models in memory and its database open.

    Raises:
        ModelError: a model cannot be loaded, or a pair does not fit together.
    """
    stores.upgrade(trial.config.database_url)
    with Store.open(trial.config.database_url) as store:
        yield LoadedTrial(trial, store, build_engines(trial.config)[trial.inputs.endpoint])


class LoadedTrial:
    """A trial with its models in memory, or its servers looked at.

    `max_new_tokens` is where its outputs are cut; None: nowhere.  `estimated_s` is None where nothing was timed yet, as
    through servers before the first block.
    """

    def __init__(self, trial: PreparedTrial, store: Store, engine: Engine | ServerEngine) -> None:
        self.trial, self._store, self._engine = trial, store, engine
        name = trial.inputs.endpoint
        timed_s = self._time_request(engine) if not isinstance(engine, ServerEngine) else None
        self.max_new_tokens = self.trial.rule.max_new_tokens
        self.num_before = num_measured(store, [name])
        self.num_left = 0.0 if self._is_read else max(trial.num_timed - self.num_before, 0.0)
        costs = stored_costs(store, [name]).get(name)
        self.request_s = timed_s if costs is None else costs.overall.seconds
        self.estimated_s = None if self.request_s is None else self.request_s * self.num_left

    def _time_request(self, engine: Engine) -> float:
        """Seconds of the device for a measured request, by a warm-up and a prefill; long outputs are cut."""
        trial, concurrency, num_arms = self.trial, self.trial.inputs.concurrency, 1 + len(engine.configs)
        started = time.monotonic()
        num_steps = engine.warm_up(concurrency)
        token_s = (time.monotonic() - started) / max(num_steps, 1) * num_arms
        longest = _quantile([request.num_output_tokens for request in trial.survey.requests])
        if not self._store.endpoints() and token_s * longest > BLOCK_SECONDS:
            self._cut(max(int(BLOCK_SECONDS / token_s) // CUT_STEP, 1) * CUT_STEP)
        cut = min(longest, self.trial.rule.max_new_tokens or longest)
        prefill_s = engine.time_prefill(concurrency, trial.survey.mean_prompt_tokens) * num_arms
        return (prefill_s + token_s * cut) / trial.survey.timed_per_block(trial.rule, concurrency)

    def measure(self, ends_at: float, on_progress: Callable[[MeasuringProgress], None]) -> TrialOutcome:
        """Measure until the recording or the time ends, or the user interrupts; then decide.

        Of a recording that was not read to its end nothing is folded for good: sessions that go on would enter cut.
        The verdict is a rehearsal, and the same command continues.

        Args:
            ends_at: by the monotonic clock; no block begins that would end later, but at least one is measured.
            on_progress: called after every record and block.
        """
        trial = self.trial
        rehearsals = Rehearsals(
            trial.config,
            self._store,
            trial.sample.num_lines,
            on_progress,
            eta=None if self.request_s is None else self._eta,
            ends_at=ends_at,
        )

        def take_progress(progress: Progress) -> None:
            blocks_before = rehearsals.done.blocks_measured
            rehearsals.take_progress(progress)
            if progress.blocks_measured > blocks_before:
                block_s = rehearsals.seconds / progress.blocks_measured
                if ends_at - time.monotonic() < block_s:
                    raise _TimeIsUpError

        ended_by = "end"
        try:
            engines = {trial.inputs.endpoint: self._engine}
            measure_with(trial.config, engines, self._store, [trial.sample.path], on_progress=take_progress)
        except _TimeIsUpError:
            ended_by = "time"
        except KeyboardInterrupt:
            ended_by = "interrupt"
        if self._is_read:  # the time or the user ended it when the last block was measured
            ended_by = "end"
        if ended_by == "end":
            return TrialOutcome(ended_by, rehearsals.progress, self._decide(self._store), self._report(self._store))
        with self._store.rehearsal(trial.inputs.endpoint) as undone:
            return TrialOutcome(ended_by, rehearsals.progress, self._decide(undone), self._report(undone))

    @property
    def _is_read(self) -> bool:
        """Whether the recording is read to its end and everything of it is measured."""
        return self._store.watermark(self.trial.inputs.endpoint).is_ended

    def _eta(self, latest: Progress, seconds: float) -> float:
        """Seconds to the end of the recording, by the requests measured so far."""
        request_s = seconds / latest.requests_measured if latest.requests_measured else self.request_s
        assert request_s is not None, "without a time of a request the records say it"
        return max(self.num_left - latest.requests_measured, 0.0) * request_s

    @property
    def _endpoint(self) -> EndpointConfig:
        return self.trial.config.endpoints[self.trial.inputs.endpoint]

    def _decide(self, store: Store) -> Sequence[Decision]:
        name, endpoint = self.trial.inputs.endpoint, self._endpoint
        return run_endpoint(store, name, endpoint.policy, endpoint.rollout, input_ended=True).decisions

    def _report(self, store: Store) -> Report:
        policies = {self.trial.inputs.endpoint: self._endpoint.policy}
        note = self.trial.config.dashboard.data_note or ""
        return build_report(store, policies, datetime.now(UTC), data_note=note)

    def _cut(self, max_new_tokens: int) -> None:
        """Cut outputs, and say so in the configuration."""
        trial = self.trial
        write_config(
            trial.inputs, trial.out, trial.survey, trial.slicing, max_new_tokens=max_new_tokens, gaps=trial.sample.gaps
        )
        config = load_config(trial.config_path, environment={})
        config = replace(config, given_format=trial.inputs.field_map, given_arrivals=trial.inputs.trace)
        self.trial = replace(trial, config=config)


def _quantile(lengths: Sequence[int]) -> int:
    return sorted(lengths)[min(int(LONG_OUTPUT * len(lengths)), len(lengths) - 1)]
