"""What a gate run would decide now, with nothing kept of it: to try a policy before it is in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Protocol

from shadowspec.gate.policy import GatePolicy
from shadowspec.gating.runs import BeginsAnewError, EndpointGate, GateSession
from shadowspec.types import Decision


class RehearsalStore(Protocol):
    """What a rehearsal needs of a store."""

    def evidence_rehearsal(self, endpoint: str) -> AbstractContextManager[Callable[[], GateSession]]:
        """Makes sessions of one transaction, each of which sees what those before it did; all of it is undone."""

    def endpoint_lock(self, endpoint: str) -> AbstractContextManager[object]:
        """Held by one gate at a time."""


def rehearse_gate(
    store: RehearsalStore,
    policy_by_endpoint: Mapping[str, GatePolicy],
    *,
    input_ended: bool | None = None,
    now: datetime | None = None,
) -> list[Decision]:
    """The decisions that `run_gate` would append: everything is folded and decided, and then undone.

    Raises:
        InputError: as of `run_gate`.
    """
    decisions: list[Decision] = []
    for endpoint, policy in policy_by_endpoint.items():
        gate = EndpointGate(endpoint, policy, None, None, input_ended, now or datetime.now(UTC))
        with store.endpoint_lock(endpoint):
            while not gate.has_decided:
                try:
                    with store.evidence_rehearsal(endpoint) as new_session:
                        while not gate.has_decided:
                            gate.step(new_session())
                except BeginsAnewError as error:
                    gate.begins = error.begins
        decisions += gate.decisions
    return decisions
