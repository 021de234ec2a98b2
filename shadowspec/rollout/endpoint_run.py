"""An endpoint's gate run and the rollouts that follow it, under one lock; every change is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.audit_run import CellAudit
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.verdict.current_decision import EndpointDecisions, read_endpoint_decisions
from shadowspec.rollout.control import Control, compare_pools
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.rollout.stages import WHOLE_ENDPOINT, RolloutStep, StageLook, next_step
from shadowspec.store import Store
from shadowspec.text import slice_title
from shadowspec.types import Decision, ReasonCode, Rollout, Stage, Verdict


@dataclass(frozen=True, slots=True)
class GatePolicies:
    """The gate's and the rollout's policies, by endpoint."""

    gate: Mapping[str, GatePolicy]
    rollout: Mapping[str, RolloutPolicy]


@dataclass(frozen=True, slots=True)
class EndpointRun:
    """The decisions that one endpoint's gate run appended, and the states of its audits and rollouts after it."""

    audits: Sequence[CellAudit]
    decisions: list[Decision]
    steps: list[RolloutStep]


def run_endpoint(
    store: Store,
    endpoint: str,
    gate_policy: GatePolicy,
    policy: RolloutPolicy,
    *,
    input_ended: bool | None = None,
    now: datetime | None = None,
) -> EndpointRun:
    """Run the endpoint's gate, and move its rollouts after the decisions; the lock is taken once for both.

    Raises:
        InputError: as `run_endpoint_gate`.
    """
    with store.locked(endpoint) as held:
        gate = run_endpoint_gate(held, endpoint, gate_policy, input_ended=input_ended, now=now)
        steps = (
            []  # a trial rolls nothing out
            if gate_policy.recording_only
            else advance_rollouts(held, endpoint, gate_policy, policy, now or datetime.now(UTC), gate.latest)
        )
    return EndpointRun(gate.audits, gate.decisions, steps)


def run_endpoints(
    store: Store, policies: GatePolicies, *, input_ended: bool | None = None
) -> tuple[dict[str, EndpointRun], dict[str, ShadowSpecError]]:
    """The gate runs of these endpoints, and the errors of those that failed: one that fails holds up no other.

    Raises:
        ServiceUnavailableError: the database cannot be reached.
    """
    runs: dict[str, EndpointRun] = {}
    errors: dict[str, ShadowSpecError] = {}
    for endpoint, policy in policies.gate.items():
        try:
            runs[endpoint] = run_endpoint(store, endpoint, policy, policies.rollout[endpoint], input_ended=input_ended)
        except ServiceUnavailableError:
            raise
        except ShadowSpecError as error:
            errors[endpoint] = error
    return runs, errors


def advance_rollouts(
    store: Store,
    endpoint: str,
    gate_policy: GatePolicy | None,
    policy: RolloutPolicy,
    now: datetime,
    latest: Collection[Decision] | None = None,
) -> list[RolloutStep]:
    """Each load's rollout after the endpoint's latest decisions; changes are appended, under its lock.

    `latest` are these decisions where the caller knows them.
    """
    with store.endpoint_lock(endpoint):
        latest_rollouts = {rollout.concurrency: rollout for rollout in store.rollouts(endpoint)}
        decisions = read_endpoint_decisions(store, endpoint, gate_policy, now, latest)
        controls = read_controls(store, endpoint, decisions, list(latest_rollouts.values()), policy)
        steps = next_steps(endpoint, decisions, list(latest_rollouts.values()), policy, now, controls)
        changed = [step.rollout for step in steps if step.is_change(latest_rollouts.get(step.rollout.concurrency))]
        if changed:
            store.append_rollouts(changed)
    return steps


def next_steps(
    endpoint: str,
    decisions: EndpointDecisions,
    latest_rollouts: Sequence[Rollout],
    policy: RolloutPolicy,
    now: datetime,
    controls: Mapping[int, Control],
) -> list[RolloutStep]:
    """One step per load that was decided, by load; an ENABLE of a replaced fingerprint does not count."""
    current = {rollout.concurrency: rollout for rollout in latest_rollouts}
    steps = []
    for concurrency in sorted({newest.decision.concurrency for newest in decisions.latest}):
        here = [newest for newest in decisions.latest if newest.decision.concurrency == concurrency]
        here = [newest for newest in here if newest.is_current or newest.decision.verdict is not Verdict.ENABLE]
        before = current.get(concurrency)
        fingerprint = before.fingerprint if before is not None else None
        served = [newest.decision for newest in here if newest.decision.fingerprint == fingerprint]
        look = StageLook(
            endpoint,
            concurrency,
            here,
            now,
            _alarms(served),
            _shares(served),
            decisions.overrides,
            controls.get(concurrency),
            [
                newest.decision
                for newest in decisions.latest
                if newest.is_current and not newest.decision.slice_key and newest.decision.concurrency != concurrency
            ],
        )
        steps.append(next_step(before, look, policy))
    return steps


def _alarms(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Names of the firing detectors of the config that is rolled out: alarms of slices, and advice."""
    alarms = []
    for decision in decisions:
        where = slice_title(decision.slice_key)
        if decision.reason_code == ReasonCode.DRIFT:
            alarms.append(f"drift in {where}")
        elif decision.drift is not None and decision.drift.advice:
            alarms.append(f"{decision.drift.advice} declining in {where}")
    return tuple(sorted(alarms))


def read_controls(
    store: Store, endpoint: str, decisions: EndpointDecisions, latest_rollouts: Sequence[Rollout], policy: RolloutPolicy
) -> dict[int, Control]:
    """Production's pools compared since each stage that serves speculation began, by load; empty without a plain pool.

    Every load reads the same pools: an engine's counters know no loads.
    """
    served = [rollout for rollout in latest_rollouts if rollout.stage is not Stage.SHADOW]
    if not policy.has_control or not served:
        return {}
    windows = store.live_windows(endpoint, since=min(rollout.since for rollout in served))
    return {
        rollout.concurrency: compare_pools(
            (window for window in windows if window.began_at >= rollout.since),
            _promised_speedup(decisions, rollout),
            policy,
        )
        for rollout in served
    }


def read_endpoint_controls(
    store: Store, endpoint: str, gate_policy: GatePolicy | None, policy: RolloutPolicy
) -> dict[int, Control]:
    """The same with the endpoint's decisions of now."""
    if not policy.has_control:
        return {}
    decisions = read_endpoint_decisions(store, endpoint, gate_policy, datetime.now(UTC))
    return read_controls(store, endpoint, decisions, store.rollouts(endpoint), policy)


def _promised_speedup(decisions: EndpointDecisions, rollout: Rollout) -> float | None:
    """The lower bound of the whole endpoint's speedup in the shadow, with the config that is rolled out."""
    served = WHOLE_ENDPOINT, rollout.concurrency, rollout.fingerprint
    for newest in decisions.latest:
        decision = newest.decision
        if (decision.slice_key, decision.concurrency, decision.fingerprint) == served:
            speedup = decision.find_test("speedup")
            return None if speedup is None else speedup.lower
    return None


def _shares(decisions: Sequence[Decision]) -> dict[str, float]:
    """Shares of the current traffic by slice, as the gate wrote them down."""
    shares = {decision.slice_key: decision.traffic_share for decision in decisions}
    return {name: share for name, share in shares.items() if share is not None}


def unfinished_trials(store: Store, policies: Mapping[str, GatePolicy]) -> list[str]:
    """Trials whose recording is not read to its end: every command rehearses their decisions, and none stores them."""
    return [name for name, policy in policies.items() if policy.recording_only and not store.watermark(name).is_ended]
