"""Gate runs of the configured endpoints, as `shadowspec gate` shows them: made, or only rehearsed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from shadowspec.app.rehearsals import rehearsed_run
from shadowspec.app.stored_evidence import no_decision, require_measured
from shadowspec.config import Config
from shadowspec.errors import InputError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.recompute import Explanation, explain
from shadowspec.gate.verdict.current_verdict import current_decisions
from shadowspec.planning.demand import EndpointLoads, endpoint_loads
from shadowspec.reports.figures.replay_rows import AuditRow, audit_rows
from shadowspec.rollout.check.answer import Answer, Question
from shadowspec.rollout.check.judge import asked, read_check_input
from shadowspec.rollout.endpoint_run import EndpointRun, GatePolicies, run_endpoints, unfinished_trials
from shadowspec.rollout.stages import RolloutStep
from shadowspec.store import Store
from shadowspec.types import Decision


@dataclass(frozen=True, slots=True)
class GateResults:
    """The results of gate runs of some endpoints; `current` has the decisions after overrides.

    `loads` are those decisions by load, under production's demand where it is measured.  With `is_rehearsal`, trials
    whose recording is not read to its end are among them.
    """

    decisions: list[Decision]
    current: list[Decision]
    audits: dict[str, tuple[AuditRow, ...]]  # by endpoint
    steps: list[RolloutStep]
    loads: list[EndpointLoads]
    answers: dict[str, Answer]  # of `check`, by endpoint; without those where it refuses
    is_rehearsal: bool = False


def decide(config: Config, endpoint: str | None, *, input_ended: bool | None) -> GateResults:
    """Decide the configured endpoints (or one of them), audit the engine, and move the rollouts.

    A trial whose recording is not read to its end is rehearsed, unless `input_ended` says what comes.
    """
    chosen = _policies(config, endpoint)
    with _measured_store(config) as store:
        trials = unfinished_trials(store, chosen) if input_ended is None else []
        policies = GatePolicies(
            {name: policy for name, policy in chosen.items() if name not in trials},
            {name: settings.rollout for name, settings in config.endpoints.items()},
        )
        runs, errors = run_endpoints(store, policies, input_ended=input_ended)
        if errors:
            raise next(iter(errors.values()))
        parts = [_gather(config, store, runs), *(_rehearse(config, store, name, True) for name in trials)]
        return _join(parts, store, chosen, is_rehearsal=bool(trials))


def rehearse(config: Config, endpoint: str | None, *, input_ended: bool | None) -> GateResults:
    """The results that `decide` would have, by the same steps; all of it is undone."""
    chosen = _policies(config, endpoint)
    with _measured_store(config) as store:
        trials = unfinished_trials(store, chosen) if input_ended is None else []
        parts = [_rehearse(config, store, name, name in trials or input_ended) for name in chosen]
        return _join(parts, store, chosen, is_rehearsal=bool(trials))


def _rehearse(config: Config, store: Store, name: str, input_ended: bool | None) -> GateResults:
    """One endpoint's results; no rollout moves."""
    settings = config.endpoints[name]
    with rehearsed_run(store, name, settings, input_ended=input_ended) as (undone, run):
        return replace(_gather(config, undone, {name: run}), steps=[])


def _join(parts: Sequence[GateResults], store: Store, endpoints: Collection[str], *, is_rehearsal: bool) -> GateResults:
    """
    Raises:
        NoDataError: there is no decision; the message says why.
    """
    run = GateResults(
        [decision for part in parts for decision in part.decisions],
        [decision for part in parts for decision in part.current],
        {name: rows for part in parts for name, rows in part.audits.items()},
        [step for part in parts for step in part.steps],
        [loads for part in parts for loads in part.loads],
        {name: answer for part in parts for name, answer in part.answers.items()},
        is_rehearsal,
    )
    if not run.decisions:
        raise no_decision(store, endpoints)
    return run


def _gather(config: Config, store: Store, runs: Mapping[str, EndpointRun]) -> GateResults:
    """The results of these endpoints' runs, with the audits and overrides after them."""
    now = datetime.now(UTC)
    decisions = [decision for run in runs.values() for decision in run.decisions]
    current = current_decisions(decisions, store.overrides(), now)
    inputs = {name: read_check_input(store, name, config.endpoints[name].terms, now) for name in runs}
    loads = [
        endpoint_loads([decision for decision in current if decision.endpoint == name], inputs[name].demand)
        for name in runs
    ]
    answers = {name: asked(Question(name), inputs[name], now) for name in runs}
    steps = [step for run in runs.values() for step in run.steps]
    known = [one for one in loads if one is not None]
    known_answers = {name: answer for name, answer in answers.items() if answer is not None}
    return GateResults(decisions, current, audit_rows(store, runs), steps, known, known_answers)


def _policies(config: Config, endpoint: str | None) -> dict[str, GatePolicy]:
    return {name: settings.policy for name, settings in config.chosen(endpoint).items()}


@contextmanager
def _measured_store(config: Config) -> Iterator[Store]:
    with Store.open(config.database_url) as store:
        require_measured(store)
        yield store


def explain_decision(config: Config, decision_id: int) -> Explanation:
    """A past decision, recomputed from the stored rows.

    Raises:
        InputError: there is no such decision.
        NoDataError: nothing has been measured, or rows are gone.
    """
    with Store.open(config.database_url) as store:
        try:
            return explain(store, decision_id)
        except InputError:
            require_measured(store)  # an empty database has no decision
            raise
