"""The gate as a scheduled job runs it: each endpoint by itself, so that one that fails holds up no other."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.rollout_policy import RolloutPolicy
from shadowspec.gating import run_gate
from shadowspec.gating.audits import run_audits
from shadowspec.gating.rollouts import advance_rollouts
from shadowspec.reports.period.model import GATE_DONE
from shadowspec.store import Store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatePolicies:
    """What proves and rolls out, by endpoint."""

    gate: Mapping[str, GatePolicy]
    rollout: Mapping[str, RolloutPolicy]


def run_gates(store: Store, policies: GatePolicies) -> str:
    """Decide every configured endpoint that was measured, and move its rollouts: "done", or what failed by class.

    Raises:
        ServiceUnavailableError: the database is gone; whoever leads next runs it again.
    """
    measured = set(store.endpoints())
    failed = []
    for endpoint, policy in policies.gate.items():
        if endpoint not in measured:
            continue
        try:
            run_audits(store, endpoint, datetime.now(UTC))  # first: an alarm holds whatever else goes wrong
            run_gate(store, {endpoint: policy})
            now = datetime.now(UTC)
            advance_rollouts(store, endpoint, policies.rollout[endpoint], now)
        except ServiceUnavailableError:
            raise
        except ShadowSpecError as error:
            _log.warning("gate of endpoint %s failed: %s", endpoint, error)
            failed.append(f"{endpoint}: {type(error).__name__}")
    return "; ".join(failed) or GATE_DONE


def settle(store: Store, endpoints: Mapping[str, GatePolicy], timeout_s: float) -> None:
    """Wait until the gate runs that are on have ended: what they decide belongs to the time before now."""
    for endpoint in endpoints:
        try:
            with store.endpoint_lock(endpoint, timeout_s):
                _log.debug("endpoint %s: no gate run is on", endpoint)
        except ServiceUnavailableError:
            raise
        except ShadowSpecError as error:
            _log.warning("the report does not wait for a gate run: %s", error)
