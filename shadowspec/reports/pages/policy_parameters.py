"""The policy in force at an endpoint: every parameter, what was changed of it, and what was fixed at entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from shadowspec.gate.policy import FROZEN_UNITS, FROZEN_VALUES, GatePolicy
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.types import Decision


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter in force.

    `fixed` are other values that hypotheses of the endpoint entered with and keep until their next entry.
    """

    name: str
    value: str
    default: str
    is_changed: bool
    is_fixed_at_entry: bool
    fixed: tuple[str, ...] = ()


def gate_parameters(policy: GatePolicy, decisions: Iterable[Decision]) -> list[Parameter]:
    """The gate's parameters in the order in which they are defined; `decisions` are the endpoint's latest."""
    default = GatePolicy()
    frozen = [decision.frozen_parameters for decision in decisions if decision.frozen_parameters is not None]
    parameters = []
    for field in fields(GatePolicy):
        value = getattr(policy, field.name)
        is_fixed = field.name in (*FROZEN_VALUES, *FROZEN_UNITS)
        others = {
            format_value(entry[field.name]) for entry in frozen if field.name in entry and entry[field.name] is not None
        }
        parameters.append(
            Parameter(
                name=field.name,
                value=format_value(value),
                default=format_value(getattr(default, field.name)),
                is_changed=value != getattr(default, field.name),
                is_fixed_at_entry=is_fixed,
                fixed=tuple(sorted(others - {format_value(value)})) if is_fixed else (),
            )
        )
    return parameters


def rollout_parameters(policy: RolloutPolicy) -> list[Parameter]:
    """The rollout's parameters."""
    default = RolloutPolicy()
    return [
        Parameter(
            name=field.name,
            value=format_value(getattr(policy, field.name)),
            default=format_value(getattr(default, field.name)),
            is_changed=getattr(policy, field.name) != getattr(default, field.name),
            is_fixed_at_entry=False,
        )
        for field in fields(RolloutPolicy)
        if field.name != "has_control"  # set by the endpoint's table
    ]


def format_value(value: object) -> str:
    """A value as the policy file writes it."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
