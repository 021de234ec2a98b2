"""The policy and gate of the folding tests."""

from __future__ import annotations

from datetime import timedelta

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.store import Store
from shadowspec.types import Decision
from tests.gate.worlds import ENDPOINT, START

POLICY = GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0)


def gate(store: Store, policy: GatePolicy = POLICY, *, hours: int = 0, ended: bool | None = None) -> list[Decision]:
    return run_endpoint_gate(store, ENDPOINT, policy, input_ended=ended, now=START + timedelta(hours=hours)).decisions
