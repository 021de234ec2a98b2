"""An endpoint's gate run: audits, fold, decisions, rollouts, in this order, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.gate.audit.audit_run import CellAudit, run_audits
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_gate
from shadowspec.rollout.advance import advance_rollouts
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.rollout.stages import RolloutStep
from shadowspec.store import Store
from shadowspec.types import Decision


@dataclass(frozen=True, slots=True)
class GatePolicies:
    """What proves and rolls out, by endpoint."""

    gate: Mapping[str, GatePolicy]
    rollout: Mapping[str, RolloutPolicy]


@dataclass(frozen=True, slots=True)
class EndpointGateRun:
    """What one endpoint's gate run appended, and where its audits and rollouts are after it."""

    audits: list[CellAudit]
    decisions: list[Decision]
    steps: list[RolloutStep]


def run_endpoint_gate(
    store: Store,
    endpoint: str,
    gate_policy: GatePolicy,
    policy: RolloutPolicy,
    *,
    input_ended: bool | None = None,
    now: datetime | None = None,
) -> EndpointGateRun:
    """Audit the endpoint's new runs, fold its new rows, decide its hypotheses, and move its rollouts.

    `input_ended` says whether more records of the same sessions may come (None: as the ledger has it); `now` is the
    moment of all steps (None: each reads the clock).

    Raises:
        InputError: rows contradict each other, or rows that must be folded again are gone.
    """
    audits = run_audits(store, endpoint, now or datetime.now(UTC))  # first: an alarm holds whatever else goes wrong
    decisions = run_gate(store, {endpoint: gate_policy}, input_ended=input_ended, now=now)
    steps = (
        []  # a trial rolls nothing out
        if gate_policy.recording_only
        else advance_rollouts(store, endpoint, gate_policy, policy, now or datetime.now(UTC))
    )
    return EndpointGateRun(audits, decisions, steps)


def run_gates(
    store: Store, policies: GatePolicies, *, input_ended: bool | None = None
) -> tuple[dict[str, EndpointGateRun], dict[str, ShadowSpecError]]:
    """The gate runs of these endpoints, and the errors of those that failed: one that fails holds up no other.

    Raises:
        ServiceUnavailableError: the database cannot be reached.
    """
    runs: dict[str, EndpointGateRun] = {}
    errors: dict[str, ShadowSpecError] = {}
    for endpoint, policy in policies.gate.items():
        try:
            runs[endpoint] = run_endpoint_gate(
                store, endpoint, policy, policies.rollout[endpoint], input_ended=input_ended
            )
        except ServiceUnavailableError:
            raise
        except ShadowSpecError as error:
            errors[endpoint] = error
    return runs, errors
