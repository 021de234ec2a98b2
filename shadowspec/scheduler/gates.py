"""The gate as a scheduled job runs it: each endpoint by itself, so that one that fails holds up no other."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.period.period_model import GATE_DONE
from shadowspec.rollout.endpoint_run import GatePolicies, run_gates
from shadowspec.store import Store

_log = logging.getLogger(__name__)


def run_measured_gates(store: Store, policies: GatePolicies) -> str:
    """Run the gate of every configured endpoint that was measured: "done", or what failed by class.

    Raises:
        ServiceUnavailableError: the database is gone; whoever leads next runs it again.
    """
    measured = set(store.endpoints())
    measured_policies = {endpoint: policy for endpoint, policy in policies.gate.items() if endpoint in measured}
    _, errors = run_gates(store, replace(policies, gate=measured_policies))
    for endpoint, error in errors.items():
        _log.warning("gate of endpoint %s failed: %s", endpoint, error)
    return "; ".join(f"{endpoint}: {type(error).__name__}" for endpoint, error in errors.items()) or GATE_DONE


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
